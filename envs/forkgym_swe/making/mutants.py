"""Where operators apply in a module, and the module's text with one of them applied.

Which mutants make a task is decided in ``injection``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

# The two modules register their operators when they are imported.
from . import expressions as expressions
from . import statement_bugs as statement_bugs
from .operators import OPERATORS, Edit, Operator, Surroundings, operator_names

__all__ = ["MutableModule", "Mutant", "MutationError", "Site"]

# Comments that tell coverage or type checkers something are no reason to mutate what they mark.
_UNTOUCHED_FUNCTIONS = ("__repr__", "__str__", "__del__", "__init_subclass__")


class MutationError(ValueError):
    """A module that cannot be mutated; the text says which and why."""


@dataclass(frozen=True)
class Site:
    """One place where one operator makes one change.

    Attributes:
        path: File.
        operator: Name of the operator.
        line: First line of what changes.
        last_line: Last line of it.
        function: Dotted name of the function around it; "" for code that runs on import.
        index: Its number among all sites of the file, in source order.
    """

    path: str
    operator: str
    line: int
    last_line: int
    function: str
    index: int


@dataclass(frozen=True)
class Mutant:
    """A module with a bug.

    Attributes:
        site: What was done where.
        source: The whole text.
    """

    site: Site
    source: str


class MutableModule:
    """A parsed module and every change that operators propose for it, in source order.

    Args:
        path: File name, for messages and sites.
        source: Text.
        operators: Names of operators; by default all.

    Raises:
        MutationError: The text is no module.
        ValueError: No operator has one of the names.
    """

    def __init__(self, path: str, source: str, operators: Sequence[str] = ()) -> None:
        names = operator_names(operators)
        self.path, self.source = path, source
        try:
            wrapper = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True)
            self._shape = ast.dump(ast.parse(source))
        except (cst.ParserSyntaxError, SyntaxError, ValueError, RecursionError) as error:
            raise MutationError(f"{path} cannot be parsed: {error}") from error
        self._module = wrapper.module
        finder = _Finder(path, [OPERATORS[name] for name in names])
        wrapper.visit(finder)
        ordered = sorted(finder.found, key=lambda found: (found[0].line, found[0].index))
        self._edits = [edit for _, edit in ordered]
        self.sites = [
            Site(path, site.operator, site.line, site.last_line, site.function, index)
            for index, (site, _) in enumerate(ordered)
        ]

    def apply(self, site: Site) -> Mutant | None:
        """The module with one change.

        Returns:
            None if the change makes no valid module or no other program than before.

        Raises:
            MutationError: The site is of another module.
        """
        if not 0 <= site.index < len(self.sites) or self.sites[site.index] != site:
            raise MutationError(f"this site is not one of {self.path} as it was parsed")
        edit = self._edits[site.index]
        try:
            changed = self._module.deep_replace(edit.target, edit.replacement)
            text = changed.code if isinstance(changed, cst.Module) else ""
            shape = ast.dump(ast.parse(text))
            compile(text, self.path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError, cst.CSTValidationError):
            return None  # such as a name that two edits' contexts do not share, or `continue` outside of a loop
        return None if shape == self._shape else Mutant(site, text)

    def mutants(self) -> Iterator[Mutant]:
        """Every mutant, in source order."""
        for site in self.sites:
            mutant = self.apply(site)
            if mutant is not None:
                yield mutant


class _Finder(cst.CSTVisitor):
    """Asks the operators at every node and remembers what they propose."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, path: str, operators: Sequence[Operator]) -> None:
        super().__init__()
        self.found: list[tuple[Site, Edit]] = []
        self._path, self._operators = path, operators
        self._parents: list[cst.CSTNode] = []
        self._functions: list[tuple[cst.FunctionDef, tuple[str, ...]]] = []
        self._classes: list[tuple[cst.ClassDef, tuple[str, ...]]] = []
        self._scopes: list[str] = []
        self._skipped: list[cst.CSTNode] = []
        self._by_kind: dict[type[cst.CSTNode], list[Operator]] = {}

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Ask before going deeper, so that sites come in source order."""
        if _is_untouched(node, self._parents[-1] if self._parents else None):
            self._skipped.append(node)
            return False
        self._ask(node)
        self._parents.append(node)
        if isinstance(node, cst.FunctionDef):
            self._functions.append((node, _local_names(node)))
            self._scopes.append(node.name.value)
        elif isinstance(node, cst.ClassDef):
            self._classes.append((node, _own_attributes(node)))
            self._scopes.append(node.name.value)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        """Forget the node's scope."""
        if self._skipped and self._skipped[-1] is original_node:
            self._skipped.pop()
            return
        self._parents.pop()
        if isinstance(original_node, cst.FunctionDef):
            self._functions.pop()
            self._scopes.pop()
        elif isinstance(original_node, cst.ClassDef):
            self._classes.pop()
            self._scopes.pop()

    def _ask(self, node: cst.CSTNode) -> None:
        operators = self._by_kind.get(type(node))
        if operators is None:
            operators = [one for one in self._operators if isinstance(node, one.kinds)]
            self._by_kind[type(node)] = operators
        if not operators:
            return
        function, names = self._functions[-1] if self._functions else (None, ())
        attributes = self._classes[-1][1] if self._classes else ()
        around = Surroundings(tuple(reversed(self._parents)), function, names, attributes)
        for one in operators:
            if function is None and not one.outside_functions:
                continue
            for edit in one.propose(node, around):
                place = self.get_metadata(PositionProvider, edit.at or edit.target)
                scope = ".".join(self._scopes) if self._functions else ""
                index = len(self.found)
                site = Site(self._path, one.name, place.start.line, place.end.line, scope, index)
                self.found.append((site, edit))


