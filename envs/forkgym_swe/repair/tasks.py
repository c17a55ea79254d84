"""Admitted tasks: an instance, its study, and what happens to its tree. Loaded once a process for each task file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache

from forkgym_swe.catalogue import load_tasks
from forkgym_swe.checkout import broken_files
from forkgym_swe.instance import Instance, InstanceError
from forkgym_swe.repair.memo import Memo, open_memo
from forkgym_swe.repair.source import replaced
from forkgym_swe.repair.study import CPU_SECONDS, Study, find_study, make_study, study_key
from forkgym_swe.repair.workplace import FileChange, RunNote, VerdictNote, workplace

__all__ = ["RepairTask", "load_repair_tasks", "repair_tasks", "repairable"]

SPLITS = ("train", "validation", "test")


class RepairTask:
    """An admitted task.

    Attributes:
        instance: The task.
        study: What is known of it.
    """

    def __init__(self, instance: Instance, study: Study) -> None:
        self.instance, self.study = instance, study

    @property
    def name(self) -> str:
        """Id of the task."""
        return self.instance.id

    @property
    def repository(self) -> str:
        """Project."""
        return self.instance.repository

    @cached_property
    def digest(self) -> str:
        """Names the task and the version of its study by content."""
        return study_key(self.instance)

    @cached_property
    def _files(self) -> Mapping[str, bytes]:
        return broken_files(self.instance)

    def change(self, edit: tuple[int, int]) -> FileChange:
        """The file that an edit changes, as it is then.

        Args:
            edit: (line, edit), from 0.
        """
        line = self.study.lines[edit[0]]
        return FileChange(line.path, replaced(self._files[line.path], line.edits[edit[1]].replacements))

    def tree(self, edit: tuple[int, int] | None) -> str:
        """Key of the tree with an edit made, a pure function of the study."""
        return self.study.base if edit is None else self.study.lines[edit[0]].edits[edit[1]].tree

    def focused_run(self, memo: Memo | None, edit: tuple[int, int] | None) -> list[RunNote]:
        """The failing tests, and the others if those pass; from the memo, or in the sandbox.

        Args:
            memo: None runs them, whatever is known.
            edit: (line, edit), from 0, or None for the tree as it is.
        """
        first = self._note(memo, self.study.failing, edit)
        if first.passed < first.total or not self.study.others:
            return [first]
        return [first, self._note(memo, self.study.others, edit)]

    def _note(self, memo: Memo | None, tests: tuple[str, ...], edit: tuple[int, int] | None) -> RunNote:
        place = workplace(self.instance)
        known = place.known_note(memo, self.tree(edit), tests, CPU_SECONDS)
        if known is not None:
            return known
        change = self.change(edit) if edit is not None else None
        return place.notes(memo, self.study.base, tests, [change], CPU_SECONDS)[0]

    def verdict(self, memo: Memo | None, edit: tuple[int, int] | None) -> VerdictNote:
        """The hidden tests' judgement; from the memo, or in the sandbox.

        What leaves a failing test failing needs no second run to be refused: with a memo, it is charged what the
        verdict on the task's tree took.

        Args:
            memo: None judges, whatever is known.
            edit: (line, edit), from 0, or None for the tree as it is.
        """
        place = workplace(self.instance)
        known = place.known_verdict(memo, self.tree(edit))
        if known is not None:
            return known
        if memo is not None and edit is not None and self.study.verdict is not None:
            note = self._note(memo, self.study.failing, edit)
            if note.passed < note.total:
                label = self.study.lines[edit[0]].edits[edit[1]].refusal
                return VerdictNote(resolved=False, failure=label, seconds=self.study.verdict.seconds)
        return place.verdict(memo, self.study.base, self.change(edit) if edit is not None else None)


def repairable(study: Study) -> bool:
    """Whether a task is admitted: some edit of some suspicious line passes the verdict."""
    return bool(study.repairs)


def load_repair_tasks(
    tasks: str, *, study: bool = False, say: Callable[[str], None] | None = None
) -> dict[str, tuple[RepairTask, ...]]:
    """The admitted tasks of a task file by split, in the file's order; splits without any are left out.

    Args:
        tasks: "samples", or the path of a task file.
        study: Study the tasks that nobody studied yet.
        say: Told what is going on.

    Raises:
        InstanceError: The file cannot be read, tasks were not studied, or none is admitted.
    """
    memo = open_memo()
    found: dict[str, list[RepairTask]] = {split: [] for split in SPLITS}
    missing: list[str] = []
    for instance in load_tasks(tasks):
        known = make_study(instance, memo, say=say) if study else find_study(instance, memo)
        if known is None:
            missing.append(instance.id)
        elif repairable(known):
            found[instance.split].append(RepairTask(instance, known))
    if missing:
        raise InstanceError(
            f"{len(missing)} tasks of {tasks} were not studied yet, {missing[0]} among them; "
            f"`python -m forkgym_swe.repair {tasks}` does it (some seconds a task), or make the environment with "
            "study=True"
        )
    if not any(found.values()):
        raise InstanceError(f"no task of {tasks} can be repaired by an edit of a suspicious line; take more tasks")
    return {split: tuple(members) for split, members in found.items() if members}


def repair_tasks(tasks: str, *, study: bool = False) -> dict[str, tuple[RepairTask, ...]]:
    """`load_repair_tasks`, remembered as long as the file stays as it is."""
    status = os.stat(tasks) if tasks != "samples" and os.path.isfile(tasks) else None
    mark = (status.st_mtime_ns, status.st_size) if status is not None else (0, 0)
    return _remembered(tasks, study, mark, open_memo().path)


@lru_cache(maxsize=8)
def _remembered(tasks: str, study: bool, mark: tuple[int, int], memo: object) -> dict[str, tuple[RepairTask, ...]]:
    del mark, memo
    return load_repair_tasks(tasks, study=study)
