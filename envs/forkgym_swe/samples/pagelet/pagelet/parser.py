"""From text to nodes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_TAG = re.compile(r"({{.*?}}|{%.*?%}|{#.*?#})", re.DOTALL)
_CALL = re.compile(r"(\w+)\s*(?:\((.*)\))?", re.DOTALL)
_STRING = re.compile(r"'([^']*)'|\"([^\"]*)\"")


class TemplateError(ValueError):
    """A template that cannot be read or rendered; says the line."""

    def __init__(self, message: str, line: int) -> None:
        """Put the line in front."""
        super().__init__(f"line {line}: {message}")
        self.line = line


@dataclass
class Text:
    """Text as it stands."""

    text: str


@dataclass
class Value:
    """``{{ expression | filter(arguments) }}``."""

    expression: str
    filters: list[tuple[str, list[str]]]
    line: int


@dataclass
class If:
    """``{% if a %}…{% elif b %}…{% else %}…{% end %}``; the last condition may be missing."""

    line: int
    branches: list[tuple[str | None, list[Node]]] = field(default_factory=list)


@dataclass
class For:
    """``{% for a, b in items %}…{% else %}…{% end %}``."""

    names: list[str]
    expression: str
    line: int
    body: list[Node] = field(default_factory=list)
    otherwise: list[Node] = field(default_factory=list)


Node = Text | Value | If | For


def parse(source: str) -> list[Node]:
    """The nodes of a template."""
    top: list[Node] = []
    open_blocks: list[If | For] = []
    target = top
    line = 1
    for number, piece in enumerate(_TAG.split(source)):
        if number % 2 == 0:
            if piece:
                target.append(Text(piece))
        elif piece.startswith("{{"):
            target.append(_value(piece[2:-2].strip(), line))
        elif piece.startswith("{%"):
            target = _block(piece[2:-2].strip(), line, open_blocks, target, top)
        line += piece.count("\n")
    if open_blocks:
        raise TemplateError(f"this block has no end: {_name(open_blocks[-1])}", open_blocks[-1].line)
    return top


def _block(text: str, line: int, open_blocks: list[If | For], target: list[Node], top: list[Node]) -> list[Node]:
    """Handle one block tag; returns where the following nodes belong."""
    word, _, rest = text.partition(" ")
    rest = rest.strip()
    if word == "if":
        if not rest:
            raise TemplateError("if needs a condition", line)
        condition = If(line, [(rest, [])])
        target.append(condition)
        open_blocks.append(condition)
        return condition.branches[0][1]
    if word == "for":
        loop = _loop(rest, line)
        target.append(loop)
        open_blocks.append(loop)
        return loop.body
    if not open_blocks:
        raise TemplateError(f"{word!r} outside of any block", line)
    block = open_blocks[-1]
    if word == "end":
        open_blocks.pop()
        return _inside(open_blocks[-1]) if open_blocks else top
    if word == "else":
        if isinstance(block, For):
            return block.otherwise
        if block.branches[-1][0] is None:
            raise TemplateError("a second else", line)
        block.branches.append((None, []))
        return block.branches[-1][1]
    if word == "elif" and isinstance(block, If) and rest:
        if block.branches[-1][0] is None:
            raise TemplateError("elif after else", line)
        block.branches.append((rest, []))
        return block.branches[-1][1]
    raise TemplateError(f"unknown block {word!r}", line)


def _inside(block: If | For) -> list[Node]:
    """Where nodes go on after an inner block has ended."""
    if isinstance(block, For):
        return block.otherwise if block.otherwise else block.body
    return block.branches[-1][1]


def _name(block: If | For) -> str:
    return "if" if isinstance(block, If) else "for"


def _loop(text: str, line: int) -> For:
    names, separator, expression = text.partition(" in ")
    variables = [name.strip() for name in names.split(",")]
    if not separator or not all(name.isidentifier() for name in variables):
        raise TemplateError(f"for needs names and 'in', not {text!r}", line)
    return For(variables, expression.strip(), line)


def _value(text: str, line: int) -> Value:
    expression, *filters = split_outside_quotes(text, "|")
    if not expression.strip():
        raise TemplateError("a value without a name", line)
    return Value(expression.strip(), [_filter(part.strip(), line) for part in filters], line)


def _filter(text: str, line: int) -> tuple[str, list[str]]:
    found = _CALL.fullmatch(text)
    if found is None:
        raise TemplateError(f"{text!r} is no filter", line)
    inside = found.group(2)
    arguments = split_outside_quotes(inside, ",") if inside and inside.strip() else []
    return found.group(1), [argument.strip() for argument in arguments]


def split_outside_quotes(text: str, separator: str) -> list[str]:
    """Split a text where the separator is in no quotes."""
    parts, start, quote = [], 0, ""
    for place, letter in enumerate(text):
        if quote:
            if letter == quote:
                quote = ""
        elif letter in "'\"":
            quote = letter
        elif letter == separator:
            parts.append(text[start:place])
            start = place + 1
    return [*parts, text[start:]]


def unquote(text: str) -> str | None:
    """The content of a quoted text; None if it has no quotes."""
    found = _STRING.fullmatch(text)
    if found is None:
        return None
    return found.group(1) if found.group(1) is not None else found.group(2)
