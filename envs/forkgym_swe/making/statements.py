"""Issue texts, written from what failing tests did, expected and got; never from the change that broke them.

Deterministic templates: the same failures give the same text. `leaks` says what of the repair a text would give away.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from forkgym_swe.instance import InstanceError

__all__ = ["Failing", "StatementError", "leaks", "write_statement"]

_LONGEST_MESSAGE = 400
_SNIPPET_LINES = 12
_NAMED_TESTS = 6
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")
_HIDDEN_PATHS = re.compile(r"/(?:testbed|tmp|var|root|home)(?:/[\w.\-]+)+")
# Times, inodes and the like differ from run to run.
_CHANCE = re.compile(r"\bos\.stat_result\([^)]*\)|\b\d{9,}\b(?!\.)")
_RAISES = re.compile(r"DID NOT RAISE(?: any of)? (?:<class ')?\(?([\w.]+)")
# What code is likely to hold by chance: no give-away.
_COMMON = frozenset({"pass", "return", "else:", "try:", "break", "continue", "return None", "finally:", "return False",
                     "return True", "return self", "return result", "raise"})  # fmt: skip


class StatementError(InstanceError):
    """No issue text can be written from these failures; the text says why."""


@dataclass(frozen=True)
class Failing:
    """One failing test.

    Attributes:
        id: ``path::Class::function[parameters]``.
        message: What the exception said, with its type in front of it.
        line: Line of the test file at which it failed; 0 if unknown.
    """

    id: str
    message: str
    line: int = 0


def write_statement(project: str, failing: Sequence[Failing], files: Mapping[str, bytes]) -> str:
    """The text of an issue.

    Args:
        project: Name of the project, for the title.
        failing: The tests that fail; the first that shows most is told in full.
        files: The tree in which they fail, for the tests' own code.

    Raises:
        StatementError: No test is given, or none of them can be read.
    """
    if not failing:
        raise StatementError("an issue needs at least one failing test")
    told = [one for one in (_Told.of(test, files) for test in failing) if one is not None]
    if not told:
        raise StatementError(f"none of the failing tests can be found in its file, such as {failing[0].id}")
    first = max(told, key=lambda one: (one.points, -len(one.snippet)))
    parts = [f"{project}: {first.title}", "", first.problem, ""]
    if first.snippet:
        parts += ["To see it:", "", "```python", first.snippet, "```", ""]
    parts += [*([f"Seen with the parameters `{first.parameters}`.", ""] if first.parameters else [])]
    parts += [first.expected, "", "What happens instead:", "", "```", first.message, "```"]
    others = sorted({one.behaviour for one in told} - {first.behaviour})
    if others:
        shown = others[:_NAMED_TESTS]
        parts += ["", "The same change of behaviour seems to show here:"]
        parts += [f"- {name}" for name in shown]
        if len(others) > len(shown):
            parts.append(f"- and {len(others) - len(shown)} more")
    return "\n".join(parts).rstrip() + "\n"


def leaks(statement: str, *, patch: str, operator: str = "", paths: Iterable[str] = ()) -> list[str]:
    """What a text gives away of the repair.

    Args:
        statement: The text.
        patch: Gold patch.
        operator: Name of the operator that made the bug.
        paths: Files that the patch changes.

    Returns:
        One line a leak; empty if there is none.
    """
    found = []
    lines = {line.strip() for line in statement.splitlines()}
    for line in patch.splitlines():
        if line.startswith(("+++", "---")) or line[:1] not in ("+", "-"):
            continue
        code = line[1:].strip()
        if len(code) < 4 or code in _COMMON:
            continue
        if code in lines or (len(code) >= 12 and code in statement):
            found.append(f"a line of the gold patch: {code}")
    folded = statement.casefold()
    names = {operator, operator.replace("-", " ")} - {""}
    found += [f"the operator's name: {name}" for name in names if name.casefold() in folded]
    found += [f"the file: {path}" for path in paths if _names(statement, path)]
    return sorted(set(found))


def _names(statement: str, path: str) -> bool:
    """Whether a text names a file, with or without its folders."""
    name = re.escape(path.rpartition("/")[2])
    return path in statement or re.search(rf"(?<![\w/.]){name}\b", statement) is not None


@dataclass(frozen=True)
class _Told:
    """What is to be said about one failing test."""

    behaviour: str
    title: str
    problem: str
    snippet: str
    expected: str
    message: str
    parameters: str
    points: int

    @classmethod
    def of(cls, test: Failing, files: Mapping[str, bytes]) -> _Told | None:
        path, *names = test.id.split("[", 1)[0].split("::")
        if path not in files or not names:
            return None
        source = files[path].decode(errors="replace")
        try:
            module = ast.parse(source)
        except (SyntaxError, ValueError):
            return None
        behaviour = _behaviour(names)
        message = _clean(test.message)
        kind = _exception(message)
        function = _function(module.body, names)
        statement = _at_line(function, test.line) if function is not None else None
        awaited = _awaited(function, test.line) if function is not None else ""
        expected, plain = _expectation(statement, message, kind, awaited)
        snippet = _snippet(function, statement, source) if function is not None and statement is not None else ""
        what = "gives a wrong result" if kind in ("AssertionError", "Failed") else f"ends in `{kind}`"
        title = f"{behaviour}: {what}" if kind else behaviour
        problem = f"With the current version, the behaviour described as “{behaviour}” {what}."
        points = 2 * bool(snippet) + plain
        return cls(behaviour, title, problem, snippet, expected, message, _parameters(test.id), points)


def _behaviour(names: Sequence[str]) -> str:
    """``TestTable::test_insert_two`` → ``table, insert two``."""
    words = []
    for name in names:
        plain = re.sub(r"(?i)^_*(unit)?_*tests?(case)?_*|_*tests?(case)?_*$", "", name) or name
        spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", plain).replace("_", " ")
        words.append(" ".join(spaced.split()).lower())
    return ", ".join(dict.fromkeys(word for word in words if word))


def _clean(message: str) -> str:
    """Without addresses and places of this machine, and not too long."""
    text = _CHANCE.sub("…", _HIDDEN_PATHS.sub("…", _ADDRESS.sub("0x…", message))).strip()
    kept = [line.rstrip() for line in text.splitlines() if line.strip() and "Use -v to get" not in line][:8]
    short = "\n".join(kept)
    return short if len(short) <= _LONGEST_MESSAGE else short[:_LONGEST_MESSAGE].rstrip() + " …"


def _exception(message: str) -> str:
    """The type in front of a message, without its module."""
    head = re.match(r"([A-Za-z_][\w.]*)(?::|$)", message)
    if head is None or (head.group(1) != "Failed" and not re.search(r"[A-Z]", head.group(1))):
        return "AssertionError" if message.startswith("assert") else ""
    return head.group(1).rpartition(".")[2]


def _function(body: Sequence[ast.stmt], names: Sequence[str]) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    for statement in body:
        if isinstance(statement, ast.ClassDef) and len(names) > 1 and statement.name == names[0]:
            return _function(statement.body, names[1:])
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and [statement.name] == list(names):
            return statement
    return None


def _at_line(function: ast.FunctionDef | ast.AsyncFunctionDef, line: int) -> ast.stmt | None:
    """The innermost statement of a function that a line belongs to; blocks of `with` count as their first line."""
    found: ast.stmt | None = None
    for node in ast.walk(function):
        if not isinstance(node, ast.stmt) or node is function:
            continue
        if node.lineno <= line <= (node.end_lineno or 0) and (found is None or node.lineno >= found.lineno):
            found = node
    return found


def _parameters(id: str) -> str:
    """What stands in an id's brackets, if it is short and of one line."""
    inside = id.partition("[")[2].removesuffix("]")
    return inside if inside and len(inside) <= 120 and inside.isprintable() and "`" not in inside else ""


