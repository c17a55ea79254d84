"""Sets of intervals, kept sorted, without overlaps and without neighbours that touch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from .core import Span


class SpanSet:
    """A set of whole numbers as intervals. Empty intervals are dropped; touching ones become one."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        """Take intervals in any order."""
        self._spans = _merged(spans)

    @classmethod
    def of(cls, *bounds: tuple[int, int]) -> SpanSet:
        """A set of pairs of bounds."""
        return cls(Span(start, stop) for start, stop in bounds)

    @classmethod
    def of_numbers(cls, numbers: Iterable[int]) -> SpanSet:
        """The set of some numbers."""
        return cls(Span(number, number + 1) for number in numbers)

    def __iter__(self) -> Iterator[Span]:
        """The intervals in order."""
        return iter(self._spans)

    def __len__(self) -> int:
        """How many numbers it holds."""
        return sum(len(span) for span in self._spans)

    def __bool__(self) -> bool:
        """Whether it holds any number."""
        return bool(self._spans)

    def __eq__(self, other: object) -> bool:
        """Whether it holds the same numbers."""
        return isinstance(other, SpanSet) and self._spans == other._spans

    def __hash__(self) -> int:
        """Equal sets have equal hashes."""
        return hash(tuple(self._spans))

    def __contains__(self, number: int) -> bool:
        """Whether it holds a number."""
        span = self.span_of(number)
        return span is not None

    def __repr__(self) -> str:
        """For people."""
        return f"SpanSet.of({', '.join(f'({span.start}, {span.stop})' for span in self._spans)})"

    def span_of(self, number: int) -> Span | None:
        """The interval that holds a number, or None."""
        place = bisect_right([span.start for span in self._spans], number) - 1
        if place < 0:
            return None
        span = self._spans[place]
        return span if number in span else None

    def __or__(self, other: SpanSet) -> SpanSet:
        """The numbers of either."""
        return SpanSet([*self._spans, *other._spans])

    def __and__(self, other: SpanSet) -> SpanSet:
        """The numbers of both."""
        found = []
        mine, theirs = 0, 0
        while mine < len(self._spans) and theirs < len(other._spans):
            one, two = self._spans[mine], other._spans[theirs]
            common = one.intersection(two)
            if common is not None:
                found.append(common)
            if one.stop < two.stop:
                mine += 1
            else:
                theirs += 1
        return SpanSet(found)

    def __sub__(self, other: SpanSet) -> SpanSet:
        """The numbers of this that are not of the other."""
        left = list(self._spans)
        for taken in other:
            left = [part for span in left for part in span.minus(taken)]
        return SpanSet(left)

    def __xor__(self, other: SpanSet) -> SpanSet:
        """The numbers of one of them only."""
        return (self - other) | (other - self)

    def issubset(self, other: SpanSet) -> bool:
        """Whether the other holds all numbers of this."""
        return not self - other

    def isdisjoint(self, other: SpanSet) -> bool:
        """Whether they have no number in common."""
        return not self & other

    def hull(self) -> Span | None:
        """The smallest interval around all, or None for nothing."""
        if not self._spans:
            return None
        return Span(self._spans[0].start, self._spans[-1].stop)

    def gaps(self, within: Span | None = None) -> SpanSet:
        """The numbers between the intervals, or all that are missing in an interval."""
        around = within if within is not None else self.hull()
        if around is None:
            return SpanSet()
        return SpanSet([around]) - self

    def closed(self, gap: int) -> SpanSet:
        """The set with gaps of at most this size filled."""
        found: list[Span] = []
        for span in self._spans:
            if found and span.start - found[-1].stop <= gap:
                found[-1] = found[-1].hull(span)
            else:
                found.append(span)
        return SpanSet(found)

    def first_fit(self, size: int, within: Span) -> Span | None:
        """The first free interval of a size, or None if there is no room."""
        for gap in self.gaps(within):
            if len(gap) >= size:
                return Span(gap.start, gap.start + size)
        return None

    def coverage(self, within: Span) -> float:
        """The share of an interval that the set covers; 0 for an empty interval."""
        if not within:
            return 0.0
        return len(self & SpanSet([within])) / len(within)


def _merged(spans: Iterable[Span]) -> list[Span]:
    found: list[Span] = []
    for span in sorted(span for span in spans if span):
        if found and found[-1].touches(span):
            found[-1] = found[-1].hull(span)
        else:
            found.append(span)
    return found
