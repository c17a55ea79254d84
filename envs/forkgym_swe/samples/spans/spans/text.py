"""The text form: ``1-3,7,10-12`` names the numbers 1, 2, 3, 7, 10, 11 and 12, ends included."""

from __future__ import annotations

import re

from .core import Span, SpanError
from .sets import SpanSet

_PART = re.compile(r"\s*(-?\d+)\s*(?:(?:-|\.\.)\s*(-?\d+))?\s*")


def parse_spans(text: str, *, limit: Span | None = None) -> SpanSet:
    """Read the text form.

    Args:
        text: Parts with commas between them; a part is a number or two with ``-`` or ``..`` between them.
        limit: All numbers must lie in this interval.
    """
    found = []
    for number, part in enumerate(text.split(","), 1):
        if not part.strip():
            if text.strip():
                raise SpanError(f"part {number} of {text!r} is empty")
            continue
        match = _PART.fullmatch(part)
        if match is None:
            raise SpanError(f"part {number} of {text!r} is no number and no range: {part.strip()!r}")
        first = int(match.group(1))
        last = int(match.group(2)) if match.group(2) is not None else first
        if last < first:
            raise SpanError(f"part {number} of {text!r} runs backwards")
        span = Span(first, last + 1)
        if limit is not None and span.minus(limit):
            raise SpanError(f"part {number} of {text!r} leaves {limit.start}..{limit.stop - 1}")
        found.append(span)
    return SpanSet(found)


def format_spans(spans: SpanSet, *, separator: str = ",", dash: str = "-") -> str:
    """Write the text form; a pair of neighbours is written as two numbers."""
    parts = []
    for span in spans:
        first, last = span.start, span.stop - 1
        if first == last:
            parts.append(str(first))
        elif last == first + 1:
            parts += [str(first), str(last)]
        else:
            parts.append(f"{first}{dash}{last}")
    return separator.join(parts)
