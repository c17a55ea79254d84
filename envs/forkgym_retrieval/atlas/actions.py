"""Reads an agent's text as an action. Never raises on bad text: what cannot be read is an ``invalid`` action."""

from __future__ import annotations

from typing import Any, Final

from forkgym_retrieval.atlas import phrases

INVALID: Final = "invalid"
MAX_ARGUMENT: Final = 256
"""Characters of a query or an answer that count; the rest is cut, so that handles stay small."""

ARGUMENT: Final = {phrases.SEARCH: "query", phrases.ANSWER: "answer", INVALID: "text"}
"""Tool to the name of its only argument."""


def parse_action(text: str) -> dict[str, Any]:
    """Reads the last line that is not empty: ``search …`` or ``answer …``; lines before it are reasoning.

    Args:
        text: What the agent wrote in this turn.

    Returns:
        ``{"tool": "search", "arguments": {"query": …}}``, ``{"tool": "answer", "arguments": {"answer": …}}`` or
        ``{"tool": "invalid", "arguments": {"text": …}}``.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    first, _, rest = lines[-1].strip().partition(" ") if lines else ("", "", "")
    tool, argument = first.lower(), clean(rest)
    if tool not in (phrases.SEARCH, phrases.ANSWER) or not argument:
        return make_action(INVALID, clean(lines[-1]) if lines else "")
    return make_action(tool, argument)


def make_action(tool: str, argument: str) -> dict[str, Any]:
    """The action of a tool with its one argument."""
    return {"tool": tool, "arguments": {ARGUMENT[tool]: argument}}


def check_action(action: Any) -> dict[str, Any]:
    """Makes any JSON value an action of this environment; what is not one becomes ``invalid``."""
    if isinstance(action, dict) and action.get("tool") in ARGUMENT and isinstance(action.get("arguments"), dict):
        tool = action["tool"]
        argument = action["arguments"].get(ARGUMENT[tool])
        if isinstance(argument, str) and clean(argument):
            return make_action(tool, clean(argument))
    return make_action(INVALID, "")


def clean(text: str) -> str:
    """One line of well-formed Unicode: control characters and lone surrogates dropped, spaces collapsed, cut."""
    # A space ends each word of huge inputs early enough: only a prefix can reach the result.
    prefix = text[: 64 * MAX_ARGUMENT].encode("utf-8", "replace").decode("utf-8")
    printable = "".join(c if c.isprintable() else " " for c in prefix)
    return " ".join(printable.split())[:MAX_ARGUMENT].strip()
