"""``text/TextWorld-v0``: games that TextWorld makes on the spot, forked in microseconds.

An environment is a few references to immutable values; the games' interpreters are shared (see ``zmachine.py``).
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

from forkgym.core import Demonstration, Vocabulary
from forkgym.noise import generator, stream_id
from forkgym_text import plain
from forkgym_text.families import SPLITS, check_level, recipe
from forkgym_text.making import game_of_task, make_games
from forkgym_text.needs import need
from forkgym_text.story import INSTRUCTIONS, Course, StoryEnv
from forkgym_text.tracking import Position, Route, Tale, load_tale, read_answer
from forkgym_text.zmachine import Machine

__all__ = ["TextWorldEnv"]

_MOST_GAMES = 600
_CARRIED = ("max_turns", "system_prompt", "family", "level", "_splits", "_plain", "_shows", "_partial", "_situation")


class Situation(NamedTuple):
    """Everything that decides an episode's future; nothing in it is ever changed.

    Attributes:
        tale: The game.
        machine: The state of its story; None where it is played in plain words, by the rules alone.
        position: The state of its world.
        route: How the world got there.
        course: What the judge remembers.
        score: Points so far.
    """

    tale: Tale
    machine: Machine | None
    position: Position
    route: Route
    course: Course
    score: int


class TextWorldEnv(StoryEnv[Situation]):
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
        words: "game": the story's own texts. "plain": a few words of a closed vocabulary ("room cellar . exits north
            ."), for word-level policies; then the rules are played without the story. Not for cooking.
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
        words: Literal["game", "plain"] = "game",
        show_commands: bool = False,
        partial_credit: bool = False,
        instructions: bool = False,
    ) -> None:
        need("textworld", "text", "text/TextWorld-v0")
        check_level(family, level)
        for name, value in (("games", games), ("held_out", held_out), ("max_turns", max_turns)):
            if type(value) is not int or not 1 <= value <= 1_000_000:
                raise ValueError(f"{name} must be a whole number from 1 to 1,000,000, got {value!r}")
        if words not in ("game", "plain"):
            raise ValueError(f"words must be 'game' or 'plain', got {words!r}")
        if words == "plain" and family == "cooking":
            raise ValueError("cooking cannot be told in plain words: its recipes are told by the story only")
        self.max_turns = max_turns
        self.system_prompt = INSTRUCTIONS if instructions else ""
        self.family = family
        self.level = level
        self._splits = {split: games if split == "train" else held_out for split in SPLITS}
        self._plain = words == "plain"
        self._shows = bool(show_commands)
        self._partial = bool(partial_credit)
        self._situation = None

    @property
    def splits(self) -> dict[str, int]:
        """Number of tasks in each split."""
        return dict(self._splits)

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
        machine = None if self._plain else tale.interpreter.start
        self._situation = Situation(tale, machine, tale.start, Route(tale.start), course, 0)
        info = {"split": split, "task": task, "objective": tale.objective, **self._told()}
        return self._shown(plain.opening(tale) if self._plain else tale.opening), info

    def _play(self, command: str) -> tuple[str, float, bool, dict[str, Any]]:
        now = self.situation
        if now.machine is None:
            return self._play_by_rules(command)
        raw, machine = now.tale.interpreter.run(now.machine, command)
        answer = read_answer(raw)
        position, route = now.tale.follow(now.position, now.route, answer.events)
        score = now.score if answer.score is None else answer.score
        after = now._replace(machine=machine, position=position, route=route, score=score)
        return self._turn(answer.text, after, answer.won, answer.lost)

    def _play_by_rules(self, command: str) -> tuple[str, float, bool, dict[str, Any]]:
        now = self.situation
        step = now.tale.act(now.position, now.route, command)
        position, route = step if step is not None else (now.position, now.route)
        won, lost = now.tale.ending(position)
        text = plain.answer(now.tale, now.position, position, won=won, lost=lost)
        return self._turn(text, now._replace(position=position, route=route, score=int(won)), won, lost)

    def _idle(self, hint: str) -> tuple[str, float, bool, dict[str, Any]]:
        return self._turn(plain.NO_COMMAND if self._plain else hint, self.situation, False, False)

    def _turn(self, text: str, after: Situation, won: bool, lost: bool) -> tuple[str, float, bool, dict[str, Any]]:
        course = after.course.after(after.position.anchor)
        self._situation = after = after._replace(course=course)
        over = won or lost
        limit = self._limit()
        turns = self.turn + 1
        ends = over or (limit is not None and turns >= limit)
        info: dict[str, Any] = {"evidence": text, **self._told()}
        utility = 0.0
        if ends:
            info["success"] = won
            if not won:
                info["failure"] = course.failure(turns, lost)
            share = after.score / after.tale.max_score if after.tale.max_score > 0 else 0.0
            utility = 1.0 if won else min(max(share, 0.0), 1.0) if self._partial else 0.0
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

    # ------------------------------------------------------------------ warm start

    def vocabulary(self) -> Vocabulary:
        """Function words, and the names in all games of all splits (which are made, if they are not there).

        Raises:
            NotImplementedError: The texts are the story's own (``words="game"``).
            ValueError: There are too many games to make them all.
        """
        if not self._plain:
            raise NotImplementedError('the story\'s own texts have no closed vocabulary; use words="plain"')
        return plain.vocabulary_of(_all_games(self.family, self.level, tuple(self._splits.items())))

    def demonstrations(
        self, count: int, *, seed: int, split: str = "train", error_rate: float = 0.0
    ) -> list[Demonstration]:
        """Episodes of the policy "walkthrough" in this environment.

        Args:
            count: How many.
            seed: The same seed gives the same episodes.
            split: Where the tasks come from.
            error_rate: Probability of a random admissible command in each turn, in [0, 1].

        Raises:
            ValueError: The split does not exist, or an argument is out of range.
        """
        if split not in self._splits:
            raise ValueError(f"there is no split {split!r}; choose one of {', '.join(self._splits)}")
        if not 0 <= error_rate <= 1 or count < 0:
            raise ValueError(f"count and error_rate must be at least 0, error_rate at most 1: {count}, {error_rate}")
        expert = self._fork()
        expert._limit_given = self._limit_given
        return [_demonstration(expert, split, number, seed, error_rate) for number in range(count)]

    # ------------------------------------------------------------------ state

    def _get_state(self) -> Any:
        now = self.situation
        machine = "plain" if now.machine is None else now.machine.digest
        return (now.tale.fingerprint, machine, now.position.anchor, now.score, now.course.plain())

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


def _demonstration(env: TextWorldEnv, split: str, number: int, seed: int, error_rate: float) -> Demonstration:
    """One episode of the walkthrough, with errors."""
    key = stream_id(seed, number, f"demonstration from {split}", 0)
    rng = generator(key)
    env.reset(seed=key, options={"split": split, "task": int(rng.integers(env.splits[split]))})
    shown = Demonstration(prompt=env.messages(), turns=[], utility=0.0)
    over = False
    while not over:
        errs = rng.random() < error_rate
        command = env.scripted_action("random" if errs else "walkthrough", rng)
        observation, reward, terminated, truncated, _ = env.step(command)
        over = terminated or truncated
        shown.turns.append((command, observation))
        shown.utility = reward
    return shown


@lru_cache(maxsize=8)
def _all_games(family: str, level: int, splits: tuple[tuple[str, int], ...]) -> tuple[Path, ...]:
    """The directories of all games of all splits."""
    tasks = [(split, task) for split, count in splits for task in range(count)]
    if len(tasks) > _MOST_GAMES:
        raise ValueError(
            f"a vocabulary needs all {len(tasks)} games, and each takes about a second to make; choose games and "
            f"held_out so that there are at most {_MOST_GAMES}"
        )
    made = make_games([recipe(family, level, split, task) for split, task in tasks])
    return tuple(
        place if place is not None else game_of_task(family, level, split, task)
        for place, (split, task) in zip(made, tasks, strict=True)
    )
