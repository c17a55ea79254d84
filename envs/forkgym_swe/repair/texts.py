"""What an agent reads and writes in ``swe/Repair-v0``: observations in closed words, and one-line actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from forkgym_swe.repair.running import Failure
from forkgym_swe.repair.study import Study
from forkgym_swe.repair.words import LETTERS, count_word, exception_word, known_word, type_word
from forkgym_swe.repair.workplace import RunNote

__all__ = [
    "ACTIONS",
    "INVALID",
    "KINDS_OF_ACTION",
    "action_line",
    "check_action",
    "inspect_text",
    "look_text",
    "parse_action",
    "rank_text",
    "task_text",
    "test_text",
]

INVALID: Final = "invalid"
ACTIONS: Final = ("look", "rank", "inspect", "edit", "test", "undo", "submit")
KINDS_OF_ACTION: Final = {
    "look": "read", "rank": "read", "inspect": "read", "edit": "edit", "undo": "edit", "test": "test",
    "submit": "submit", INVALID: INVALID,
}  # fmt: skip
"""Action to its class for selectors."""
HINT: Final = "unknown"
DONE: Final = "done"
UNDONE: Final = "undone"
NOTHING: Final = "nothing"
_LONGEST_LINE: Final = 120


# ------------------------------------------------------------------ actions


def parse_action(text: str) -> dict[str, Any]:
    """The action that a text means: its last line that is not empty. What cannot be read is ``invalid``.

    Args:
        text: What the agent wrote in this turn.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    words = lines[-1].split()[:4] if lines else []
    if not words:
        return _invalid("")
    name, rest = words[0].lower(), words[1:]
    if name == "inspect" and len(rest) == 1 and _is_number(rest[0]):
        return check_action({"tool": name, "arguments": {"line": int(rest[0])}})
    if name == "edit" and len(rest) == 2 and _is_number(rest[0]):
        return check_action({"tool": name, "arguments": {"line": int(rest[0]), "edit": rest[1].lower()}})
    if name in ACTIONS and name not in ("inspect", "edit") and not rest:
        return {"tool": name, "arguments": {}}
    return _invalid(" ".join(words))


def check_action(action: Any) -> dict[str, Any]:
    """Makes any JSON value an action of this environment; what is not one becomes ``invalid``."""
    tool = action.get("tool") if isinstance(action, dict) else None
    given = action.get("arguments") if isinstance(action, dict) else None
    given = given if isinstance(given, dict) else {}
    if tool not in ACTIONS:
        return _invalid(str(given.get("text", "")))
    if tool not in ("inspect", "edit"):
        return {"tool": tool, "arguments": {}}
    line = given.get("line")
    if type(line) is not int or not 1 <= line <= 99:
        return _invalid(str(tool))
    if tool == "inspect":
        return {"tool": tool, "arguments": {"line": line}}
    letter = given.get("edit")
    if letter not in LETTERS:
        return _invalid(str(tool))
    return {"tool": tool, "arguments": {"line": line, "edit": letter}}


def action_line(action: Any) -> str:
    """The line that means an action."""
    call = check_action(action)
    return " ".join([call["tool"], *(str(value) for value in call["arguments"].values())]).strip()


def _invalid(text: str) -> dict[str, Any]:
    clean = "".join(c for c in text.encode("utf-8", "replace").decode() if c.isprintable())
    return {"tool": INVALID, "arguments": {"text": clean[:_LONGEST_LINE]}}


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= 2


# ------------------------------------------------------------------ observations


def task_text(study: Study) -> str:
    """The task: how many tests fail, with what, and how many pass."""
    fails, passes = count_word(study.all_failing), count_word(study.all_passing)
    return f"repair : fails {fails} {_exception(study.failure)} passes {passes} lines {len(study.lines)}"


def look_text(study: Study) -> str:
    """How the first failing test fails: exception, where it was raised, what was got and what was expected."""
    failure = study.failure
    if failure is None:
        return NOTHING
    words = ["error", _exception(failure), "in", "code" if failure.in_code else "tests"]
    comparison = failure.comparison
    if comparison is not None:
        got, expected = type_word(comparison.got), type_word(comparison.expected)
        words += [*(known_word(part) for part in comparison.operator.split()), "got", got, "expected", expected]
        words.append(comparison.relation)
        if comparison.by:
            words.append("1" if comparison.by == 1 else "many")
    nearest = [place for place, line in enumerate(study.lines, 1) if line.on_trace]
    if nearest:
        words += ["at", str(min(nearest, key=lambda place: study.lines[place - 1].on_trace))]
    return " ".join(words)


def rank_text(study: Study) -> str:
    """The suspicious lines: number, suspicion, kind, and whether the exception came through it."""
    words: list[str] = []
    for place, line in enumerate(study.lines, 1):
        words += [str(place), line.band, line.kind, *(("trace",) if line.on_trace else ())]
    return " ".join(words)


def inspect_text(study: Study, place: int) -> str:
    """A line's code and its candidate edits.

    Args:
        study: Of the task.
        place: Number of the line, from 1.
    """
    if not 1 <= place <= len(study.lines):
        return NOTHING
    line = study.lines[place - 1]
    words = ["code", *line.code, "edits"]
    for letter, edit in zip(LETTERS, line.edits, strict=False):
        words += [letter, *edit.words]
    return " ".join(words)


def test_text(notes: Sequence[RunNote], study: Study) -> str:
    """A focused run: how many of the failing tests pass now; if all do, whether others broke.

    Args:
        notes: Of the failing tests, and of the others if those passed.
        study: Of the task.
    """
    first = notes[0]
    words = ["passes", count_word(first.passed), "of", count_word(first.total)]
    if first.passed < first.total:
        before = study.note.exception if study.note is not None else ""
        words += ["error", first.exception, "same" if first.exception == before else "different"]
    elif len(notes) > 1:
        broken = notes[1].total - notes[1].passed
        words += ["others", "broken" if broken else "fine"]
    return " ".join(words)


def _exception(failure: Failure | None) -> str:
    return exception_word(failure.exception) if failure is not None else "OtherError"
