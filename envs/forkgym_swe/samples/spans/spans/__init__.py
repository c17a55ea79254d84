"""Sets of half-open intervals on a line: union, intersection, gaps, and a small text form."""

from .core import Span, SpanError
from .sets import SpanSet
from .text import format_spans, parse_spans

__all__ = ["Span", "SpanError", "SpanSet", "format_spans", "parse_spans"]
