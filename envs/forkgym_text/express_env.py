"""``text/TextWorldExpress-v0``: the fast games of TextWorldExpress (needs Java), forked by their history.

The engine has no states to save. An environment is its commands so far; one Java machine a process serves them all and
re-plays the commands of whoever steps while it stands elsewhere (some 25 ms at a depth of 40).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Self

from forkgym_text.needs import need
from forkgym_text.story import INSTRUCTIONS, Course, StoryEnv

__all__ = ["GAMES", "TextWorldExpressEnv"]

GAMES = (
    "cookingworld",
    "coin",
    "twc",
    "mapreader",
    "arithmetic",
    "sorting",
    "takethisaction",
    "simonsays",
    "peckingorder",
)
_CARRIED = ("max_turns", "system_prompt", "game", "params", "_splits", "_shows", "_situation")
_FOLDS = ("train", "dev", "test")


class Situation(NamedTuple):
    """Everything that decides an episode's future; nothing in it is ever changed.

    Attributes:
        fold: Split of the task.
        seed: The engine's seed of the task.
        commands: What was given to the engine so far.
        told: Admissible commands after that, sorted.
        anchor: Identifies the view of the world.
        score: Share of the points so far.
        course: What the judge remembers.
    """

    fold: str
    seed: int
    commands: tuple[str, ...]
    told: tuple[str, ...]
    anchor: str
    score: float
    course: Course


class Server:
    """The Java machine of this process, and where it stands."""

    def __init__(self) -> None:
        express = need("textworld_express", "express", "text/TextWorldExpress-v0")
        if shutil.which("java") is None:
            raise ImportError(
                "text/TextWorldExpress-v0 needs Java (a JRE, version 8 or newer) on the PATH.", name="java"
            )
        self._env = express.TextWorldExpressEnv(envStepLimit=10**9)
        self._lock = threading.RLock()
        self._stands: tuple[Any, ...] | None = None
        self._loaded: tuple[str, str] | None = None

    def seeds(self, game: str, params: str) -> dict[str, tuple[int, ...]]:
        """Seeds of each split."""
        with self._lock:
            self._load(game, params)
            lists = (self._env.getValidSeedsTrain, self._env.getValidSeedsDev, self._env.getValidSeedsTest)
            return {fold: tuple(int(seed) for seed in found()) for fold, found in zip(_FOLDS, lists, strict=True)}

    def begin(self, game: str, params: str, fold: str, seed: int) -> dict[str, Any]:
        """Start a game; what the engine tells."""
        with self._lock:
            self._load(game, params)
            self._stands = None
            told: dict[str, Any] = self._env.reset(seed=seed, gameFold=fold, generateGoldPath=False)[1]
            self._stands = (game, params, fold, seed, ())
            return told

    def play(
        self, game: str, params: str, fold: str, seed: int, commands: tuple[str, ...], command: str
    ) -> dict[str, Any]:
        """What the engine tells after one more command."""
        with self._lock:
            if self._stands != (game, params, fold, seed, commands):
                self.begin(game, params, fold, seed)
                for earlier in commands:
                    self._env.step(earlier)
            self._stands = None
            told: dict[str, Any] = self._env.step(command)[3]
            self._stands = (game, params, fold, seed, (*commands, command))
            return told

    def solution(self, game: str, params: str, fold: str, seed: int) -> tuple[str, ...]:
        """The engine's own solution of a game."""
        with self._lock:
            self._load(game, params)
            self._stands = None
            self._env.reset(seed=seed, gameFold=fold, generateGoldPath=True)
            return tuple(self._env.getGoldActionSequence())

    def _load(self, game: str, params: str) -> None:
        if self._loaded != (game, params):
            self._stands = self._loaded = None
            self._env.load(game, params)
            self._loaded = (game, params)


@lru_cache(maxsize=1)
def _server_of(process: int) -> Server:
    del process  # a process that was forked off must not share its parent's Java machine
    return Server()


def _server() -> Server:
    return _server_of(os.getpid())


@lru_cache(maxsize=64)
def _seeds(game: str, params: str) -> dict[str, tuple[int, ...]]:
    return _server().seeds(game, params)


@lru_cache(maxsize=4096)
def _solution(game: str, params: str, fold: str, seed: int) -> tuple[str, ...]:
    return _server().solution(game, params, fold, seed)


