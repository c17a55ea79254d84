"""Candidate edits of a line: the likely inverses of small bugs, as replacements of bytes and in a few words.

Pure functions of the source. Nothing here knows which edit is right: the order is that of a hash.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Final

import msgspec

from forkgym_swe.repair.source import ModuleSource, Replacement, Statement, replaced
from forkgym_swe.repair.words import LETTERS, Names, code_words, exception_word, known_word

__all__ = ["Edit", "LineEdits", "apply_edit", "line_edits"]

Words = tuple[str, ...]

COMPARISONS: Final[Mapping[str, tuple[str, ...]]] = {
    "<": ("<=", ">"), "<=": ("<", ">="), ">": (">=", "<"), ">=": (">", "<="), "==": ("!=",), "!=": ("==",),
    "in": ("not in",), "not in": ("in",), "is": ("is not",), "is not": ("is",),
}  # fmt: skip
ARITHMETIC: Final[Mapping[str, tuple[str, ...]]] = {
    "+": ("-", "*"), "-": ("+",), "*": ("**", "/"), "/": ("//", "*"), "//": ("/", "%"), "%": ("//",), "**": ("*",),
    "&": ("|",), "|": ("&", "^"), "^": ("&",), "<<": (">>",), ">>": ("<<",),
}  # fmt: skip
CALLS: Final[Mapping[str, tuple[str, ...]]] = {
    "min": ("max",), "max": ("min",), "any": ("all",), "all": ("any",), "ceil": ("floor",), "floor": ("ceil",),
    "startswith": ("endswith",), "endswith": ("startswith",), "lstrip": ("rstrip", "strip"),
    "rstrip": ("lstrip", "strip"), "strip": ("lstrip", "rstrip"), "lower": ("upper",), "upper": ("lower",),
    "append": ("extend",), "extend": ("append",), "keys": ("values", "items"), "values": ("keys", "items"),
    "items": ("keys", "values"), "add": ("discard",), "discard": ("add",), "find": ("rfind",), "rfind": ("find",),
    "index": ("rindex",), "rindex": ("index",), "partition": ("rpartition",), "rpartition": ("partition",),
    "split": ("rsplit",), "rsplit": ("split",), "get": ("pop",), "pop": ("popleft", "get"), "popleft": ("pop",),
    "issubclass": ("isinstance",), "isinstance": ("issubclass",), "capitalize": ("title",),
    "intersection": ("union",), "union": ("intersection",),
}  # fmt: skip
EXCEPTION_MIXUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "ValueError": ("TypeError", "NotImplementedError", "RuntimeError", "LookupError"),
    "TypeError": ("ValueError", "AttributeError"), "KeyError": ("IndexError", "LookupError"),
    "IndexError": ("KeyError", "StopIteration"), "AttributeError": ("TypeError",), "RuntimeError": ("ValueError",),
    "LookupError": ("ImportError", "UnicodeDecodeError"), "PermissionError": ("FileNotFoundError",),
    "StopIteration": ("IndexError",), "NotImplementedError": ("ValueError",),
}  # fmt: skip
_NEAR_STRINGS = 2
_ORDINALS = ("", "second", "third")


class Edit(msgspec.Struct, frozen=True):
    """One candidate edit.

    Attributes:
        family: What kind of change it is.
        words: How it is said.
        replacements: (first byte, byte after the last, new text), in order and apart from each other.
    """

    family: str
    words: Words
    replacements: tuple[Replacement, ...]


class LineEdits(msgspec.Struct, frozen=True):
    """A line and what may be done to it.

    Attributes:
        line: Where its statement begins.
        first: First line of the statement's own part.
        last: Last line of it.
        kind: Kind of the statement.
        code: The statement's own part in words.
        edits: Candidates, at most as many as there are letters.
        offered: How many there were before the choice.
    """

    line: int
    first: int
    last: int
    kind: str
    code: Words
    edits: tuple[Edit, ...]
    offered: int


def apply_edit(content: bytes, edit: Edit) -> bytes:
    """A file with an edit made."""
    return replaced(content, edit.replacements)


def line_edits(module: ModuleSource, statement: Statement, names: Names) -> LineEdits:
    """What may be done to a statement: only edits after which the module is still Python.

    Args:
        module: The module.
        statement: One of its statements.
        names: Names of the task; new ones are added.
    """
    start, end = module.header(statement)
    code = code_words(module.code(start, end), names)
    found: dict[tuple[Replacement, ...], Edit] = {}
    for edit in _Maker(module, statement, names).edits():
        if apply_edit(module.content, edit) != module.content:
            found.setdefault(edit.replacements, edit)
    return LineEdits(
        line=statement.line,
        first=statement.first,
        last=statement.last,
        kind=statement.kind,
        code=code,
        edits=_choose(list(found.values()), module, module.code(start, end)),
        offered=len(found),
    )


def _choose(edits: list[Edit], module: ModuleSource, code: str) -> tuple[Edit, ...]:
    """As many as there are letters: by turns from each family, then in an order that says nothing."""

    def rank(edit: Edit) -> bytes:
        return hashlib.blake2b("\0".join([code, *edit.words, edit.family]).encode(), digest_size=8).digest()

    families: dict[str, list[Edit]] = {}
    for edit in edits:
        families.setdefault(edit.family, []).append(edit)
    by_turns = [family[turn] for turn in range(len(edits)) for family in families.values() if turn < len(family)]
    kept: list[Edit] = []
    said: dict[Words, int] = {}
    for edit in by_turns:
        if len(kept) == len(LETTERS):
            break
        if not module.parses(edit.replacements):
            continue
        words = tuple(known_word(word) for word in edit.words)
        times = said[words] = said.get(words, 0) + 1
        ordinal = (_ORDINALS[min(times, 3) - 1],) if times > 1 else ()
        kept.append(msgspec.structs.replace(edit, words=(*words, *ordinal)))
    return tuple(sorted(kept, key=rank))


class _Maker:
    """All candidate edits of one statement, likelier families first."""

    def __init__(self, module: ModuleSource, statement: Statement, names: Names) -> None:
        self.module, self.statement, self.names = module, statement, names

    def edits(self) -> Iterator[Edit]:
        yield from self._statement_edits()
        for expression in self.statement.expressions:
            yield from self._expression_edits(expression)
        # The most numerous ones come last: they take the letters that are left.
        yield from self._variables()

    # ------------------------------------------------------------------ pieces

    def _word(self, node: ast.AST) -> str:
        words = code_words(self.module.code(*self.module.span(node)), self.names, limit=8)
        return next((word for word in words if word not in "([{-~"), "name")

    def _replace(self, family: str, words: Words, node: ast.AST, text: str) -> Edit:
        return Edit(family, words, ((*self.module.span(node), text),))

    def _text(self, node: ast.AST) -> str:
        return self.module.code(*self.module.span(node))

    def _operator_between(self, left: ast.AST, right: ast.AST, text: str) -> tuple[int, int] | None:
        parts = text.split()
        tokens = self.module.between(self.module.span(left)[1], self.module.span(right)[0])
        for place, token in enumerate(tokens):
            if [t.text for t in tokens[place : place + len(parts)]] == parts:
                return token.start, tokens[place + len(parts) - 1].end
        return None

    # ------------------------------------------------------------------ statements

    def _statement_edits(self) -> Iterator[Edit]:
        node, statement = self.statement.node, self.statement
        if isinstance(node, ast.Expr):
            yield from self._bare_expression(node)
        elif isinstance(node, ast.Break):
            yield self._replace("jump", ("break", "to", "continue"), node, "continue")
            yield self._replace("jump", ("break", "to", "pass"), node, "pass")
        elif isinstance(node, ast.Continue):
            yield self._replace("jump", ("continue", "to", "break"), node, "break")
            yield self._replace("jump", ("continue", "to", "pass"), node, "pass")
        elif isinstance(node, ast.Pass):
            yield from self._pass(node)
        elif isinstance(node, ast.AugAssign):
            yield from self._augmented(node)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            yield from self._assignment(node, statement)
        elif isinstance(node, ast.If | ast.While):
            yield from self._negations("negate", node.test)
        elif isinstance(node, ast.For):
            yield from self._iteration(node.iter)
        elif isinstance(node, ast.Return):
            yield from self._result(node)
        elif isinstance(node, ast.Raise | ast.ExceptHandler):
            yield from self._exception(node)
        yield from self._missing_imports()

    def _pass(self, node: ast.Pass) -> Iterator[Edit]:
        for word in ("continue", "break", "return"):
            yield self._replace("jump", ("pass", "to", word), node, word)
        raised: dict[str, int] = {}
        for other in ast.walk(self.module.tree):
            if isinstance(other, ast.Raise) and other.exc is not None:
                kind = other.exc.func if isinstance(other.exc, ast.Call) else other.exc
                if isinstance(kind, ast.Name | ast.Attribute):
                    name = self._text(kind)
                    raised[name] = raised.get(name, 0) + 1
        usual = sorted(raised, key=lambda name: (-raised[name], name))
        for name in dict.fromkeys([*usual[:2], "ValueError", "TypeError"]):
            said = exception_word([name]) if hasattr(builtins, name) else self.names.word(name)
            yield self._replace("raise", ("pass", "to", "raise", said), node, f"raise {name}")
        yield self._replace("raise", ("pass", "to", "raise"), node, "raise")

    def _result(self, node: ast.Return) -> Iterator[Edit]:
        value = node.value
        if value is not None and not isinstance(value, ast.Constant):
            yield from self._negations("negate result", value)
        elif value is None or value.value is None:
            parameters = [name for name in self._parameters if name not in ("self", "cls")]
            for name in dict.fromkeys([*reversed(self._assigned_names()), *parameters]):
                yield self._replace("result", ("return", self.names.word(name)), node, f"return {name}")
            for name in ("True", "False"):
                yield self._replace("result", ("return", name), node, f"return {name}")

    def _exception(self, node: ast.Raise | ast.ExceptHandler) -> Iterator[Edit]:
        kind = node.type if isinstance(node, ast.ExceptHandler) else node.exc
        if isinstance(kind, ast.Call):
            kind = kind.func
        if isinstance(kind, ast.Name):
            for other in EXCEPTION_MIXUPS.get(kind.id, ()):
                words = (exception_word([kind.id]), "to", exception_word([other]))
                yield self._replace("exception", words, kind, other)

    @cached_property
    def _parameters(self) -> list[str]:
        if self.statement.function is None:
            return []
        arguments = self.statement.function.args
        starred = [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
        found = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *starred]
        return [argument.arg for argument in found]

    def _variables(self) -> Iterator[Edit]:
        """The neighbour of a variable in the order of appearance, and of an attribute of ``self``."""
        function = self.statement.function
        if function is None:
            return
        stored = self.module.once(("stored", function), lambda: _stored_names(function))
        names = [name for name in dict.fromkeys([*self._parameters, *stored]) if name not in ("self", "cls")]
        attributes = self.module.once(("attributes", function), lambda: _stored_attributes(self.module.tree, function))
        for expression in self.statement.expressions:
            for node in _in_order(expression):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names:
                    others, name = names, node.id
                elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr in attributes:
                    if not isinstance(node.value, ast.Name) or node.value.id != "self":
                        continue
                    others, name = attributes, node.attr
                else:
                    continue
                other = others[others.index(name) - 1]
                if other != name:
                    end = self.module.span(node)[1]
                    change = (end - len(name.encode()), end, other)
                    yield Edit("variable", (self.names.word(name), "to", self.names.word(other)), (change,))

    def _bare_expression(self, node: ast.Expr) -> Iterator[Edit]:
        start = self.module.span(node)[0]
        if self.statement.function is not None:
            yield Edit("return", ("add", "return"), ((start, start, "return "),))
        value = node.value
        called = value.func if isinstance(value, ast.Call) else value
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if name.endswith(("Error", "Exception", "Exit", "Iteration", "Warning")) or name[:1].isupper():
            yield Edit("raise", ("add", "raise"), ((start, start, "raise "),))

    def _augmented(self, node: ast.AugAssign) -> Iterator[Edit]:
        for token in self.module.between(self.module.span(node.target)[1], self.module.span(node.value)[0]):
            if token.text.endswith("=") and token.is_operator:
                others = [f"{other}=" for other in ARITHMETIC.get(token.text[:-1], ())]
                for other in [*others, "="]:
                    yield Edit("augment", (token.text, "to", other), ((token.start, token.end, other),))
                return

    def _assignment(self, node: ast.Assign, statement: Statement) -> Iterator[Edit]:
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Name | ast.Attribute | ast.Subscript):
            place = self._operator_between(target, value, "=")
            if place is not None and not isinstance(value, ast.Compare | ast.Dict):
                yield Edit("augment", ("=", "to", "+="), ((*place, "+="),))
        if statement.is_last and statement.function is not None and isinstance(target, ast.Name):
            start = self.module.span(node)[0]
            yield Edit("return", ("add", "return"), ((start, self.module.span(value)[0], "return "),))
        if isinstance(value, ast.Tuple) and len(value.elts) == 2:
            yield from self._swap("swap", value.elts[0], value.elts[1])

    def _iteration(self, node: ast.expr) -> Iterator[Edit]:
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            yield self._replace("loop", ("drop", "slice"), node, self._text(node.value))
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("reversed", "sorted", "list"):
            if len(node.args) == 1:
                word = self._word(node)
                yield self._replace("loop", ("drop", word), node, self._text(node.args[0]))
        elif isinstance(node, ast.Name | ast.Attribute):
            yield self._replace("loop", ("add", "reversed"), node, f"reversed({self._text(node)})")

    def _assigned_names(self) -> list[str]:
        function = self.statement.function
        if function is None:
            return []
        before = [
            node
            for node in ast.walk(function)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.lineno < self.statement.line
        ]
        before.sort(key=lambda node: (node.lineno, node.col_offset))
        return list(dict.fromkeys(node.id for node in before))

    def _missing_imports(self) -> Iterator[Edit]:
        for expression in self.statement.expressions:
            for node in ast.walk(expression):
                if not isinstance(node, ast.Name) or node.id in self._bound or hasattr(builtins, node.id):
                    continue
                line = _import_line(node.id)
                if line:
                    place = self._import_place
                    words = ("add", "import", self.names.word(node.id))
                    yield Edit("import", words, ((place, place, f"{line}\n"),))

    @property
    def _bound(self) -> frozenset[str]:
        return self.module.once("bound", lambda: frozenset(_bound_names(self.module.tree)))

    @cached_property
    def _import_place(self) -> int:
        """Start of the line after the docstring and the imports from ``__future__``."""
        place = 0
        for node in self.module.tree.body:
            docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if not docstring and not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
                break
            place = self.module.offset((node.end_lineno or node.lineno) + 1, 0)
        return place

    # ------------------------------------------------------------------ expressions

    def _expression_edits(self, root: ast.expr) -> Iterator[Edit]:
        for node in _in_order(root):
            if isinstance(node, ast.Compare):
                yield from self._comparison(node)
            elif isinstance(node, ast.BoolOp):
                yield from self._junction(node)
            elif isinstance(node, ast.BinOp):
                yield from self._arithmetic(node)
            elif isinstance(node, ast.UnaryOp):
                yield from self._unary(node)
            elif isinstance(node, ast.Constant):
                yield from self._constant(node)
            elif isinstance(node, ast.Call):
                yield from self._call(node)
            elif isinstance(node, ast.IfExp):
                yield from self._negations("negate", node.test)
                yield from self._swap("branches", node.body, node.orelse, ("swap", "branches"))
            elif isinstance(node, ast.comprehension):
                for test in node.ifs:
                    yield from self._negations("negate", test)
            elif isinstance(node, ast.Subscript):
                yield from self._subscript(node)

    def _comparison(self, node: ast.Compare) -> Iterator[Edit]:
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            text = _OPERATOR_TEXT[type(operator)]
            place = self._operator_between(left, right, text)
            for other in COMPARISONS[text] if place is not None else ():
                yield Edit("compare", (*text.split(), "to", *other.split()), ((*place, other),))  # type: ignore[misc]
            if text in ("<", "<=", ">", ">="):
                for side in (left, right):
                    if isinstance(side, ast.Call) and getattr(side.func, "id", "") == "len":
                        yield from self._shifts(side)
            left = right

    def _junction(self, node: ast.BoolOp) -> Iterator[Edit]:
        text, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        places = [
            self._operator_between(left, right, text) for left, right in zip(node.values, node.values[1:], strict=False)
        ]
        for place in places:
            if place is not None:
                yield Edit("junction", (text, "to", other), ((*place, other),))
        for value in node.values:
            yield from self._negations("negate part", value)

    def _negations(self, family: str, node: ast.expr) -> Iterator[Edit]:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield self._replace(family, ("drop", "not"), node, f"({self._text(node.operand)})")
        elif not (isinstance(node, ast.Compare) and len(node.ops) == 1 and _has_opposite(node.ops[0])):
            yield self._replace(family, ("negate", self._word(node)), node, f"(not ({self._text(node)}))")

    def _arithmetic(self, node: ast.BinOp) -> Iterator[Edit]:
        text = _OPERATOR_TEXT.get(type(node.op), "")
        place = self._operator_between(node.left, node.right, text) if text else None
        if place is None or (text == "%" and isinstance(node.left, ast.Constant | ast.JoinedStr)):
            return
        for other in ARITHMETIC.get(text, ()):
            yield Edit("arithmetic", (text, "to", other), ((*place, other),))
        if text in ("+", "-") and isinstance(node.right, ast.Constant) and type(node.right.value) is int:
            words = ("drop", text, *code_words(self._text(node.right), self.names))
            yield self._replace("offset", words, node, f"({self._text(node.left)})")
        if text in ("-", "/", "//", "%", "**", "+"):
            yield from self._swap("operands", node.left, node.right)

    def _unary(self, node: ast.UnaryOp) -> Iterator[Edit]:
        if isinstance(node.op, ast.Not):
            yield self._replace("negate part", ("drop", "not"), node, f"({self._text(node.operand)})")
        elif isinstance(node.op, ast.USub):
            yield self._replace("sign", ("drop", "-"), node, f"({self._text(node.operand)})")

    def _constant(self, node: ast.Constant) -> Iterator[Edit]:
        value = node.value
        family = "default" if self.statement.kind == "def" else "constant"
        if isinstance(value, bool):
            yield self._replace(family, (str(value), "to", str(not value)), node, str(not value))
        elif type(value) is int:
            for other in dict.fromkeys((value - 1, value + 1)):
                words = (*code_words(str(value), self.names), "to", *code_words(str(other), self.names))
                if len(words) == 3 and words[0] == words[2]:
                    words = ("add" if other > value else "drop", "1", words[0])
                yield self._replace(family, words, node, str(other) if other >= 0 else f"({other})")
        elif isinstance(value, float):
            yield self._replace(family, ("number", "/", "2"), node, repr(value / 2))
            yield self._replace(family, ("number", "*", "2"), node, repr(value * 2))
        elif value is None and family == "default":
            for text in ("True", "False", "0"):
                yield self._replace(family, ("None", "to", text), node, text)
        elif isinstance(value, str) and node.lineno == node.end_lineno:
            yield from self._string(node, value, "default" if family == "default" else "string")
        if value is False and family == "default":
            yield self._replace(family, ("False", "to", "None"), node, "None")

    def _string(self, node: ast.Constant, value: str, family: str) -> Iterator[Edit]:
        """The other case of the first letter, and strings of the module that differ from it by an end."""
        written = self._text(node)
        if len(value) <= 40 and value[:1].isalpha() and value[:1].isascii() and written.count(value) == 1:
            text = written.replace(value, value[0].swapcase() + value[1:])
            yield self._replace(family, ("text", "to", "different"), node, text)
        for other in self._near_strings(value):
            size = "longer" if len(other) > len(value) else "shorter"
            yield self._replace(family, ("text", "to", size), node, repr(other))

    def _near_strings(self, value: str) -> list[str]:
        texts = self.module.once("texts", lambda: set(_texts(self.module.tree)))
        found = {
            text
            for text in texts
            if text != value and (text[:-1] == value or text.strip() == value or text * 2 == value)
        }
        if value == " ":
            found.add("")
        return sorted(found)[:_NEAR_STRINGS]

    def _call(self, node: ast.Call) -> Iterator[Edit]:
        plain = [a for a in node.args if not isinstance(a, ast.Starred)]
        if len(plain) == len(node.args):
            for first, second in pairwise(plain):
                yield from self._swap("swap", first, second)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in CALLS:
            end = self.module.span(node.func)[1]
            for other in CALLS[name]:
                change = (end - len(name.encode()), end, other)
                yield Edit("call", (self.names.word(name), "to", self.names.word(other)), (change,))
        if isinstance(self.statement.function, ast.AsyncFunctionDef):
            start = self.module.span(node)[0]
            yield Edit("await", ("add", "await"), ((start, start, "await "),))
        yield from self._keywords(node)
        if name in ("range", "islice"):
            for argument in node.args[: 2 if name == "range" else 3]:
                yield from self._shifts(argument)

    def _shifts(self, node: ast.expr) -> Iterator[Edit]:
        """One less and one more, where it is not a sum or a number already."""
        if isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
            for sign in ("-", "+"):
                yield self._replace(
                    "offset", ("add", sign, "1", self._word(node)), node, f"{self._text(node)} {sign} 1"
                )

    def _keywords(self, node: ast.Call) -> Iterator[Edit]:
        """A parameter of the function around that nothing uses may have been passed on by its name."""
        function = self.statement.function
        if function is None:
            return
        parameters = self._parameters
        used = self.module.once(
            ("used", function), lambda: {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
        )
        given = {keyword.arg for keyword in node.keywords}
        end = self.module.span(node)[1] - 1
        separator = ", " if node.args or node.keywords else ""
        before = self.module.code(self.module.span(node.func)[1], end).rstrip()
        if before.endswith(","):
            separator = " "
        for name in parameters:
            if name not in used and name not in given and name not in ("self", "cls"):
                words = ("add", "keyword", self.names.word(name))
                yield Edit("keyword", words, ((end, end, f"{separator}{name}={name}"),))

    def _subscript(self, node: ast.Subscript) -> Iterator[Edit]:
        index = node.slice
        if isinstance(index, ast.Slice):
            for bound in (index.lower, index.upper):
                if bound is not None:
                    yield from self._shifts(bound)
            if (index.lower is None) != (index.upper is None) and index.step is None:
                part = index.lower or index.upper
                if part is not None:
                    text = f":{self._text(part)}" if index.lower is not None else f"{self._text(part)}:"
                    yield self._replace("slice", ("swap", "slice"), index, text)
        elif isinstance(node.ctx, ast.Load) and isinstance(index, ast.Name):
            yield from self._shifts(index)

    def _swap(self, family: str, first: ast.expr, second: ast.expr, words: Words = ()) -> Iterator[Edit]:
        one, two = self._text(first), self._text(second)
        if one != two:
            said = words or ("swap", self._word(first), self._word(second))
            yield Edit(family, said, ((*self.module.span(first), two), (*self.module.span(second), one)))


_OPERATOR_TEXT: Final[dict[type[ast.AST], str]] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.In: "in",
    ast.NotIn: "not in", ast.Is: "is", ast.IsNot: "is not", ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/",
    ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^",
    ast.LShift: "<<", ast.RShift: ">>",
}  # fmt: skip


def _texts(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _stored_names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    found = [node for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return [node.id for node in sorted(found, key=lambda node: (node.lineno, node.col_offset))]


def _stored_attributes(tree: ast.Module, function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Attributes of ``self`` that the class around a function sets, in order of appearance."""
    for around in ast.walk(tree):
        if isinstance(around, ast.ClassDef) and function in around.body:
            found = [
                node
                for node in ast.walk(around)
                if isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and isinstance(node.value, ast.Name)
                and node.value.id == "self"
            ]
            found.sort(key=lambda node: (node.lineno, node.col_offset))
            return list(dict.fromkeys(node.attr for node in found))
    return []


