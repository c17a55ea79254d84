"""Tasks from git history: commits that change code and tests, where the tests tell before from after.

The agent starts at the parent commit. The commit's change of code is the gold patch, its change of tests the test
patch.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from forkgym_swe.checkout import apply_patch, make_patch, source_files
from forkgym_swe.instance import Difficulty, Instance, InstanceError, Source
from forkgym_swe.protection import Protection, folders_of
from forkgym_swe.runner import TestReport

from .defining import Definitions
from .injection import Attempt, InjectionOptions, Subject, choose_passing, failing_of
from .journal import Journal
from .production import Tell, mark_of
from .statements import StatementError, leaks, write_statement
from .subjects import SourceError, git
from .suites import Suite

__all__ = ["Commit", "commits_of", "split_change", "take_history"]

_LARGEST_CHANGE = 400
_MESSAGE_LINES = 40
_TRAILER = re.compile(r"^(signed-off-by|co-authored-by|reviewed-by|change-id)\s*:", re.IGNORECASE)


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """A commit with one parent.

    Attributes:
        id: Its hash.
        parent: Its parent's hash.
        date: Of the commit, as an ISO date.
        message: Subject and text.
    """

    id: str
    parent: str
    date: str
    message: str


def commits_of(checkout: Path) -> Iterator[Commit]:
    """Commits of the checked-out branch, the newest first, without merges and without the first one.

    Raises:
        SourceError: The directory is no git checkout.
    """
    text = git(checkout, "log", "--first-parent", "--no-merges", "-z", "--format=%H %P%n%cs%n%B")
    for record in text.split("\0"):
        head, _, rest = record.strip("\n").partition("\n")
        date, _, message = rest.partition("\n")
        hashes = head.split()
        if len(hashes) == 2:
            yield Commit(id=hashes[0], parent=hashes[1], date=date, message=message.strip())


def split_change(before: Mapping[str, bytes], after: Mapping[str, bytes], protection: Protection) -> tuple[str, str]:
    """The change between two trees as a patch of code and a patch of tests.

    Args:
        before: The parent's tree.
        after: The commit's.
        protection: Says what belongs to the tests and their configuration.

    Raises:
        PatchError: A file that differs is not text.
    """
    tests = {path for path in (*before, *after) if protection.covers(path)}
    code_before = {path: content for path, content in before.items() if path not in tests}
    code_after = {path: content for path, content in after.items() if path not in tests}
    tests_before = {path: content for path, content in before.items() if path in tests}
    tests_after = {path: content for path, content in after.items() if path in tests}
    return make_patch(code_before, code_after), make_patch(tests_before, tests_after)


def take_history(
    subject: Subject, options: InjectionOptions, journal: Journal[Attempt], tell: Tell = lambda _: None
) -> list[Instance]:
    """Tasks from the commits of one git checkout, the newest first.

    Args:
        subject: Its source is of kind ``git``.
        options: How many are wanted, and how many commits to look at.
        journal: Holds what was tried before, and takes what is tried now.
        tell: Is told about each commit, also those that were tried before.

    Raises:
        SourceError: The subject is no git checkout.
    """
    if subject.source.kind != "git":
        raise SourceError(f"{subject.name} is no git checkout; history needs a directory with .git in it")
    prefix = f"{mark_of(subject)} "
    known = {entry.key: entry for entry in journal.entries}
    kept: list[Instance] = []
    for number, commit in enumerate(commits_of(Path(subject.source.location))):
        if len(kept) == options.count or number == options.count * options.attempts:
            break
        entry = known.get(prefix + commit.id)
        if entry is None:
            began = time.monotonic()
            reason, instance = try_commit(subject, commit, options)
            seconds = round(time.monotonic() - began, 3)
            entry = Attempt(
                project=subject.name, key=prefix + commit.id, reason=reason, instance=instance, seconds=seconds
            )
            journal.add(entry)
        tell(entry)
        if entry.instance is not None:
            kept.append(entry.instance)
    return kept


def try_commit(subject: Subject, commit: Commit, options: InjectionOptions) -> tuple[str, Instance | None]:
    """Run the commit's tests before and after its change of code.

    Returns:
        Why it makes no task ("" if it does), and the task.
    """
    parent = msgspec.structs.replace(subject.source, version=commit.parent)
    protection = Protection(folders=folders_of(subject.tests.test_paths), roots=subject.tests.python_path)
    try:
        before = source_files(parent)
        after = source_files(msgspec.structs.replace(subject.source, version=commit.id))
        patch, test_patch = split_change(before, after, protection)
    except InstanceError:
        return "the change is not of text files", None
    reason = _unfit(patch, test_patch)
    if reason:
        return reason, None
    # The repaired tree is the commit's; the tree to judge has its tests and the parent's code.
    judged = apply_patch(before, test_patch)
    with Suite(judged, subject.tests) as broken, Suite(after, subject.tests) as repaired:
        reports = broken.run(), repaired.run(), repaired.run(order_seed=1, hash_seed=1)
    if any(report.timed_out for report in reports):
        return "the tests run too long", None
    failing, passing = _compare(*reports)
    if not failing:
        return "no test tells before from after", None
    change = _Change(
        before=before,
        judged=judged,
        patch=patch,
        test_patch=test_patch,
        failing=failing,
        passing=passing,
        report=reports[0],
    )
    return _task(subject, parent, commit, options, change)


class _Change(msgspec.Struct, frozen=True, kw_only=True):
    """What was found about one commit."""

    before: dict[str, bytes]
    judged: dict[str, bytes]
    patch: str
    test_patch: str
    failing: tuple[str, ...]
    passing: tuple[str, ...]
    report: TestReport


def _unfit(patch: str, test_patch: str) -> str:
    if not patch:
        return "no change of code"
    if not any(line.startswith("+++ ") and line.endswith(".py") for line in patch.splitlines()):
        return "no change of Python code"
    if not test_patch:
        return "no change of tests"
    return "the change is too large" if _size(patch) > _LARGEST_CHANGE else ""


def _size(patch: str) -> int:
    return sum(line[:1] in ("+", "-") and line[:3] not in ("+++", "---") for line in patch.splitlines())


def _compare(broken: TestReport, repaired: TestReport, shuffled: TestReport) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Tests that begin to pass, and tests that go on passing."""
    good = {
        id for id, outcome in repaired.outcomes.items() if outcome == "passed" and shuffled.outcomes.get(id) == "passed"
    }
    passing = {id for id in good if broken.outcomes.get(id) == "passed"}
    # A test whose file cannot even be imported before the change is missing from that run: it fails, too.
    failing = {id for id in good - passing if broken.outcomes.get(id) != "skipped"}
    return tuple(sorted(failing)), tuple(sorted(passing))


