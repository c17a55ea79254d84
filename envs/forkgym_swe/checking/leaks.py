"""What one split gives away of another: a task, a project, neighbouring commits, nearly the same patch."""

from __future__ import annotations

import datetime
import re
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from forkgym_swe.instance import Instance

__all__ = ["Leak", "duplicates", "find_leaks", "hunk_shingles", "to_drop"]

_TOKEN = re.compile(r"\w+|[^\w\s]")
_SHINGLE = 4
_SMALLEST = 12
_ORDER = ("train", "validation", "test")


class Leak(msgspec.Struct, frozen=True, order=True):
    """Two tasks of different splits that share too much.

    Attributes:
        kind: ``task``, ``project``, ``commit window`` or ``patch hunk``.
        first: Id of the one in the earlier split.
        second: Id of the other.
        detail: What they share.
    """

    kind: str
    first: str
    second: str
    detail: str


def find_leaks(
    instances: Sequence[Instance], *, window_days: int = 30, similarity: float = 0.8, share_projects: bool = False
) -> list[Leak]:
    """Every leak between splits, sorted.

    Args:
        instances: Tasks of all splits.
        window_days: Commits of one repository that lie nearer to each other than this are neighbours.
        similarity: From this share of common token groups on, two hunks are nearly the same (Jaccard's index).
        share_projects: Do not call it a leak that a project has tasks in two splits; neighbouring commits still are.
    """
    found: set[Leak] = set()
    by_project: dict[str, list[Instance]] = defaultdict(list)
    for instance in instances:
        by_project[instance.repository.lower().replace("_", "-")].append(instance)
    for name, members in sorted(by_project.items()):
        for first, second in _across(members):
            days = _days_between(first, second)
            if _patch_lines(first) == _patch_lines(second):
                found.add(Leak("task", first.id, second.id, "the same patch"))
            elif not share_projects:
                found.add(Leak("project", first.id, second.id, name))
            elif days is not None and days <= window_days:
                found.add(Leak("commit window", first.id, second.id, f"{days} days apart"))
    found |= _near_hunks(instances, similarity)
    return sorted(found)


def to_drop(leaks: Sequence[Leak]) -> dict[str, str]:
    """Which tasks to leave out, and why: those of the earlier split, so that what is held out stays as it is."""
    return {leak.first: f"{leak.kind} shared with {leak.second}" for leak in sorted(leaks, reverse=True)}


def duplicates(instances: Sequence[Instance]) -> dict[str, str]:
    """Tasks whose repair is that of an earlier one of the same project and file: id → the earlier one's id."""
    first: dict[tuple[str, tuple[str, ...]], str] = {}
    found: dict[str, str] = {}
    for instance in instances:
        earlier = first.setdefault((instance.repository, _patch_lines(instance)), instance.id)
        if earlier != instance.id:
            found[instance.id] = earlier
    return found


def hunk_shingles(patch: str) -> list[frozenset[tuple[str, ...]]]:
    """The groups of neighbouring tokens of each hunk, context included; hunks of a few tokens are left out."""
    hunks: list[list[str]] = []
    for line in patch.splitlines():
        if line.startswith("@@"):
            hunks.append([])
        elif hunks and line[:1] in ("+", "-", " ") and not line.startswith(("+++", "---")):
            hunks[-1] += _TOKEN.findall(line[1:])
        elif line.startswith("diff "):
            hunks.append([])
    return [
        frozenset(tuple(tokens[place : place + _SHINGLE]) for place in range(len(tokens) - _SHINGLE + 1))
        for tokens in hunks
        if len(tokens) >= _SMALLEST
    ]


def _across(members: Sequence[Instance]) -> list[tuple[Instance, Instance]]:
    """Pairs of different splits, the earlier split's first."""
    ordered = sorted(members, key=lambda one: (_ORDER.index(one.split), one.id))
    return [
        (first, second)
        for place, first in enumerate(ordered)
        for second in ordered[place + 1 :]
        if first.split != second.split
    ]


def _patch_lines(instance: Instance) -> tuple[str, ...]:
    """What a patch changes where, without the context around it and without white space."""
    lines = [line for line in instance.patch.splitlines() if line[:1] in ("+", "-")]
    return tuple("".join(line.split()) for line in lines) + tuple(
        line for line in instance.patch.splitlines() if line.startswith("@@")
    )


def _days_between(first: Instance, second: Instance) -> int | None:
    try:
        dates = [datetime.date.fromisoformat(one.created_at[:10]) for one in (first, second)]
    except ValueError:
        return None
    return abs((dates[0] - dates[1]).days)


def _near_hunks(instances: Sequence[Instance], similarity: float) -> set[Leak]:
    ordered = sorted(instances, key=lambda one: (_ORDER.index(one.split), one.id))
    hunks = [(instance, shingles) for instance in ordered for shingles in hunk_shingles(instance.patch)]
    # Only hunks with a rare group in common are compared, or all pairs would be.
    places: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, (_, shingles) in enumerate(hunks):
        for shingle in shingles:
            places[shingle].append(place)
    pairs = {
        (one, other)
        for found in places.values()
        if len(found) <= 50
        for number, one in enumerate(found)
        for other in found[number + 1 :]
        if hunks[one][0].split != hunks[other][0].split
    }
    leaks: set[Leak] = set()
    for one, other in sorted(pairs):
        (first, left), (second, right) = hunks[one], hunks[other]
        common = len(left & right) / len(left | right)
        if common >= similarity:
            leaks.add(Leak("patch hunk", first.id, second.id, f"{common:.0%} alike"))
    return leaks
