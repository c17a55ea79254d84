"""Bug operators on expressions: operators, constants, names, arguments. Those on statements are in ``statements``."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from itertools import pairwise

import libcst as cst

from .operators import Edit, Surroundings, operator, parenthesized

_COMPARISONS: Mapping[type[cst.BaseCompOp], tuple[type[cst.BaseCompOp], ...]] = {
    cst.LessThan: (cst.LessThanEqual, cst.GreaterThan),
    cst.LessThanEqual: (cst.LessThan,),
    cst.GreaterThan: (cst.GreaterThanEqual, cst.LessThan),
    cst.GreaterThanEqual: (cst.GreaterThan,),
    cst.Equal: (cst.NotEqual,),
    cst.NotEqual: (cst.Equal,),
    cst.In: (cst.NotIn,),
    cst.NotIn: (cst.In,),
    cst.Is: (cst.IsNot,),
    cst.IsNot: (cst.Is,),
}
_ARITHMETIC: Mapping[type[cst.CSTNode], type[cst.CSTNode]] = {
    cst.Add: cst.Subtract,
    cst.Subtract: cst.Add,
    cst.Multiply: cst.Add,
    cst.Divide: cst.FloorDivide,
    cst.FloorDivide: cst.Divide,
    cst.Modulo: cst.FloorDivide,
    cst.Power: cst.Multiply,
    cst.LeftShift: cst.RightShift,
    cst.RightShift: cst.LeftShift,
    cst.BitAnd: cst.BitOr,
    cst.BitOr: cst.BitAnd,
    cst.BitXor: cst.BitOr,
    cst.AddAssign: cst.SubtractAssign,
    cst.SubtractAssign: cst.AddAssign,
    cst.MultiplyAssign: cst.AddAssign,
    cst.BitOrAssign: cst.BitAndAssign,
    cst.BitAndAssign: cst.BitOrAssign,
}
_RELATED_CALLS: Mapping[str, str] = {
    "add": "discard",
    "all": "any",
    "any": "all",
    "append": "extend",
    "ceil": "floor",
    "discard": "add",
    "endswith": "startswith",
    "extend": "append",
    "find": "rfind",
    "floor": "ceil",
    "index": "rindex",
    "isinstance": "issubclass",
    "keys": "values",
    "lower": "upper",
    "lstrip": "rstrip",
    "max": "min",
    "min": "max",
    "partition": "rpartition",
    "pop": "get",
    "popleft": "pop",
    "rfind": "find",
    "rpartition": "partition",
    "rsplit": "split",
    "rstrip": "lstrip",
    "split": "rsplit",
    "startswith": "endswith",
    "strip": "lstrip",
    "title": "capitalize",
    "union": "intersection",
    "upper": "lower",
    "values": "keys",
}
_COPIES = ("list", "tuple", "dict", "set", "sorted", "copy", "deepcopy")
_LONGEST_STRING = 40


@operator("comparison-changed", "another comparison operator", cst.ComparisonTarget)
def comparison_changed(node: cst.CSTNode, _: Surroundings) -> Iterator[Edit]:
    """``a < b`` → ``a <= b``."""
    if not isinstance(node, cst.ComparisonTarget):
        return
    for other in _COMPARISONS.get(type(node.operator), ()):
        # With a space on both sides, whatever stood there: `in` and `not` would grow together with their neighbours.
        yield Edit(node.operator, other(), at=node)


@operator("arithmetic-changed", "another arithmetic or bit operator", cst.BinaryOperation, cst.AugAssign)
def arithmetic_changed(node: cst.CSTNode, _: Surroundings) -> Iterator[Edit]:
    """``a + b`` → ``a - b``."""
    if not isinstance(node, cst.BinaryOperation | cst.AugAssign):
        return
    if isinstance(node, cst.BinaryOperation) and isinstance(node.left, cst.SimpleString | cst.FormattedString):
        return  # "…" % x and "…" + x: no other operator makes a bug that a person would write
    other = _ARITHMETIC.get(type(node.operator))
    if other is not None:
        yield Edit(node.operator, other(), at=node)


@operator("boolean-operator-changed", "`and` for `or` and the other way round", cst.BooleanOperation)
def boolean_operator_changed(node: cst.CSTNode, _: Surroundings) -> Iterator[Edit]:
    """``a and b`` → ``a or b``."""
    if isinstance(node, cst.BooleanOperation):
        kind = cst.Or if isinstance(node.operator, cst.And) else cst.And
        before, after = node.operator.whitespace_before, node.operator.whitespace_after
        yield Edit(node.operator, kind(whitespace_before=before, whitespace_after=after), at=node)


@operator("condition-part-dropped", "one side of `and` or `or` is gone", cst.BooleanOperation)
def condition_part_dropped(node: cst.CSTNode, _: Surroundings) -> Iterator[Edit]:
    """``a and b`` → ``a``."""
    if isinstance(node, cst.BooleanOperation):
        for kept in (node.left, node.right):
            yield Edit(node, _in_place_of(node, kept))


@operator("negation-dropped", "a `not` or a minus sign is gone", cst.UnaryOperation)
def negation_dropped(node: cst.CSTNode, _: Surroundings) -> Iterator[Edit]:
    """``not a`` → ``a``."""
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not | cst.Minus):
        if isinstance(node.operator, cst.Minus) and isinstance(node.expression, cst.Integer | cst.Float):
            return  # that is a constant: `constant-changed`, `index-changed`
        yield Edit(node, _in_place_of(node, node.expression))


@operator(
    "off-by-one", "a bound of a slice or range, or a length, is one off", cst.Slice, cst.Call, cst.BinaryOperation
)
def off_by_one(node: cst.CSTNode, _: Surroundings) -> Iterator[Edit]:
    """``items[1:n]`` → ``items[1:n - 1]``; ``range(n)`` → ``range(n + 1)``; ``n - 1`` → ``n``."""
    if isinstance(node, cst.Slice):
        for bound in (node.lower, node.upper):
            if bound is not None:
                yield from _shifted(bound)
    elif isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value in ("range", "islice"):
        for argument in node.args[:2] if node.func.value == "range" else node.args[1:3]:
            if not argument.star and not _is_name(argument.value, "None"):
                yield from _shifted(argument.value)
    elif isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add | cst.Subtract):
        one = isinstance(node.right, cst.Integer) and node.right.evaluated_value == 1
        yield from [Edit(node, _in_place_of(node, node.left))] if one else []


@operator("constant-changed", "another number or truth value", cst.Integer, cst.Float, cst.Name)
def constant_changed(node: cst.CSTNode, around: Surroundings) -> Iterator[Edit]:
    """``3`` → ``4``; ``True`` → ``False``."""
    if isinstance(around.parent, cst.Param | cst.Index | cst.Slice | cst.AnnAssign):
        return  # `wrong-default`, `index-changed`, `off-by-one`
    yield from (Edit(node, changed) for changed in _other_constants(node))


@operator("index-changed", "another index of a sequence", cst.Index)
def index_changed(node: cst.CSTNode, _: Surroundings) -> Iterator[Edit]:
    """``items[0]`` → ``items[1]``, ``items[-1]`` → ``items[0]``."""
    if not isinstance(node, cst.Index) or node.star:
        return
    value = node.value
    number = value.expression if isinstance(value, cst.UnaryOperation) else value
    if not isinstance(number, cst.Integer):
        return
    if number is value:
        yield Edit(value, cst.Integer(str(number.evaluated_value - 1 if number.evaluated_value else 1)))
    elif isinstance(value, cst.UnaryOperation) and isinstance(value.operator, cst.Minus):
        yield Edit(value, cst.Integer(str(number.evaluated_value - 1)))


@operator("string-changed", "another string", cst.SimpleString)
def string_changed(node: cst.CSTNode, around: Surroundings) -> Iterator[Edit]:
    """``"key"`` → ``"Key"``, ``", "`` → ``","``. Documentation and long texts are left alone."""
    if not isinstance(node, cst.SimpleString) or isinstance(around.parent, cst.Expr | cst.Param | cst.Annotation):
        return
    if any(isinstance(above, cst.Raise | cst.Assert | cst.ConcatenatedString) for above in around.parents[:4]):
        return
    other = _other_string(node)
    if other is not None:
        yield Edit(node, other)


@operator("arguments-swapped", "two neighbouring arguments of a call change places", cst.Call)
def arguments_swapped(node: cst.CSTNode, _: Surroundings) -> Iterator[Edit]:
    """``f(a, b)`` → ``f(b, a)``."""
    if not isinstance(node, cst.Call):
        return
    for place, (first, second) in enumerate(pairwise(node.args)):
        if any(argument.star or argument.keyword for argument in (first, second)):
            continue
        if first.value.deep_equals(second.value):
            continue
        swapped = list(node.args)
        swapped[place] = first.with_changes(value=second.value)
        swapped[place + 1] = second.with_changes(value=first.value)
        yield Edit(node, node.with_changes(args=swapped))


@operator("keyword-removed", "a keyword argument of a call is gone", cst.Call)
def keyword_removed(node: cst.CSTNode, _: Surroundings) -> Iterator[Edit]:
    """``f(a, key=b)`` → ``f(a)``."""
    if not isinstance(node, cst.Call):
        return
    for place, argument in enumerate(node.args):
        if argument.keyword is None:
            continue
        kept = [*node.args[:place], *node.args[place + 1 :]]
        if kept and place == len(node.args) - 1:
            kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        yield Edit(node, node.with_changes(args=kept), at=argument)


@operator("await-removed", "an `await` is gone", cst.Await)
def await_removed(node: cst.CSTNode, _: Surroundings) -> Iterator[Edit]:
    """``await f()`` → ``f()``."""
    if isinstance(node, cst.Await):
        yield Edit(node, _in_place_of(node, node.expression))


@operator("wrong-default", "another default value of a parameter", cst.Param, outside_functions=True)
def wrong_default(node: cst.CSTNode, _: Surroundings) -> Iterator[Edit]:
    """``def f(a=1)`` → ``def f(a=2)``."""
    if not isinstance(node, cst.Param) or node.default is None:
        return
    default = node.default
    found: list[cst.BaseExpression] = list(_other_constants(default))
    if isinstance(default, cst.SimpleString):
        other = _other_string(default)
        found += [other] if other is not None else []
    elif _is_name(default, "None"):
        found.append(cst.Name("False"))
    yield from (Edit(default, changed) for changed in found)


@operator("wrong-variable", "another variable of the function", cst.Name)
def wrong_variable(node: cst.CSTNode, around: Surroundings) -> Iterator[Edit]:
    """``left`` → ``right``, where both are known in the function and the name is read."""
    if not isinstance(node, cst.Name) or node.value not in around.names or node.value in ("self", "cls"):
        return
    parent = around.parent
    read = isinstance(
        parent,
        cst.Arg
        | cst.BinaryOperation
        | cst.Comparison
        | cst.ComparisonTarget
        | cst.Return
        | cst.Index
        | cst.Subscript
        | cst.BooleanOperation
        | cst.Element
        | cst.If
        | cst.IfExp
        | cst.Assign
        | cst.DictElement
        | cst.UnaryOperation,
    )
    if not read or (isinstance(parent, cst.Arg) and parent.value is not node):
        return
    others = [name for name in around.names if name not in ("self", "cls", node.value)]
    if others:
        # The next in order of appearance, so that the choice spreads over the names and is the same every time.
        following = [name for name in others if around.names.index(name) > around.names.index(node.value)]
        yield Edit(node, node.with_changes(value=(following or others)[0]))


@operator("wrong-attribute", "another attribute of the object", cst.Attribute)
def wrong_attribute(node: cst.CSTNode, around: Surroundings) -> Iterator[Edit]:
    """``self.first`` → ``self.last``, where the class has both."""
    if not isinstance(node, cst.Attribute) or not _is_name(node.value, "self"):
        return
    if isinstance(around.parent, cst.AssignTarget | cst.AnnAssign | cst.AugAssign | cst.Call):
        return
    others = [name for name in around.attributes if name != node.attr.value]
    if node.attr.value in around.attributes and others:
        place = around.attributes.index(node.attr.value)
        yield Edit(node.attr, cst.Name(others[place % len(others)]), at=node)


@operator("related-call", "a related function or method is called", cst.Call)
def related_call(node: cst.CSTNode, _: Surroundings) -> Iterator[Edit]:
    """``text.lstrip()`` → ``text.rstrip()``; ``min(a, b)`` → ``max(a, b)``."""
    if not isinstance(node, cst.Call):
        return
    name = node.func.attr if isinstance(node.func, cst.Attribute) else node.func
    if isinstance(name, cst.Name) and name.value in _RELATED_CALLS:
        method = isinstance(node.func, cst.Attribute)
        if method or name.value in ("all", "any", "min", "max", "ceil", "floor"):
            yield Edit(name, cst.Name(_RELATED_CALLS[name.value]), at=node)


@operator("copy-lost", "a copy or conversion of a value is gone", cst.Call)
def copy_lost(node: cst.CSTNode, _: Surroundings) -> Iterator[Edit]:
    """``list(items)`` → ``items``; ``items.copy()`` → ``items``."""
    if not isinstance(node, cst.Call):
        return
    if isinstance(node.func, cst.Attribute) and node.func.attr.value == "copy" and not node.args:
        yield Edit(node, _in_place_of(node, node.func.value))
    elif isinstance(node.func, cst.Name) and node.func.value in _COPIES and len(node.args) == 1:
        only = node.args[0]
        if not only.star and only.keyword is None and not isinstance(only.value, cst.GeneratorExp):
            yield Edit(node, _in_place_of(node, only.value))


@operator("branches-swapped", "the two values of a conditional expression change places", cst.IfExp)
def branches_swapped(node: cst.CSTNode, _: Surroundings) -> Iterator[Edit]:
    """``a if c else b`` → ``b if c else a``."""
    if isinstance(node, cst.IfExp) and not node.body.deep_equals(node.orelse):
        body, orelse = parenthesized(node.orelse), parenthesized(node.body)
        yield Edit(node, node.with_changes(body=body, orelse=orelse))


def negated(test: cst.BaseExpression) -> cst.BaseExpression:
    """The opposite of a condition, as a person would write it."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return _in_place_of(test, test.expression)
    operand = parenthesized(test)
    return cst.UnaryOperation(operator=cst.Not(), expression=operand)


