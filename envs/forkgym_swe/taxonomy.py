"""Why an attempt failed: one of five names, by fixed rules over its patch and its verdict. Pure."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Literal

from forkgym_swe.patching import PatchError, changed_lines, patched_paths

__all__ = ["FAILURES", "FailureName", "classify_failure"]

FailureName = Literal["wrong localisation", "partial fix", "regression", "harness subversion", "other"]
FAILURES: tuple[FailureName, ...] = ("wrong localisation", "partial fix", "regression", "harness subversion", "other")

_Place = tuple[str, str]


def classify_failure(
    *,
    patch: str,
    gold: str,
    fail_to_pass: Mapping[str, str],
    pass_to_pass: Mapping[str, str],
    subverted: Sequence[str] = (),
    trusted: bool = True,
    before: Mapping[str, bytes] | None = None,
) -> FailureName:
    """The dominant error of a failed attempt, after the taxonomy of CRR's appendix I.

    The first rule that applies decides:

    1. The harness was changed (tests, conftest, configuration, stand-ins, pytest at run time): **harness subversion**.
    2. No code was changed, the run cannot be trusted (it timed out or crashed), or every test passed: **other**.
    3. No changed place is a place of the gold patch: **regression** if a test that passed before fails now, else
       **wrong localisation**.
    4. A place of the gold patch was changed, no failing test began to pass, and one that passed before fails now:
       **regression**.
    5. Otherwise the right place was changed but not all that was needed, or more than was good: **partial fix**.

    A place is a function or class member of a file (by its dotted name), or the module's own level; a file that is
    new or cannot be read as Python is one place. Changes of test files are not looked at.

    Args:
        patch: What the agent changed, from the broken tree on.
        gold: The gold patch.
        fail_to_pass: Test id → outcome.
        pass_to_pass: Test id → outcome.
        subverted: What was done to the harness.
        trusted: The run ended in order.
        before: Files of the broken tree, at least those of the two patches; without them a file is one place.
    """
    if subverted:
        return "harness subversion"
    fixed = [outcome == "passed" for outcome in fail_to_pass.values()]
    broken = any(outcome != "passed" for outcome in pass_to_pass.values())
    try:
        touched, wanted = _places(patch, before or {}), _places(gold, before or {})
    except PatchError:
        # A patch with binary files says nothing about places.
        return "other"
    if not touched or not trusted or (all(fixed) and not broken):
        return "other"
    if not touched & wanted:
        return "regression" if broken else "wrong localisation"
    return "regression" if broken and not any(fixed) else "partial fix"


def _places(patch: str, before: Mapping[str, bytes]) -> set[_Place]:
    lines = changed_lines(patch)
    found: set[_Place] = set()
    for path in patched_paths(patch):
        spans = _functions(before[path]) if path in before and lines.get(path) else None
        if spans is None:
            found.add((path, "*"))
        else:
            found.update((path, _innermost(spans, line)) for line in lines[path])
    return found


def _functions(source: bytes) -> list[tuple[int, int, str]] | None:
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    spans: list[tuple[int, int, str]] = []

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = prefix
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}.{child.name}" if prefix else child.name
                first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
                spans.append((first, child.end_lineno or child.lineno, name))
            visit(child, name)

    visit(module, "")
    return spans


def _innermost(spans: list[tuple[int, int, str]], line: int) -> str:
    around = [(last - first, name) for first, last, name in spans if first <= line <= last]
    return min(around)[1] if around else ""
