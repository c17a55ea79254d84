"""Progress of long work on a console: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Protocol, Self

__all__ = ["Progress", "Screen"]

_INTERVAL = 15.0


class Screen(Protocol):
    """What a console is to a progress: the command's own console is one."""

    @property
    def is_terminal(self) -> bool:
        """Whether a person is likely watching."""

    def message(self, text: str) -> None:
        """Write a line beside the result."""


class Progress:
    """A context manager that is told about steps.

    Args:
        console: Where to show it.
        total: Steps in all.
        unit: What a step is called, in the plural.
    """

    def __init__(self, console: Screen, total: int, unit: str) -> None:
        self._console, self._total, self._unit = console, total, unit
        self._done, self._began, self._said = 0, time.monotonic(), time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            try:
                from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
                from rich.progress import Progress as Bar
            except ImportError:
                self._console.message("(pip install rich for a progress bar)")
                return self
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Bar(*columns)
            self._bar.start()
            self._task = self._bar.add_task("", total=self._total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            self._console.message(text)

    def advance(self, text: str, steps: int = 1) -> None:
        """Some steps are done.

        Args:
            text: What is going on.
            steps: How many.
        """
        self._done += steps
        if self._bar is not None:
            self._bar.update(self._task, advance=steps, description=text)
            return
        now = time.monotonic()
        if now - self._said >= _INTERVAL:
            self._said = now
            self._console.message(f"{self._done} of {self._total} {self._unit}, {now - self._began:.0f} s: {text}")
