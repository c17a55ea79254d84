"""How a run tells the world what it is doing, and how the world asks it to stop. The console draws it elsewhere.

The trainer calls these methods; the base class does nothing, so ``Progress()`` is a silent run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forkgym.train.config import TrainConfig

__all__ = ["Progress"]


class Progress:
    """What the trainer reports to. Subclasses override what they show.

    Attributes:
        stop_requested: Set from outside (Ctrl-C); the trainer looks after every update, writes its checkpoint and
            returns.
    """

    def __init__(self) -> None:
        self.stop_requested = False

    def request_stop(self) -> None:
        """Ask the run to end after the update in flight."""
        self.stop_requested = True

    def started(self, config: TrainConfig, *, update: int) -> None:
        """The run begins at ``update`` (more than 0 when it was resumed)."""

    def updated(self, update: int, metrics: Mapping[str, Any]) -> None:
        """An update is recorded; ``metrics`` is what the store got."""

    def evaluated(self, update: int, name: str, metrics: Mapping[str, Any]) -> None:
        """An evaluation is recorded."""

    def message(self, text: str) -> None:
        """Something happened that a person should read (a quarantined task, a failed self-check)."""

    def finished(self) -> None:
        """The run ended, by its budget or on request."""
