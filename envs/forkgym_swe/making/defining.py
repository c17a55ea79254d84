"""Where a test is defined: its own class, or a base class that it has the test from. Static; nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

__all__ = ["Definitions"]

_DEEPEST = 8


class Definitions:
    """Finds the definitions of tests in a tree; files are parsed once.

    Args:
        files: The tree.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files
        self._modules: dict[str, ast.Module | None] = {}

    def find(self, id: str) -> str | None:
        """The id under which a test's function stands in the tree.

        Args:
            id: ``path::Class::function``, with or without parameters.

        Returns:
            The id itself without parameters, or that of a base class's function; None if it cannot be found, such as
            for a test that is made while its module is imported.
        """
        path, *names = id.split("[", 1)[0].split("::")
        if not names:
            return None
        return self._find(path, names[:-1], names[-1], 0)

    def _find(self, path: str, classes: Sequence[str], function: str, depth: int) -> str | None:
        module = self._module(path)
        if module is None or depth > _DEEPEST:
            return None
        body: list[ast.stmt] = module.body
        found: ast.ClassDef | None = None
        for name in classes:
            found = next((one for one in body if isinstance(one, ast.ClassDef) and one.name == name), None)
            if found is None:
                return self._elsewhere(path, module, classes, function, depth)
            body = found.body
        if any(isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name == function for one in body):
            return "::".join((path, *classes, function))
        for base in found.bases if found is not None else ():
            name = base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""
            inherited = self._find(path, [name], function, depth + 1) if name else None
            if inherited is not None:
                return inherited
        return None

    def _elsewhere(
        self, path: str, module: ast.Module, classes: Sequence[str], function: str, depth: int
    ) -> str | None:
        """Follow an import to the class, if it leads into the tree."""
        if len(classes) != 1:
            return None
        for statement in module.body:
            if not isinstance(statement, ast.ImportFrom):
                continue
            for alias in statement.names:
                if (alias.asname or alias.name) != classes[0]:
                    continue
                for place in self._places(path, statement):
                    found = self._find(place, [alias.name], function, depth + 1)
                    if found is not None:
                        return found
        return None

    def _places(self, path: str, statement: ast.ImportFrom) -> list[str]:
        """Files that an import may mean: of the package itself, and of absolute names from the tree's top."""
        parts = path.split("/")[: -statement.level] if statement.level else []
        parts = [*parts, *(statement.module or "").split(".")] if statement.module else parts
        return ["/".join([*parts, "__init__.py"]), "/".join(parts) + ".py"]

    def _module(self, path: str) -> ast.Module | None:
        if path not in self._modules:
            try:
                self._modules[path] = ast.parse(self._files[path]) if path in self._files else None
            except (SyntaxError, ValueError):
                self._modules[path] = None
        return self._modules[path]
