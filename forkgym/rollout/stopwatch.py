"""`Stopwatch`: where rollouts spend their seconds outside the engine. What is booked on whom is the ledger's affair."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

__all__ = ["Stopwatch"]


class Stopwatch(msgspec.Struct):
    """Where rollouts spend their seconds outside the engine.

    Attributes:
        seconds: By part: ``environment`` (steps and resets), ``verifier`` (steps that ended an episode, so the grader
            ran), ``fork`` (snapshots, forks, restores), ``charged`` (what an environment reports as
            ``info["charged_seconds"]``: recorded time of work that it took from a memo instead of doing it again) and
            ``charged_verifier`` (the same in steps that ended an episode).
    """

    seconds: dict[str, float] = {}

    def add(self, part: str, seconds: float) -> None:
        """Book seconds on a part."""
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Book the wall time of a block on a part."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add(part, time.perf_counter() - started)
