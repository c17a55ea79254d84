"""ALFWorld's text engine, with states that are shared immutable values instead of an environment's insides.

TextWorld's PDDL environment plans with a C library that keeps a registry of states: a state's number restores it.
A `Room` here is such a number with the facts of TextWorld's side, its commands, and where each command led; it is made
once a game, by whoever comes there first, and shared by all episodes and forks.
"""

from __future__ import annotations

import copy
import hashlib
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from forkgym_text.household_data import Household, load_household
from forkgym_text.needs import need

__all__ = ["House", "Room", "load_house", "plain_names"]

_NOTHING = "Nothing happens."
_LOADING = threading.Lock()  # the translator from PDDL replaces sys.argv and sys.stdout while it works
_MOST_ROOMS = 20_000


class Room:
    """One state of a household. Immutable; compare by identity.

    Attributes:
        anchor: BLAKE2b-64 of the sorted facts.
        commands: Admissible commands, sorted.
        won: Whether the goal is reached here.
    """

    __slots__ = ("_actions", "_facts", "_next", "_number", "_operators", "anchor", "commands", "won")

    def __init__(self, number: int, facts: dict[Any, frozenset[Any]], anchor: str) -> None:
        self._number = number
        self._facts = facts
        self._operators: dict[int, Any] = {}
        self._actions: dict[str, Any] = {}
        self._next: dict[str, tuple[str, Room]] = {}
        self.anchor = anchor
        self.commands: tuple[str, ...] = ()
        self.won = False


class House:
    """A game, loaded.

    Attributes:
        game: What it was made from.
        opening: What the reader sees at the beginning.
        start: The state at the beginning.
    """

    def __init__(self, game: Household) -> None:
        textworld: Any = need("textworld", "alfworld", "Playing ALFWorld")
        need("fast_downward", "alfworld", "Playing ALFWorld")
        pddl: Any = need("textworld.envs.pddl.pddl", "alfworld", "Playing ALFWorld")
        self.game = game
        self._lock = threading.RLock()
        self._rooms: dict[str, Room] = {}
        self._env = pddl.PddlEnv(textworld.EnvInfos())
        with _LOADING, _kept_globals():
            self._env.load({"pddl_domain": game.domain, "grammar": game.grammar, "pddl_problem": game.problem})
        self._logic = self._env._logic
        self._logic.grammar = _remembering(self._logic.grammar)
        self._state = self._env._pddl_state
        self._library = self._env.downward_lib
        self._infos = self._env._entity_infos
        for name, plain in plain_names(self._infos).items():
            self._infos[name].name = plain
        self._mapping = {name: info.name for name, info in self._infos.items()}
        self._templates: dict[Any, str] = {}
        self.opening: str = self._derive("#intro#", {})
        self.start = self._here()

    def play(self, room: Room, command: str) -> tuple[str, Room]:
        """What a command does: the answer and where it leads."""
        known = room._next.get(command)
        if known is not None:
            return known
        action = room._actions.get(command)
        if action is None:
            return _NOTHING, room
        with self._lock:
            self._go(room)
            self._state.apply(action)
            text = self._derive(action.feedback_rule, action.mapping)
            room._next[command] = (text, self._here())
        return room._next[command]

    def plan(self, room: Room) -> str | None:
        """The first command of the planner's way to the goal, or None where it finds none."""
        with self._lock:
            self._go(room)
            steps = self._state.replan(self._infos)
        return next((step for step in steps if step in room.commands), None) if steps else None

    def _go(self, room: Room) -> None:
        self._library.set_state_id(room._number)
        facts = self._state._facts
        facts.clear()
        facts.update({signature: set(members) for signature, members in room._facts.items()})
        self._state._operators = room._operators

    def _here(self) -> Room:
        """The state that the engine stands in."""
        facts = {signature: frozenset(members) for signature, members in self._state._facts.items() if members}
        listed = sorted(str(fact) for members in facts.values() for fact in members)
        anchor = hashlib.blake2b("\n".join(listed).encode(), digest_size=8).hexdigest()
        room = self._rooms.get(anchor)
        if room is None:
            room = Room(self._library.get_state_id(), facts, anchor)
            room.won = bool(self._state.check_goal())
            for action in self._state.all_applicable_actions():
                # Several actions may read alike; the engine takes the first.
                room._actions.setdefault(self._command(action), action)
            room._operators = self._state._operators
            room.commands = tuple(sorted(room._actions))
            if len(self._rooms) >= _MOST_ROOMS:
                self._rooms.clear()
            self._rooms[anchor] = room
        return room

    def _command(self, action: Any) -> str:
        """An action in words. A template is worked out once for equal arguments and facts that it asks about."""
        template = action.command_template
        asked = [signature for signature in self._state._facts if signature.name in template]
        facts = frozenset(fact for signature in asked for fact in self._state._facts[signature])
        key = (template, tuple((place.name, variable.name) for place, variable in action.mapping.items()), facts)
        if key not in self._templates:
            self._templates[key] = self._derive(template, action.mapping).format(**self._mapping)
        return self._templates[key]

    def _derive(self, symbol: str, mapping: Any) -> str:
        context = {
            "state": self._state,
            "facts": list(self._state.facts),
            "variables": {place.name: self._infos[variable.name] for place, variable in mapping.items()},
            "mapping": mapping,
            "entity_infos": self._infos,
        }
        derived: str = self._logic.grammar.derive(symbol, context)
        return derived


