"""A persistent, content-addressed store of what test runs came to: one SQLite file, and one in the package.

Keys name trees and selections by content, so an entry is never out of date and any number of processes may share it.
"""

from __future__ import annotations

import sqlite3
import threading
import zlib
from collections.abc import Iterable
from contextlib import closing
from functools import cache
from importlib.resources import files
from pathlib import Path

import msgspec

from forkgym_swe.harness import cache_root

__all__ = ["SHIPPED", "Memo", "open_memo"]

SHIPPED = "samples.memo"
"""File of this package with the entries of the shipped tasks."""
_SCHEMA = "CREATE TABLE IF NOT EXISTS memo (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"


class Memo:
    """Values by key; what was read once stays in memory.

    Args:
        path: The SQLite file; made when the first value is put.
        shipped: Entries that are read before the file.
    """

    def __init__(self, path: Path, shipped: dict[str, bytes] | None = None) -> None:
        self.path = path
        self._known = dict(shipped or {})
        self._lock = threading.Lock()

    def get(self, key: str) -> bytes | None:
        """The value of a key, or None."""
        found = self._known.get(key)
        if found is None and self.path.is_file():
            with self._lock, closing(self._connect()) as connection:
                row = connection.execute("SELECT value FROM memo WHERE key = ?", (key,)).fetchone()
            if row is not None:
                found = self._known[key] = bytes(row[0])
        return found

    def put(self, key: str, value: bytes) -> bytes:
        """Keep a value; the first one of a key stays, so that every process sees the same. Returns what is kept.

        Raises:
            OSError: The directory cannot be made.
            sqlite3.Error: The file cannot be written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock, closing(self._connect()) as connection, connection:
            connection.execute("PRAGMA synchronous = OFF")  # what a crash of the machine loses is made again
            connection.execute(_SCHEMA)
            connection.execute("INSERT OR IGNORE INTO memo VALUES (?, ?)", (key, value))
            row = connection.execute("SELECT value FROM memo WHERE key = ?", (key,)).fetchone()
        kept = self._known[key] = bytes(row[0])
        return kept

    def _connect(self) -> sqlite3.Connection:
        # A connection of its own each time: none may cross a fork of this process.
        return sqlite3.connect(self.path, timeout=60.0)

    def export(self, keys: Iterable[str]) -> bytes:
        """Entries as one file's content, for `read_export`.

        Raises:
            KeyError: There is no such entry.
        """
        found = {}
        for key in keys:
            value = self.get(key)
            if value is None:
                raise KeyError(key)
            found[key] = value
        return zlib.compress(msgspec.msgpack.encode(found, order="sorted"), 9)


def read_export(content: bytes) -> dict[str, bytes]:
    """Entries that `Memo.export` wrote."""
    return msgspec.msgpack.decode(zlib.decompress(content), type=dict[str, bytes])


@cache
def _shipped() -> dict[str, bytes]:
    file = files("forkgym_swe.repair").joinpath(SHIPPED)
    return read_export(file.read_bytes()) if file.is_file() else {}


@cache
def _memo_at(path: Path) -> Memo:
    return Memo(path, _shipped())


def open_memo() -> Memo:
    """The store in ``$FORKGYM_SWE_CACHE`` (or the user's cache), one object a process."""
    return _memo_at(cache_root() / "repair.sqlite")
