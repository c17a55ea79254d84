"""Take tests out of test files. Pure; which tests are hidden is the task's affair."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from forkgym_swe.instance import InstanceError

__all__ = ["hide_tests"]


def hide_tests(files: Mapping[str, bytes], ids: Iterable[str]) -> dict[str, bytes]:
    """The tree without some tests.

    A parametrised test goes as a whole. A class that has no statement left but its documentation goes too. Helpers
    stay.

    Args:
        files: The tree; not changed.
        ids: ``path::function`` or ``path::Class::function``, with or without parameters.

    Raises:
        InstanceError: An id names a test that is not there.
    """
    after = dict(files)
    wanted: dict[str, set[tuple[str, ...]]] = {}
    for id in ids:
        path, *names = id.split("::")
        if not names:
            raise InstanceError(f"hidden test {id!r} names a file but no test; ids look like path::Class::function")
        # A parameter may hold "::" itself, so everything from the first bracket on goes.
        inside = "::".join(names).split("[", 1)[0]
        wanted.setdefault(path, set()).add(tuple(inside.split("::")))
    for path, names_of in sorted(wanted.items()):
        if path not in after:
            raise InstanceError(f"hidden tests lie in {path}, which is not in the repository")
        after[path] = _without(path, after[path], names_of)
    return after


def _without(path: str, source: bytes, names: set[tuple[str, ...]]) -> bytes:
    try:
        module = ast.parse(source)
    except SyntaxError as error:
        raise InstanceError(f"{path} holds hidden tests but cannot be read: {error}") from error
    spans: list[tuple[int, int]] = []
    found: set[tuple[str, ...]] = set()
    _collect(module.body, (), names, spans, found)
    missing = sorted("::".join((path, *name)) for name in names - found)
    if missing:
        raise InstanceError(f"these hidden tests are not in the repository: {', '.join(missing)}")
    lines = source.split(b"\n")
    for first, last in sorted(spans, reverse=True):
        # Two statements may share a line (`a = 1; b = 2`), tests never do.
        del lines[first - 1 : last]
    return b"\n".join(lines)


def _collect(
    body: list[ast.stmt],
    prefix: tuple[str, ...],
    names: set[tuple[str, ...]],
    spans: list[tuple[int, int]],
    found: set[tuple[str, ...]],
) -> bool:
    """Notes the lines to go; says whether nothing but documentation is left of the body."""
    left = False
    for statement in body:
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            left = left or not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
            continue
        name = (*prefix, statement.name)
        inside: list[tuple[int, int]] = []
        gone = name in names
        if gone:
            found.add(name)
        elif isinstance(statement, ast.ClassDef):
            gone = _collect(statement.body, name, names, inside, found) and bool(inside)
        if gone:
            first = min([statement.lineno, *(decorator.lineno for decorator in statement.decorator_list)])
            spans.append((first, statement.end_lineno or statement.lineno))
        else:
            spans.extend(inside)
            left = True
    return not left
