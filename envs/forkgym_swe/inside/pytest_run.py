"""Runs pytest inside a sandbox and reports what happened, whatever the tests do. Imports nothing of this project.

Two processes: a keeper that never imports the tree's code, and its child that runs pytest and tells the keeper each
outcome over a pipe, by a token. The keeper alone knows where the report goes; it writes it when the child has ended.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import hashlib
import json
import os
import random
import select
import signal
import sys
import threading
import time
import types
from collections.abc import Iterator
from typing import Any

PR_SET_DUMPABLE = 4
KEPT_OUTPUT = 1 << 16
NOTHING_FOUND = 4
WATCHED = ("_pytest", "pluggy", "pytest", "json", "unittest")
RANK = {"passed": 0, "skipped": 1, "failed": 2, "error": 3}


def read_exactly(size: int) -> bytes:
    """So many bytes of standard input, none more: what follows is not for the child."""
    data = b""
    while len(data) < size:
        block = os.read(0, size - len(data))
        if not block:
            raise SystemExit("the request is cut short")
        data += block
    return data


def main() -> None:
    """The keeper."""
    request = read_exactly(int(read_exactly(12)))
    # Others of the same user may then not look into this process, nor write to its streams.
    control = ctypes.CDLL(None).prctl
    control(PR_SET_DUMPABLE, 0, 0, 0, 0)
    events, events_end = os.pipe()
    output, output_end = os.pipe()
    child = os.fork()
    if child == 0:
        control(PR_SET_DUMPABLE, 1, 0, 0, 0)
        os.close(events)
        os.close(output)
        os._exit(run_child(json.loads(request), events_end, output_end))
    os.close(events_end)
    os.close(output_end)
    secret = json.loads(read_exactly(int(read_exactly(12))))
    said, printed, timed_out, code = watch(child, events, output, secret["timeout"])
    report = summarise(said, secret["token"])
    report.update(exit_code=code, timed_out=timed_out, output=printed.decode(errors="replace"))
    data = json.dumps(report).encode()
    with open(secret["report"], "xb") as file:
        file.write(data)
    print(json.dumps({"digest": hashlib.blake2b(data).hexdigest()}))


def watch(child: int, events: int, output: int, timeout: float) -> tuple[bytes, bytes, bool, int]:
    """Collects what the child says and prints until it ends or its time is up."""
    said: list[bytes] = []
    printed = bytearray()
    deadline = time.monotonic() + timeout
    ended = os.pidfd_open(child)
    poll = select.poll()
    for descriptor in (events, output, ended):
        poll.register(descriptor, select.POLLIN)
    for descriptor in (events, output):
        os.set_blocking(descriptor, False)
    timed_out, running = False, True
    while running:
        left = deadline - time.monotonic()
        ready = [descriptor for descriptor, _ in poll.poll(max(0.0, left) * 1000)]
        if not ready:
            timed_out = True
            break
        for descriptor in ready:
            if descriptor == ended:
                running = False
            elif not drain(descriptor, said if descriptor == events else printed):
                poll.unregister(descriptor)
    with contextlib.suppress(ProcessLookupError):  # its group may be gone
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    drain(events, said)
    drain(output, printed)
    return b"".join(said), bytes(printed), timed_out, os.waitstatus_to_exitcode(status)


def drain(descriptor: int, kept: list[bytes] | bytearray) -> bool:
    """Reads what is there now; False at the end of the stream. Of printed text the first and the last part is kept."""
    while True:
        try:
            block = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return True
        if not block:
            return False
        if isinstance(kept, list):
            kept.append(block)
            continue
        kept += block
        if len(kept) > 4 * KEPT_OUTPUT:
            del kept[KEPT_OUTPUT : len(kept) - KEPT_OUTPUT]


def summarise(said: bytes, token: str) -> dict[str, Any]:
    """The report that the child's events come to; lines without the token are nobody's."""
    report: dict[str, Any] = {
        "outcomes": {},
        "failures": {},
        "collection_errors": {},
        "collected": [],
        "coverage": {},
        "claimed": None,
        "changed": [],
        "unfinished": None,
    }
    mark = token.encode() + b" "
    for line in said.split(b"\n"):
        if not line.startswith(mark):
            continue
        kind, *rest = json.loads(line[len(mark) :])
        if kind == "start":
            report["unfinished"] = rest[0]
        elif kind == "outcome":
            name, outcome, failure = rest
            if RANK[outcome] >= RANK[report["outcomes"].get(name, "passed")]:
                report["outcomes"][name] = outcome
            if failure is not None:
                report["failures"].setdefault(name, failure)
        elif kind == "end":
            report["unfinished"] = None
            if rest[1]:
                report["coverage"][rest[0]] = rest[1]
        elif kind == "collection_error":
            report["collection_errors"][rest[0]] = rest[1]
        elif kind == "collected":
            report["collected"] = rest[0]
        elif kind == "finish":
            report["claimed"], report["changed"] = rest
    if report["unfinished"] is not None:
        report["outcomes"][report["unfinished"]] = "error"
    return report


# ---------------------------------------------------------------------- the child


def run_child(request: dict[str, Any], events: int, output: int) -> int:
    """Runs pytest; returns the exit code."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(output)
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        os.environ.pop(name, None)
    os.environ["PYTHONPATH"] = ":".join(request["python_path"] + request["site"])
    import unittest  # noqa: F401 - so that it is watched too

    import pytest

    # Before the tree: what pytest itself uses must not come from there.
    tree = request["tree"]
    sys.path[:0] = [*request["python_path"], tree]
    sys.path.extend(request["site"])
    os.chdir(tree)
    # Were one of them missing, pytest would run nothing at all.
    places = [place for place in request["places"] if os.path.exists(place)]
    if request["places"] and not places:
        print("there is no such file", flush=True)
        return NOTHING_FOUND
    plugin = make_plugin(pytest, request, events)
    arguments = [
        *("-q", "--tb=short", "--color=no", "--continue-on-collection-errors", "--capture=fd"),
        *("-p", "no:cacheprovider", "-o", "addopts=", "-o", "required_plugins=", f"--rootdir={tree}"),
        *(part for name in request["plugins"] for part in ("-p", name)),
        *(("-k", request["keyword"]) if request["keyword"] else ()),
        *places,
    ]
    sys.argv = ["pytest", *arguments]
    before = fingerprint()
    code = int(pytest.main(arguments, plugins=[plugin]))
    after = fingerprint()
    plugin.tell("finish", code, sorted(name for name, value in before.items() if after.get(name) != value))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return code


