"""What can stand behind a bar: ``{{ name | upper }}``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class Safe(str):
    """Text that needs no escaping any more."""


def escape(value: Any) -> Safe:
    """Text for HTML."""
    if isinstance(value, Safe):
        return value
    text = "" if value is None else str(value)
    for letter, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#39;")):
        text = text.replace(letter, entity)
    return Safe(text)


def truncate(value: Any, length: str = "20", end: str = "…") -> str:
    """At most so many letters; what is cut ends in a mark and not in a space."""
    text, most = str(value), int(length)
    if len(text) <= most:
        return text
    return text[: most - len(end)].rstrip() + end


def join(values: Sequence[Any], separator: str = ", ") -> str:
    """Items with something between them."""
    return separator.join(str(value) for value in values)


def default(value: Any, other: str = "") -> Any:
    """The value, or another one if it is empty or missing; 0 is not empty."""
    return other if value is None or value == "" else value


def plural(count: Any, one: str = "", many: str = "s") -> str:
    """An ending for a number of things."""
    return one if int(count) == 1 else many


def money(value: Any, places: str = "2") -> str:
    """A number with thousands set apart."""
    return f"{float(value):,.{int(places)}f}"


def indent(value: Any, width: str = "4") -> str:
    """Every line but the first moved to the right; empty lines stay empty."""
    first, *rest = str(value).split("\n")
    return "\n".join([first, *(" " * int(width) + line if line else line for line in rest)])


FILTERS: dict[str, Callable[..., Any]] = {
    "default": default,
    "escape": escape,
    "first": lambda values: values[0] if values else None,
    "indent": indent,
    "join": join,
    "last": lambda values: values[-1] if values else None,
    "length": len,
    "lower": lambda value: str(value).lower(),
    "money": money,
    "plural": plural,
    "safe": lambda value: Safe(value),
    "sort": sorted,
    "title": lambda value: str(value).title(),
    "trim": lambda value: str(value).strip(),
    "truncate": truncate,
    "upper": lambda value: str(value).upper(),
}
