"""Python source as statements with places: which lines can be suspected, and where their expressions stand."""

from __future__ import annotations

import ast
import bisect
import io
import tokenize
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

__all__ = ["ModuleSource", "Replacement", "Statement", "Token", "replaced"]

Fact = TypeVar("Fact")
Replacement = tuple[int, int, str]
"""First byte, byte after the last, new text."""


def replaced(content: bytes, replacements: Sequence[Replacement], offset: int = 0) -> bytes:
    """Content with some of its spans replaced.

    Args:
        content: A file, or a part of one.
        replacements: In order, and apart from each other.
        offset: Where in the file the content begins.
    """
    for start, end, text in reversed(replacements):
        content = content[: start - offset] + text.encode() + content[end - offset :]
    return content


class Token(NamedTuple):
    """A token by its bytes in the file."""

    start: int
    end: int
    text: str
    is_operator: bool


class Statement(NamedTuple):
    """A statement's own part: of a compound statement, its header.

    Attributes:
        node: The statement, or an ``except`` handler.
        kind: One of `words.KINDS`.
        first: First line of it, decorators included.
        line: Line on which it begins.
        last: Last line of it.
        expressions: Its own expressions, in order of the source.
        function: The function around it.
        is_last: Whether it ends the body of that function.
    """

    node: ast.stmt | ast.ExceptHandler
    kind: str
    first: int
    line: int
    last: int
    expressions: tuple[ast.expr, ...]
    function: ast.FunctionDef | ast.AsyncFunctionDef | None
    is_last: bool


class ModuleSource:
    """One module.

    Args:
        content: The file.

    Raises:
        SyntaxError: It is no Python of this version.
        UnicodeDecodeError: It is not UTF-8.
    """

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.text = content.decode()
        self.tree = ast.parse(self.text)
        # Only line feeds count, as for `ast`: str.splitlines knows a dozen other line breaks.
        self._starts = [0]
        for line in content.split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)
        self.tokens = list(self._tokens())
        self._token_starts = [token.start for token in self.tokens]
        self.statements = list(self._walk(self.tree.body, None))
        self._facts: dict[object, Any] = {}

    def once(self, key: object, make: Callable[[], Fact]) -> Fact:
        """What a function says about the module, asked once for each key."""
        if key not in self._facts:
            self._facts[key] = make()
        found: Fact = self._facts[key]
        return found

    def offset(self, line: int, column: int) -> int:
        """Byte of a place as `ast` counts: lines from 1, columns in bytes."""
        return self._starts[line - 1] + column

    def span(self, node: ast.AST) -> tuple[int, int]:
        """First byte of a node and the one after its last."""
        return (
            self.offset(node.lineno, node.col_offset),  # type: ignore[attr-defined]
            self.offset(node.end_lineno, node.end_col_offset),  # type: ignore[attr-defined]
        )

    def between(self, start: int, end: int) -> list[Token]:
        """Tokens that begin at or after a byte and before another."""
        first = bisect.bisect_left(self._token_starts, start)
        return self.tokens[first : bisect.bisect_left(self._token_starts, end)]

    def code(self, start: int, end: int) -> str:
        """The text of a span."""
        return self.content[start:end].decode()

    def parses(self, replacements: Sequence[Replacement]) -> bool:
        """Whether the module is Python after some replacements; only the parts they lie in are looked at."""
        first, last = replacements[0][0], replacements[-1][1]
        start, end = 0, len(self.content)
        for node in self.tree.body:
            begins = self.offset(min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]), 0)
            ends = self.span(node)[1]
            if begins <= first and last <= ends:
                start, end = begins, ends
                break
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ast.parse(replaced(self.content[start:end], replacements, start))
        except (SyntaxError, ValueError):
            return False
        return True

    def header(self, statement: Statement) -> tuple[int, int]:
        """The span of a statement's own part, without its decorators."""
        node = statement.node
        start, end = self.span(node)
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
            first = body[0]
            line = min([first.lineno, *(d.lineno for d in getattr(first, "decorator_list", []))])
            end = self.offset(line, 0) if line > node.lineno else self.span(first)[0]
        return start, end

    def _tokens(self) -> Iterator[Token]:
        lines = self.text.split("\n")
        ascii_only = self.text.isascii()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type in (tokenize.NAME, tokenize.NUMBER, tokenize.STRING, tokenize.OP):
                (row, column), (end_row, end_column) = token.start, token.end
                if not ascii_only:
                    column = len(lines[row - 1][:column].encode())
                    end_column = len(lines[end_row - 1][:end_column].encode())
                yield Token(
                    self.offset(row, column),
                    self.offset(end_row, end_column),
                    token.string,
                    token.type == tokenize.OP or token.string in ("in", "not", "is", "and", "or"),
                )

    def _walk(
        self, body: list[ast.stmt], function: ast.FunctionDef | ast.AsyncFunctionDef | None
    ) -> Iterator[Statement]:
        for node in body:
            kind = _kind(node)
            is_last = function is not None and node is function.body[-1]
            if kind:
                yield self._statement(node, kind, function, is_last)
            inner = node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
            for name in ("body", "orelse", "finalbody"):
                part = getattr(node, name, None)
                if isinstance(part, list) and part and isinstance(part[0], ast.stmt):
                    yield from self._walk(part, inner)
                if name == "body":
                    for handler in getattr(node, "handlers", ()):
                        yield self._statement(handler, "except", function, False)
                        yield from self._walk(handler.body, inner)
                    for case in getattr(node, "cases", ()):
                        yield from self._walk(case.body, inner)

    def _statement(
        self,
        node: ast.stmt | ast.ExceptHandler,
        kind: str,
        function: ast.FunctionDef | ast.AsyncFunctionDef | None,
        is_last: bool,
    ) -> Statement:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        last = node.end_lineno or node.lineno
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
            last = max(node.lineno, body[0].lineno - 1)
        return Statement(node, kind, first, node.lineno, last, tuple(_expressions(node)), function, is_last)


_KINDS: dict[type[ast.AST], str] = {
    ast.If: "if", ast.While: "while", ast.For: "for", ast.AsyncFor: "for", ast.Return: "return", ast.Raise: "raise",
    ast.Assign: "assign", ast.AnnAssign: "assign", ast.AugAssign: "augment", ast.FunctionDef: "def",
    ast.AsyncFunctionDef: "def", ast.With: "with", ast.AsyncWith: "with", ast.Break: "break",
    ast.Continue: "continue", ast.Pass: "pass", ast.Assert: "assert", ast.Delete: "del",
}  # fmt: skip


def _kind(node: ast.stmt) -> str:
    if isinstance(node, ast.Expr):
        if isinstance(node.value, ast.Yield | ast.YieldFrom):
            return "yield"
        if isinstance(node.value, ast.Constant):
            return ""
        return "call" if isinstance(node.value, ast.Call) else "expression"
    return _KINDS.get(type(node), "")


def _expressions(node: ast.stmt | ast.ExceptHandler) -> Iterator[ast.expr]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from node.args.defaults
        yield from (default for default in node.args.kw_defaults if default is not None)
        return
    for name, value in ast.iter_fields(node):
        if name in ("body", "orelse", "finalbody", "handlers", "annotation", "decorator_list", "returns"):
            continue
        for item in value if isinstance(value, list) else (value,):
            if isinstance(item, ast.expr):
                yield item
            elif isinstance(item, ast.withitem):
                yield item.context_expr
