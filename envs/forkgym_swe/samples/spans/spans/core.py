"""One interval."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


class SpanError(ValueError):
    """Bounds or texts that make no interval."""


@dataclass(frozen=True, order=True)
class Span:
    """The numbers from ``start`` up to, and without, ``stop``."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        """Refuse bounds in the wrong order."""
        if self.stop < self.start:
            raise SpanError(f"a span cannot stop at {self.stop} before its start {self.start}")

    def __len__(self) -> int:
        """How many numbers it holds."""
        return self.stop - self.start

    def __bool__(self) -> bool:
        """Whether it holds any."""
        return self.stop > self.start

    def __contains__(self, number: int) -> bool:
        """Whether it holds a number."""
        return self.start <= number < self.stop

    def __iter__(self) -> Iterator[int]:
        """Its numbers in order."""
        return iter(range(self.start, self.stop))

    def overlaps(self, other: Span) -> bool:
        """Whether they have a number in common."""
        return bool(self) and bool(other) and self.start < other.stop and other.start < self.stop

    def touches(self, other: Span) -> bool:
        """Whether together they make one interval without a gap."""
        return self.start <= other.stop and other.start <= self.stop

    def intersection(self, other: Span) -> Span | None:
        """What they have in common, or None."""
        start = max(self.start, other.start)
        stop = min(self.stop, other.stop)
        return Span(start, stop) if start < stop else None

    def hull(self, other: Span) -> Span:
        """The smallest interval that holds both."""
        if not self:
            return other
        if not other:
            return self
        return Span(min(self.start, other.start), max(self.stop, other.stop))

    def minus(self, other: Span) -> list[Span]:
        """What is left of it without another: no, one or two intervals."""
        if not self.overlaps(other):
            return [self] if self else []
        left = []
        if self.start < other.start:
            left.append(Span(self.start, other.start))
        if other.stop < self.stop:
            left.append(Span(other.stop, self.stop))
        return left

    def shifted(self, distance: int) -> Span:
        """The same length somewhere else."""
        return Span(self.start + distance, self.stop + distance)

    def grown(self, before: int = 0, after: int | None = None) -> Span:
        """Longer (or shorter) at both ends; ``after`` is ``before`` unless it is given."""
        if after is None:
            after = before
        start, stop = self.start - before, self.stop + after
        if stop < start:
            raise SpanError(f"{self} cannot shrink by {-before} and {-after}")
        return Span(start, stop)

    def split(self, at: int) -> tuple[Span, Span]:
        """Two intervals that meet at a number."""
        if not self.start <= at <= self.stop:
            raise SpanError(f"{at} is not in {self}")
        return Span(self.start, at), Span(at, self.stop)

    def pieces(self, size: int) -> list[Span]:
        """Intervals of one size in order; the last may be shorter."""
        if size <= 0:
            raise SpanError(f"pieces need a size above zero, not {size}")
        found = []
        start = self.start
        while start < self.stop:
            found.append(Span(start, min(start + size, self.stop)))
            start += size
        return found
