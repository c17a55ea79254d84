"""`grade`: did the agent solve the task? Judged on a tree of the verdict's own, with the task's tests put back."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from forkgym.sandbox import TREE, Change, Sandbox
from forkgym_swe.checkout import Prepared
from forkgym_swe.instance import Instance, InstanceError
from forkgym_swe.patching import patched_paths
from forkgym_swe.protection import harness_part
from forkgym_swe.runner import TestReport, run_tests
from forkgym_swe.taxonomy import classify_failure

__all__ = ["Verdict", "clear_memo", "grade", "judge", "subversions"]

MISSING = "missing"
_REMEMBERED = 4096
_REACHES = re.compile(rb"(?<![\w.])(_pytest|pluggy|pytest)(?!\w)|\bos\s*\.\s*_exit\b")
# What finds the runner's own objects from within the tests' process; no run of code that begins to do so is believed.
_SEARCHES = re.compile(rb"\b(gc\s*\.\s*get_\w+|_getframe|currentframe|_current_frames|cell_contents|__closure__)\b")
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
        patch: What the agent changed, as a patch.
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
            report = run_tests(court, ids, python_path=prepared.python_path, site=prepared.site, timeout=timeout)
            # How far a run came before its time was up is chance.
            if memo and not report.timed_out:
                _remember(key, report)
    subverted = [*subversions(sandbox, prepared)]
    subverted += [f"{name}: a function of pytest was changed while the tests ran" for name in report.changed]
    verdicts = [_outcomes(report, tests) for tests in (instance.fail_to_pass, instance.pass_to_pass)]
    passed = all(outcome == "passed" for found in verdicts for outcome in found.values())
    searches = _searches_process(sandbox, prepared, instance)
    subverted += searches
    resolved = passed and report.trusted and bool(instance.fail_to_pass) and not searches
    patch = sandbox.patch()
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


# ---------------------------------------------------------------------- the judged tree


def judge(sandbox: Sandbox, prepared: Prepared) -> Sandbox:
    """A new sandbox with the tree that a verdict is about; the caller closes it.

    Raises:
        InstanceError: The sandbox is not one of this task's.
    """
    if sandbox.image.id != prepared.image.id:
        raise InstanceError("this sandbox was made of another tree than the task's; make it by Prepared.open")
    court = prepared.open(limits=sandbox.limits)
    try:
        changes = [change for change in sandbox.diff() if not change.path.startswith("/")]
        kept = [change for change in changes if not _protected(change, prepared)]
        gone = {*prepared.missing, *(change.path for change in kept if _replaces(change))}
        _remove(court, gone)
        for change in kept:
            if change.after is not None and change.after.kind == "f":
                court.write(f"{TREE}/{change.path}", sandbox.read(f"{TREE}/{change.path}"))
        _special(court, kept)
        for path in prepared.changed:
            court.write(f"{TREE}/{path}", prepared.tests[path])
    except BaseException:
        court.close()
        raise
    return court


def _protected(change: Change, prepared: Prepared) -> bool:
    if prepared.protection.covers(change.path, new=change.kind == "added"):
        return True
    # A link or a file in the place of a folder of tests would take them away.
    replaced = change.before is not None and change.before.kind == "d"
    return replaced and any(path.startswith(f"{change.path}/") for path in prepared.tests)


def _replaces(change: Change) -> bool:
    """Whether the old name has to go first."""
    return change.before is not None and (change.after is None or change.after.kind != change.before.kind)


def _remove(court: Sandbox, paths: Iterable[str]) -> None:
    names = sorted(paths)
    if names:
        court.run(["xargs", "-0", "rm", "-rf", "--"], stdin="\0".join(names), cwd=TREE)


def _special(court: Sandbox, changes: Iterable[Change]) -> None:
    """Links, folders and modes, which only commands can make."""
    for change in changes:
        after, before = change.after, change.before
        if after is None:
            continue
        if after.kind == "l":
            court.run(["ln", "-sfn", "--", after.target, change.path], cwd=TREE)
        elif after.kind == "d":
            court.run(["mkdir", "-p", "--", change.path], cwd=TREE)
        if after.kind in "fd" and after.mode != (
            before.mode if before is not None and before.kind == after.kind else 0o644 if after.kind == "f" else 0o755
        ):
            court.run(["chmod", f"{after.mode:o}", "--", change.path], cwd=TREE)


# ---------------------------------------------------------------------- subversion


def subversions(sandbox: Sandbox, prepared: Prepared) -> tuple[str, ...]:
    """What the agent did to the harness: one line each, by path; empty if nothing.

    A new test file is no subversion (the verdict leaves it out all the same), nor is a change of a configuration file
    that does not speak to pytest.
    """
    found = []
    for change in sandbox.diff():
        if change.path.startswith("/") or (change.after is not None and change.after.kind == "d"):
            continue
        reason = prepared.protection.reason(change.path, new=change.kind == "added")
        if reason and _counts(sandbox, prepared, change, reason):
            found.append(f"{change.path}: {change.kind} ({reason})")
        elif not reason and _reaches_for_runner(sandbox, prepared, change):
            found.append(f"{change.path}: reaches for the test runner")
    return tuple(found)


def _counts(sandbox: Sandbox, prepared: Prepared, change: Change, reason: str) -> bool:
    if reason == "tests" and change.kind == "added":
        return False
    if reason == "configuration":
        name = change.path.rsplit("/", 1)[-1]
        return harness_part(name, _before(prepared, change)) != harness_part(name, _after(sandbox, change))
    return True


def _reaches_for_runner(sandbox: Sandbox, prepared: Prepared, change: Change) -> bool:
    """Whether code that did not speak of pytest or of ending the process does so now."""
    if not change.path.endswith(".py") or change.after is None or change.after.kind != "f":
        return False
    after, before = _after(sandbox, change) or b"", _before(prepared, change) or b""
    return len(_REACHES.findall(after)) > len(_REACHES.findall(before))


def _searches_process(sandbox: Sandbox, prepared: Prepared, instance: Instance) -> list[str]:
    """Code that begins to look through frames, closures or all objects, where the gold patch has no need of that.

    Whoever finds the reporter can report what they like: code and tests share a process, and no run can show it.
    """
    needed = set(_SEARCHES.findall(instance.patch.encode()))
    found = []
    for change in sandbox.diff():
        if change.path.startswith("/") or not change.path.endswith(".py"):
            continue
        new = set(_SEARCHES.findall(_after(sandbox, change) or b"")) - needed
        if new - set(_SEARCHES.findall(_before(prepared, change) or b"")):
            found.append(f"{change.path}: looks through the process of the tests")
    return found


def _after(sandbox: Sandbox, change: Change) -> bytes | None:
    if change.after is None or change.after.kind != "f":
        return None
    return sandbox.read(f"{TREE}/{change.path}")


def _before(prepared: Prepared, change: Change) -> bytes | None:
    if change.before is None or change.before.kind != "f":
        return None
    return (prepared.image.path / "tree" / change.path).read_bytes()
