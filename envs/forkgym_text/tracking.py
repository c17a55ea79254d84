"""What TextWorld knows about a game beside its text: the world's facts, admissible commands, the way to win.

Positions of a game's world are made once and shared by all episodes and forks: a position and an event of the game
lead to one other position. Which events happened is read from the tags that TextWorld's games print.
"""

from __future__ import annotations

import hashlib
import re
import threading
import warnings
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from forkgym_text.making import STORY, TALE, fingerprint
from forkgym_text.needs import need
from forkgym_text.zmachine import Interpreter, without_prompt

__all__ = ["Answer", "Position", "Route", "Tale", "load_tale", "read_answer"]

_MOST_POSITIONS = 20_000
_EVENT = re.compile(r"\[[^]]+\]\n?")
_SCORE = re.compile(r"<score>\s*(-?\d+).*?</score>", re.DOTALL)
_EXTRA = re.compile(r"<(score|moves)>.*?</\1>", re.DOTALL)
_CENTRED = re.compile(r"\n +\*\*\*")
_FAREWELL = "Would you like to RESTART"
_BLANK = re.compile(r"\n{3,}")
_DONE = " - succeeded"
WON, LOST = "*** The End ***", "*** You lost! ***"


class Answer(NamedTuple):
    """What a game's raw text says.

    Attributes:
        text: For the reader, without tags and prompt.
        events: What happened, in order.
        score: The score, where the game told it.
        won: Whether the game ended well.
        lost: Whether it ended badly.
    """

    text: str
    events: tuple[str, ...]
    score: int | None
    won: bool
    lost: bool


def read_answer(raw: str) -> Answer:
    """Take a game's raw text apart."""
    scores = _SCORE.findall(raw)
    text = _EXTRA.sub("", raw)
    events = []
    for tag in _EVENT.findall(text):
        name = tag.strip()[1:-1]
        # A name with parentheses is that of a rule within an action.
        if _DONE in name and "(" not in name and ")" not in name:
            events.append(name[: name.index(_DONE)])
    text = _EVENT.sub("", text)
    won, lost = WON in text, LOST in text
    text = without_prompt(text).partition(_FAREWELL)[0]
    text = _BLANK.sub("\n\n", _CENTRED.sub("\n***", text)).strip()
    return Answer(text, tuple(events), int(scores[-1]) if scores else None, won, lost)


class Position:
    """One state of a game's world, apart from time and the story's own memory. Immutable; compare by identity.

    Attributes:
        anchor: BLAKE2b-64 of the sorted facts.
        commands: Admissible commands, sorted.
        facts: The facts, sorted, with their variables' names.
    """

    __slots__ = ("_actions", "_ending", "_next", "_state", "anchor", "commands", "facts")

    def __init__(self, state: Any, actions: Sequence[Any], commands: tuple[str, ...], facts: tuple[str, ...]) -> None:
        self._state = state
        self._actions = actions
        self._next: dict[str, tuple[Any, Position] | None] = {}
        self._ending: tuple[bool, bool] | None = None
        self.commands = commands
        self.facts = facts
        self.anchor = anchor_of(facts)

    @property
    def propositions(self) -> list[Any]:
        """The facts as TextWorld's propositions."""
        return list(self._state.facts)


def anchor_of(facts: Sequence[str]) -> str:
    """BLAKE2b-64 of facts in order."""
    return hashlib.blake2b("\n".join(facts).encode(), digest_size=8).hexdigest()


class Route:
    """The actions that led somewhere, as a linked list that forks share; remembers TextWorld's view of the quests."""

    __slots__ = ("action", "before", "position", "progress")

    def __init__(self, position: Position, action: Any = None, before: Route | None = None) -> None:
        self.position = position
        self.action = action
        self.before = before
        self.progress: Any = None


