"""Rows to text: one table, three looks (plain, Markdown, rich). Nothing here knows what the columns mean."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

__all__ = ["Style", "columns_of", "format_cell", "render_table"]

Style = Literal["plain", "markdown", "rich"]


def render_table(
    rows: Sequence[Mapping[str, Any]],
    *,
    columns: Sequence[str] | None = None,
    style: Style = "plain",
    title: str = "",
    width: int | None = None,
) -> str:
    """A table as text.

    Args:
        rows: Column name → value; a missing value is shown as "-".
        columns: Which columns, in order; by default all, in order of first appearance.
        style: ``plain`` (aligned by spaces), ``markdown``, or ``rich`` (box drawing; plain where rich is missing).
        title: Line above the table.
        width: Width of a rich table in characters; by default the terminal's.
    """
    names = list(columns) if columns is not None else columns_of(rows)
    if not names:
        return f"{title}\n(nothing)\n" if title else "(nothing)\n"
    cells = [[format_cell(row.get(name)) for name in names] for row in rows]
    # A column is flushed right when every value in it is a number.
    numeric = [
        all(_is_number(row.get(name)) or row.get(name) is None for row in rows)
        and any(_is_number(row.get(name)) for row in rows)
        for name in names
    ]
    if style == "rich":
        drawn = _rich(names, cells, numeric, title, width)
        if drawn is not None:
            return drawn
    heading = f"{title}\n" if title else ""
    if style == "markdown":
        return f"{heading}{chr(10) if title else ''}{_markdown(names, cells, numeric)}"
    return heading + _plain(names, cells, numeric)


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every column that occurs, in order of first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def format_cell(value: Any) -> str:
    """A value as a table shows it: "-" for nothing, three decimals for fractions, thousands grouped."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float() if not math.isfinite(value):
            return "-" if math.isnan(value) else str(value)
        case float():
            size = abs(value)
            if size >= 1000:
                return f"{value:,.0f}"
            return f"{value:.3f}" if size == 0 or size >= 0.001 else f"{value:.1e}"
    return str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(names: Sequence[str], cells: Sequence[Sequence[str]], numeric: Sequence[bool]) -> str:
    widths = [max(len(name), *(len(row[i]) for row in cells), 0) for i, name in enumerate(names)]
    lines = [names, ["-" * width for width in widths], *cells]
    out = []
    for line in lines:
        parts = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        ]
        out.append("  ".join(parts).rstrip())
    return "\n".join(out) + "\n"


def _markdown(names: Sequence[str], cells: Sequence[Sequence[str]], numeric: Sequence[bool]) -> str:
    lines = [names, ["---:" if right else "---" for right in numeric], *cells]
    return "".join(f"| {' | '.join(text.replace('|', '&#124;') for text in line)} |\n" for line in lines)


def _rich(
    names: Sequence[str],
    cells: Sequence[Sequence[str]],
    numeric: Sequence[bool],
    title: str,
    width: int | None,
) -> str | None:
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return None
    table = Table(title=title or None, box=box.SIMPLE_HEAD, title_justify="left")
    for name, right in zip(names, numeric, strict=True):
        table.add_column(Text(name), justify="right" if right else "left")
    for row in cells:
        # Text, not str: a cell with square brackets is no markup.
        table.add_row(*(Text(text) for text in row))
    console = Console(width=width, record=False)
    with console.capture() as captured:
        console.print(table)
    return captured.get()
