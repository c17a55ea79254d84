"""`Timeline`: who ran when, as a JSON trace that Perfetto (ui.perfetto.dev) and chrome://tracing open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec

from forkgym.runtime import VirtualLoop

__all__ = ["Timeline", "clock"]


def clock() -> Callable[[], float]:
    """The clock of spans: the running loop's where it is virtual, else a fine one (uvloop's ticks in milliseconds)."""
    loop = asyncio.get_running_loop()
    return loop.time if isinstance(loop, VirtualLoop) else time.perf_counter


class Timeline:
    """Collects spans on named tracks.

    Overlapping spans of one track get lanes of their own, so that each is seen.

    Args:
        most: Spans kept; those after them are counted, not kept.

    Attributes:
        dropped: Spans that were not kept.
    """

    def __init__(self, *, most: int = 1_000_000) -> None:
        self.dropped = 0
        self._most = most
        self._spans: list[tuple[str, str, float, float, dict[str, Any]]] = []

    def __len__(self) -> int:
        return len(self._spans)

    def span(self, track: str, name: str, start: float, end: float, **details: Any) -> None:
        """Add something that ran from ``start`` to ``end``, in seconds of one clock.

        Args:
            track: Who ran: "engine", "learner", "on_policy", "counterfactual" and so on.
            name: What ran.
            start: Seconds.
            end: Seconds.
            **details: Shown with the span.
        """
        if len(self._spans) >= self._most:
            self.dropped += 1
            return
        self._spans.append((track, name, start, end, details))

    def busy(self, track: str) -> float:
        """Seconds during which at least one span of a track ran."""
        total, reached = 0.0, float("-inf")
        for start, end in sorted(self._on(track)):
            total += max(0.0, end - max(start, reached))
            reached = max(reached, end)
        return total

    def overlap(self, track: str, other: str) -> float:
        """Share of a track's busy time during which the other track ran too; 0 where it never ran."""
        edges: list[tuple[float, int, int]] = []
        for index, name in enumerate((track, other)):
            for start, end in self._on(name):
                edges += [(start, index, 1), (end, index, -1)]
        running, mine, both, last = [0, 0], 0.0, 0.0, 0.0
        for moment, index, change in sorted(edges):
            if running[0]:
                mine += moment - last
                both += (moment - last) if running[1] else 0.0
            running[index] += change
            last = moment
        return both / mine if mine > 0 else 0.0

    def to_json(self) -> bytes:
        """The trace in the Trace Event Format: spans in microseconds, tracks as processes, lanes as threads."""
        events: list[dict[str, Any]] = []
        tracks: dict[str, int] = {}
        lanes: dict[str, list[float]] = {}
        for track, name, start, end, details in sorted(self._spans, key=lambda one: (one[2], one[0], -one[3], one[1])):
            if track not in tracks:
                tracks[track] = len(tracks) + 1
                lanes[track] = []
                events.append(
                    {"ph": "M", "name": "process_name", "pid": tracks[track], "tid": 0, "args": {"name": track}}
                )
            ends = lanes[track]
            lane = next((index for index, free in enumerate(ends) if free <= start), len(ends))
            if lane == len(ends):
                ends.append(end)
            ends[lane] = end
            events.append(
                {
                    "ph": "X",
                    "name": name,
                    "cat": track,
                    "pid": tracks[track],
                    "tid": lane + 1,
                    "ts": round(start * 1e6, 3),
                    "dur": round((end - start) * 1e6, 3),
                    "args": details,
                }
            )
        return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms"})

    def write(self, path: str | PathLike[str]) -> Path:
        """Write the trace to a file.

        Args:
            path: Where; its directory must exist.
        """
        target = Path(path)
        target.write_bytes(self.to_json())
        return target

    def _on(self, track: str) -> list[tuple[float, float]]:
        return [(start, end) for name, _, start, end, _ in self._spans if name == track]