class Tale:
    """A game, loaded: its story's interpreter and TextWorld's description of its world.

    Attributes:
        fingerprint: Of its story file.
        objective: What is to be done, as the game puts it.
        max_score: The most points there are.
        start: The world at the beginning.
        names: Variable → the name in the texts.
        kinds: Variable → its type ("r" is a room).
    """

    def __init__(self, place: Path) -> None:
        games: Any = need("textworld.generator.game", "text", "Playing TextWorld games")
        inform: Any = need("textworld.generator.inform7", "text", "Playing TextWorld games")
        self._progression = games.GameProgression
        self._game = games.Game.load(str(place / TALE))
        self._inform = inform.Inform7Game(self._game)
        self._lock = threading.RLock()
        self._positions: dict[tuple[str, ...], Position] = {}
        self.fingerprint = fingerprint(place)
        self.objective: str = self._game.objective
        self.max_score = int(self._game.max_score)
        self.names = {name: info.name for name, info in self._game.infos.items()}
        self.kinds = {name: info.type for name, info in self._game.infos.items()}
        self._place = place
        self.start = self._position(self._game.world.state.copy())

    def follow(self, position: Position, route: Route, events: Sequence[str]) -> tuple[Position, Route]:
        """Where events lead."""
        for event in events:
            step = self._after(position, event)
            if step is not None:
                action, position = step
                route = Route(position, action, route)
        return position, route

    def act(self, position: Position, route: Route, command: str) -> tuple[Position, Route] | None:
        """Where an admissible command leads by the rules alone, without the story; None for any other command."""
        step = self._after_command(position, command)
        return None if step is None else (step[1], Route(step[1], step[0], route))

    def ending(self, position: Position) -> tuple[bool, bool]:
        """Whether the game is won, and whether it is lost, by the rules alone."""
        if position._ending is None:
            with self._lock:
                quests = [quest for quest in self._game.quests if not quest.optional]
                state = position._state
                won = all(any(event.is_triggering(state) for event in quest.win_events) for quest in quests)
                lost = any(event.is_triggering(state) for quest in quests for event in quest.fail_events)
            position._ending = (won and not lost, lost)
        return position._ending

    @property
    def wanted(self) -> tuple[str, ...]:
        """Variables of the things that must be held to win."""
        events = [event for quest in self._game.quests for event in quest.win_events]
        facts = [fact for event in events for fact in event.condition.preconditions]
        return tuple(fact.arguments[0].name for fact in facts if fact.name == "in" and fact.arguments[1].name == "I")

    def advice(self, route: Route) -> str | None:
        """The first command of TextWorld's shortest known way to win, or None where there is none."""
        with self._lock:
            policy = self._progress(route).winning_policy
            return self._inform.gen_commands_from_actions(policy[:1])[0] if policy else None

    @cached_property
    def interpreter(self) -> Interpreter:
        """Runs its story; loaded at the first use."""
        return Interpreter(self._place / STORY, ("tw-extra-infos score", "tw-trace-actions"))

    @cached_property
    def opening(self) -> str:
        """What the reader sees at the beginning."""
        text = read_answer(self.interpreter.opening).text
        at = text.find(self.objective) if self.objective else -1
        if at < 0:
            at = text.find("-= ")
        return text[max(at, 0) :].strip()

    def _after(self, position: Position, event: str) -> tuple[Any, Position] | None:
        if event not in position._next:
            with self._lock, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                action = self._inform.detect_action(event, position._actions)
                if action is None:
                    position._next[event] = None
                else:
                    state = position._state.copy()
                    state.apply(action)
                    position._next[event] = (action, self._position(state))
        return position._next[event]

    def _after_command(self, position: Position, command: str) -> tuple[Any, Position] | None:
        key = f"> {command}"
        if key not in position._next:
            if command not in position.commands:
                return None
            with self._lock:
                names = self._inform.gen_commands_from_actions(position._actions)
                action = position._actions[names.index(command)]
                state = position._state.copy()
                state.apply(action)
                position._next[key] = (action, self._position(state))
        return position._next[key]

    def _position(self, state: Any) -> Position:
        facts = tuple(sorted(str(fact) for fact in state.facts))
        known = self._positions.get(facts)
        if known is None:
            rules, constants = self._game.kb.rules.values(), self._game.kb.types.constants_mapping
            actions = sorted(state.all_applicable_actions(rules, constants), key=_order)
            commands = tuple(sorted(set(self._inform.gen_commands_from_actions(actions))))
            known = Position(state, actions, commands, facts)
            if len(self._positions) >= _MOST_POSITIONS:
                self._positions.clear()
            self._positions[facts] = known
        return known

    def _progress(self, route: Route) -> Any:
        """TextWorld's tracker of the quests after a route, from the nearest place where it is known."""
        pending: list[Route] = []
        at: Route = route
        while at.progress is None and at.before is not None:
            pending.append(at)
            at = at.before
        if at.progress is None:
            at.progress = self._progression(self._game)
        progress = at.progress
        for later in reversed(pending):
            progress = self._advanced(progress, later.action, later.position)
            later.progress = progress
        return progress

    def _advanced(self, progress: Any, action: Any, position: Position) -> Any:
        """A tracker after one more action; `GameProgression.copy` and `update` would work out all actions anew."""
        after = object.__new__(self._progression)
        after.game, after.state, after._valid_actions = self._game, position._state, position._actions
        after.quest_progressions = [quest.copy() for quest in progress.quest_progressions]
        for quest in after.quest_progressions:
            quest.update(action, position._state)
        return after


def _order(action: Any) -> tuple[str, str]:
    """A canonical order, since the engine's depends on the process's hash seed."""
    return action.name, str([variable.name for variable in action.variables])


@lru_cache(maxsize=256)
def load_tale(place: Path) -> Tale:
    """A game by its directory; the last 256 stay loaded."""
    return Tale(place)
