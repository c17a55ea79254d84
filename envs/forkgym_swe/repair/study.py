"""The study of a task: suspicious lines, candidate edits, and whether one of them repairs it. Made once, kept for ever.

A study is what the environment needs of a task; with the notes of its runs an episode needs no sandbox at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from forkgym_swe.checkout import broken_files, make_patch
from forkgym_swe.instance import Instance
from forkgym_swe.repair.candidates import Edit, LineEdits, line_edits
from forkgym_swe.repair.localisation import Suspect, band, is_source, rank_statements
from forkgym_swe.repair.memo import Memo
from forkgym_swe.repair.running import Failure, TestRun
from forkgym_swe.repair.source import ModuleSource, replaced
from forkgym_swe.repair.words import Names
from forkgym_swe.repair.workplace import (
    FileChange,
    RunNote,
    VerdictNote,
    Workplace,
    instance_mark,
    run_key,
    tree_key,
)
from forkgym_swe.taxonomy import classify_failure

__all__ = ["CPU_SECONDS", "LINES", "Study", "StudyLine", "find_study", "make_study", "study_entries", "study_key"]

VERSION = "study/4"
LINES = 8
"""Lines that an episode may suspect."""
FOCUS = 5
"""Failing tests that a focused run runs."""
OTHERS = 40
"""Passing tests of the same files that it runs when those pass."""
SAMPLE = 80
"""Passing tests that the suspicion is measured on."""
CPU_SECONDS = 6
"""Processor seconds of a focused run: an edit may make a loop endless."""
_TRACED_SECONDS = 60


class StudyEdit(msgspec.Struct, frozen=True):
    """A candidate edit of a studied line.

    Attributes:
        family: What kind of change it is.
        words: How it is said.
        replacements: (first byte, byte after the last, new text).
        tree: Key of the tree with the edit made.
        repairs: Whether the hidden tests accept it.
        refusal: The taxonomy's label where it leaves failing tests failing, judged as if no other test broke; else "".
    """

    family: str
    words: tuple[str, ...]
    replacements: tuple[tuple[int, int, str], ...]
    tree: str
    repairs: bool = False
    refusal: str = ""


class StudyLine(msgspec.Struct, frozen=True):
    """A suspicious line.

    Attributes:
        path: File.
        line: Where its statement begins.
        last: Last line of the statement's own part.
        kind: Kind of the statement.
        band: Word for its suspicion.
        score: Ochiai's measure.
        on_trace: Place on the way to the exception, 1 for the nearest; 0 for none.
        code: Its code in words.
        edits: Candidates.
    """

    path: str
    line: int
    last: int
    kind: str
    band: str
    score: float
    on_trace: int
    code: tuple[str, ...]
    edits: tuple[StudyEdit, ...]


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a task before an episode.

    Attributes:
        instance: Its id.
        base: Id of its image.
        failing: Failing tests of a focused run.
        others: Passing tests of a focused run.
        all_failing: Number of all failing tests.
        all_passing: Number of all passing tests.
        failure: How the first of the failing tests fails.
        lines: Suspicious lines, the most suspicious first.
        note: The focused run on the task's tree.
        verdict: The verdict on the task's tree.
        seconds: How long the measurement of the suspicion took.
        gold_line: Place of the first line that the gold patch touches, from 1; 0 when it is not among the lines.
        reason: Why the task is not admitted; "" for one that is.
    """

    instance: str
    base: str = ""
    failing: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    all_failing: int = 0
    all_passing: int = 0
    failure: Failure | None = None
    lines: tuple[StudyLine, ...] = ()
    note: RunNote | None = None
    verdict: VerdictNote | None = None
    seconds: float = 0.0
    gold_line: int = 0
    reason: str = ""

    @property
    def repairs(self) -> tuple[tuple[int, int], ...]:
        """Places (line, edit), from 0, of the edits that the hidden tests accept."""
        return tuple(
            (place, number)
            for place, line in enumerate(self.lines)
            for number, edit in enumerate(line.edits)
            if edit.repairs
        )


def study_key(instance: Instance) -> str:
    """Names a task's study by the content of the task."""
    return f"{VERSION}/{instance_mark(instance)}"