def _in_place_of(outer: cst.BaseExpression, inner: cst.BaseExpression) -> cst.BaseExpression:
    """The inner expression, in the outer one's parentheses if it has any, else in its own."""
    if outer.lpar and not inner.lpar:
        return inner.with_changes(lpar=outer.lpar, rpar=outer.rpar)
    return parenthesized(inner)


def _is_name(node: cst.CSTNode | None, value: str) -> bool:
    return isinstance(node, cst.Name) and node.value == value


def _shifted(bound: cst.BaseExpression) -> Iterator[Edit]:
    if isinstance(bound, cst.Integer):
        for value in (bound.evaluated_value + 1, bound.evaluated_value - 1):
            if value >= 0:
                yield Edit(bound, cst.Integer(str(value)))
        return
    if isinstance(bound, cst.BinaryOperation | cst.UnaryOperation) and isinstance(
        bound.operator, cst.Add | cst.Subtract | cst.Minus
    ):
        return  # `n - 1` is handled as the sum that it is
    for sign in (cst.Add(), cst.Subtract()):
        yield Edit(bound, cst.BinaryOperation(parenthesized(bound), sign, cst.Integer("1")))


def _other_constants(node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    if isinstance(node, cst.Integer):
        value = node.evaluated_value
        yield cst.Integer(str(value + 1))
        if value > 0:
            yield cst.Integer(str(value - 1))
    elif isinstance(node, cst.Float):
        changed = node.evaluated_value * 2 if node.evaluated_value else 1.0
        yield cst.Float(repr(float(changed)))
    elif isinstance(node, cst.Name) and node.value in ("True", "False"):
        yield cst.Name("False" if node.value == "True" else "True")


def _other_string(node: cst.SimpleString) -> cst.SimpleString | None:
    """Another string of the same notation, or None where a person would hardly mistype it."""
    text = node.raw_value
    if "b" in node.prefix.lower() or len(text) > _LONGEST_STRING or "\\" in text or len(node.quote) > 1:
        return None
    if not text:
        changed = " "
    elif text != text.strip():
        changed = text.strip()
    elif text.swapcase() != text and text[0].isalpha():
        changed = text[0].swapcase() + text[1:]
    else:
        changed = text[:-1] if len(text) > 1 else text * 2
    value = f"{node.prefix}{node.quote}{changed}{node.quote}"
    try:
        ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return None
    return node.with_changes(value=value)
