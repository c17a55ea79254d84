"""ALFWorld's games on disk: the original ``game.tw-pddl`` files, or a packed form of them. Reads, changes nothing.

The packed form is a directory with ``shared.json.gz`` (the domains and grammars that all games share) and
``SPLIT.jsonl.gz`` or ``SPLIT_0.jsonl.gz``, ``SPLIT_1.jsonl.gz`` … (a game a line).
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["SPLITS", "TASK_TYPES", "Household", "data_directory", "load_household", "load_index"]

SPLITS = ("train", "valid_seen", "valid_unseen")
TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)

_PLACES = ("", "json_2.1.1", "json_2.1.2")
_GOAL = "@@TASK@@"


class Household(msgspec.Struct, frozen=True):
    """One game.

    Attributes:
        name: Path of its file in ALFWorld's data.
        domain: The rules, in PDDL.
        grammar: How its texts are made; its expressions are code, so games must come from where you trust.
        problem: The household and the goal, in PDDL.
        walkthrough: Commands that win.
        fingerprint: BLAKE2b-128 of all that.
    """

    name: str
    domain: str
    grammar: str
    problem: str
    walkthrough: tuple[str, ...]
    fingerprint: str


class _Packed(msgspec.Struct):
    """A line of a packed file."""

    gamefile: str
    task: str
    domain_id: str
    grammar_id: str
    pddl_problem: str
    solvable: bool
    walkthrough: list[str] | None = None


class _Shared(msgspec.Struct):
    domains: dict[str, str]
    grammars: dict[str, str]


class _Original(msgspec.Struct):
    """A ``game.tw-pddl`` file."""

    pddl_domain: str
    grammar: str
    pddl_problem: str
    solvable: bool = True
    walkthrough: list[str] | None = None


def data_directory(given: str | None) -> Path:
    """Where ALFWorld's games are: the directory given, else ``$ALFWORLD_DATA``, else ``~/.cache/alfworld``.

    Raises:
        LookupError: There is no such directory.
    """
    place = Path(given or os.environ.get("ALFWORLD_DATA") or "~/.cache/alfworld").expanduser()
    if not place.is_dir():
        raise LookupError(
            f"ALFWorld's games are not at {place}. Download them (pip install alfworld, then alfworld-download), and "
            "set ALFWORLD_DATA to their directory, or give it as data=…"
        )
    return place


@lru_cache(maxsize=16)
def load_index(place: Path, task_types: tuple[str, ...] = TASK_TYPES) -> dict[str, tuple[Any, ...]]:
    """The games of each split, by task type, in the order of their names. An entry is what `load_household` takes.

    Raises:
        LookupError: The directory holds no games.
    """
    index = _packed_index(place, task_types) if (place / "shared.json.gz").is_file() else _files(place, task_types)
    if not any(index.values()):
        raise LookupError(
            f"{place} holds no games of {', '.join(task_types)}: expected json_2.1.1/SPLIT/…/game.tw-pddl, or the "
            "packed form (shared.json.gz beside SPLIT.jsonl.gz)."
        )
    return {split: games for split, games in index.items() if games}


def load_household(place: Path, entry: Any) -> Household:
    """Read one game of an index.

    Raises:
        LookupError: Its file does not hold a game.
    """
    if isinstance(entry, _Packed):
        shared = _shared(place)
        grammar = shared.grammars[entry.grammar_id].replace(_GOAL, entry.task)
        return _household(
            entry.gamefile, shared.domains[entry.domain_id], grammar, entry.pddl_problem, entry.walkthrough
        )
    try:
        game = msgspec.json.decode((place / entry).read_bytes(), type=_Original)
    except (OSError, msgspec.DecodeError) as error:
        raise LookupError(f"{place / entry} is not a game of ALFWorld: {error}") from error
    return _household(entry, game.pddl_domain, game.grammar, game.pddl_problem, game.walkthrough)


def _household(name: str, domain: str, grammar: str, problem: str, walkthrough: list[str] | None) -> Household:
    steps = tuple(walkthrough or ())
    content = msgspec.json.encode((domain, grammar, problem, steps))
    return Household(name, domain, grammar, problem, steps, hashlib.blake2b(content, digest_size=16).hexdigest())


@lru_cache(maxsize=4)
def _shared(place: Path) -> _Shared:
    with gzip.open(place / "shared.json.gz", "rb") as file:
        return msgspec.json.decode(file.read(), type=_Shared)


def _packed_index(place: Path, task_types: tuple[str, ...]) -> dict[str, tuple[Any, ...]]:
    games: dict[str, list[_Packed]] = {split: [] for split in SPLITS}
    decoder = msgspec.json.Decoder(_Packed)
    for path in sorted(place.glob("*.jsonl.gz")):
        split = re.sub(r"_\d+$", "", path.name.removesuffix(".jsonl.gz"))
        if split not in games:
            continue
        try:
            with gzip.open(path, "rb") as file:
                games[split] += [decoder.decode(line) for line in file if line.strip()]
        except (OSError, EOFError, msgspec.DecodeError) as error:
            raise LookupError(f"{path} is not a packed file of ALFWorld games: {error}") from error
    return {
        split: tuple(
            sorted(
                (game for game in found if game.solvable and _type_of(game.gamefile) in task_types),
                key=lambda game: game.gamefile,
            )
        )
        for split, found in games.items()
    }


def _files(place: Path, task_types: tuple[str, ...]) -> dict[str, tuple[Any, ...]]:
    for below in _PLACES:
        root = place / below
        if any((root / split).is_dir() for split in SPLITS):
            return {
                split: tuple(
                    sorted(
                        str(path.relative_to(place))
                        for path in (root / split).glob("*/*/game.tw-pddl")
                        if _type_of(str(path)) in task_types
                        and "movable" not in str(path)
                        and "Sliced" not in str(path)
                    )
                )
                for split in SPLITS
            }
    return {}


def _type_of(name: str) -> str:
    """The type of a game, from the name of its task's directory (``TYPE-Object-…/trial…/game.tw-pddl``)."""
    parts = Path(name).parts
    return parts[-3].partition("-")[0] if len(parts) >= 3 else ""
