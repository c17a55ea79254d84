"""`run_tests`: pytest in a sandbox, and what happened as data. What counts as solved is ``verdict``'s affair."""

from __future__ import annotations

import hashlib
import posixpath
import secrets
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from forkgym.sandbox import TREE, CompletedCommand, Sandbox
from forkgym_swe.harness import harness
from forkgym_swe.instance import InstanceError

__all__ = ["Failure", "Outcome", "RunnerError", "TestReport", "run_tests", "selects"]

Outcome = Literal["passed", "failed", "error", "skipped"]

TIMED_OUT = 124
_GRACE = 5.0


class RunnerError(InstanceError):
    """Tests could not be started at all; a tree whose tests fail or crash is no such error."""


class Failure(msgspec.Struct, frozen=True):
    """Why a test did not pass.

    Attributes:
        phase: ``setup``, ``call`` or ``teardown``.
        message: The error's own text.
        text: pytest's short traceback.
        places: (file, line) that the traceback goes through, outermost first; files of the tree by their path in it.
    """

    phase: str
    message: str
    text: str
    places: tuple[tuple[str, int], ...] = ()


class TestReport(msgspec.Struct, frozen=True, kw_only=True):
    """One run of pytest.

    Attributes:
        outcomes: Test id → outcome, of the tests that ran. A test that ended the whole process is an ``error``.
        exit_code: Of the process, as pytest defines them (0: all passed, 1: some failed, 2: interrupted, 5: none
            collected); below zero for a signal; 124 after a timeout; 125 if it left no report.
        timed_out: Its time was up; `outcomes` holds what was done by then.
        output: What pytest and the tests printed, cut to length.
        seconds: Wall clock, measured outside.
        failures: Test id → why, for those that did not pass.
        collection_errors: File → text, for files that could not be imported.
        collected: Ids in the order of the run.
        coverage: With ``trace``: test id → file of the tree → lines that ran.
        trusted: The process ended as pytest said it would, and nothing of pytest was changed while it ran.
        changed: Names of pytest's functions that were changed.
    """

    __test__ = False

    outcomes: dict[str, Outcome]
    exit_code: int
    timed_out: bool
    output: str
    seconds: float
    failures: dict[str, Failure] = {}
    collection_errors: dict[str, str] = {}
    collected: tuple[str, ...] = ()
    coverage: dict[str, dict[str, tuple[int, ...]]] = {}
    trusted: bool = True
    changed: tuple[str, ...] = ()

    def count(self, outcome: Outcome) -> int:
        """How many tests ended so."""
        return sum(found == outcome for found in self.outcomes.values())


class _Raw(msgspec.Struct):
    """What the program inside writes."""

    outcomes: dict[str, Outcome]
    failures: dict[str, Failure]
    collection_errors: dict[str, str]
    collected: tuple[str, ...]
    coverage: dict[str, dict[str, tuple[int, ...]]]
    claimed: int | None
    changed: tuple[str, ...]
    unfinished: str | None
    exit_code: int
    timed_out: bool
    output: str


def selects(selector: str, id: str) -> bool:
    """Whether a selector means a test: its id, the id without parameters, its class, file or folder."""
    plain = selector.rstrip("/")
    return id == plain or id.startswith((f"{plain}::", f"{plain}[", f"{plain}/"))


