"""The determinism filter: does a task behave the same in three runs with other seeds and another order of tests?

Admitted are tasks whose gold patch solves them in every run and whose empty patch solves them in none, with every test
doing the same each time. What splits give away of each other is checked in ``leaks``.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from forkgym.sandbox import Sandbox
from forkgym_swe.checkout import (
    Prepared,
    apply_patch,
    broken_files,
    digest_files,
    make_image_of,
    open_sandbox,
    prepare,
    source_files,
)
from forkgym_swe.instance import Instance, InstanceError
from forkgym_swe.patching import patched_paths
from forkgym_swe.runner import TestReport, run_tests
from forkgym_swe.verdict import grade, judge

__all__ = ["RUNS", "Checked", "Checker", "Run", "mark_of"]


class Run(msgspec.Struct, frozen=True):
    """The circumstances of one run.

    Attributes:
        hash_seed: Of Python's hashes.
        order_seed: Of the tests' order; None for the project's own.
    """

    hash_seed: int
    order_seed: int | None


RUNS = (Run(0, None), Run(1, 1), Run(271_828, 2))
"""The first is the verdict's own."""


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one task.

    Attributes:
        project: Of the task.
        id: Of the task.
        mark: Of its content, for a journal.
        reason: Why it is not admitted; "" if it is.
        detail: What exactly was found, such as the test.
        seconds: Wall clock spent on it.
    """

    project: str
    id: str
    mark: str
    reason: str = ""
    detail: str = ""
    seconds: float = 0.0


class _Discard(Exception):
    """A task is not admitted; carries the reason and the detail."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


def mark_of(instance: Instance) -> str:
    """A name of a task's content: a changed task has another one."""
    return hashlib.sha256(msgspec.json.encode(instance, order="sorted")).hexdigest()[:20]


class Checker:
    """Checks tasks one after the other; runs of equal repaired trees are made once.

    Args:
        runs: Circumstances; the first must be the verdict's own.
        timeout: Wall-clock seconds of one run.
    """

    def __init__(self, runs: Sequence[Run] = RUNS, *, timeout: float = 120.0) -> None:
        self.runs, self.timeout = tuple(runs), timeout
        self._repaired: OrderedDict[tuple[str, ...], TestReport] = OrderedDict()

    def check(self, instance: Instance) -> tuple[str, str]:
        """Run a task's tests on its broken and on its repaired tree.

        Returns:
            Why it is not admitted, and what exactly was found; two empty texts if it is admitted.
        """
        try:
            self._check(instance)
        except _Discard as discard:
            return discard.reason, discard.detail
        return "", ""

    def _check(self, instance: Instance) -> None:
        if not instance.fail_to_pass:
            raise _Discard("no test begins to pass")
        if set(instance.fail_to_pass) & set(instance.pass_to_pass):
            raise _Discard("a test is in both lists")
        try:
            broken = broken_files(instance)
            gold = apply_patch(broken, instance.patch)
            prepared = prepare(instance)
        except InstanceError as error:
            raise _Discard("the task cannot be prepared", str(error)) from error
        agent = prepared.open()
        try:
            self._empty(instance, prepared, agent)
            self._gold(instance, prepared, agent, gold)
        finally:
            agent.close()

    def _empty(self, instance: Instance, prepared: Prepared, agent: Sandbox) -> None:
        """The agent that does nothing: solves it never, and every test does the same each time."""
        verdict = grade(agent, instance, prepared, timeout=self.timeout, memo=False)
        if verdict.resolved or "passed" in verdict.fail_to_pass.values():
            raise _Discard("the bug does not make its tests fail", _first(verdict.fail_to_pass, "passed"))
        _expect_failing(instance, verdict.report)
        with judge(agent, prepared) as court:
            for run in self.runs[1:]:
                _expect_failing(instance, self._run(court, instance, prepared, run))

    def _gold(self, instance: Instance, prepared: Prepared, agent: Sandbox, gold: dict[str, bytes]) -> None:
        """The agent that applies the gold patch: solves it each time."""
        complete = apply_patch(gold, instance.test_patch)
        with agent.fork() as repaired:
            for path in patched_paths(instance.patch):
                if path in gold:
                    repaired.write(path, gold[path])
                else:
                    repaired.run(["rm", "-f", "--", path])
            with judge(repaired, prepared) as court:
                _expect_tree(court, complete, {*patched_paths(instance.patch), *prepared.changed, *prepared.missing})
        for run in self.runs:
            _expect_passing(instance, self._run_repaired(instance, prepared, complete, run))

    def _run(self, sandbox: Sandbox, instance: Instance, prepared: Prepared, run: Run) -> TestReport:
        ids = tuple(sorted({*instance.fail_to_pass, *instance.pass_to_pass}))
        court = sandbox.fork()
        try:
            return run_tests(
                court,
                ids,
                python_path=prepared.python_path,
                site=prepared.site,
                order_seed=run.order_seed,
                timeout=self.timeout,
                env={"PYTHONHASHSEED": str(run.hash_seed)},
            )
        finally:
            court.close()

    def _run_repaired(self, instance: Instance, prepared: Prepared, files: dict[str, bytes], run: Run) -> TestReport:
        """All tests of the repaired tree where that is the source itself, which tasks share; else the task's."""
        shared = files == source_files(instance.source)
        ids = () if shared else tuple(sorted({*instance.fail_to_pass, *instance.pass_to_pass}))
        places = (*prepared.python_path, "|", *instance.test_paths, "|", *ids)
        key = (digest_files(files), prepared.site or "", str(run.hash_seed), str(run.order_seed), *places)
        if key not in self._repaired:
            sandbox = open_sandbox(make_image_of(files), site=prepared.site)
            try:
                self._repaired[key] = run_tests(
                    sandbox,
                    ids,
                    python_path=prepared.python_path,
                    site=prepared.site,
                    order_seed=run.order_seed,
                    timeout=4 * self.timeout,
                    paths=instance.test_paths,
                    env={"PYTHONHASHSEED": str(run.hash_seed)},
                )
            finally:
                sandbox.close()
            while len(self._repaired) > 16:
                self._repaired.popitem(last=False)
        return self._repaired[key]


