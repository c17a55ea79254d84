"""Where test runs and verdicts really happen: a sandbox on a task's tree, made when it is first needed.

Everything is memoised by the content of the tree and by what was run; nothing here knows about episodes.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from forkgym.sandbox import Limits, Sandbox
from forkgym_swe.checkout import Prepared, broken_files, prepare
from forkgym_swe.instance import Instance
from forkgym_swe.repair.memo import Memo
from forkgym_swe.repair.running import TestRun, run_tests_on
from forkgym_swe.repair.words import exception_word
from forkgym_swe.taxonomy import classify_failure
from forkgym_swe.verdict import grade

__all__ = ["FileChange", "RunNote", "VerdictNote", "Workplace", "note_of", "tree_key", "workplace"]

_KEPT = 8
_LIMITS = Limits(output=16 << 20)
_VERDICT = "verdict/1"
Note = TypeVar("Note", "RunNote", "VerdictNote")


class FileChange(msgspec.Struct, frozen=True):
    """One file that differs from the task's tree.

    Attributes:
        path: In the tree.
        content: All of it.
    """

    path: str
    content: bytes


class RunNote(msgspec.Struct, frozen=True):
    """What is kept of a test run.

    Attributes:
        passed: Tests of the selection that passed.
        total: Tests of the selection.
        exception: The word for what the first failure ended with; "" when nothing failed.
        seconds: How long the run took when it was made.
    """

    passed: int
    total: int
    exception: str
    seconds: float


class VerdictNote(msgspec.Struct, frozen=True):
    """What is kept of a verdict.

    Attributes:
        resolved: Whether all hidden tests passed.
        failure: The taxonomy's label where they did not.
        seconds: How long it took when it was made.
    """

    resolved: bool
    failure: str
    seconds: float


def tree_key(base: str, change: FileChange | None) -> str:
    """Names a tree by its content.

    Args:
        base: Id of the task's image.
        change: The file that differs from it, if one does.
    """
    if change is None:
        return base
    content = hashlib.blake2b(change.content, digest_size=16).digest()
    return hashlib.blake2b(f"{base}\0{change.path}\0".encode() + content, digest_size=16).hexdigest()


def instance_mark(instance: Instance) -> str:
    """Names a task by its content."""
    return hashlib.blake2b(msgspec.json.encode(instance, order="sorted"), digest_size=16).hexdigest()


def run_key(tree: str, tests: Sequence[str], cpu_seconds: int) -> str:
    """Key of a test run on a tree."""
    selection = hashlib.blake2b("\0".join([str(cpu_seconds), *tests]).encode(), digest_size=16).hexdigest()
    return f"run/1/{tree}/{selection}"


def note_of(run: TestRun, tests: Sequence[str]) -> RunNote:
    """What is kept of a run."""
    passed = run.passed(tests)
    if run.timed_out:
        exception = "Timeout"
    elif passed == len(tests):
        exception = ""
    else:
        exception = exception_word(run.failure.exception) if run.failure is not None else "OtherError"
    return RunNote(passed=passed, total=len(tests), exception=exception, seconds=run.seconds)


class Workplace:
    """Test runs and verdicts on one task.

    Args:
        instance: The task.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.mark = instance_mark(instance)
        self.lock = threading.RLock()
        self._sandbox: Sandbox | None = None

    @property
    def prepared(self) -> Prepared:
        """The task's tree and tests; the failing tests are in the tree."""
        return prepare(self.instance, hide_tests=False)

    @property
    def sandbox(self) -> Sandbox:
        """On the task's tree as it is; forked before anything is changed."""
        if self._sandbox is None:
            self._sandbox = self.prepared.open(limits=_LIMITS)
        return self._sandbox

    def close(self) -> None:
        """Give the sandbox up; it is made again when it is needed."""
        with self.lock:
            if self._sandbox is not None:
                self._sandbox.close()
            self._sandbox = None

    def run(
        self,
        tests: Sequence[str],
        changes: Sequence[FileChange | None] = (None,),
        *,
        trace: Sequence[str] = (),
        cpu_seconds: int,
    ) -> list[TestRun]:
        """Run tests on variants of the tree in one fork of the sandbox; see `running.run_tests_on`."""
        with self.lock, self.sandbox.fork() as sandbox:
            return run_tests_on(
                sandbox,
                tests,
                [{} if change is None else {"path": change.path, "content": change.content} for change in changes],
                python_path=self.prepared.python_path,
                site=self.prepared.site,
                trace=trace,
                cpu_seconds=cpu_seconds,
            )

    def known_note(self, memo: Memo | None, tree: str, tests: Sequence[str], cpu_seconds: int) -> RunNote | None:
        """The result of a test run that the memo has.

        Args:
            memo: None has none.
            tree: Key of the tree.
            tests: Test ids.
            cpu_seconds: Processor seconds of the run.
        """
        return _read(memo, run_key(tree, tests, cpu_seconds), RunNote)

    def known_verdict(self, memo: Memo | None, tree: str) -> VerdictNote | None:
        """The verdict on a tree that the memo has."""
        return _read(memo, self.verdict_key(tree), VerdictNote)

    def verdict_key(self, tree: str) -> str:
        """Key of the verdict on a tree."""
        return f"{_VERDICT}/{tree}/{self.mark}"

    def notes(
        self, memo: Memo | None, base: str, tests: Sequence[str], changes: Sequence[FileChange | None], cpu_seconds: int
    ) -> list[RunNote]:
        """Test results of variants, each from the memo if it is there.

        Args:
            memo: None runs everything, and keeps nothing.
            base: Id of the task's image.
            tests: Test ids.
            changes: The variants.
            cpu_seconds: Processor seconds of each run.
        """
        keys = [run_key(tree_key(base, change), tests, cpu_seconds) for change in changes]
        found = [_read(memo, key, RunNote) for key in keys]
        missing = [place for place, note in enumerate(found) if note is None]
        if missing:
            runs = self.run(tests, [changes[place] for place in missing], cpu_seconds=cpu_seconds)
            for place, run in zip(missing, runs, strict=True):
                found[place] = _keep(memo, keys[place], note_of(run, tests))
        return [note for note in found if note is not None]

    def verdict(self, memo: Memo | None, base: str, change: FileChange | None) -> VerdictNote:
        """The hidden tests' judgement of a variant, from the memo if it is there; None for ``memo`` always judges."""
        key = self.verdict_key(tree_key(base, change))
        found = _read(memo, key, VerdictNote)
        return found if found is not None else _keep(memo, key, self._judge(memo, change))

    def _judge(self, memo: Memo | None, change: FileChange | None) -> VerdictNote:
        with self.lock, self.sandbox.fork() as sandbox:
            if change is not None:
                sandbox.write(change.path, change.content)
            verdict = grade(sandbox, self.instance, self.prepared, memo=memo is not None)
        if verdict.resolved:
            return VerdictNote(resolved=True, failure="", seconds=verdict.report.seconds)
        label = classify_failure(
            patch=verdict.patch,
            gold=self.instance.patch,
            fail_to_pass=verdict.fail_to_pass,
            pass_to_pass=verdict.pass_to_pass,
            subverted=verdict.subverted,
            trusted=verdict.report.trusted,
            before=broken_files(self.instance),
        )
        return VerdictNote(resolved=False, failure=label, seconds=verdict.report.seconds)


def _read(memo: Memo | None, key: str, kind: type[Note]) -> Note | None:
    value = memo.get(key) if memo is not None else None
    return msgspec.msgpack.decode(value, type=kind) if value is not None else None


def _keep(memo: Memo | None, key: str, note: Note) -> Note:
    if memo is None:
        return note
    return msgspec.msgpack.decode(memo.put(key, msgspec.msgpack.encode(note)), type=type(note))


_open: OrderedDict[tuple[int, str], Workplace] = OrderedDict()
_lock = threading.Lock()


def workplace(instance: Instance) -> Workplace:
    """The workplace of a task in this process; the last few keep their sandboxes."""
    # A forked process has none of its parent's sandboxes.
    key = (os.getpid(), instance_mark(instance))
    with _lock:
        found = _open.pop(key, None) or Workplace(instance)
        _open[key] = found
        old = [_open.popitem(last=False) for _ in range(len(_open) - _KEPT)]
    for (pid, _), place in old:
        if pid == os.getpid():
            place.close()
    return found
