"""From nodes and values to text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .filters import FILTERS, Safe, escape
from .parser import For, If, Node, TemplateError, Text, Value, parse, unquote

_COMPARISON = re.compile(r"(.+?)\s*(==|!=|<=|>=|<|>)\s*(.+)")


class Template:
    """A template that was read, to be rendered many times.

    Args:
        source: Its text.
        autoescape: Escape values for HTML.
    """

    def __init__(self, source: str, *, autoescape: bool = True) -> None:
        """Read the text."""
        self.autoescape = autoescape
        self._nodes = parse(source)

    def render(self, values: Mapping[str, Any] | None = None, **more: Any) -> str:
        """The text with values put in."""
        return "".join(self._render(self._nodes, {**(values or {}), **more}))

    def _render(self, nodes: Sequence[Node], scope: Mapping[str, Any]) -> Iterable[str]:
        for node in nodes:
            if isinstance(node, Text):
                yield node.text
            elif isinstance(node, Value):
                yield self._value(node, scope)
            elif isinstance(node, If):
                yield from self._if(node, scope)
            else:
                yield from self._for(node, scope)

    def _value(self, node: Value, scope: Mapping[str, Any]) -> str:
        value = look_up(node.expression, scope)
        for name, arguments in node.filters:
            if name not in FILTERS:
                raise TemplateError(f"there is no filter {name!r}", node.line)
            given = [look_up(argument, scope) for argument in arguments]
            try:
                value = FILTERS[name](value, *given)
            except (TypeError, ValueError) as error:
                raise TemplateError(f"filter {name!r} refused {value!r}: {error}", node.line) from error
        if self.autoescape and not isinstance(value, Safe):
            return escape(value)
        return "" if value is None else str(value)

    def _if(self, node: If, scope: Mapping[str, Any]) -> Iterable[str]:
        for condition, body in node.branches:
            if condition is None or holds(condition, scope):
                return self._render(body, scope)
        return ()

    def _for(self, node: For, scope: Mapping[str, Any]) -> Iterable[str]:
        found = look_up(node.expression, scope)
        items = list(found.items() if isinstance(found, Mapping) else found or ())
        if not items:
            yield from self._render(node.otherwise, scope)
            return
        for place, item in enumerate(items):
            inner = {**scope, "loop": _position(place, len(items))}
            if len(node.names) == 1:
                inner[node.names[0]] = item
            else:
                parts = tuple(item)
                if len(parts) != len(node.names):
                    raise TemplateError(f"{len(node.names)} names for {len(parts)} values", node.line)
                inner.update(zip(node.names, parts, strict=True))
            yield from self._render(node.body, inner)


def _position(place: int, count: int) -> dict[str, Any]:
    return {"index": place + 1, "first": place == 0, "last": place == count - 1, "length": count}


def look_up(expression: str, scope: Mapping[str, Any]) -> Any:
    """A number, a quoted text, or a dotted name; None for what is missing."""
    text = unquote(expression)
    if text is not None:
        return text
    try:
        return int(expression)
    except ValueError:
        pass
    value: Any = scope
    for part in expression.split("."):
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, Sequence) and not isinstance(value, str) and part.lstrip("-").isdigit():
            place = int(part)
            value = value[place] if -len(value) <= place < len(value) else None
        else:
            value = getattr(value, part, None)
        if value is None:
            return None
    return value


def holds(condition: str, scope: Mapping[str, Any]) -> bool:
    """Whether a condition holds: ``a``, ``not a``, ``a == b``, ``a and b``, ``a or b``; ``and`` binds closer."""
    if " or " in condition:
        return any(holds(part, scope) for part in condition.split(" or "))
    if " and " in condition:
        return all(holds(part, scope) for part in condition.split(" and "))
    condition = condition.strip()
    if condition.startswith("not "):
        return not holds(condition[4:], scope)
    found = _COMPARISON.fullmatch(condition)
    if found is None:
        return bool(look_up(condition, scope))
    left, right = look_up(found.group(1), scope), look_up(found.group(3), scope)
    operator = found.group(2)
    if operator in ("==", "!="):
        return (left == right) is (operator == "==")
    if left is None or right is None:
        return False
    if operator in ("<", "<="):
        return left < right or (operator == "<=" and left == right)
    return left > right or (operator == ">=" and left == right)


def render(source: str, values: Mapping[str, Any] | None = None, **more: Any) -> str:
    """Read and render a template once."""
    return Template(source).render(values, **more)
