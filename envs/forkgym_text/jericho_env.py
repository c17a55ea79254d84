"""``text/Jericho-v0``: any Z-machine story file that you have, with native forks and keyed luck.

Shares the interpreter of ``zmachine.py`` with TextWorld's games. No story comes with forkgym.
"""

from __future__ import annotations

import hashlib
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from forkgym_text.needs import need
from forkgym_text.story import INSTRUCTIONS, Course, StoryEnv
from forkgym_text.zmachine import Interpreter, Machine, without_prompt

__all__ = ["JerichoEnv"]

_CARRIED = ("max_turns", "system_prompt", "_story", "_valid_actions", "_situation")
_COMMON = tuple(sorted("look inventory north south east west up down in out wait".split()))  # noqa: SIM905
_END = re.compile(r"^\s*\*{3,}\s*(.+?)\s*\*{3,}\s*$", re.MULTILINE)
_WON = re.compile(r"\b(won|win|victory|triumph)", re.IGNORECASE)
_SEEDS = 2**31 - 1


class Situation(NamedTuple):
    """Everything that decides an episode's future; nothing in it is ever changed.

    Attributes:
        book: The story.
        machine: Its state.
        course: What the judge remembers.
        anchor: Identifies the state of the story's world.
        score: Points so far.
    """

    book: Book
    machine: Machine
    course: Course
    anchor: str
    score: int


class Book:
    """A story, loaded.

    Attributes:
        interpreter: Runs it.
        fingerprint: BLAKE2b-128 of its file.
        known: Whether Jericho knows its scores and endings.
        max_score: The most points there are, or 0.
    """

    def __init__(self, story: Path) -> None:
        self.interpreter = Interpreter(story, extra="text")
        self.fingerprint = hashlib.blake2b(story.read_bytes(), digest_size=16).hexdigest()
        frotz = self.interpreter.frotz
        self.known = bool(frotz.is_fully_supported)
        self.max_score = max(int(frotz.get_max_score()), 0) if self.known else 0

    def anchor(self, machine: Machine) -> str:
        """Identifies the world of a state: Jericho's hash of a known story's objects, else the state itself."""
        if not self.known:
            return machine.digest
        return str(self.interpreter.ask(machine, lambda frotz: frotz.get_world_state_hash()))


