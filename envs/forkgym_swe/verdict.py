"""`grade`: did the agent solve the task? Judged on a tree of the verdict's own, with the task's tests put back."""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import msgspec

from forkgym.sandbox import TREE, Sandbox
from forkgym_swe.checkout import Prepared
from forkgym_swe.court import fingerprint_tests, judge
from forkgym_swe.instance import Instance
from forkgym_swe.patching import patched_paths
from forkgym_swe.runner import TestReport, run_tests
from forkgym_swe.sentinels import FORGED, apart, plant
from forkgym_swe.subversion import searches_process as _searches_process
from forkgym_swe.subversion import subversions
from forkgym_swe.taxonomy import classify_failure

__all__ = ["Verdict", "clear_memo", "grade", "judge", "subversions"]

MISSING = "missing"
REWRITTEN = ": was changed while the tests ran"
_REMEMBERED = 4096
_LARGEST_PATCH = 4 << 20
_memo: OrderedDict[tuple[str, ...], TestReport] = OrderedDict()
_lock = threading.Lock()


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a task.

    Attributes:
        resolved: Every test of both lists passed, and the run can be trusted.
        fail_to_pass: Test id → outcome (``missing`` if it did not run) of the tests that should begin to pass.
        pass_to_pass: The same of the tests that should go on passing.
        subverted: What the agent did to the harness, one line each; undone for the verdict.
        report: The run.
        patch: What the agent changed, as a patch; "" above 4 MiB of changed files.
        failure: Why it failed, by `taxonomy.classify_failure`; "" if it was solved.
        remembered: The report came from the memo: an equal tree was judged before in this process.
    """

    resolved: bool
    fail_to_pass: dict[str, str]
    pass_to_pass: dict[str, str]
    subverted: tuple[str, ...]
    report: TestReport
    patch: str
    failure: str = ""
    remembered: bool = False


def grade(
    sandbox: Sandbox, instance: Instance, prepared: Prepared, *, timeout: float = 120.0, memo: bool = True
) -> Verdict:
    """Judge the state of an agent's sandbox, which is not changed.

    The judged tree is the task's own, with the tests of the repaired repository and the agent's changes of everything
    that is not protected; nothing else of the agent's sandbox gets there, no scratch file and no byte code. Since tests
    of such a tree are a function of the tree, a process runs equal trees once.

    Args:
        sandbox: Made by ``prepared.open()`` or forked from one that was.
        instance: The task.
        prepared: What `prepare` made of it.
        timeout: Wall-clock seconds of the tests.
        memo: Use and fill the memo of this process.

    Raises:
        InstanceError: The sandbox is not one of this task's.
    """
    with judge(sandbox, prepared) as court:
        ids = tuple(sorted({*instance.fail_to_pass, *instance.pass_to_pass}))
        key = (court.state_hash(), "\n".join(ids), prepared.site or "", *prepared.python_path)
        with _lock:
            report = _memo.get(key) if memo else None
        remembered = report is not None
        if report is None:
            report = _run(court, instance, prepared, ids, timeout)
            # How far a run came before its time was up is chance.
            if memo and not report.timed_out:
                _remember(key, report)
    subverted = [*subversions(sandbox, prepared)]
    subverted += [
        name if name.endswith((FORGED, REWRITTEN)) else f"{name}: a function of the runner was changed while tests ran"
        for name in report.changed
    ]
    verdicts = [_outcomes(report, tests) for tests in (instance.fail_to_pass, instance.pass_to_pass)]
    passed = all(outcome == "passed" for found in verdicts for outcome in found.values())
    searches = _searches_process(sandbox, prepared, instance)
    subverted += searches
    resolved = passed and report.trusted and bool(instance.fail_to_pass) and not searches
    patch = _patch(sandbox)
    return Verdict(
        resolved=resolved,
        fail_to_pass=verdicts[0],
        pass_to_pass=verdicts[1],
        subverted=tuple(subverted),
        report=report,
        patch=patch,
        failure="" if resolved else _failure(prepared, instance, patch, verdicts, subverted, report),
        remembered=remembered,
    )


def _run(court: Sandbox, instance: Instance, prepared: Prepared, ids: tuple[str, ...], timeout: float) -> TestReport:
    """The deciding tests, among tests that have to fail; where those do not, no pass is believed."""
    sentinels = plant(court, instance)
    options: dict[str, Any] = {"python_path": prepared.python_path, "site": prepared.site, "timeout": timeout}
    before = fingerprint_tests(court, prepared)
    report, failed = apart(run_tests(court, (*ids, *sentinels), **options), sentinels)
    # Code that runs while tests are collected could write the tests that are collected next.
    rewritten = sorted(dict(before.items() ^ fingerprint_tests(court, prepared).items()))
    if rewritten:
        changed = (*report.changed, *(f"{path}{REWRITTEN}" for path in rewritten))
        report = msgspec.structs.replace(report, trusted=False, changed=changed)
    if failed or not report.trusted or any(outcome != "passed" for outcome in _outcomes(report, ids).values()):
        return report
    # The project's own configuration may collect no such tests, or expect them to fail: then they say nothing.
    with prepared.open() as untouched, judge(untouched, prepared) as fair:
        sentinels = plant(fair, instance)
        _, failed = apart(run_tests(fair, sentinels, **options), sentinels)
    return msgspec.structs.replace(report, trusted=False, changed=(*report.changed, FORGED)) if failed else report


def _failure(
    prepared: Prepared,
    instance: Instance,
    patch: str,
    verdicts: list[dict[str, str]],
    subverted: list[str],
    report: TestReport,
) -> str:
    code = _code_only(patch, prepared)
    before = {}
    for path in (*patched_paths(instance.patch), *(patched_paths(code) if code else ())):
        file = prepared.image.path / "tree" / path
        if file.is_file() and not file.is_symlink():
            before[path] = file.read_bytes()
    return classify_failure(
        patch=code,
        gold=instance.patch,
        fail_to_pass=verdicts[0],
        pass_to_pass=verdicts[1],
        subverted=subverted,
        trusted=report.trusted,
        before=before,
    )


def _code_only(patch: str, prepared: Prepared) -> str:
    """The part of an agent's patch that the verdict kept; binary files say nothing about places and are left out."""
    parts = re.split(r"(?m)^(?=diff --git )", patch)
    kept = []
    for part in parts:
        if not part or "\nGIT binary patch\n" in part:
            continue
        if not all(prepared.protection.covers(path) for path in patched_paths(part)):
            kept.append(part)
    return "".join(kept)


