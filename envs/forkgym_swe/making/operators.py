"""What a bug operator is, and the registry of all. The operators are in ``expressions`` and ``statements``.

An operator looks at one node of a syntax tree and proposes edits; where and how often it is asked is decided in
``mutants``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import libcst as cst

__all__ = ["OPERATORS", "Edit", "Operator", "Surroundings", "operator", "operator_names", "parenthesized"]


@dataclass(frozen=True)
class Surroundings:
    """What an operator may know besides the node.

    Attributes:
        parents: Enclosing nodes, the nearest first.
        function: The innermost function around the node, if any.
        names: Parameters and local variables of that function, in order of appearance.
        attributes: Attributes of ``self`` in the class around the node, in order of appearance.
    """

    parents: tuple[cst.CSTNode, ...] = ()
    function: cst.FunctionDef | None = None
    names: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()

    @property
    def parent(self) -> cst.CSTNode | None:
        """The node right above."""
        return self.parents[0] if self.parents else None


@dataclass(frozen=True)
class Edit:
    """One node of the tree replaced by another.

    Attributes:
        target: The node as it is in the tree.
        replacement: What takes its place.
        at: Where people would look for the change, if not at the start of the target.
    """

    target: cst.CSTNode
    replacement: cst.CSTNode
    at: cst.CSTNode | None = None


Propose = Callable[[cst.CSTNode, Surroundings], Iterator[Edit]]


@dataclass(frozen=True)
class Operator:
    """One kind of bug.

    Attributes:
        name: Of letters and hyphens; recorded with the task.
        description: One line for people.
        propose: The edits of this kind at a node.
        kinds: The classes of nodes that it looks at.
        outside_functions: Whether it also looks at code that runs on import.
    """

    name: str
    description: str
    propose: Propose
    kinds: tuple[type[cst.CSTNode], ...]
    outside_functions: bool = field(default=False)


OPERATORS: dict[str, Operator] = {}
"""Every operator by name. Filled when ``mutants`` (or one of the modules with operators) is imported."""


def operator(
    name: str, description: str, *kinds: type[cst.CSTNode], outside_functions: bool = False
) -> Callable[[Propose], Propose]:
    """Register a function that proposes edits.

    Args:
        name: See `Operator`.
        description: See `Operator`.
        kinds: See `Operator`.
        outside_functions: See `Operator`.
    """

    def register(propose: Propose) -> Propose:
        if name in OPERATORS:
            raise ValueError(f"two operators are called {name!r}")
        OPERATORS[name] = Operator(name, description, propose, kinds, outside_functions)
        return propose

    return register


def operator_names(wanted: Sequence[str] = ()) -> tuple[str, ...]:
    """Check names of operators; without any, all of them.

    Raises:
        ValueError: There is none of a name.
    """
    unknown = sorted(set(wanted) - set(OPERATORS))
    if unknown:
        raise ValueError(f"no operator is called {', '.join(unknown)}. Operators: {', '.join(sorted(OPERATORS))}")
    return tuple(wanted) if wanted else tuple(OPERATORS)


def parenthesized(node: cst.BaseExpression) -> cst.BaseExpression:
    """The expression in parentheses unless it needs none anywhere."""
    simple = (cst.Name, cst.Call, cst.Attribute, cst.Subscript, cst.Integer, cst.SimpleString, cst.List, cst.Dict)
    if isinstance(node, simple) or node.lpar:
        return node
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