def plain_names(ids: Iterable[str]) -> dict[str, str]:
    """ALFWorld's names of things, such as "desk 2" for ``desk_bar__minus_01_dot_2``, numbered from the last id down."""
    kinds: dict[str, str] = {}
    for name in sorted(ids):
        kind, bar, _ = name.partition("_bar_")
        kinds[name] = (kind + "basin" if "basin" in name else kind) if bar else ""
    left = Counter(kind for kind in kinds.values() if kind)
    found = {}
    for name, kind in kinds.items():
        if kind:
            found[name] = f"{kind} {left[kind]}"
            left[kind] -= 1
        else:
            found[name] = f"{_unescaped(name)} "
    return found


def _unescaped(name: str) -> str:
    for word, sign in (("minus", "-"), ("plus", "+"), ("dot", "."), ("comma", ",")):
        name = name.replace(f"_{word}_", sign)
    return name


def _remembering(grammar: Any) -> Any:
    """The same grammar, which parses an expression once: the parser takes more than half of a step otherwise."""
    textgen: Any = need("textworld.envs.pddl.textgen", "alfworld", "Playing ALFWorld")

    @lru_cache(maxsize=10_000)
    def parsed(text: str) -> Any:
        return textgen._parse_and_convert(text, rule_name="symbols")

    class Remembering(textgen.ContextSensitiveGrammar):  # type: ignore[misc]
        """TextWorld's grammar, but for how `derive` begins."""

        def derive(self, start: str, context: Any) -> str:
            pending = copy.deepcopy(parsed(start))[::-1]
            for symbol in pending:
                symbol.context = textgen.copy_context(context)
            text: list[str] = []
            while pending:
                symbol = pending.pop()
                if isinstance(symbol, textgen.TerminalSymbol):
                    text.append(str(symbol))
                elif isinstance(symbol, textgen.NonterminalSymbol):
                    pending += self.replace(symbol)[::-1]
                else:
                    pending += symbol.derive()[::-1]
            return "".join(text)

    remembering = Remembering()
    remembering._rules = grammar._rules
    return remembering


@contextmanager
def _kept_globals() -> Iterator[None]:
    """Puts back what the translator leaves changed."""
    arguments, output = sys.argv, sys.stdout
    try:
        yield
    finally:
        sys.argv, sys.stdout = arguments, output


@lru_cache(maxsize=32)
def _house(game: Household) -> House:
    return House(game)


def load_house(place: Path, entry: Any) -> House:
    """A game by its entry in the index; the last 32 stay loaded.

    Raises:
        LookupError: Its file does not hold a game.
    """
    return _house(load_household(place, entry))
