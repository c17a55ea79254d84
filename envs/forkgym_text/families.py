"""The families of TextWorld games: levels, what they mean to the generator, and the seeds of splits. Pure functions."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["FAMILIES", "SPLITS", "Recipe", "levels_of", "recipe"]

FAMILIES = ("treasure-hunter", "coin-collector", "cooking")
SPLITS = ("train", "valid", "test")
ATTEMPTS = 8
"""Seeds that are tried for one task; some maps do not permit a quest of the length asked for."""

_SEEDS_OF_A_SPLIT = 1_000_000

# recipe: ingredients; take: how many must be fetched; go: rooms; the others: skills that are needed.
_COOKING: tuple[dict[str, Any], ...] = (
    {"recipe": 1, "take": 0, "go": 1},
    {"recipe": 1, "take": 1, "go": 1, "open": True},
    {"recipe": 1, "take": 1, "go": 1, "open": True, "cook": True},
    {"recipe": 1, "take": 1, "go": 1, "open": True, "cook": True, "cut": True},
    {"recipe": 2, "take": 2, "go": 1, "open": True, "cook": True, "cut": True},
    {"recipe": 1, "take": 1, "go": 6, "open": True, "cook": True, "cut": True},
    {"recipe": 2, "take": 2, "go": 6, "open": True, "cook": True, "cut": True},
    {"recipe": 3, "take": 3, "go": 6, "open": True, "cook": True, "cut": True, "drop": True},
    {"recipe": 3, "take": 3, "go": 9, "open": True, "cook": True, "cut": True, "drop": True},
    {"recipe": 4, "take": 4, "go": 12, "open": True, "cook": True, "cut": True, "drop": True},
)

_LEVELS = {"treasure-hunter": range(1, 31), "coin-collector": range(1, 301), "cooking": range(1, len(_COOKING) + 1)}


class Recipe(msgspec.Struct, frozen=True):
    """What decides a game: equal recipes give equal games.

    Attributes:
        family: One of `FAMILIES`.
        settings: What TextWorld's generator of the family takes.
        seed: Its seed.
    """

    family: str
    settings: dict[str, Any]
    seed: int


def levels_of(family: str) -> range:
    """The levels of difficulty of a family.

    Raises:
        ValueError: There is no such family.
    """
    if family not in _LEVELS:
        raise ValueError(f"there is no family {family!r} of TextWorld games; choose one of {', '.join(FAMILIES)}")
    return _LEVELS[family]


def check_level(family: str, level: Any) -> None:
    """Refuse a level that a family does not have.

    Raises:
        ValueError: The family or the level does not exist.
    """
    levels = levels_of(family)
    if type(level) is not int or level not in levels:
        raise ValueError(f"{family} has the levels {levels[0]} to {levels[-1]}, not {level!r}")
    if family == "coin-collector" and ((level - 1) % 100 + 1) * ((level - 1) // 100 + 1) > 100:
        raise ValueError(f"coin-collector level {level} would have more than 100 rooms, which the game format forbids")


def recipe(family: str, level: int, split: str, task: int, attempt: int = 0) -> Recipe:
    """The recipe of one task.

    Args:
        family: One of `FAMILIES`.
        level: Its level of difficulty.
        split: One of `SPLITS`; their seeds do not overlap. Cooking games of different splits also differ in food.
        task: Number of the task in the split.
        attempt: Another seed for the same task, where the generator refuses the first.

    Raises:
        ValueError: No such family, level or split.
    """
    check_level(family, level)
    if split not in SPLITS:
        raise ValueError(f"there is no split {split!r}; choose one of {', '.join(SPLITS)}")
    seed = (SPLITS.index(split) * ATTEMPTS + attempt) * _SEEDS_OF_A_SPLIT + task + 1
    if family != "cooking":
        return Recipe(family, {"level": level}, seed)
    skills = {"open": False, "cook": False, "cut": False, "drop": False}
    return Recipe(family, {**skills, **_COOKING[level - 1], "recipe_seed": seed, "split": split}, seed)