def _patch(sandbox: Sandbox) -> str:
    """The agent's patch, unless it is so large that rendering it would keep the host busy for minutes."""
    paths = [c.path for c in sandbox.diff() if c.after is not None and c.after.kind == "f" and c.path[0] != "/"]
    if paths:
        with sandbox.fork() as copy:
            done = copy.run(
                ["xargs", "-0", "stat", "-c", "%s", "--"], stdin=b"\0".join(map(os.fsencode, paths)), cwd=TREE
            )
        sizes = [int(line) for line in done.stdout.split("\n") if line.isdigit()]
        if sum(sizes) > _LARGEST_PATCH or len(sizes) != len(paths):
            return ""
    return sandbox.patch()


def clear_memo() -> None:
    """Forget every verdict of this process: for those who measure, or who look for tests that flicker."""
    with _lock:
        _memo.clear()


def _remember(key: tuple[str, ...], report: TestReport) -> None:
    with _lock:
        _memo[key] = report
        while len(_memo) > _REMEMBERED:
            _memo.popitem(last=False)


def _outcomes(report: TestReport, ids: Iterable[str]) -> dict[str, str]:
    """Outcome of each id; one without parameters stands for all of its cases."""
    found: dict[str, str] = {}
    for id in ids:
        outcome: str | None = report.outcomes.get(id)
        if outcome is None and "[" not in id:
            cases = {case for name, case in report.outcomes.items() if name.startswith(f"{id}[")}
            outcome = next((kind for kind in ("error", "failed", "skipped", "passed") if kind in cases), None)
        found[id] = outcome or MISSING
    return found
