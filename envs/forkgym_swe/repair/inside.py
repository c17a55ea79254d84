"""Runs in a sandbox, by ``python -c``: pytest on variants of a tree, each in a forked process. Standard library only.

Reads one JSON request from standard input and writes one JSON answer to standard output; see ``running`` for both. It
stands on its own: nothing of this package is imported in there.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import os
import resource
import select
import signal
import sys
import threading
import time
from typing import Any

_UNITTEST = "unittest/case.py"


class Recorder:
    """A pytest plugin: outcomes, the first failure's shape, and lines by outcome."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.tree: str = request["tree"]
        self.sources = {os.path.join(self.tree, path): path for path in request["trace"]}
        self.exact = frozenset(request["tests"])
        self.starts = tuple(f"{test}{mark}" for test in request["tests"] for mark in ("::", "["))
        self.outcomes: dict[str, str] = {}
        self.failure: dict[str, Any] | None = None
        self.comparison: list[Any] | None = None
        self.lines: set[tuple[str, int]] = set()
        self.failing: dict[tuple[str, int], int] = {}
        self.passing: dict[tuple[str, int], int] = {}
        self.known: dict[Any, str | None] = {}

    # -- outcomes

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keep what was asked for."""
        items[:] = [item for item in items if self._wanted(item.nodeid)]

    def _wanted(self, name: str) -> bool:
        return name in self.exact or name.startswith(self.starts)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note an outcome."""
        before = self.outcomes.get(report.nodeid)
        outcome = report.outcome
        if report.when != "call":
            if outcome == "passed":
                return
            outcome = "error" if outcome == "failed" else outcome
        if before not in ("failed", "error"):
            self.outcomes[report.nodeid] = outcome

    def pytest_collectreport(self, report: Any) -> None:
        """Note a file that cannot be imported."""
        if report.failed:
            self.outcomes[report.nodeid] = "error"

    # -- the first failure

    def pytest_assertrepr_compare(self, op: str, left: object, right: object) -> None:
        """Note the shape of a comparison that does not hold."""
        self.comparison = [op, *_shape(left, right)]

    def pytest_exception_interact(self, node: Any, call: Any) -> None:
        """Note the shape of the first failure."""
        if self.failure is not None or call.excinfo is None:
            return
        frames = []
        comparison = self.comparison
        traceback = call.excinfo._excinfo[2]
        in_code = False
        while traceback is not None:
            frame = traceback.tb_frame
            filename = frame.f_code.co_filename
            in_code = filename in self.sources
            if in_code:
                frames.append([self.sources[filename], traceback.tb_lineno])
            elif filename.endswith(_UNITTEST) and "first" in frame.f_locals and "second" in frame.f_locals:
                comparison = ["==", *_shape(frame.f_locals["first"], frame.f_locals["second"])]
            traceback = traceback.tb_next
        kind = type(call.excinfo._excinfo[1])
        names = [base.__name__ for base in kind.__mro__]
        if names[0] == "Failed":
            names = ["NotRaised"]
        self.failure = {
            "test": node.nodeid,
            "exception": names,
            "in_code": in_code,
            "comparison": comparison if names[0] == "AssertionError" else None,
            "frames": frames,
        }

    # -- lines

    def pytest_runtest_logstart(self) -> None:
        """Begin to trace a test."""
        self.comparison = None
        if self.sources:
            self.lines = set()
            threading.settrace(self._trace)
            sys.settrace(self._trace)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Count the lines of a test."""
        if not self.sources:
            return
        sys.settrace(None)
        threading.settrace(None)
        counts = self.passing if self.outcomes.get(nodeid) == "passed" else self.failing
        for line in self.lines:
            counts[line] = counts.get(line, 0) + 1

    def _trace(self, frame: Any, _event: str, _: Any) -> Any:
        code = frame.f_code
        path = self.known.get(code, "")
        if path == "":
            path = self.known[code] = self.sources.get(code.co_filename)
        if path is None:
            return None
        add = self.lines.add
        add((path, code.co_firstlineno))

        def local(frame: Any, event: str, _: Any) -> Any:
            if event == "line":
                add((path, frame.f_lineno))
            return local

        return local

    def answer(self) -> dict[str, Any]:
        """All that was noted; lines that no failing test ran are left out."""
        covered = [
            [path, line, count, self.passing.get((path, line), 0)] for (path, line), count in self.failing.items()
        ]
        return {"outcomes": self.outcomes, "failure": self.failure, "lines": sorted(covered)}


def _shape(left: object, right: object) -> list[Any]:
    """Types of what was got and expected, and how they differ: plain data that tells no value."""
    relation, by = "different", 0
    try:
        if isinstance(left, bool) or isinstance(right, bool):
            pass
        elif isinstance(left, int | float) and isinstance(right, int | float):
            relation = "less" if left < right else "greater" if left > right else "same"
            by = 1 if abs(left - right) == 1 else 2
        elif type(left) is type(right) and hasattr(left, "__len__") and hasattr(right, "__len__"):
            difference = len(left) - len(right)
            relation = "shorter" if difference < 0 else "longer" if difference else "same"
            by = min(abs(difference), 2)
    except Exception:  # objects of a test may do anything when they are compared
        relation, by = "different", 0
    return [_type_names(left), _type_names(right), relation, by]


def _type_names(value: object) -> list[str]:
    names = [base.__name__ for base in type(value).__mro__]
    if isinstance(value, BaseException):
        names.append("exception")
    if hasattr(value, "__next__"):
        names.append("iterator")
    return names


def run_pytest(request: dict[str, Any]) -> dict[str, Any]:
    """One run of pytest in this process."""
    import pytest

    # Only now, as in every other test run of this package: what pytest itself uses must not come from the tree.
    sys.path[:0] = [*request["python_path"], request["tree"]]
    sys.path.extend(request["site"])
    os.environ["PYTHONPATH"] = os.pathsep.join([*request["python_path"], *request["site"]])
    os.chdir(request["tree"])
    recorder = Recorder(request)
    # Functions rather than files: in a file with a thousand cases, making those takes longer than the tests.
    functions = sorted({test.partition("[")[0] for test in request["tests"]})
    code = pytest.main([*request["arguments"], *functions], plugins=[recorder])
    return {**recorder.answer(), "exit_code": int(code)}


def in_child(request: dict[str, Any]) -> dict[str, Any]:
    """Run pytest in a forked process, so that nothing it imports or changes stays."""
    reader, writer = os.pipe()
    started = time.perf_counter()
    child = os.fork()
    if child == 0:
        _be_child(reader, writer, request)
    os.close(writer)
    data, timed_out = b"", False
    deadline = time.monotonic() + request["wall_seconds"]
    while True:
        ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            timed_out = True
            break
        part = os.read(reader, 1 << 16)
        if not part:
            break
        data += part
    os.close(reader)
    with contextlib.suppress(ProcessLookupError):  # it ended, and left nothing behind
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    seconds = time.perf_counter() - started
    if timed_out or not data:
        return {"outcomes": {}, "failure": None, "lines": [], "exit_code": -1, "timed_out": True, "seconds": seconds}
    return {**json.loads(data), "timed_out": False, "seconds": seconds}


def _be_child(reader: int, writer: int, request: dict[str, Any]) -> None:
    code = 1
    try:
        os.setsid()
        os.close(reader)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        limit = int(request["cpu_seconds"])
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
        answer = json.dumps(run_pytest(request)).encode()
        at = 0
        while at < len(answer):
            at += os.write(writer, answer[at:])
        code = 0
    finally:
        # Not exit(): threads and handlers of the tests are none of the parent's.
        os._exit(code)


def main() -> None:
    """Answer the request."""
    request = json.loads(sys.stdin.buffer.read())
    # All of pytest is loaded once, before the forks.
    from _pytest.config import default_plugins

    for name in default_plugins:
        importlib.import_module(f"_pytest.{name}")
    # Byte code is kept for the length of this command: much of a run's time would go into compiling the tests again.
    sys.pycache_prefix = f"/tmp/.byte-code-{os.getpid()}"  # noqa: S108
    sys.dont_write_bytecode = False
    answer = {"results": [_variant(request, variant, place) for place, variant in enumerate(request["variants"])]}
    sys.stdout.write(json.dumps(answer))


def _variant(request: dict[str, Any], variant: dict[str, str], place: int) -> dict[str, Any]:
    path = os.path.join(request["tree"], variant["path"]) if variant else ""
    if not path:
        return in_child(request)
    with open(path, "rb") as file:
        before = file.read()
    status = os.stat(path)
    _write(path, base64.b64decode(variant["content"]), 1_000_000_000 + 10 * place)
    try:
        return in_child(request)
    finally:
        _write(path, before, int(status.st_mtime))


def _write(path: str, content: bytes, when: int) -> None:
    """Writes a file with a time of its own: byte code is known by time and size, and variants are often of one size."""
    with open(path, "wb") as file:
        file.write(content)
    os.utime(path, (when, when))


if __name__ == "__main__":
    main()