def _expect_tree(court: Sandbox, files: dict[str, bytes], touched: set[str]) -> None:
    """The tree that a verdict would judge is the one that is run: equal trees need not be run for each task."""
    for path in sorted(touched):
        try:
            found: bytes | None = court.read(path)
        except OSError:
            found = None
        if found != files.get(path):
            raise _Discard("the verdict's tree is not the repaired one", path)


def _expect_failing(instance: Instance, report: TestReport) -> None:
    _expect_ended(report, "with the bug")
    for id in instance.fail_to_pass:
        if _outcome(report, id) == "passed":
            raise _Discard("a failing test passes in another order or with another seed", id)
    for id in instance.pass_to_pass:
        if _outcome(report, id) != "passed":
            raise _Discard("a passing test fails with the bug", f"{id}: {_outcome(report, id)}")


def _expect_passing(instance: Instance, report: TestReport) -> None:
    _expect_ended(report, "with the gold patch")
    for id in (*instance.fail_to_pass, *instance.pass_to_pass):
        if _outcome(report, id) != "passed":
            raise _Discard("a test fails with the gold patch", f"{id}: {_outcome(report, id)}")


def _expect_ended(report: TestReport, when: str) -> None:
    if report.timed_out:
        raise _Discard("the tests take too long", when)
    if not report.trusted:
        raise _Discard("the test run was cut short", when)


def _outcome(report: TestReport, id: str) -> str:
    """Outcome of a test; one without parameters stands for all of its cases."""
    found = report.outcomes.get(id)
    if found is None and "[" not in id:
        cases = {outcome for name, outcome in report.outcomes.items() if name.startswith(f"{id}[")}
        return next((kind for kind in ("error", "failed", "skipped", "passed") if kind in cases), "missing")
    return found or "missing"


def _first(outcomes: dict[str, str], wanted: str) -> str:
    return next((id for id, outcome in sorted(outcomes.items()) if outcome == wanted), "")