def find_study(instance: Instance, memo: Memo) -> Study | None:
    """The study of a task, if somebody made it."""
    value = memo.get(study_key(instance))
    return msgspec.msgpack.decode(value, type=Study) if value is not None else None


def study_entries(instance: Instance, study: Study) -> list[str]:
    """Keys of all that the memo may hold of a task."""
    place = Workplace(instance)
    trees = [study.base, *(edit.tree for line in study.lines for edit in line.edits)]
    selections = [study.failing, study.others]
    runs = [run_key(tree, tests, CPU_SECONDS) for tree in trees for tests in selections]
    return [study_key(instance), *runs, *(place.verdict_key(tree) for tree in trees)]


def make_study(instance: Instance, memo: Memo, *, say: Callable[[str], None] | None = None) -> Study:
    """Study a task, or find its study; all test results go into the memo.

    Args:
        instance: The task.
        memo: Where it is kept.
        say: Told what is going on.

    Raises:
        InstanceError: The task's source is not there.
        BackendUnavailableError: This machine has no sandbox.
    """
    found = find_study(instance, memo)
    if found is not None:
        return found
    place = Workplace(instance)
    try:
        study = _Studying(instance, place, memo, say or _silent).study()
    finally:
        place.close()
    return msgspec.msgpack.decode(memo.put(study_key(instance), msgspec.msgpack.encode(study)), type=Study)


class _Studying:
    def __init__(self, instance: Instance, place: Workplace, memo: Memo, say: Callable[[str], None]) -> None:
        self.instance, self.place, self.memo, self.say = instance, place, memo, say
        self.files = {
            path: content
            for path, content in broken_files(instance).items()
            if is_source(path) and not place.prepared.protection.covers(path)
        }
        self.base = place.prepared.image.id

    def study(self) -> Study:
        instance = self.instance
        failing = instance.fail_to_pass[:FOCUS]
        known = Study(
            instance=instance.id,
            base=self.base,
            failing=failing,
            others=_near(instance.pass_to_pass, failing, OTHERS),
            all_failing=len(instance.fail_to_pass),
            all_passing=len(instance.pass_to_pass),
        )
        traced = self._trace(failing)
        reason = _reason_not_to(traced, failing)
        if reason:
            return msgspec.structs.replace(known, reason=reason, seconds=traced.seconds)
        plain = self.place.notes(self.memo, self.base, failing, [None], CPU_SECONDS)[0]
        if plain.exception == "Timeout":
            return msgspec.structs.replace(known, reason="too slow", seconds=traced.seconds)
        lines = self._lines(traced, failing)
        gold_line = _gold_line(instance.patch, lines)
        known = msgspec.structs.replace(known, failure=traced.failure, seconds=traced.seconds, gold_line=gold_line)
        if not gold_line and not any(edit.family == "import" for line in lines for edit in line.edits):
            # Another place may repair it by luck, which is not worth some fifty test runs.
            return msgspec.structs.replace(known, lines=tuple(lines), reason="right line not shown")
        lines = self._judged(lines, known)
        admitted = any(edit.repairs for line in lines for edit in line.edits)
        return msgspec.structs.replace(
            known,
            lines=tuple(lines),
            note=plain,
            verdict=self.place.verdict(self.memo, self.base, None) if admitted else None,
            reason="" if admitted else "no repair",
        )

    def _trace(self, failing: Sequence[str]) -> TestRun:
        tests = [*failing, *_near(self.instance.pass_to_pass, failing, SAMPLE)]
        return self.place.run(tests, trace=sorted(self.files), cpu_seconds=_TRACED_SECONDS)[0]

    def _lines(self, traced: TestRun, failing: Sequence[str]) -> list[StudyLine]:
        """The most suspicious lines that have candidates."""
        frames = traced.failure.frames if traced.failure is not None else ()
        wanted = {path for path, *_ in traced.lines} | {path for path, _ in frames}
        modules = {}
        for path in sorted(wanted & set(self.files)):
            try:
                modules[path] = ModuleSource(self.files[path])
            except (SyntaxError, UnicodeDecodeError):
                continue  # a file in another notation is not suspected
        all_failing = sum(traced.outcome(test) != "passed" for test in failing)
        suspects = rank_statements(modules, traced.lines, all_failing, frames)
        names = Names()
        found: list[StudyLine] = []
        for suspect in suspects:
            edits = line_edits(modules[suspect.path], suspect.statement, names)
            if edits.edits:
                found.append(self._line(suspect, edits, suspects[0].score))
            if len(found) == LINES:
                break
        return found

    def _line(self, suspect: Suspect, made: LineEdits, best: float) -> StudyLine:
        edits = [
            StudyEdit(
                family=edit.family,
                words=edit.words,
                replacements=edit.replacements,
                tree=tree_key(self.base, self._change(suspect.path, edit)),
            )
            for edit in made.edits
        ]
        return StudyLine(
            path=suspect.path,
            line=made.line,
            last=made.last,
            kind=made.kind,
            band=band(suspect.score, best),
            score=round(suspect.score, 4),
            on_trace=suspect.on_trace,
            code=made.code,
            edits=tuple(edits),
        )

    def _change(self, path: str, edit: Edit | StudyEdit) -> FileChange:
        return FileChange(path, replaced(self.files[path], edit.replacements))

    def _judged(self, lines: list[StudyLine], known: Study) -> list[StudyLine]:
        """The lines with each edit's verdict: the failing tests first, the others and the verdict where those pass."""
        places = [(line, edit) for line in lines for edit in line.edits]
        changes = [self._change(line.path, edit) for line, edit in places]
        notes = self.place.notes(self.memo, self.base, known.failing, changes, CPU_SECONDS)
        good = [place for place, note in enumerate(notes) if note.passed == note.total]
        self.say(f"{len(places)} edits of {len(lines)} lines, {len(good)} pass the failing tests")
        fine = {}
        if known.others and good:
            others = self.place.notes(self.memo, self.base, known.others, [changes[p] for p in good], CPU_SECONDS)
            fine = {place: note.passed == note.total for place, note in zip(good, others, strict=True)}
        judged = {}
        for place, (_, edit) in enumerate(places):
            if place in good:
                resolved = self.place.verdict(self.memo, self.base, changes[place]).resolved
                # Both must say so: an agent is told what the focused run says.
                judged[edit.tree] = msgspec.structs.replace(edit, repairs=resolved and fine.get(place, True))
            else:
                label = self._refusal(changes[place], notes[place])
                judged[edit.tree] = msgspec.structs.replace(edit, refusal=label)
        return [msgspec.structs.replace(line, edits=tuple(judged[edit.tree] for edit in line.edits)) for line in lines]

    def _refusal(self, change: FileChange, note: RunNote) -> str:
        before = {change.path: self.files[change.path]}
        outcomes = {str(number): "passed" if number < note.passed else "failed" for number in range(note.total)}
        return classify_failure(
            patch=make_patch(before, {change.path: change.content}),
            gold=self.instance.patch,
            fail_to_pass=outcomes,
            pass_to_pass={},
            before=self.files,
        )


