"""``text/TextWorld-v0``: games that TextWorld makes on the spot, forked in microseconds.

An environment is a few references to immutable values; the games' interpreters are shared (see ``zmachine.py``).
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Self

from forkgym.core import ResetNeededError
from forkgym_text.families import SPLITS, check_level
from forkgym_text.making import game_of_task
from forkgym_text.needs import need
from forkgym_text.story import INSTRUCTIONS, Course, StoryEnv
from forkgym_text.tracking import Position, Route, Tale, load_tale, read_answer
from forkgym_text.zmachine import Machine

__all__ = ["TextWorldEnv"]

_CARRIED = ("max_turns", "system_prompt", "family", "level", "_splits", "_shows", "_partial", "_situation")


class Situation(NamedTuple):
    """Everything that decides an episode's future; nothing in it is ever changed.

    Attributes:
        tale: The game.
        machine: The state of its story.
        position: The state of its world.
        route: How the world got there.
        course: What the judge remembers.
        score: Points so far.
    """

    tale: Tale
    machine: Machine
    position: Position
    route: Route
    course: Course
    score: int


class TextWorldEnv(StoryEnv):
    """A text adventure made by TextWorld: find an object, collect a coin, or cook a meal.

    The reward at the end is 1 for a game that was won, else 0; with ``partial_credit`` it is the share of the points.
    ``info`` also holds ``score`` and ``max_score``.

    Args:
        family: "treasure-hunter" (levels 1 to 30), "coin-collector" (1 to 300) or "cooking" (1 to 10).
        level: Level of difficulty (see ``docs/text.md``).
        games: Number of training tasks.
        held_out: Number of tasks of each of the splits "valid" and "test".
        max_turns: Turns of an episode, at least 1.
        show_commands: Whether each observation lists the admissible commands.
        partial_credit: Whether an episode that was not won earns its share of the points.
        instructions: Whether a system message explains how to play.

    Raises:
        ValueError: If an argument is out of range.
        ImportError: If TextWorld is missing.
    """

    version: ClassVar[str] = "1"
    scripted_policies: ClassVar[tuple[str, ...]] = ("random", "walkthrough")

    def __init__(
        self,
        *,
        family: str = "treasure-hunter",
        level: int = 1,
        games: int = 1000,
        held_out: int = 100,
        max_turns: int = 50,
        show_commands: bool = False,
        partial_credit: bool = False,
        instructions: bool = False,
    ) -> None:
        need("textworld", "text", "text/TextWorld-v0")
        check_level(family, level)
        for name, value in (("games", games), ("held_out", held_out), ("max_turns", max_turns)):
            if type(value) is not int or not 1 <= value <= 1_000_000:
                raise ValueError(f"{name} must be a whole number from 1 to 1,000,000, got {value!r}")
        self.max_turns = max_turns
        self.system_prompt = INSTRUCTIONS if instructions else ""
        self.family = family
        self.level = level
        self._splits = {split: games if split == "train" else held_out for split in SPLITS}
        self._shows = bool(show_commands)
        self._partial = bool(partial_credit)
        self._situation: Situation | None = None

    @property
    def splits(self) -> dict[str, int]:
        """Number of tasks in each split."""
        return dict(self._splits)

    @property
    def situation(self) -> Situation:
        """The state of the episode.

        Raises:
            ResetNeededError: Before the first reset.
        """
        if self._situation is None:
            raise ResetNeededError("There is no game before the first reset. Call env.reset(seed=...) once.")
        return self._situation

    @property
    def admissible_commands(self) -> tuple[str, ...]:
        """Commands that the game would take in this state, sorted."""
        return self.situation.position.commands

    def advice(self) -> str | None:
        """The next command of TextWorld's shortest known way to win, or None where it knows none."""
        return self.situation.tale.advice(self.situation.route)

    # ------------------------------------------------------------------ episode

    def _reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        split, task = self.pick_task(seed, options)
        tale = load_tale(game_of_task(self.family, self.level, split, task))
        course = Course(seen=(tale.start.anchor,))
        self._situation = Situation(tale, tale.interpreter.start, tale.start, Route(), course, 0)
        info = {"split": split, "task": task, "objective": tale.objective, **self._told()}
        return self._shown(tale.opening), info

    def _play(self, command: str) -> tuple[str, float, bool, dict[str, Any]]:
        now = self.situation
        raw, machine = now.tale.interpreter.run(now.machine, command)
        answer = read_answer(raw)
        position, route = now.tale.follow(now.position, now.route, answer.events)
        score = now.score if answer.score is None else answer.score
        return self._turn(answer.text, Situation(now.tale, machine, position, route, now.course, score), answer)

    def _idle(self, hint: str) -> tuple[str, float, bool, dict[str, Any]]:
        return self._turn(hint, self.situation, read_answer(""))

    def _turn(self, text: str, after: Situation, answer: Any) -> tuple[str, float, bool, dict[str, Any]]:
        course = after.course.after(after.position.anchor)
        self._situation = after = after._replace(course=course)
        over = answer.won or answer.lost
        limit = self._limit()
        turns = self.turn + 1
        ends = over or (limit is not None and turns >= limit)
        info: dict[str, Any] = {"evidence": text, **self._told()}
        utility = 0.0
        if ends:
            info["success"] = answer.won
            if not answer.won:
                info["failure"] = course.failure(turns, answer.lost)
            share = after.score / after.tale.max_score if after.tale.max_score > 0 else 0.0
            utility = 1.0 if answer.won else min(max(share, 0.0), 1.0) if self._partial else 0.0
        return text if over else self._shown(text), utility, over, info

    def _told(self) -> dict[str, Any]:
        now = self.situation
        return {
            "anchor": now.position.anchor,
            "admissible_commands": list(now.position.commands),
            "score": now.score,
            "max_score": now.tale.max_score,
        }

    def _shown(self, text: str) -> str:
        if not self._shows:
            return text
        return f"{text}\n\nPossible commands: {', '.join(self.admissible_commands)}"

    # ------------------------------------------------------------------ state

    def _get_state(self) -> Any:
        now = self.situation
        return (now.tale.fingerprint, now.machine.digest, now.position.anchor, now.score, now.course.plain())

    def _fork(self) -> Self:
        child = type(self).__new__(type(self))
        for name in _CARRIED:
            setattr(child, name, getattr(self, name))
        return child

    @classmethod
    def example_kwargs(cls) -> dict[str, Any]:
        """A few small games, if TextWorld is installed."""
        try:
            need("textworld", "text", "text/TextWorld-v0")
        except ImportError as error:
            raise LookupError(str(error)) from error
        return {"family": "treasure-hunter", "level": 4, "games": 2, "held_out": 1, "max_turns": 12}