def _is_untouched(node: cst.CSTNode, parent: cst.CSTNode | None) -> bool:
    """Annotations, documentation, type checking's branches and the functions that only print."""
    if isinstance(node, cst.Annotation):
        return True
    if isinstance(node, cst.FunctionDef):
        return node.name.value in _UNTOUCHED_FUNCTIONS
    if isinstance(node, cst.If):
        test = node.test.attr if isinstance(node.test, cst.Attribute) else node.test
        return isinstance(test, cst.Name) and test.value == "TYPE_CHECKING"
    return isinstance(node, cst.BaseString) and isinstance(parent, cst.Expr)


class _Names(cst.CSTVisitor):
    """Names that a function binds, and attributes of ``self`` that a class sets; inner scopes stay out for names."""

    def __init__(self, top: cst.CSTNode) -> None:
        super().__init__()
        self.top, self.names, self.attributes = top, dict[str, None](), dict[str, None]()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        return node is self.top or isinstance(self.top, cst.ClassDef)

    def visit_Lambda(self, node: cst.Lambda) -> bool:  # noqa: ARG002
        return False

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        return node is self.top

    def visit_Param(self, node: cst.Param) -> None:
        if not node.star:
            self.names.setdefault(node.name.value)

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:
        self._bind(node.target)

    def visit_For(self, node: cst.For) -> None:
        self._bind(node.target)

    def _bind(self, target: cst.CSTNode) -> None:
        if isinstance(target, cst.Name):
            self.names.setdefault(target.value)
        elif isinstance(target, cst.Tuple):
            for element in target.elements:
                self._bind(element.value)
        elif isinstance(target, cst.Attribute) and isinstance(target.value, cst.Name) and target.value.value == "self":
            self.attributes.setdefault(target.attr.value)


def _local_names(function: cst.FunctionDef) -> tuple[str, ...]:
    names = _Names(function)
    function.visit(names)
    return tuple(names.names)


def _own_attributes(node: cst.ClassDef) -> tuple[str, ...]:
    names = _Names(node)
    node.visit(names)
    return tuple(names.attributes)
