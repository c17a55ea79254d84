"""Bug operators on statements: conditions, returns, raises, loops, imports.

Those on expressions are in ``expressions``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import libcst as cst

from .expressions import negated
from .operators import Edit, Surroundings, operator

_EXCEPTIONS: Mapping[str, str] = {
    "ArithmeticError": "ValueError",
    "AttributeError": "TypeError",
    "FileNotFoundError": "PermissionError",
    "ImportError": "LookupError",
    "IndexError": "KeyError",
    "KeyError": "IndexError",
    "LookupError": "ValueError",
    "NotImplementedError": "ValueError",
    "OSError": "ValueError",
    "OverflowError": "ValueError",
    "RuntimeError": "ValueError",
    "StopIteration": "IndexError",
    "TypeError": "ValueError",
    "UnicodeDecodeError": "LookupError",
    "ValueError": "TypeError",
    "ZeroDivisionError": "ValueError",
}


@operator("condition-inverted", "a condition is the opposite", cst.If, cst.IfExp, cst.While, cst.CompIf)
def condition_inverted(node: cst.CSTNode, _: Surroundings) -> Iterator[Edit]:
    """``if a:`` → ``if not a:``."""
    if isinstance(node, cst.If | cst.IfExp | cst.While | cst.CompIf) and not _is_constant(node.test):
        yield Edit(node.test, negated(node.test))


@operator("condition-dropped", "a branch runs always, or never", cst.If, cst.CompFor)
def condition_dropped(node: cst.CSTNode, around: Surroundings) -> Iterator[Edit]:
    """``if a: b`` → ``b``, or nothing; ``[x for x in y if z]`` → ``[x for x in y]``."""
    if isinstance(node, cst.CompFor):
        if node.ifs:
            yield Edit(node, node.with_changes(ifs=node.ifs[:-1]), at=node.ifs[-1])
        return
    if not isinstance(node, cst.If) or node.orelse is not None or not isinstance(node.body, cst.IndentedBlock):
        return
    block = around.parent
    if not isinstance(block, cst.IndentedBlock):
        return
    body = _without_comments(node.body.body)
    yield Edit(block, block.with_changes(body=_replaced(block.body, node, body)), at=node)
    if len(block.body) > 1:
        yield Edit(block, block.with_changes(body=_replaced(block.body, node, ())), at=node)


@operator("blocks-swapped", "what belongs to `if` and what belongs to `else` change places", cst.If)
def blocks_swapped(node: cst.CSTNode, _: Surroundings) -> Iterator[Edit]:
    """``if a: b else: c`` → ``if a: c else: b``."""
    if isinstance(node, cst.If) and isinstance(node.orelse, cst.Else) and not node.body.deep_equals(node.orelse.body):
        swapped = node.orelse.with_changes(body=node.body)
        yield Edit(node, node.with_changes(body=node.orelse.body, orelse=swapped))


@operator("return-removed", "a function computes its result and does not return it", cst.Return)
def return_removed(node: cst.CSTNode, _: Surroundings) -> Iterator[Edit]:
    """``return f(a)`` → ``f(a)``; ``return a`` → ``return None``."""
    if not isinstance(node, cst.Return) or node.value is None or _is_name(node.value, "None"):
        return
    if isinstance(node.value, cst.Call | cst.Await):
        yield Edit(node, cst.Expr(node.value, semicolon=node.semicolon))
    else:
        yield Edit(node.value, cst.Name("None"), at=node)


@operator("raise-removed", "an error is not raised", cst.Raise)
def raise_removed(node: cst.CSTNode, _: Surroundings) -> Iterator[Edit]:
    """``raise ValueError(…)`` → ``pass``."""
    if isinstance(node, cst.Raise):
        yield Edit(node, cst.Pass(semicolon=node.semicolon))


@operator("exception-changed", "another type of exception is raised or handled", cst.Raise, cst.ExceptHandler)
def exception_changed(node: cst.CSTNode, _: Surroundings) -> Iterator[Edit]:
    """``raise ValueError`` → ``raise TypeError``; ``except KeyError`` → ``except IndexError``."""
    if isinstance(node, cst.Raise):
        kind = node.exc.func if isinstance(node.exc, cst.Call) else node.exc
        if isinstance(kind, cst.Name) and kind.value in _EXCEPTIONS:
            yield Edit(kind, cst.Name(_EXCEPTIONS[kind.value]))
    elif isinstance(node, cst.ExceptHandler):
        if isinstance(node.type, cst.Name) and node.type.value in _EXCEPTIONS:
            yield Edit(node.type, node.type.with_changes(value=_EXCEPTIONS[node.type.value]))
        elif isinstance(node.type, cst.Tuple) and len(node.type.elements) > 1:
            kept = list(node.type.elements[:-1])
            if len(kept) > 1:
                kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            else:
                kept[0] = kept[0].with_changes(comma=cst.Comma())
            yield Edit(node.type, node.type.with_changes(elements=kept))


@operator(
    "loop-broken",
    "`break` for `continue`, one of them lost, or a loop that misses an item",
    cst.Break,
    cst.Continue,
    cst.For,
)
def loop_broken(node: cst.CSTNode, _: Surroundings) -> Iterator[Edit]:
    """``break`` → ``continue`` or ``pass``; ``for x in items:`` ends after the first item."""
    if isinstance(node, cst.Break | cst.Continue):
        other = cst.Continue if isinstance(node, cst.Break) else cst.Break
        yield Edit(node, other(semicolon=node.semicolon))
        yield Edit(node, cst.Pass(semicolon=node.semicolon))
    elif isinstance(node, cst.For) and isinstance(node.body, cst.IndentedBlock):
        last = node.body.body[-1]
        if isinstance(last, cst.SimpleStatementLine) and isinstance(
            last.body[-1], cst.Break | cst.Continue | cst.Return
        ):
            return
        ended = (*node.body.body, cst.SimpleStatementLine([cst.Break()]))
        yield Edit(node.body, node.body.with_changes(body=ended), at=last)


@operator(
    "import-lost", "an imported name is not imported any more", cst.Import, cst.ImportFrom, outside_functions=True
)
def import_lost(node: cst.CSTNode, _: Surroundings) -> Iterator[Edit]:
    """``from a import b, c`` → ``from a import b``."""
    if not isinstance(node, cst.Import | cst.ImportFrom) or isinstance(node.names, cst.ImportStar):
        return
    if isinstance(node, cst.ImportFrom) and _is_name(node.module, "__future__"):
        return
    if len(node.names) == 1:
        yield Edit(node, cst.Pass(semicolon=node.semicolon))
        return
    for place, alias in enumerate(node.names):
        kept = [*node.names[:place], *node.names[place + 1 :]]
        if isinstance(node, cst.Import) or node.lpar is None:
            kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        yield Edit(node, node.with_changes(names=kept), at=alias)


@operator("call-removed", "a call that is made for its effect is gone", cst.Expr)
def call_removed(node: cst.CSTNode, _: Surroundings) -> Iterator[Edit]:
    """``items.sort()`` → nothing."""
    if isinstance(node, cst.Expr) and isinstance(node.value, cst.Call | cst.Await):
        yield Edit(node, cst.Pass(semicolon=node.semicolon))


@operator("assignment-removed", "an assignment is gone", cst.SimpleStatementLine)
def assignment_removed(node: cst.CSTNode, around: Surroundings) -> Iterator[Edit]:
    """``self.count = 0`` → nothing."""
    if not isinstance(node, cst.SimpleStatementLine) or len(node.body) != 1:
        return
    block = around.parent
    if not isinstance(block, cst.IndentedBlock) or len(block.body) < 2:
        return
    if isinstance(node.body[0], cst.Assign | cst.AugAssign):
        yield Edit(block, block.with_changes(body=_replaced(block.body, node, ())), at=node)


@operator("update-became-assignment", "a value is overwritten where it should be updated", cst.AugAssign)
def update_became_assignment(node: cst.CSTNode, _: Surroundings) -> Iterator[Edit]:
    """``total += x`` → ``total = x``."""
    if isinstance(node, cst.AugAssign):
        yield Edit(node, cst.Assign([cst.AssignTarget(node.target)], node.value, semicolon=node.semicolon))


@operator("decorator-lost", "a decorator is gone", cst.FunctionDef, outside_functions=True)
def decorator_lost(node: cst.CSTNode, _: Surroundings) -> Iterator[Edit]:
    """``@cached`` above a function → nothing."""
    if isinstance(node, cst.FunctionDef):
        for place, decorator in enumerate(node.decorators):
            name = decorator.decorator
            if _is_name(name, "overload") or (isinstance(name, cst.Attribute) and name.attr.value == "overload"):
                continue
            kept = [*node.decorators[:place], *node.decorators[place + 1 :]]
            yield Edit(node, node.with_changes(decorators=kept), at=decorator)


def _is_name(node: cst.CSTNode | None, value: str) -> bool:
    return isinstance(node, cst.Name) and node.value == value


def _is_constant(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Integer) or (isinstance(node, cst.Name) and node.value in ("True", "False"))


def _replaced(
    body: Sequence[cst.BaseStatement], old: cst.CSTNode, new: Sequence[cst.BaseStatement]
) -> tuple[cst.BaseStatement, ...]:
    """The statements with one of them replaced by any number; never empty."""
    found: list[cst.BaseStatement] = []
    for statement in body:
        found += list(new) if statement is old else [statement]
    return tuple(found) or (cst.SimpleStatementLine([cst.Pass()]),)


def _without_comments(body: Sequence[cst.BaseStatement]) -> tuple[cst.BaseStatement, ...]:
    return tuple(
        statement.with_changes(leading_lines=[line for line in statement.leading_lines if line.comment is None])
        if isinstance(statement, cst.SimpleStatementLine | cst.BaseCompoundStatement)
        else statement
        for statement in body
    )