def _near(tests: Sequence[str], failing: Sequence[str], count: int) -> tuple[str, ...]:
    """Some of the tests: those of the failing tests' files first, then evenly from the rest."""
    files = {test.partition("::")[0] for test in failing}
    near = [test for test in tests if test.partition("::")[0] in files]
    if len(near) > count:
        return tuple(near[(place * len(near)) // count] for place in range(count))
    return tuple(near)


def _reason_not_to(run: TestRun, failing: Sequence[str]) -> str:
    if run.timed_out:
        return "too slow"
    return "does not fail" if run.passed(failing) == len(failing) else ""


def _gold_line(patch: str, lines: Sequence[StudyLine]) -> int:
    """Place of the suspicious line at which the gold patch begins to change something; 0 for none."""
    touched: set[tuple[str, int]] = set()
    path, number = "", 0
    for text in patch.splitlines():
        if text.startswith("--- "):
            path = text[4:].split("\t")[0].removeprefix("a/")
        elif text.startswith("@@ "):
            number = int(text.split()[1].lstrip("-").split(",")[0])
        elif text.startswith("-"):
            touched.add((path, number))
            number += 1
        elif text.startswith(" ") or not text:
            number += 1
    for place, line in enumerate(lines, 1):
        if any((line.path, number) in touched for number in range(line.line, line.last + 1)):
            return place
    return 0


def _silent(line: str) -> None:
    del line