class TextWorldExpressEnv(StoryEnv[Situation]):
    """A small game of TextWorldExpress, such as cooking, collecting a coin, or reading a map.

    The reward at the end is the share of the points. The splits are the engine's: "train", "dev" and "test".

    Args:
        game: One of `GAMES`.
        params: The engine's settings of the game, such as "numLocations=5, includeDoors=0".
        max_turns: Turns of an episode, at least 1.
        show_commands: Whether each observation lists the admissible commands.
        instructions: Whether a system message explains how to play.

    Raises:
        ValueError: If an argument is out of range, or the engine refuses the settings.
        ImportError: If the engine or Java is missing.
    """

    version: ClassVar[str] = "1"
    scripted_policies: ClassVar[tuple[str, ...]] = ("random", "walkthrough")

    def __init__(
        self,
        *,
        game: str = "coin",
        params: str = "",
        max_turns: int = 50,
        show_commands: bool = False,
        instructions: bool = False,
    ) -> None:
        if game not in GAMES:
            raise ValueError(f"game must be one of {', '.join(GAMES)}, got {game!r}")
        if type(max_turns) is not int or not 1 <= max_turns <= 1_000_000:
            raise ValueError(f"max_turns must be a whole number from 1 to 1,000,000, got {max_turns!r}")
        self.max_turns = max_turns
        self.system_prompt = INSTRUCTIONS if instructions else ""
        self.game = game
        self.params = params
        self._splits = {fold: len(seeds) for fold, seeds in _seeds(game, params).items()}
        self._shows = bool(show_commands)
        self._situation = None

    @property
    def splits(self) -> dict[str, int]:
        """Number of tasks in each split."""
        return dict(self._splits)

    @property
    def admissible_commands(self) -> tuple[str, ...]:
        """Commands that the game would take in this state, sorted."""
        return self.situation.told

    def advice(self) -> str | None:
        """The next command of the engine's solution, while only its commands were given; else None."""
        now = self.situation
        solution = _solution(self.game, self.params, now.fold, now.seed)
        done = len(now.commands)
        return solution[done] if done < len(solution) and solution[:done] == now.commands else None

    def _reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        fold, task = self.pick_task(seed, options)
        own_seed = _seeds(self.game, self.params)[fold][task]
        told = _server().begin(self.game, self.params, fold, own_seed)
        start = Situation(fold, own_seed, (), (), "", 0.0, Course())
        self._situation = start = _read(start, told)
        self._situation = start._replace(course=Course(seen=(start.anchor,)))
        text = f"{told['taskDescription'].strip()}\n\n{told['observation'].strip()}"
        return self._shown(text), {"split": fold, "task": task, **self._told()}

    def _play(self, command: str) -> tuple[str, float, bool, dict[str, Any]]:
        now = self.situation
        told = _server().play(self.game, self.params, now.fold, now.seed, now.commands, command)
        after = _read(now._replace(commands=(*now.commands, command)), told)
        won = bool(told["tasksuccess"]) or after.score >= 1.0
        return self._turn(told["observation"].strip(), after, won, bool(told["taskfailure"]) and not won)

    def _idle(self, hint: str) -> tuple[str, float, bool, dict[str, Any]]:
        return self._turn(hint, self.situation, False, False)

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
            utility = 1.0 if won else min(max(after.score, 0.0), 1.0)
        return text if over else self._shown(text), utility, over, info

    def _told(self) -> dict[str, Any]:
        now = self.situation
        return {"anchor": now.anchor, "admissible_commands": list(now.told), "score": now.score}

    def _shown(self, text: str) -> str:
        return f"{text}\n\nPossible commands: {', '.join(self.admissible_commands)}" if self._shows else text

    def _get_state(self) -> Any:
        now = self.situation
        return (now.fold, now.seed, now.commands, now.anchor, now.score, now.course.plain())

    def _fork(self) -> Self:
        child = type(self).__new__(type(self))
        for name in _CARRIED:
            setattr(child, name, getattr(self, name))
        return child

    @classmethod
    def example_kwargs(cls) -> dict[str, Any]:
        """A small game, if the engine and Java are there."""
        try:
            _server()
        except ImportError as error:
            raise LookupError(str(error)) from error
        return {"game": "coin", "params": "numLocations=4", "max_turns": 12}


def _read(now: Situation, told: dict[str, Any]) -> Situation:
    """A situation after what the engine told."""
    view = "\n".join(str(told.get(name, "")) for name in ("look", "inventory"))
    anchor = hashlib.blake2b(view.encode(), digest_size=8).hexdigest()
    return now._replace(told=tuple(sorted(set(told["validActions"]))), anchor=anchor, score=float(told["score"]))