def _awaited(function: ast.FunctionDef | ast.AsyncFunctionDef, line: int) -> str:
    """The exception that a ``with pytest.raises(…)`` around a line waits for."""
    for node in ast.walk(function):
        if not isinstance(node, ast.With) or not node.lineno <= line <= (node.end_lineno or 0):
            continue
        for call in (item.context_expr for item in node.items):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or not call.args:
                continue
            if call.func.attr in ("raises", "assertRaises", "assertRaisesRegex"):
                return ast.unparse(call.args[0])
    return ""


def _expectation(statement: ast.stmt | None, message: str, kind: str, awaited: str) -> tuple[str, int]:
    """What the test wanted, in words; and how much that says (0 or 1)."""
    if awaited and "pattern did not match" in message:
        return f"I expected this to raise `{awaited}` with another text.", 1
    if awaited:
        return f"I expected this to raise `{awaited}`.", 1
    raises = _RAISES.search(message)
    if raises is not None:
        return f"I expected this to raise `{raises.group(1).rpartition('.')[2]}`.", 1
    if kind and kind not in ("AssertionError", "Failed"):
        return "I expected this to work without an error.", 1
    if isinstance(statement, ast.Assert):
        return f"I expected {_condition(statement.test)}.", 1
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        said = _unittest(statement.value)
        if said:
            return f"I expected {said}.", 1
    return "I expected the result that the documentation promises.", 0


def _condition(test: ast.expr) -> str:
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
        return f"`{_short(test.left)}` to equal `{_short(test.comparators[0])}`"
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return f"`{_short(test.operand)}` to be false"
    return f"`{_short(test)}` to hold"


def _unittest(call: ast.Call) -> str:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    arguments = [_short(argument) for argument in call.args]
    if name in ("assertEqual", "assertEquals", "assertListEqual", "assertDictEqual") and len(arguments) >= 2:
        return f"`{arguments[0]}` to equal `{arguments[1]}`"
    if name in ("assertTrue", "assertFalse") and arguments:
        return f"`{arguments[0]}` to be {'true' if name == 'assertTrue' else 'false'}"
    if name == "assertIn" and len(arguments) >= 2:
        return f"`{arguments[0]}` to be in `{arguments[1]}`"
    if name == "assertIs" and len(arguments) >= 2:
        return f"`{arguments[0]}` to be `{arguments[1]}`"
    return ""


def _short(node: ast.expr) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 160 else text[:157] + "…"


def _snippet(function: ast.FunctionDef | ast.AsyncFunctionDef, failing: ast.stmt, source: str) -> str:
    """The last whole statements of the test's body up to the failing one, as far as they are few."""
    lines = source.splitlines()
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    last = failing.end_lineno or failing.lineno
    starts = [statement.lineno for statement in body if statement.lineno <= failing.lineno]
    near = [line for line in starts if last - line < _SNIPPET_LINES]
    first = near[0] if near else failing.lineno
    kept = textwrap.dedent("\n".join(lines[first - 1 : last])).splitlines()
    if len(kept) > 2 * _SNIPPET_LINES:
        return ""
    if starts and first != starts[0]:
        kept = ["…", *kept]
    return "\n".join(kept).strip()
