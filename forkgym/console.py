"""What a person at a terminal sees: lines, tables, and a run's progress (live on a terminal, plain lines elsewhere).

Results go to standard output, everything else to standard error, so that output can be piped.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO

from forkgym.report.tables import Style, columns_of, format_cell, render_table

if TYPE_CHECKING:
    from forkgym.train.config import TrainConfig
    from forkgym.train.evaluate import EvaluationResult
    from forkgym.train.progress import TrainResult, UpdateRow

__all__ = ["Console", "LiveProgress", "PlainProgress", "describe_evaluation", "make_progress", "update_columns"]

_LIVE_ROWS = 12


class Console:
    """Where commands write.

    Args:
        output: Results; standard output by default.
        errors: Messages; standard error by default.
        quiet: Suppress messages (not errors).
    """

    def __init__(self, output: TextIO | None = None, errors: TextIO | None = None, *, quiet: bool = False) -> None:
        self.output = output if output is not None else sys.stdout
        self.errors = errors if errors is not None else sys.stderr
        self.quiet = quiet

    @property
    def is_terminal(self) -> bool:
        """Whether a person is likely watching."""
        return self.output.isatty()

    def line(self, text: str = "") -> None:
        """Write a line of the result."""
        print(text, file=self.output, flush=True)

    def table(self, rows: Sequence[Mapping[str, Any]], **options: Any) -> None:
        """Write a table; see :func:`forkgym.report.tables.render_table`."""
        style: Style = "rich" if self.is_terminal else "plain"
        self.output.write(render_table(rows, **{"style": style, **options}))
        self.output.flush()

    def json(self, document: Any) -> None:
        """Write one JSON object as one line."""
        self.line(json.dumps(document, ensure_ascii=False, allow_nan=False, default=str))

    def message(self, text: str) -> None:
        """Write something beside the result."""
        if not self.quiet:
            print(text, file=self.errors, flush=True)

    def error(self, text: str) -> None:
        """Write an error."""
        print(f"forkgym: {text}", file=self.errors, flush=True)


def make_progress(console: Console) -> PlainProgress | LiveProgress:
    """A live table on a terminal with rich, plain lines otherwise; use it as a context manager."""
    if console.is_terminal:
        try:
            return LiveProgress(console)
        except ImportError:
            console.message("(pip install rich for a live table)")
    return PlainProgress(console)


class PlainProgress:
    """One line per update and evaluation (a :class:`forkgym.train.progress.Progress`)."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._began = time.perf_counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def started(self, config: TrainConfig, directory: Path, resumed_at: int | None) -> None:
        """Say what runs where."""
        verb = "start" if resumed_at is None else f"resume after update {resumed_at - 1}:"
        self.console.line(f"{verb} {directory}  {config.algorithm.name} on {config.env.id}, {_goal(config)}")

    def updated(self, row: UpdateRow) -> None:
        """One line."""
        elapsed = time.perf_counter() - self._began
        self.console.line(f"update {row.update}  {_pairs(update_columns(row))}  elapsed {elapsed:.1f}s")

    def evaluated(self, update: int, result: EvaluationResult) -> None:
        """One line."""
        self.console.line(describe_evaluation(update, result))

    def finished(self, result: TrainResult) -> None:
        """One line."""
        elapsed = time.perf_counter() - self._began
        self.console.line(f"done after {result.updates} updates, {result.training_tokens:,} tokens, {elapsed:.1f}s")


class LiveProgress:
    """A table of the last updates that redraws itself; evaluations scroll above it.

    Raises:
        ImportError: rich is not installed.
    """

    def __init__(self, console: Console) -> None:
        from rich.console import Console as RichConsole
        from rich.live import Live

        self._rows: list[dict[str, Any]] = []
        self._title = ""
        self._live = Live(console=RichConsole(file=console.output), auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def started(self, config: TrainConfig, directory: Path, resumed_at: int | None) -> None:
        """Draw the title."""
        self._title = f"{directory}: {config.algorithm.name} on {config.env.id}, {_goal(config)}"
        if resumed_at is not None:
            self._say(f"resumed after update {resumed_at - 1}")
        self._draw()

    def updated(self, row: UpdateRow) -> None:
        """Draw the last rows."""
        self._rows = [*self._rows, {"update": row.update, **update_columns(row)}][-_LIVE_ROWS:]
        self._draw()

    def evaluated(self, update: int, result: EvaluationResult) -> None:
        """Print above the table."""
        self._say(describe_evaluation(update, result))

    def finished(self, result: TrainResult) -> None:
        """Print above the table."""
        self._say(f"done after {result.updates} updates, {result.training_tokens:,} tokens")

    def _say(self, text: str) -> None:
        self._live.console.print(text, markup=False, highlight=False)

    def _draw(self) -> None:
        from rich.text import Text

        room = max(3, self._live.console.width // 12)
        columns = columns_of(self._rows)[:room]
        text = render_table(self._rows, columns=columns, title=self._title) if self._rows else self._title
        self._live.update(Text(text), refresh=True)


def update_columns(row: UpdateRow) -> dict[str, Any]:
    """What a line or a table shows of an update, the most telling first; twins only where there are any."""
    shown: dict[str, Any] = {"success": row.success, "utility": row.utility, "mixed": row.mixed_groups}
    if row.twins:
        shown |= {"twins": row.twins, "ties": row.ties, "auxiliary": row.auxiliary}
    shown |= {"entropy": row.entropy, "tokens": row.training_tokens, "budget": f"{row.progress:.0%}"}
    return shown


def describe_evaluation(update: int, result: EvaluationResult) -> str:
    """One line about an evaluation."""
    error = "" if math.isnan(result.standard_error) else f" ± {result.standard_error:.3f}"
    return (
        f"after {update} updates, {result.split} {result.mode}: success {result.success:.3f}{error} "
        f"on {len(result.per_task)} tasks, {result.tokens:.1f} tokens and {result.turns:.1f} turns an episode"
    )


def _pairs(row: Mapping[str, Any]) -> str:
    return "  ".join(f"{name} {format_cell(value)}" for name, value in row.items())


def _goal(config: TrainConfig) -> str:
    limits = [
        f"{limit:,} {unit}"
        for limit, unit in ((config.budget.tokens, "tokens"), (config.budget.updates, "updates"))
        if limit is not None
    ]
    return " or ".join(limits)
