"""What can go wrong with a run store, in words that say what to do. No SQL here."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forkgym.core.errors import ForkgymError

__all__ = ["RunLockedError", "StoreError", "explained"]


class StoreError(ForkgymError):
    """A run store cannot be opened, read or written; the text says why and what to do."""


class RunLockedError(StoreError):
    """Another process is writing this run."""


@contextmanager
def explained(path: Path, doing: str) -> Iterator[None]:
    """Turn SQLite's errors into :class:`StoreError`.

    Args:
        path: The database file.
        doing: What was attempted, e.g. "recording update 3".
    """
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(f"{path}: {doing} failed: {_explanation(error)}") from error


def _explanation(error: sqlite3.Error) -> str:
    text = str(error)
    if "locked" in text or "busy" in text:
        return "the database is locked by another program; close it (a database browser, a backup) and try again."
    if "full" in text:
        return "the disk is full; nothing of this step was written. Free some space and run the command again."
    if "not a database" in text or "malformed" in text:
        return (
            f"the file is corrupted or is no SQLite database ({text}). Restore it from a copy, or move the run's "
            "directory away and start the run anew."
        )
    if "readonly" in text:
        return "the database is read-only; check the permissions of the file and its directory."
    if "unable to open" in text:
        return "the file cannot be opened; check that the directory exists and its permissions."
    return f"{text}."
