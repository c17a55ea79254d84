"""``swe/Repair-v0``: repair a real project by looking, ranking, inspecting, editing, testing and submitting.

The environment is a few numbers: what is known of a task stands in its study, and what test runs came to in the memo.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np

from forkgym.core import Demonstration, ResetNeededError, TextEnv, Vocabulary
from forkgym_swe.instance import InstanceError
from forkgym_swe.repair import texts
from forkgym_swe.repair.expert import REHEARSALS, demonstrations
from forkgym_swe.repair.memo import Memo, open_memo
from forkgym_swe.repair.policies import POLICIES, scripted
from forkgym_swe.repair.rehearsal import REHEARSED, Rehearsal, make_rehearsals
from forkgym_swe.repair.tasks import RepairTask, repair_tasks
from forkgym_swe.repair.words import LETTERS, vocabulary
from forkgym_swe.repair.workplace import RunNote, VerdictNote

__all__ = ["RepairEnv", "RepairState"]

INSTRUCTIONS = (
    "Tests of a Python project fail because of one small bug. In each turn write one line:\n"
    "look          how the first failing test fails\n"
    "rank          the suspicious lines, numbered\n"
    "inspect 3     the code of line 3 and its candidate edits, lettered\n"
    "edit 3 b      make edit b of line 3 (an edit made before is taken back)\n"
    "test          run the failing tests, and others if those pass\n"
    "undo          take the edit back\n"
    "submit        end the episode: hidden tests judge the project as it is now"
)
"""System message for agents that were not trained on this environment (``instructions=True``)."""


def _tool(name: str, description: str, **properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"name": name, "description": description, "parameters": parameters}


_LINE = {"type": "integer", "description": "Number of a suspicious line, from 1."}
_LETTER = {"type": "string", "description": "Letter of a candidate edit.", "enum": list(LETTERS)}


class RepairState(msgspec.Struct):
    """Where an episode stands.

    Attributes:
        split: Split of the task.
        task: Its number.
        edit: (line, edit) that is made, from 0, or None.
        changes: How often the tree was changed.
        tried: (line, edit) of all edits made so far, from 0.
        seen: Lines inspected, from 1, in order; ``look`` and ``rank`` are 0 and −1.
        tested: Result of the last test of the tree as it is: ``""``, ``"passes"`` or ``"fails"``.
    """

    split: str = "train"
    task: int = -1
    edit: tuple[int, int] | None = None
    changes: int = 0
    tried: list[tuple[int, int]] = []
    seen: list[int] = []
    tested: str = ""


class RepairEnv(TextEnv):
    """Repair of one line of a real project, in a few words a turn.

    An action is a text whose last line is one of ``look``, ``rank``, ``inspect N``, ``edit N LETTER``, ``test``,
    ``undo`` and ``submit`` (or the same as a tool call). The tree holds at most one candidate edit. ``submit`` ends the
    episode with the hidden tests' verdict, 1 or 0; running out of turns truncates it with 0.

    Test runs and verdicts happen in a sandbox; results are memoised by the content of the tree, so that an episode of a
    studied task needs none. Only tasks that some candidate edit repairs are admitted; ``python -m forkgym_swe.repair
    TASKS`` studies a task file.

    ``info`` holds ``action_kind`` ("read", "edit", "test", "submit" or "invalid"), ``evidence``, ``charged_seconds``
    (what the turn's test runs took when they were made) and, at the end, ``success`` and, without it, ``failure``.

    Args:
        tasks: "samples", or the path of a task file.
        max_turns: Turns of an episode, at least 1.
        memoise: Take results from the memo and put them there; False runs every test and verdict anew.
        study: Study tasks that nobody studied yet when the environment is made, rather than refuse them.
        instructions: Whether a system message explains the actions.
        rehearsals: How many rehearsals (see `rehearsal`) demonstrations are drawn from; with 0 they are episodes of the
            split's tasks. Episodes have nothing to do with them.

    Raises:
        InstanceError: The task file cannot be read, tasks were not studied, or none is admitted.
        ValueError: An argument is out of range.
    """

    version: ClassVar[str] = "1"
    scripted_policies: ClassVar[tuple[str, ...]] = POLICIES
    tools: ClassVar[list[dict[str, Any]]] = [
        _tool("look", "How the first failing test fails."),
        _tool("rank", "The suspicious lines."),
        _tool("inspect", "Code and candidate edits of a line.", line=_LINE),
        _tool("edit", "Make a candidate edit; one made before is taken back.", line=_LINE, edit=_LETTER),
        _tool("test", "Run the failing tests, and others if those pass."),
        _tool("undo", "Take the edit back."),
        _tool("submit", "End the episode: hidden tests judge."),
    ]

    def __init__(
        self,
        *,
        tasks: str = "samples",
        max_turns: int = 12,
        memoise: bool = True,
        study: bool = False,
        instructions: bool = False,
        rehearsals: int = REHEARSED,
    ) -> None:
        _check_arguments(tasks, max_turns, rehearsals)
        self.max_turns = max_turns
        self.system_prompt = INSTRUCTIONS if instructions else ""
        self._made_by: dict[str, Any] = {"tasks": tasks, "max_turns": max_turns, "memoise": memoise, "study": study}
        self._rehearsals = rehearsals
        self._tasks: Mapping[str, Sequence[RepairTask | Rehearsal]] = repair_tasks(tasks, study=bool(study))
        self._memo: Memo | None = open_memo() if memoise else None
        self._state = RepairState()

    # ------------------------------------------------------------------ tasks

    @property
    def splits(self) -> dict[str, int]:
        """Number of admitted tasks in each split that has any."""
        return {split: len(found) for split, found in self._tasks.items()}

    @property
    def task(self) -> RepairTask | Rehearsal:
        """The task of this episode with its study, for graders and experts; agents must not see it.

        Raises:
            ResetNeededError: Before the first reset.
        """
        if self._state.task < 0:
            raise ResetNeededError("There is no task before the first reset. Call env.reset(seed=...) once.")
        return self._tasks[self._state.split][self._state.task]

    @property
    def position(self) -> RepairState:
        """Where the episode stands; for scripted policies. Not to be changed."""
        return self._state

    @property
    def turns_left(self) -> int:
        """Turns until the episode is truncated."""
        limit = self._limit()
        return (self.max_turns if limit is None else limit) - self.turn

    def rehearsing(self) -> RepairEnv:
        """A new environment of the same arguments, with the rehearsals as one more split."""
        made = type(self)(**self._made_by)
        if self._rehearsals:
            made._tasks = {**self._tasks, REHEARSALS: make_rehearsals(self._rehearsals, open_memo())}
        return made

    def vocabulary(self) -> Vocabulary:
        """All words; the names of variables are entities."""
        return vocabulary()

    def demonstrations(
        self, count: int, *, seed: int, split: str = "train", error_rate: float = 0.0
    ) -> list[Demonstration]:
        """Episodes of the scripted expert: of rehearsals, or with ``rehearsals=0`` of the split's tasks.

        Args:
            count: How many.
            seed: The same seed gives the same episodes.
            split: Where the tasks come from if there are no rehearsals.
            error_rate: Probability of an error in each turn, in [0, 1].

        Raises:
            ValueError: There is no such split, or an argument is out of range.
        """
        if split not in self._tasks:
            raise ValueError(f"there is no split {split!r}; choose one of {', '.join(self._tasks)}")
        if not 0 <= error_rate <= 1:
            raise ValueError(f"error_rate must be in [0, 1], got {error_rate!r}")
        return demonstrations(self, count, seed=seed, split=split, error_rate=error_rate)

    # ------------------------------------------------------------------ episode

    def _reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        split, task = self.pick_task(seed, options)
        self._state = RepairState(split=split, task=task)
        found = self.task
        info = {"split": split, "task": task, "instance": found.name, "repository": found.repository}
        return texts.task_text(found.study), info

    def _step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        call = texts.check_action(action)
        name, arguments = call["tool"], call["arguments"]
        info: dict[str, Any] = {"action_kind": texts.KINDS_OF_ACTION[name], "evidence": None, "charged_seconds": 0.0}
        limit = self._limit()
        last = limit is not None and self.turn + 1 >= limit
        if name == "submit":
            return self._submit(info)
        observation = self._act(name, arguments, info)
        if last:
            info |= {"success": False, "failure": "other"}
        return ("" if last else observation), 0.0, False, False, info

    def _act(self, name: str, arguments: dict[str, Any], info: dict[str, Any]) -> str:
        study, state = self.task.study, self._state
        if name == "look":
            info |= {"evidence": ["look"], "charged_seconds": study.note.seconds if study.note is not None else 0.0}
            state.seen.append(0)
            return texts.look_text(study)
        if name == "rank":
            info |= {"evidence": ["rank"], "charged_seconds": study.seconds}
            state.seen.append(-1)
            return texts.rank_text(study)
        if name == "inspect":
            info["evidence"] = ["inspect", arguments["line"]]
            state.seen.append(arguments["line"])
            return texts.inspect_text(study, arguments["line"])
        if name == "edit":
            return self._edit(arguments["line"] - 1, LETTERS.index(arguments["edit"]), info)
        if name == "undo":
            return self._undo(info)
        return self._test(info) if name == "test" else texts.HINT

    def _edit(self, line: int, number: int, info: dict[str, Any]) -> str:
        study, state = self.task.study, self._state
        if line >= len(study.lines) or number >= len(study.lines[line].edits):
            return texts.NOTHING
        state.edit, state.changes, state.tested = (line, number), state.changes + 1, ""
        state.tried.append((line, number))
        info["evidence"] = ["edit", line + 1, number + 1, state.changes]
        return texts.DONE

    def _undo(self, info: dict[str, Any]) -> str:
        state = self._state
        if state.edit is None:
            return texts.NOTHING
        state.edit, state.changes, state.tested = None, state.changes + 1, ""
        info["evidence"] = ["undo", state.changes]
        return texts.UNDONE

    def _test(self, info: dict[str, Any]) -> str:
        notes = self.focused_run(self._state.edit)
        passed = all(note.passed == note.total for note in notes)
        self._state.tested = "passes" if passed else "fails"
        info["evidence"] = ["test", self._state.changes]
        info["charged_seconds"] = sum(note.seconds for note in notes)
        return texts.test_text(notes, self.task.study)

    def _submit(self, info: dict[str, Any]) -> tuple[str, float, bool, bool, dict[str, Any]]:
        verdict = self.verdict(self._state.edit)
        info |= {"evidence": ["submit"], "charged_seconds": verdict.seconds, "success": verdict.resolved}
        if not verdict.resolved:
            info["failure"] = verdict.failure
        return "accepted" if verdict.resolved else "rejected", float(verdict.resolved), True, False, info

    # ------------------------------------------------------------------ what really runs

    def focused_run(self, edit: tuple[int, int] | None) -> list[RunNote]:
        """The failing tests on the tree with an edit made, and the others if those pass.

        Args:
            edit: (line, edit), from 0, or None for the tree as it is.
        """
        return self.task.focused_run(self._memo, edit)

    def verdict(self, edit: tuple[int, int] | None) -> VerdictNote:
        """The hidden tests' judgement of the tree with an edit made.

        Args:
            edit: (line, edit), from 0, or None for the tree as it is.
        """
        return self.task.verdict(self._memo, edit)

    # ------------------------------------------------------------------ state, texts and actions

    def _get_state(self) -> dict[str, Any]:
        # The digest lets a replay with another task file fail at once, not by chance later.
        digest = self.task.digest if self._state.task >= 0 else ""
        return {"digest": digest, **msgspec.to_builtins(self._state)}

    def _set_state(self, state: dict[str, Any]) -> None:
        self._state = msgspec.convert({name: value for name, value in state.items() if name != "digest"}, RepairState)

    def parse(self, text: str) -> dict[str, Any]:
        """Reads a text as an action; see `texts.parse_action`."""
        return texts.parse_action(text)

    def render_action(self, action: dict[str, Any]) -> str:
        """The line that means a tool call."""
        return texts.action_line(action)

    def sample_action(self, rng: np.random.Generator) -> Any:
        """A random action, most of them of lines and edits that exist, or now and then nonsense."""
        return scripted(self, "random", rng)

    def scripted_action(self, name: str, rng: np.random.Generator) -> Any:
        """The action of a scripted policy; see `policies`."""
        return scripted(self, name, rng)

    @classmethod
    def example_kwargs(cls) -> dict[str, Any]:
        """The shipped tasks."""
        try:
            repair_tasks("samples", study=False)
        except InstanceError as error:
            raise LookupError(str(error)) from error
        return {}


# The arguments come from configurations and handles, so their types are not to be trusted.
def _check_arguments(tasks: Any, max_turns: Any, rehearsals: Any) -> None:
    if type(rehearsals) is not int or rehearsals < 0:
        raise ValueError(f"rehearsals must be a whole number of at least 0, got {rehearsals!r}")
    if type(max_turns) is not int or max_turns < 1:
        raise ValueError(f"max_turns must be a whole number of at least 1, got {max_turns!r}")
    if not isinstance(tasks, str) or not tasks:
        raise ValueError(f"tasks must be 'samples' or the path of a task file, got {tasks!r}")