def _has_opposite(operator: ast.cmpop) -> bool:
    return isinstance(operator, ast.Eq | ast.NotEq | ast.In | ast.NotIn | ast.Is | ast.IsNot)


def _in_order(root: ast.AST) -> Iterator[ast.AST]:
    """A node and what is below it, in the order of the source; strings that are formatted are left alone."""
    yield root
    if not isinstance(root, ast.JoinedStr):
        for child in ast.iter_child_nodes(root):
            yield from _in_order(child)


def _bound_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name


_KNOWN_HOMES: Final[Mapping[str, str]] = {
    "wraps": "functools", "partial": "functools", "reduce": "functools", "lru_cache": "functools",
    "defaultdict": "collections", "OrderedDict": "collections", "Counter": "collections", "deque": "collections",
    "namedtuple": "collections", "Mapping": "collections.abc", "Sequence": "collections.abc",
    "Iterable": "collections.abc", "Iterator": "collections.abc", "Callable": "collections.abc",
    "chain": "itertools", "islice": "itertools", "groupby": "itertools", "count": "itertools", "repeat": "itertools",
    "zip_longest": "itertools", "product": "itertools", "permutations": "itertools", "combinations": "itertools",
    "itemgetter": "operator", "attrgetter": "operator", "deepcopy": "copy", "contextmanager": "contextlib",
    "suppress": "contextlib", "dataclass": "dataclasses", "field": "dataclasses", "Enum": "enum",
    "Decimal": "decimal", "Fraction": "fractions", "Path": "pathlib", "StringIO": "io", "BytesIO": "io",
    "ceil": "math", "floor": "math", "log": "math", "sqrt": "math", "datetime": "datetime", "timedelta": "datetime",
    "Lock": "threading", "RLock": "threading", "Thread": "threading",
}  # fmt: skip


def _import_line(name: str) -> str:
    """An import that binds a name, where there is little doubt which."""
    if name in _KNOWN_HOMES:
        return f"from {_KNOWN_HOMES[name]} import {name}"
    return f"import {name}" if name in sys.stdlib_module_names else ""
