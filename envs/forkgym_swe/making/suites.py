"""A project's tree and its tests in a sandbox: run them with some files changed, and find out what covers what.

Which changes to try is decided in ``injection`` and ``history``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

import msgspec

from forkgym_swe.checkout import make_image_of, open_sandbox, site_directory
from forkgym_swe.instance import InstanceError
from forkgym_swe.protection import Protection, folders_of
from forkgym_swe.runner import TestReport, run_tests

__all__ = ["Baseline", "Suite", "SuiteError", "Tests"]

LONGEST = 300.0
"""Seconds that a project's whole suite may take, traced."""


class SuiteError(InstanceError):
    """A project's tests cannot be used; the text says why."""


class Tests(msgspec.Struct, frozen=True, kw_only=True):
    """How a project's tests run.

    Attributes:
        python_path: Directories of the tree that tests import from.
        test_paths: Where the tests lie; empty for the test runner's own choice.
        requires: What they need beside pytest, in pip's notation.
    """

    __test__ = False

    python_path: tuple[str, ...] = (".",)
    test_paths: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """What the tests of an unchanged tree do.

    Attributes:
        passing: Ids of tests that passed in every run, sorted.
        unsteady: Ids of tests that passed in one run and not in another.
        covering: File → line → places in `passing` of the tests that ran it.
        seconds: Wall clock of a run of all tests without tracing.
    """

    passing: tuple[str, ...]
    unsteady: tuple[str, ...]
    covering: dict[str, dict[int, tuple[int, ...]]]
    seconds: float

    def tests_of(self, path: str, first: int, last: int) -> tuple[str, ...]:
        """Tests that run any of these lines, sorted."""
        lines = self.covering.get(path, {})
        found = {place for line in range(first, last + 1) for place in lines.get(line, ())}
        return tuple(self.passing[place] for place in sorted(found))


class Suite:
    """A tree with its tests; a context manager.

    Args:
        files: The tree.
        tests: How its tests run.

    Raises:
        InstanceError: Requirements of the tests are not installed.
    """

    def __init__(self, files: Mapping[str, bytes], tests: Tests) -> None:
        self.files, self.tests = dict(files), tests
        self.protection = Protection(folders=folders_of(tests.test_paths), roots=tests.python_path)
        self._site = site_directory(tests.requires)
        self._base = open_sandbox(make_image_of(self.files), site=self._site)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the sandbox go."""
        self._base.close()

    def run(
        self,
        changes: Mapping[str, bytes] | None = None,
        selectors: Sequence[str] = (),
        *,
        order_seed: int | None = None,
        hash_seed: int = 0,
        trace: bool = False,
        timeout: float = LONGEST,
    ) -> TestReport:
        """Run tests of the tree with some files changed, in a fork of it.

        Args:
            changes: Path → new content.
            selectors: Ids of tests; empty for all.
            order_seed: Shuffle the tests.
            hash_seed: Seed of Python's hashes.
            trace: Record covered lines.
            timeout: Wall-clock seconds.
        """
        sandbox = self._base.fork()
        try:
            for path, content in (changes or {}).items():
                sandbox.write(path, content)
            return run_tests(
                sandbox,
                selectors,
                python_path=self.tests.python_path,
                site=self._site,
                order_seed=order_seed,
                timeout=timeout,
                trace=trace,
                paths=self.tests.test_paths,
                env={"PYTHONHASHSEED": str(hash_seed)},
            )
        finally:
            sandbox.close()

    def baseline(self) -> Baseline:
        """Run all tests three times: plain, traced, and shuffled with another hash seed.

        Raises:
            SuiteError: No test passes, or they take too long.
        """
        plain = self.run()
        if plain.timed_out:
            raise SuiteError(f"the tests take more than {LONGEST:.0f} s; name fewer test paths")
        traced, shuffled = self.run(trace=True), self.run(order_seed=1, hash_seed=1)
        reports = (plain, traced, shuffled)
        passed = [{id for id, outcome in report.outcomes.items() if outcome == "passed"} for report in reports]
        steady = sorted(set.intersection(*passed))
        if not steady:
            raise SuiteError(f"no test of the unchanged tree passes steadily: {_why(plain)}")
        covering: dict[str, dict[int, list[int]]] = {}
        for place, id in enumerate(steady):
            for path, lines in traced.coverage.get(id, {}).items():
                by_line = covering.setdefault(path, {})
                for line in lines:
                    by_line.setdefault(line, []).append(place)
        return Baseline(
            passing=tuple(steady),
            unsteady=tuple(sorted(set.union(*passed) - set(steady))),
            covering={
                path: {line: tuple(places) for line, places in sorted(lines.items())}
                for path, lines in sorted(covering.items())
            },
            seconds=plain.seconds,
        )

    def is_code(self, path: str) -> bool:
        """Whether a file is the project's own code, not its tests' or their configuration's."""
        return path.endswith(".py") and path in self.files and not self.protection.covers(path)


def _why(report: TestReport) -> str:
    for text in (*report.collection_errors.values(), *(failure.message for failure in report.failures.values())):
        return text.strip().splitlines()[-1] if text.strip() else "no reason given"
    return report.output.strip().splitlines()[-1] if report.output.strip() else "nothing was collected"
