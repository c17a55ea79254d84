"""What a person at a terminal sees: lines, tables, and a run's progress (live on a terminal, plain lines elsewhere).

Results go to standard output, everything else to standard error, so that output can be piped.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from typing_extensions import override

from forkgym.report.tables import Style, format_cell, render_table
from forkgym.train.config import TrainConfig
from forkgym.train.progress import Progress

__all__ = ["Console", "LiveProgress", "PlainProgress", "make_progress"]

_LIVE_ROWS = 12
COLUMNS = (
    "update",
    "success",
    "utility",
    "loss",
    "branches",
    "tie_rate",
    "correlation",
    "training_tokens",
    "seconds",
)
"""Metrics shown first and in this order, where a run has them; others follow while there is room."""


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


def make_progress(console: Console) -> Progress:
    """A live table on a terminal with rich, plain lines otherwise."""
    if console.is_terminal:
        try:
            return LiveProgress(console)
        except ImportError:
            console.message("(pip install rich for a live table)")
    return PlainProgress(console)


class PlainProgress(Progress):
    """One line per update and evaluation."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console
        self._began = time.perf_counter()

    @override
    def started(self, config: TrainConfig, *, update: int) -> None:
        verb = "resume" if update else "start"
        self.console.line(
            f"{verb} {config.run_directory} at update {update}: {config.algorithm.name} on {config.env.id}"
        )

    @override
    def updated(self, update: int, metrics: Mapping[str, Any]) -> None:
        self.console.line(f"update {update}  {_pairs(metrics)}  elapsed {self._elapsed()}")

    @override
    def evaluated(self, update: int, name: str, metrics: Mapping[str, Any]) -> None:
        self.console.line(f"evaluation {update} {name}  {_pairs(metrics)}")

    @override
    def message(self, text: str) -> None:
        self.console.message(text)

    @override
    def finished(self) -> None:
        self.console.line(f"done in {self._elapsed()}")

    def _elapsed(self) -> str:
        return f"{time.perf_counter() - self._began:.1f}s"


class LiveProgress(Progress):
    """A table of the last updates that redraws itself, evaluations and messages above it.

    Raises:
        ImportError: rich is not installed.
    """

    def __init__(self, console: Console) -> None:
        super().__init__()
        from rich.console import Console as RichConsole
        from rich.live import Live

        self._rows: list[dict[str, Any]] = []
        self._title = ""
        self._live = Live(console=RichConsole(file=console.output), auto_refresh=False)

    @override
    def started(self, config: TrainConfig, *, update: int) -> None:
        self._title = f"{config.run_name}: {config.algorithm.name} on {config.env.id}, {_goal(config)}"
        self._live.start()
        if update:
            self.message(f"resumed at update {update}")
        self._draw()

    @override
    def updated(self, update: int, metrics: Mapping[str, Any]) -> None:
        self._rows = [*self._rows, {"update": update, **_scalars(metrics)}][-_LIVE_ROWS:]
        self._draw()

    @override
    def evaluated(self, update: int, name: str, metrics: Mapping[str, Any]) -> None:
        self.message(f"evaluation at update {update}, {name}: {_pairs(metrics)}")

    @override
    def message(self, text: str) -> None:
        self._live.console.print(text, markup=False, highlight=False)

    @override
    def finished(self) -> None:
        self._live.stop()

    @override
    def request_stop(self) -> None:
        super().request_stop()
        self._draw()

    def _draw(self) -> None:
        from rich.text import Text

        columns = _columns(self._rows)[: _room(self._live.console.width)]
        text = render_table(self._rows, columns=columns, title=self._title) if self._rows else self._title
        if self.stop_requested:
            text += "\nstopping after this update …"
        self._live.update(Text(text), refresh=True)


def _room(width: int) -> int:
    """How many columns of about a dozen characters fit."""
    return max(3, width // 12)


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    present = dict.fromkeys(name for row in rows for name in row)
    return [*(name for name in COLUMNS if name in present), *(name for name in present if name not in COLUMNS)]


def _scalars(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in metrics.items() if isinstance(value, int | float | str)}


def _pairs(metrics: Mapping[str, Any]) -> str:
    shown = _scalars(metrics)
    return "  ".join(f"{name} {format_cell(shown[name])}" for name in _columns([shown]))


def _goal(config: TrainConfig) -> str:
    limits = [
        f"{limit:,} {unit}"
        for limit, unit in ((config.budget.tokens, "tokens"), (config.budget.updates, "updates"))
        if limit is not None
    ]
    return " or ".join(limits)