def fingerprint() -> dict[str, Any]:
    """Identity of every function of pytest's, and of what it reports and asserts through."""
    found: dict[str, Any] = {f"builtins.{name}": id(value) for name, value in vars(builtins).items() if name != "_"}
    for module_name, module in sorted(sys.modules.items()):
        if module_name.split(".")[0] in WATCHED:
            for name, value in list(vars(module).items()):
                _note(found, module_name, f"{module_name}.{name}", value)
    return found


def _note(found: dict[str, Any], module_name: str, name: str, value: Any) -> None:
    if isinstance(value, types.FunctionType):
        found[name] = (id(value), id(value.__code__))
    elif isinstance(value, type) and value.__module__ == module_name:
        for inner, member in list(vars(value).items()):
            plain = getattr(member, "__func__", member)
            if isinstance(plain, types.FunctionType):
                found[f"{name}.{inner}"] = (id(plain), id(plain.__code__))


def make_plugin(pytest: Any, request: dict[str, Any], events: int) -> Any:
    """The plugin that selects, shuffles, traces and tells."""
    token, owner, dumps, write, prefix = request["token"], os.getpid(), json.dumps, os.write, request["tree"] + "/"
    wanted, seed, tracing = request["selectors"], request["order_seed"], request["trace"]
    request["token"] = None
    hits: set[tuple[str, int]] = set()

    def local_trace(frame: types.FrameType, event: str, _: Any) -> Any:
        if event == "line":
            hits.add((frame.f_code.co_filename, frame.f_lineno))
        return local_trace

    def global_trace(frame: types.FrameType, _: str, __: Any) -> Any:
        if not frame.f_code.co_filename.startswith(prefix):
            return None
        hits.add((frame.f_code.co_filename, frame.f_lineno))
        return local_trace

    class Reporter:
        """Tells the keeper what pytest does."""

        @staticmethod
        def tell(*event: Any) -> None:
            if os.getpid() != owner:
                return
            data = f"{token} {dumps(event)}\n".encode()
            while data:
                data = data[write(events, data) :]

        @pytest.hookimpl(trylast=True)  # type: ignore[untyped-decorator]
        def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
            if wanted:
                kept = [item for item in items if is_wanted(item.nodeid)]
                config.hook.pytest_deselected(items=[item for item in items if not is_wanted(item.nodeid)])
                items[:] = kept
            if seed is not None:
                random.Random(seed).shuffle(items)
            self.tell("collected", [item.nodeid for item in items])

        @pytest.hookimpl(wrapper=True)  # type: ignore[untyped-decorator]
        def pytest_runtest_protocol(self, item: Any) -> Iterator[Any]:
            self.tell("start", item.nodeid)
            hits.clear()
            if tracing:
                threading.settrace(global_trace)
                sys.settrace(global_trace)
            try:
                return (yield)
            finally:
                if tracing:
                    sys.settrace(None)
                    threading.settrace(None)
                lines: dict[str, list[int]] = {}
                for path, line in sorted(hits):
                    lines.setdefault(path[len(prefix) :], []).append(line)
                self.tell("end", item.nodeid, lines)

        def pytest_runtest_logreport(self, report: Any) -> None:
            partial = type(report).__name__ == "SubtestReport"
            if report.failed:
                outcome = "failed" if report.when == "call" or partial else "error"
                self.tell("outcome", report.nodeid, outcome, describe(report))
            elif partial:
                return
            elif report.skipped:
                self.tell("outcome", report.nodeid, "skipped", None)
            elif report.when == "call":
                self.tell("outcome", report.nodeid, "passed", None)

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                self.tell("collection_error", report.nodeid, report.longreprtext)

    def is_wanted(name: str) -> bool:
        return name in exact or any(name.startswith(start) for start in starts)

    exact = frozenset(wanted)
    starts = tuple(f"{selector}{mark}" for selector in wanted for mark in ("::", "[", "/"))
    return Reporter()


def describe(report: Any) -> dict[str, Any]:
    """What a failure says: its phase, message, text, and the places that its traceback goes through."""
    crash = getattr(report.longrepr, "reprcrash", None)
    traceback = getattr(report.longrepr, "reprtraceback", None)
    places = []
    for entry in getattr(traceback, "reprentries", []):
        place = getattr(entry, "reprfileloc", None)
        if place is not None:
            places.append([place.path, place.lineno])
    return {
        "phase": report.when,
        "message": crash.message if crash is not None else report.longreprtext.strip().split("\n")[-1],
        "text": report.longreprtext,
        "places": places,
    }


if __name__ == "__main__":
    main()
