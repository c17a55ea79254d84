"""Trace structs to rows and back, exactly: the table layout is derived from the structs, field by field.

Numbers lists are little-endian arrays (token ids uint32, floats float64), JSON-able values are JSON text, lists of
lists MessagePack; 64-bit keys are stored as SQLite's signed integers. Opening databases and transactions live in
``database`` and ``run``.
"""

from __future__ import annotations

import operator
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from forkgym.rollout.trace import Branch, Decision, Episode, Turn

__all__ = ["BRANCHES", "DECISIONS", "EPISODES", "TURNS", "Table", "signed", "unsigned"]

_KEYS = {"key", "parent", "episode", "stream"}
_COLUMN_NAMES = {"update": "update_number", "group": "group_number", "index": "number"}
"""Field names that are SQL keywords, and what the columns are called instead."""


def signed(key: int) -> int:
    """A 64-bit key as SQLite holds it: the same bits, two's complement."""
    return key - 2**64 if key >= 2**63 else key


def unsigned(stored: int) -> int:
    """The inverse of :func:`signed`."""
    return stored % 2**64


class _Kind(NamedTuple):
    sql: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def _array(dtype: str) -> _Kind:
    return _Kind(
        "BLOB NOT NULL",
        lambda values: np.asarray(values, dtype=dtype).tobytes(),
        lambda blob: np.frombuffer(blob, dtype=dtype).tolist(),
    )


def _same(value: Any) -> Any:
    return value


# SQLite would store numpy's integers as raw bytes without a word, hence index and float.
_INTEGER = _Kind("INTEGER NOT NULL", operator.index, _same)
_KEY = _Kind("INTEGER NOT NULL", lambda key: signed(operator.index(key)), unsigned)
_REAL = _Kind("REAL NOT NULL", float, _same)
_OPTIONAL_REAL = _Kind("REAL", lambda value: None if value is None else float(value), _same)
_BOOLEAN = _Kind("INTEGER NOT NULL", int, bool)
_TEXT = _Kind("TEXT NOT NULL", _same, _same)
_JSON = _Kind("TEXT NOT NULL", lambda value: msgspec.json.encode(value).decode(), msgspec.json.decode)
_PACKED = _Kind(
    "BLOB",
    lambda value: None if value is None else msgspec.msgpack.encode(value),
    lambda blob: None if blob is None else msgspec.msgpack.decode(blob),
)
_TOKENS = _array("<u4")
_FLOATS = _array("<f8")

_KINDS: dict[Any, _Kind] = {
    int: _INTEGER,
    float: _REAL,
    float | None: _OPTIONAL_REAL,
    bool: _BOOLEAN,
    str: _TEXT,
    typing.Any: _JSON,
    list[int]: _TOKENS,
    list[float]: _FLOATS,
    list[list[int]] | None: _PACKED,
}


class Table:
    """How one struct type is laid out in one table.

    Args:
        name: Table name.
        struct: Struct type; fields that hold other structs (``turns``, ``branches``) are tables of their own.
        links: Columns that tie a row to others, name → SQL type.
    """

    def __init__(self, name: str, struct: type[msgspec.Struct], links: Mapping[str, str]) -> None:
        self.name = name
        self.struct = struct
        self.links = dict(links)
        self._columns: list[tuple[str, str, _Kind]] = []
        for field in msgspec.structs.fields(struct):
            kind = _KEY if field.name in _KEYS else _kind(field.type)
            if kind is not None:
                self._columns.append((field.name, _COLUMN_NAMES.get(field.name, field.name), kind))
        names = [*self.links, *(column for _, column, _ in self._columns)]
        # All names come from the structs above, none from outside.
        self.insert = f"INSERT INTO {name} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608
        self.select = f"SELECT id, {', '.join(column for _, column, _ in self._columns)} FROM {name}"  # noqa: S608

    @property
    def create(self) -> str:
        """``CREATE TABLE`` statement."""
        columns = ["id INTEGER PRIMARY KEY", *(f"{name} {sql}" for name, sql in self.links.items())]
        columns += [f"{column} {kind.sql}" for _, column, kind in self._columns]
        body = ",\n  ".join(columns)
        return f"CREATE TABLE {self.name} (\n  {body}\n)"

    def encode(self, links: Sequence[Any], value: msgspec.Struct) -> list[Any]:
        """Parameters of :attr:`insert` for one struct."""
        return [*links, *(kind.encode(getattr(value, field)) for field, _, kind in self._columns)]

    def decode(self, row: Sequence[Any], **children: Any) -> Any:
        """The struct of one row of :attr:`select`.

        Args:
            row: id and columns.
            children: Fields that are tables of their own.
        """
        values = {field: kind.decode(stored) for (field, _, kind), stored in zip(self._columns, row[1:], strict=True)}
        return self.struct(**values, **children)


def _kind(annotation: Any) -> _Kind | None:
    if annotation in _KINDS:
        return _KINDS[annotation]
    if typing.get_origin(annotation) is typing.Literal:
        return _TEXT
    if typing.get_origin(annotation) is list:
        return None
    raise TypeError(f"the store has no column type for {annotation!r}; add one to codec._KINDS")


EPISODES = Table("episodes", Episode, {"generated_tokens": "INTEGER NOT NULL"})
DECISIONS = Table("decisions", Decision, {"episode_id": "INTEGER NOT NULL REFERENCES episodes ON DELETE CASCADE"})
BRANCHES = Table("branches", Branch, {"decision_id": "INTEGER NOT NULL REFERENCES decisions ON DELETE CASCADE"})
TURNS = Table(
    "turns",
    Turn,
    {
        "episode_id": "INTEGER REFERENCES episodes ON DELETE CASCADE",
        "branch_id": "INTEGER REFERENCES branches ON DELETE CASCADE",
        # 'factual' (of the episode), 'alternative' (of the branch), 'paired' (a branch's re-run factual arm).
        "arm": "TEXT NOT NULL",
    },
)
