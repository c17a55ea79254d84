"""Spectrum-based localisation: which statements failing tests run and passing tests do not (Ochiai's measure).

Pure functions of line counts; the runs are made elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from forkgym_swe.repair.source import ModuleSource, Statement

__all__ = ["Suspect", "band", "is_source", "ochiai", "rank_statements"]


class Suspect(msgspec.Struct, frozen=True):
    """A statement under suspicion.

    Attributes:
        path: File.
        statement: The statement.
        score: Ochiai's measure, in [0, 1].
        on_trace: Place on the way to the exception, 1 for the nearest; 0 when it is not on it.
    """

    path: str
    statement: Statement
    score: float
    on_trace: int


def ochiai(failing: int, passing: int, all_failing: int) -> float:
    """``failing / √(all_failing · (failing + passing))``: 1 for what all failing tests run and no other.

    Args:
        failing: Failing tests that ran the line.
        passing: Passing tests that ran it.
        all_failing: Failing tests.
    """
    ran = all_failing * (failing + passing)
    return float(failing / ran**0.5) if ran else 0.0


def is_source(path: str) -> bool:
    """Whether a file is code rather than a test of it, its documentation or its packaging."""
    parts = path.split("/")
    name = parts[-1]
    if not name.endswith(".py") or name.startswith("test_") or name.endswith("_test.py"):
        return False
    return name not in ("conftest.py", "setup.py") and not {"tests", "test", "testing", "docs", "doc"} & set(parts[:-1])


def rank_statements(
    modules: Mapping[str, ModuleSource],
    lines: Iterable[tuple[str, int, int, int]],
    all_failing: int,
    frames: Sequence[tuple[str, int]],
) -> list[Suspect]:
    """All statements that a failing test ran or an exception went through, the most suspicious first.

    Ties go to what lies on the way to the exception (the nearest first), then to the order of paths and lines.

    Args:
        modules: The project's files.
        lines: (path, line, failing tests, passing tests) for each line that a failing test ran.
        all_failing: Failing tests.
        frames: (path, line) on the way to the exception, the outermost first.
    """
    counts: dict[tuple[str, int], tuple[int, int]] = {}
    for path, line, failing, passing in lines:
        counts[path, line] = (failing, passing)
    near = {frame: place for place, frame in enumerate(reversed(frames), 1)}
    found: list[Suspect] = []
    for path, module in sorted(modules.items()):
        for statement in module.statements:
            own = range(statement.first, statement.last + 1)
            ran = [counts[path, line] for line in own if (path, line) in counts]
            on_trace = min((near[path, line] for line in own if (path, line) in near), default=0)
            if not ran and not on_trace:
                continue
            failing, passing = max(
                ran, key=lambda pair: ochiai(pair[0], pair[1], all_failing), default=(all_failing, 0)
            )
            found.append(Suspect(path, statement, ochiai(failing, passing, all_failing), on_trace))
    found.sort(key=lambda s: (-round(s.score, 9), s.on_trace or len(frames) + 1, s.path, s.statement.line))
    return found


def band(score: float, best: float) -> str:
    """A word for a score, relative to the best one."""
    share = score / best if best else 0.0
    return "top" if share >= 1.0 else "high" if share >= 0.8 else "middle" if share >= 0.5 else "low"
