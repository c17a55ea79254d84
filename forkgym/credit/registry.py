"""Presets by name: our own and third parties', found through the entry-point group ``forkgym.algos``.

An entry point maps a preset's name to ``module:function``; the function's keyword arguments are the preset's
options and it returns an :class:`Algorithm`. Nothing is imported before a preset is asked for.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, get_type_hints

from forkgym.credit.protocol import Algorithm

__all__ = [
    "UnknownAlgorithm",
    "algorithm_options",
    "algorithm_types",
    "list_algorithms",
    "make_algorithm",
    "register_algorithm",
]

ENTRY_POINT_GROUP = "forkgym.algos"

_REGISTERED: dict[str, Callable[..., Algorithm]] = {}


class UnknownAlgorithm(ValueError):
    """Raised when a preset's name or one of its options does not exist; names the nearest that does."""


def register_algorithm(name: str, factory: Callable[..., Algorithm]) -> None:
    """Make a preset available in this process (packages use the entry-point group instead).

    Raises:
        ValueError: The name is taken.
    """
    if name in _REGISTERED or name in _entry_points():
        raise ValueError(f"an algorithm named {name!r} exists already; choose another name")
    _REGISTERED[name] = factory


def list_algorithms() -> list[str]:
    """Names of all presets, sorted; imports none of them."""
    return sorted({*_REGISTERED, *_entry_points()})


def make_algorithm(name: str, **options: Any) -> Algorithm:
    """Build a preset.

    Args:
        name: One of :func:`list_algorithms`.
        options: Keyword arguments of the preset.

    Raises:
        UnknownAlgorithm: No such preset or option; the message names the nearest.
        ValueError: An option has a value the preset refuses.
    """
    factory = _factory(name)
    known = list(inspect.signature(factory).parameters)
    for option in options:
        if option not in known:
            raise UnknownAlgorithm(
                f"algorithm {name!r} has no option {option!r}{_nearest(option, known)}; "
                f"its options are {', '.join(known)}"
            )
    return factory(**options)


def algorithm_options(name: str) -> dict[str, Any]:
    """Options of a preset with their defaults, in the order of its signature.

    Raises:
        UnknownAlgorithm: No such preset; the message names the nearest.
    """
    parameters = inspect.signature(_factory(name)).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters}


def algorithm_types(name: str) -> dict[str, Any]:
    """Types of a preset's options, as its function is annotated.

    Raises:
        UnknownAlgorithm: No such preset; the message names the nearest.
    """
    hints = get_type_hints(_factory(name))
    hints.pop("return", None)
    return hints


def _factory(name: str) -> Callable[..., Algorithm]:
    if name in _REGISTERED:
        return _REGISTERED[name]
    found = _entry_points().get(name)
    if found is None:
        raise UnknownAlgorithm(
            f"no algorithm is named {name!r}{_nearest(name, list_algorithms())}; "
            f"there are {', '.join(list_algorithms())}"
        )
    try:
        factory: Callable[..., Algorithm] = found.load()
    except (ImportError, AttributeError) as error:
        raise UnknownAlgorithm(
            f"algorithm {name!r} is announced as {found.value}, which cannot be loaded ({error}): "
            "correct the entry point, or install the package again"
        ) from error
    return factory


@cache
def _entry_points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def _nearest(name: str, candidates: list[str]) -> str:
    close = difflib.get_close_matches(name, candidates, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