def _task(
    subject: Subject, parent: Source, commit: Commit, options: InjectionOptions, change: _Change
) -> tuple[str, Instance | None]:
    hidden = _present(Definitions(change.before), change.failing)
    paths = sorted({line[6:].strip() for line in change.patch.splitlines() if line.startswith("+++ b/")})
    statement = _statement(subject, commit, change, paths)
    if statement is None:
        return "no issue text that keeps the repair to itself", None
    mark = hashlib.sha256(f"{subject.name} {commit.id}".encode()).hexdigest()[:10]
    passing = choose_passing(change.passing, set(), _near(change), options.keep_passing, mark)
    return "", Instance(
        id=f"{subject.name}-{commit.id[:12]}-{mark}",
        repository=subject.name,
        split=subject.split,
        source=parent,
        patch=change.patch,
        test_patch=change.test_patch,
        hidden_tests=hidden,
        fail_to_pass=change.failing,
        pass_to_pass=passing,
        problem_statement=statement,
        created_at=commit.date,
        difficulty=Difficulty(files=len(paths), lines=_size(change.patch), tests=len(change.failing)),
        python_path=subject.tests.python_path,
        requires=subject.tests.requires,
        test_paths=subject.tests.test_paths,
        provenance={"method": "history", "commit": commit.id, "parent": commit.parent},
    )


def _near(change: _Change) -> list[str]:
    """Tests in the files of the failing ones."""
    files = {id.split("::", 1)[0] for id in change.failing}
    return [id for id in change.passing if id.split("::", 1)[0] in files]


def _present(definitions: Definitions, ids: tuple[str, ...]) -> tuple[str, ...]:
    """Where those of the tests stand that the parent's tree has already."""
    found = {definitions.find(id) for id in ids}
    return tuple(sorted(id for id in found if id is not None))


def _statement(subject: Subject, commit: Commit, change: _Change, paths: list[str]) -> str | None:
    """What the failing tests show; the commit's own message only where no test can be told, and gives nothing away."""
    try:
        told = [failing_of(change.report, id) for id in change.failing]
        candidates = [write_statement(subject.name, told, change.judged)]
    except StatementError:
        candidates = []
    lines = [line for line in commit.message.splitlines() if not _TRAILER.match(line)]
    candidates.append(f"{subject.name}: " + "\n".join(lines[:_MESSAGE_LINES]).strip() + "\n")
    return next((text for text in candidates if not leaks(text, patch=change.patch, paths=paths)), None)
