"""``text/ALFWorld-v0``: ALFWorld's household tasks, forked in microseconds.

An environment is a reference to a state that all episodes and forks of a game share (see ``household.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from forkgym_text.household import House, Room, load_house
from forkgym_text.household_data import TASK_TYPES, data_directory, load_index
from forkgym_text.needs import need
from forkgym_text.story import INSTRUCTIONS, Course, StoryEnv

__all__ = ["ALFWorldEnv"]

_CARRIED = ("max_turns", "system_prompt", "_place", "_index", "_shows", "_situation")


class Situation(NamedTuple):
    """Everything that decides an episode's future; nothing in it is ever changed.

    Attributes:
        house: The game.
        room: Its state.
        course: What the judge remembers.
        followed: How many commands of the game's walkthrough were given so far, in order; -1 after any other.
    """

    house: House
    room: Room
    course: Course
    followed: int


class ALFWorldEnv(StoryEnv[Situation]):
    """A task in a household, such as to put a clean mug into the cupboard.

    The reward at the end is 1 if the task was done, else 0. ``info`` of the reset also holds ``gamefile`` and
    ``task_type``. The splits are those of the data: "train", "valid_seen" and "valid_unseen", as far as they are there.

    Args:
        data: Directory of the games, original or packed; by default ``$ALFWORLD_DATA``. A handle records it as given,
            so leave it to the variable where handles travel.
        task_types: Types of tasks to choose from, some of the six; by default all.
        max_turns: Turns of an episode, at least 1.
        show_commands: Whether each observation lists the admissible commands.
        instructions: Whether a system message explains how to play.

    Raises:
        LookupError: If the games are not there.
        ValueError: If an argument is out of range.
        ImportError: If the planner or TextWorld is missing.
    """

    version: ClassVar[str] = "1"
    scripted_policies: ClassVar[tuple[str, ...]] = ("random", "walkthrough")

    def __init__(
        self,
        *,
        data: str | None = None,
        task_types: Sequence[str] = TASK_TYPES,
        max_turns: int = 50,
        show_commands: bool = False,
        instructions: bool = False,
    ) -> None:
        need("textworld", "alfworld", "text/ALFWorld-v0")
        need("fast_downward", "alfworld", "text/ALFWorld-v0")
        if type(max_turns) is not int or not 1 <= max_turns <= 1_000_000:
            raise ValueError(f"max_turns must be a whole number from 1 to 1,000,000, got {max_turns!r}")
        unknown = [name for name in task_types if name not in TASK_TYPES]
        if isinstance(task_types, str) or unknown or not task_types:
            raise ValueError(f"task_types must be a list of some of {', '.join(TASK_TYPES)}; got {task_types!r}")
        self.max_turns = max_turns
        self.system_prompt = INSTRUCTIONS if instructions else ""
        self._place: Path = data_directory(data)
        self._index = load_index(self._place, tuple(name for name in TASK_TYPES if name in task_types))
        self._shows = bool(show_commands)
        self._situation = None

    @property
    def splits(self) -> dict[str, int]:
        """Number of tasks in each split, after the choice of types."""
        return {split: len(games) for split, games in self._index.items()}

    @property
    def admissible_commands(self) -> tuple[str, ...]:
        """Commands that the game would take in this state, sorted."""
        return self.situation.room.commands

    def advice(self) -> str | None:
        """The next command of the game's walkthrough; after any other command, of the planner's way to the goal."""
        now = self.situation
        walkthrough = now.house.game.walkthrough
        if 0 <= now.followed < len(walkthrough):
            return walkthrough[now.followed]
        return now.house.plan(now.room)

    # ------------------------------------------------------------------ episode

    def _reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        default = "train" if "train" in self._index else next(iter(self._index))
        split, task = self.pick_task(seed, options, default)
        house = load_house(self._place, self._index[split][task])
        self._situation = Situation(house, house.start, Course(seen=(house.start.anchor,)), 0)
        name = house.game.name
        info = {"split": split, "task": task, "gamefile": name, "task_type": Path(name).parts[-3].partition("-")[0]}
        return self._shown(house.opening), {**info, **self._told()}

    def _play(self, command: str) -> tuple[str, float, bool, dict[str, Any]]:
        now = self.situation
        text, room = now.house.play(now.room, command)
        walkthrough = now.house.game.walkthrough
        follows = 0 <= now.followed < len(walkthrough) and walkthrough[now.followed] == command
        return self._turn(text, now._replace(room=room, followed=now.followed + 1 if follows else -1))

    def _idle(self, hint: str) -> tuple[str, float, bool, dict[str, Any]]:
        return self._turn(hint, self.situation)

    def _turn(self, text: str, after: Situation) -> tuple[str, float, bool, dict[str, Any]]:
        course = after.course.after(after.room.anchor)
        self._situation = after._replace(course=course)
        won, limit, turns = after.room.won, self._limit(), self.turn + 1
        info: dict[str, Any] = {"evidence": text, **self._told()}
        if won or (limit is not None and turns >= limit):
            info["success"] = won
            if not won:
                info["failure"] = course.failure(turns, lost=False)
        return text if won else self._shown(text), float(won), won, info

    def _told(self) -> dict[str, Any]:
        room = self.situation.room
        return {"anchor": room.anchor, "admissible_commands": list(room.commands)}

    def _shown(self, text: str) -> str:
        if not self._shows:
            return text
        return f"{text}\n\nPossible commands: {', '.join(self.admissible_commands)}"

    # ------------------------------------------------------------------ state

    def _get_state(self) -> Any:
        now = self.situation
        return (now.house.game.fingerprint, now.room.anchor, now.followed, now.course.plain())

    def _fork(self) -> Self:
        child = type(self).__new__(type(self))
        for name in _CARRIED:
            setattr(child, name, getattr(self, name))
        return child

    @classmethod
    def example_kwargs(cls) -> dict[str, Any]:
        """The games of one type, if they and the planner are there."""
        try:
            need("textworld", "alfworld", "text/ALFWorld-v0")
            need("fast_downward", "alfworld", "text/ALFWorld-v0")
        except ImportError as error:
            raise LookupError(str(error)) from error
        load_index(data_directory(None))
        return {"task_types": ["look_at_obj_in_light"], "max_turns": 12}
