"""Test runs on variants of a sandbox's tree, with what the environment wants to know. The inner half is ``inside``."""

from __future__ import annotations

import base64
import posixpath
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from forkgym.sandbox import TREE, Sandbox, SandboxError
from forkgym_swe.harness import harness

__all__ = ["ARGUMENTS", "Comparison", "Failure", "TestRun", "run_tests_on"]

ARGUMENTS = (
    *("-q", "--tb=short", "--color=no", "--continue-on-collection-errors", "--capture=fd", "-p", "no:cacheprovider"),
    *("-o", "addopts=", "-o", "required_plugins=", f"--rootdir={TREE}"),
)
"""Options of every test run: those of the verdict."""


class Comparison(msgspec.Struct, frozen=True, array_like=True):
    """A comparison that an assertion made and that did not hold.

    Attributes:
        operator: Such as ``==``.
        got: Names of the left value's type and of its bases.
        expected: The same of the right value.
        relation: ``less``, ``greater``, ``shorter``, ``longer``, ``same`` or ``different``.
        by: How far numbers or lengths are apart: 0, 1, or 2 for more.
    """

    operator: str
    got: tuple[str, ...]
    expected: tuple[str, ...]
    relation: str
    by: int


class Failure(msgspec.Struct, frozen=True):
    """How the first failing test of a run failed.

    Attributes:
        test: Its id.
        exception: Names of the exception's class and its bases.
        in_code: Whether it was raised in the project's own code rather than in the test or a library.
        comparison: Of the assertion, if it was one.
        frames: (path, line) of the project's own code on the way to it, the outermost first.
    """

    test: str
    exception: tuple[str, ...]
    in_code: bool
    comparison: Comparison | None
    frames: tuple[tuple[str, int], ...]


class TestRun(msgspec.Struct, frozen=True):
    """One run of pytest.

    Attributes:
        outcomes: Test id (or file that could not be collected) to ``passed``, ``failed``, ``error`` or ``skipped``.
        failure: The first failure.
        lines: (path, line, failing tests that ran it, passing tests that ran it), where lines were traced.
        exit_code: Of pytest; −1 when it was stopped.
        timed_out: It took too much processor time, or too long.
        seconds: How long it took.
    """

    __test__ = False

    outcomes: dict[str, str]
    failure: Failure | None
    lines: tuple[tuple[str, int, int, int], ...]
    exit_code: int
    timed_out: bool
    seconds: float

    def outcome(self, test: str) -> str:
        """Outcome of a test: ``failed`` where it did not run, and for several of one name the worst."""
        found = [self.outcomes[test]] if test in self.outcomes else []
        found += [o for name, o in self.outcomes.items() if name.startswith((f"{test}[", f"{test}::"))]
        return "failed" if not found or any(o in ("failed", "error") for o in found) else found[0]

    def passed(self, tests: Sequence[str]) -> int:
        """How many of some tests passed."""
        return sum(self.outcome(test) == "passed" for test in tests)


class _Answer(msgspec.Struct):
    results: list[TestRun]


@cache
def _script() -> str:
    return files("forkgym_swe.repair").joinpath("inside.py").read_text(encoding="utf-8")


def run_tests_on(
    sandbox: Sandbox,
    tests: Sequence[str],
    variants: Sequence[Mapping[str, Any]] = ({},),
    *,
    python_path: Sequence[str] = (),
    site: str | None = None,
    trace: Sequence[str] = (),
    cpu_seconds: int = 10,
) -> list[TestRun]:
    """Run tests on one or more variants of the tree, each in a process of its own, in one command.

    Args:
        sandbox: Whose tree; it is the same afterwards, but for what the tests themselves write.
        tests: Test ids or files.
        variants: ``{"path": …, "content": bytes}``: one file that is different; ``{}``: the tree as it is.
        python_path: Directories of the tree to import from.
        site: Directory with what the tests require.
        trace: Files whose lines are counted by outcome.
        cpu_seconds: Processor seconds of each run.

    Raises:
        SandboxError: The command did not answer; the text shows the end of its standard error.
    """
    request = {
        "tree": TREE,
        "tests": list(tests),
        "arguments": list(ARGUMENTS),
        "python_path": [posixpath.normpath(posixpath.join(TREE, folder)) for folder in python_path],
        "site": [site] if site else [],
        "trace": list(trace),
        "cpu_seconds": cpu_seconds,
        "wall_seconds": 6.0 * cpu_seconds,
        "variants": [
            {"path": v["path"], "content": base64.b64encode(v["content"]).decode()} if v else {} for v in variants
        ],
    }
    tools = harness()
    done = sandbox.run(
        [tools.python, "-P", "-c", _script()],
        stdin=msgspec.json.encode(request),
        env=tools.environment(),
        cwd=TREE,
        timeout=30.0 + 6.0 * cpu_seconds * max(1, len(variants)),
    )
    try:
        return msgspec.json.decode(done.stdout, type=_Answer).results
    except msgspec.DecodeError as error:
        raise SandboxError(
            f"a test run gave no answer (exit code {done.exit_code}, timed out: {done.timed_out}): {error}; "
            f"its standard error ends with: {done.stderr[-500:]}"
        ) from error