class JerichoEnv(StoryEnv[Situation]):
    """A story file for the Z-machine (``.z1`` to ``.z8``), such as those of the Interactive Fiction Archive.

    The reward at the end is the share of the points in stories that Jericho knows; in others 1 if the story ends with
    words such as "You have won" between asterisks, else 0. Chance in a story is keyed by the environment's luck, turn
    by turn, so a fork with fresh luck meets other dice.

    Args:
        story: The file; a relative path is looked for in ``$FORKGYM_STORIES``, else in the working directory.
        max_turns: Turns of an episode, at least 1.
        valid_actions: Whether Jericho's search for valid actions fills ``admissible_commands`` (known stories only,
            some tenths of a second a turn); else these are commands that most stories understand.
        instructions: Whether a system message explains how to play.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If an argument is out of range.
        ImportError: If Jericho is missing.
    """

    version: ClassVar[str] = "1"

    def __init__(
        self, story: str, *, max_turns: int = 100, valid_actions: bool = False, instructions: bool = False
    ) -> None:
        need("jericho", "text", "text/Jericho-v0")
        if type(max_turns) is not int or not 1 <= max_turns <= 1_000_000:
            raise ValueError(f"max_turns must be a whole number from 1 to 1,000,000, got {max_turns!r}")
        self.max_turns = max_turns
        self.system_prompt = INSTRUCTIONS if instructions else ""
        self._story = _find(story)
        self._valid_actions = bool(valid_actions)
        self._situation = None

    @property
    def admissible_commands(self) -> tuple[str, ...]:
        """Valid actions as Jericho finds them, or commands that most stories understand."""
        now = self.situation
        if not (self._valid_actions and now.book.known):
            return _COMMON
        found = now.book.interpreter.ask(now.machine, lambda frotz: frotz.get_valid_actions(use_parallel=False))
        return tuple(sorted(set(found)))

    def _reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:  # noqa: ARG002 - a story has no tasks
        book = _load(self._story, self._story.stat().st_mtime_ns)
        machine = book.interpreter.start
        anchor = book.anchor(machine)
        self._situation = Situation(book, machine, Course(seen=(anchor,)), anchor, 0)
        return without_prompt(book.interpreter.opening).strip(), self._told()

    def _play(self, command: str) -> tuple[str, float, bool, dict[str, Any]]:
        now = self.situation
        dice = (int(self.luck.integers("the story's dice", 1, _SEEDS)), 0, 0)
        raw, machine = now.book.interpreter.run(now.machine._replace(chance=dice), command)
        score, won, lost = self._judged(now, machine, raw)
        after = now._replace(machine=machine, anchor=now.book.anchor(machine), score=score)
        return self._turn(without_prompt(raw).strip(), after, won, lost)

    def _idle(self, hint: str) -> tuple[str, float, bool, dict[str, Any]]:
        return self._turn(hint, self.situation, False, False)

    def _judged(self, now: Situation, machine: Machine, raw: str) -> tuple[int, bool, bool]:
        """Score, won, lost."""
        if now.book.known:
            ask = now.book.interpreter.ask
            score, won, lost = ask(
                machine, lambda frotz: (int(frotz.get_score()), bool(frotz.victory()), bool(frotz.game_over()))
            )
            return score, won, lost and not won
        endings = _END.findall(raw)
        won = bool(endings) and _WON.search(endings[-1]) is not None
        return 0, won, bool(endings) and not won

    def _turn(self, text: str, after: Situation, won: bool, lost: bool) -> tuple[str, float, bool, dict[str, Any]]:
        course = after.course.after(after.anchor)
        self._situation = after._replace(course=course)
        over, limit, turns = won or lost, self._limit(), self.turn + 1
        info: dict[str, Any] = {"evidence": text, **self._told()}
        utility = 0.0
        if over or (limit is not None and turns >= limit):
            info["success"] = won
            if not won:
                info["failure"] = course.failure(turns, lost)
            top = after.book.max_score
            utility = min(max(after.score / top, 0.0), 1.0) if top > 0 else float(won)
        return text, utility, over, info

    def _told(self) -> dict[str, Any]:
        now = self.situation
        told = {"anchor": now.anchor, "admissible_commands": list(self.admissible_commands)}
        return {**told, "score": now.score, "max_score": now.book.max_score} if now.book.known else told

    def _get_state(self) -> Any:
        now = self.situation
        return (now.book.fingerprint, now.machine.digest, now.score, now.course.plain())

    def _fork(self) -> Self:
        child = type(self).__new__(type(self))
        for name in _CARRIED:
            setattr(child, name, getattr(self, name))
        return child

    @classmethod
    def example_kwargs(cls) -> dict[str, Any]:
        """A story of the user's, if there is one.

        Raises:
            LookupError: ``$FORKGYM_STORIES`` holds none, or Jericho is missing.
        """
        try:
            need("jericho", "text", "text/Jericho-v0")
        except ImportError as error:
            raise LookupError(str(error)) from error
        shelf = os.environ.get("FORKGYM_STORIES")
        stories = sorted(Path(shelf).expanduser().glob("*.z[1-8]")) if shelf else []
        if not stories:
            raise LookupError("set FORKGYM_STORIES to a directory with story files (.z1 to .z8) of your own")
        return {"story": stories[0].name, "max_turns": 12}


@lru_cache(maxsize=16)
def _load(story: Path, changed: int) -> Book:
    """A story by its file and when that was changed."""
    del changed
    return Book(story)


def _find(story: Any) -> Path:
    if not isinstance(story, str) or not re.search(r"\.z[1-8]$", story, re.IGNORECASE):
        raise ValueError(f"story must be a file for the Z-machine (.z1 to .z8), got {story!r}")
    shelf = os.environ.get("FORKGYM_STORIES", "")
    path = (Path(shelf).expanduser() / Path(story).expanduser()).resolve()
    if not path.is_file():
        raise FileNotFoundError(f"there is no story {path}. Give its path, or set FORKGYM_STORIES to its directory.")
    return path
