"""TextWorld's games in a few words: what stands where, in a closed vocabulary that a word-level policy can learn.

Pure functions of positions; how a position changes is `tracking.Tale`'s affair.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from forkgym.core import Vocabulary
from forkgym_text.making import TALE
from forkgym_text.tracking import Position, Tale

__all__ = ["LOST", "NOTHING", "NO_COMMAND", "WON", "describe", "opening", "vocabulary_of"]

NOTHING = "nothing happens ."
NO_COMMAND = "that is no command ."
WON = "you win ."
LOST = "you lose ."

_DIRECTIONS = ("north", "south", "east", "west")
_STATES = ("closed", "locked", "open")
_WORDS = (
    *(*_DIRECTIONS, *_STATES, ".", ",", "find", "room", "exits", "here", "with", "carrying", "nothing", "happens"),
    *("that", "is", "no", "command", "you", "win", "lose", "go", "take", "drop", "open", "close", "unlock", "lock"),
    *("put", "insert", "examine", "look", "inventory", "eat", "from", "on", "into"),
)
_KINDS = {"r": "room", "d": "door", "c": "furniture", "s": "furniture"}


def opening(tale: Tale) -> str:
    """The task and the first room."""
    return f"find {' , '.join(tale.names[name] for name in tale.wanted)} . {describe(tale, tale.start)}"


def describe(tale: Tale, position: Position) -> str:
    """Where the player is, where one can go, what is there, and what is carried."""
    facts: dict[str, list[list[str]]] = defaultdict(list)
    for fact in sorted(position.propositions, key=str):
        facts[fact.name].append([variable.name for variable in fact.arguments])
    room = next(place for thing, place in facts["at"] if thing == "P")
    states = {name: state for state in _STATES for [name] in facts[state]}
    parts = [f"room {tale.names[room]} ."]
    ways = _ways(tale, facts, states, room)
    if ways:
        parts.append(f"exits {' , '.join(ways)} .")
    things = [thing for thing, place in facts["at"] if place == room and thing != "P"]
    if things:
        parts.append(f"here {' , '.join(_thing(tale, facts, states, thing) for thing in things)} .")
    carried = [tale.names[thing] for thing, place in facts["in"] if place == "I"]
    if carried:
        parts.append(f"carrying {' , '.join(carried)} .")
    return " ".join(parts)


def _ways(tale: Tale, facts: Mapping[str, Sequence[list[str]]], states: Mapping[str, str], room: str) -> list[str]:
    doors = {beyond: door for here, door, beyond in facts["link"] if here == room}
    found = []
    for direction in _DIRECTIONS:
        for beyond, here in facts[f"{direction}_of"]:
            if here == room:
                door = doors.get(beyond)
                found.append(direction if door is None else f"{direction} {states.get(door, '')} {tale.names[door]}")
    return found


def _thing(tale: Tale, facts: Mapping[str, Sequence[list[str]]], states: Mapping[str, str], thing: str) -> str:
    words = [states[thing]] if thing in states else []
    words.append(tale.names[thing])
    if states.get(thing) not in ("closed", "locked"):
        inside = [other for name in ("in", "on") for other, place in facts[name] if place == thing]
        if inside:
            words.append("with " + " , ".join(tale.names[other] for other in inside))
    return " ".join(words)


class _Info(msgspec.Struct):
    type: str
    name: str | None = None


class _Names(msgspec.Struct):
    """The part of a game's description that holds names."""

    infos: list[tuple[str, _Info]]


def vocabulary_of(places: Sequence[Path]) -> Vocabulary:
    """Function words, and the names in some games by type; a name of two types counts as one of the first."""
    kinds: dict[str, set[str]] = {"room": set(), "door": set(), "furniture": set(), "thing": set()}
    decoder = msgspec.json.Decoder(_Names)
    for place in places:
        for _, info in decoder.decode((place / TALE).read_bytes()).infos:
            if info.name:
                kinds[_KINDS.get(info.type, "thing")].add(info.name)
    taken: set[str] = set()
    entities: dict[str, tuple[str, ...]] = {}
    for kind, names in kinds.items():
        entities[kind] = tuple(sorted(names - taken))
        taken |= names
    words = tuple(word for word in dict.fromkeys(_WORDS) if word not in taken)
    return Vocabulary(words=words, entities={kind: names for kind, names in entities.items() if names})


def ending(won: bool, lost: bool) -> str:
    """What is said at the end of a game, or ""."""
    return WON if won else LOST if lost else ""


def answer(tale: Tale, before: Position, after: Position, **verdict: Any) -> str:
    """What is said after a command."""
    said = ending(**verdict)
    return said if said else NOTHING if after is before else describe(tale, after)