def run_tests(
    sandbox: Sandbox,
    selectors: Sequence[str] = (),
    *,
    python_path: Sequence[str] = (),
    site: str | None = None,
    order_seed: int | None = None,
    timeout: float = 120.0,
    trace: bool = False,
    keyword: str = "",
    plugins: Sequence[str] = (),
    paths: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> TestReport:
    """Run tests of the tree in one process.

    pytest runs in the tree's top directory with the project's own configuration, except that ``addopts`` and
    ``required_plugins`` are ignored, plugins are not loaded by themselves, and nothing is cached. The sandbox keeps
    what the tests wrote: run on a fork to keep a state clean.

    Args:
        sandbox: Made by `Prepared.open` or `open_sandbox`, which show it the harness.
        selectors: Test ids, files or folders, relative to the tree; empty for all. Ids that do not exist are
            simply missing from the outcomes, files that do not exist too.
        python_path: Directories of the tree that tests import from.
        site: What `site_directory` gave.
        order_seed: Shuffle the tests by this seed.
        timeout: Wall-clock seconds of the whole run.
        trace: Record which lines of the tree each test runs (about three times slower).
        keyword: pytest's ``-k`` expression.
        plugins: Modules of plugins to load.
        paths: Where to collect if there are no selectors; empty for the project's own choice.
        env: More variables.

    Raises:
        RunnerError: The sandbox does not show the harness, or pytest cannot start.
    """
    tools = harness()
    token, name = secrets.token_hex(16), f"/tmp/.{secrets.token_hex(16)}"  # noqa: S108
    request = {
        "token": token,
        "tree": TREE,
        "selectors": sorted({selector.rstrip("/") for selector in selectors}),
        "places": _places(selectors) if selectors else list(paths),
        "keyword": keyword,
        "order_seed": order_seed,
        "trace": trace,
        "plugins": list(plugins),
        "python_path": [posixpath.normpath(posixpath.join(TREE, path)) for path in python_path],
        "site": [site] if site else [],
    }
    secret = {"token": token, "report": name, "timeout": timeout}
    done = sandbox.run(
        [tools.python, "-P", "-B", tools.program],
        stdin=_framed(request) + _framed(secret),
        timeout=timeout + _GRACE,
        env={**tools.environment(), **(env or {})},
        cwd=TREE,
    )
    if done.exit_code in (126, 127) or (done.exit_code and "can't open file" in done.stderr):
        raise RunnerError(
            f"this sandbox does not show the test harness ({tools.root}); make it by Prepared.open or open_sandbox"
        )
    return _report(sandbox, done, name)


def _framed(value: object) -> bytes:
    data = msgspec.json.encode(value)
    return b"%012d" % len(data) + data


def _places(selectors: Sequence[str]) -> list[str]:
    """Files and folders to collect; those below a folder come by the folder."""
    places = sorted({selector.split("::", 1)[0].rstrip("/") for selector in selectors})
    return [path for path in places if not any(path.startswith(f"{other}/") for other in places)]


def _report(sandbox: Sandbox, done: CompletedCommand, name: str) -> TestReport:
    try:
        data = sandbox.read(name)
        claim = msgspec.json.decode(done.stdout.strip().rsplit("\n", 1)[-1], type=dict[str, str])
    except (OSError, msgspec.DecodeError):
        data, claim = b"", {}
    if not data or hashlib.blake2b(data).hexdigest() != claim.get("digest"):
        # Killed from outside: by the sandbox's limits, or by the tests themselves.
        code = TIMED_OUT if done.timed_out else 125
        text = f"{done.stdout}{done.stderr}"
        return TestReport(
            outcomes={}, exit_code=code, timed_out=done.timed_out, output=text, seconds=done.wall_seconds, trusted=False
        )
    raw = msgspec.json.decode(data, type=_Raw)
    return TestReport(
        outcomes=raw.outcomes,
        exit_code=TIMED_OUT if raw.timed_out else raw.exit_code,
        timed_out=raw.timed_out,
        output=raw.output,
        seconds=done.wall_seconds,
        failures={id: _in_tree(failure) for id, failure in raw.failures.items()},
        collection_errors=raw.collection_errors,
        collected=raw.collected,
        coverage=raw.coverage,
        trusted=raw.claimed is not None and raw.claimed == raw.exit_code and not raw.changed and not raw.timed_out,
        changed=raw.changed,
    )


def _in_tree(failure: Failure) -> Failure:
    places = tuple((path.removeprefix(f"{TREE}/"), line) for path, line in failure.places)
    return msgspec.structs.replace(failure, places=places)
