"""The file below a run store: schema and version, opening, and the lock that keeps a second writer out.

What is written into it, and when, is ``run``'s business.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sqlite3
from pathlib import Path
from typing import ClassVar

from forkgym.store.codec import BRANCHES, DECISIONS, EPISODES, TURNS
from forkgym.store.errors import RunLockedError, StoreError, explained

__all__ = ["FILE_NAME", "SCHEMA_VERSION", "WriterLock", "connect", "create_schema", "schema"]

FILE_NAME = "run.sqlite"
LOCK_NAME = "run.lock"
SCHEMA_VERSION = 1
APPLICATION_ID = 0x464B4759
"""Marks the file as a forkgym run ("FKGY"), so that a foreign database is never written to."""

_BUSY_SECONDS = 10.0


def schema() -> list[str]:
    """The statements that make an empty store, in order."""
    return [
        "CREATE TABLE run (id INTEGER PRIMARY KEY CHECK (id = 1), config TEXT NOT NULL, digest TEXT NOT NULL, "
        "versions TEXT NOT NULL, created REAL NOT NULL)",
        "CREATE TABLE updates (number INTEGER PRIMARY KEY, metrics TEXT NOT NULL, ledger TEXT NOT NULL, "
        "recorded REAL NOT NULL)",
        EPISODES.create,
        DECISIONS.create,
        BRANCHES.create,
        TURNS.create,
        "CREATE TABLE evaluations (id INTEGER PRIMARY KEY, update_number INTEGER NOT NULL, name TEXT NOT NULL, "
        "metrics TEXT NOT NULL, recorded REAL NOT NULL, UNIQUE (update_number, name))",
        "CREATE TABLE events (id INTEGER PRIMARY KEY, update_number INTEGER NOT NULL, name TEXT NOT NULL, "
        "detail TEXT NOT NULL, recorded REAL NOT NULL)",
        "CREATE UNIQUE INDEX episodes_place ON episodes (update_number, group_number, member)",
        "CREATE INDEX episodes_key ON episodes (key)",
        "CREATE INDEX decisions_episode ON decisions (episode_id)",
        "CREATE INDEX branches_decision ON branches (decision_id)",
        "CREATE INDEX turns_episode ON turns (episode_id) WHERE episode_id IS NOT NULL",
        "CREATE INDEX turns_branch ON turns (branch_id) WHERE branch_id IS NOT NULL",
    ]


def connect(path: Path, *, write: bool) -> sqlite3.Connection:
    """Open an existing store and check that it is one.

    Args:
        path: The database file.
        write: Open for writing (WAL, every commit reaches the disk) and check the file's integrity first.

    Raises:
        StoreError: The file is missing, foreign, corrupted, or of a newer schema.
    """
    if not path.is_file():
        raise StoreError(f"{path.parent}: there is no run here (no file {FILE_NAME}); check the path.")
    with explained(path, "opening the run"):
        # A reader opens for writing, too, where it may: only then does SQLite remove its side files at the end.
        writable = write or (os.access(path.parent, os.W_OK) and os.access(path, os.W_OK))
        connection = _open(path, "rw" if writable else "ro")
        try:
            connection.execute(f"PRAGMA query_only = {'OFF' if write else 'ON'}")
            _check(connection, path, thorough=write)
            if write:
                _prepare_for_writing(connection)
        except BaseException:
            connection.close()
            raise
    return connection


def create_schema(path: Path) -> sqlite3.Connection:
    """Make a new store; a file left empty by a crash during an earlier attempt is taken over.

    Raises:
        StoreError: There is something else at ``path``, or it cannot be written.
    """
    with explained(path, "creating the run"):
        connection = _open(path, "rwc")
        try:
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise StoreError(f"{path} exists already; resume that run or choose another name.")
            _prepare_for_writing(connection)
            connection.execute("BEGIN IMMEDIATE")
            for statement in schema():
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        except BaseException:
            connection.close()
            raise
    # The transaction stays open: the caller adds the run's row to it, so a store is never without one.
    return connection


def _open(path: Path, mode: str) -> sqlite3.Connection:
    location = f"{path.resolve().as_uri()}?mode={mode}"
    if mode == "ro" and not path.with_name(f"{path.name}-wal").exists():
        # A reader of a WAL database needs its shared-memory file; on read-only media there can be no writer.
        location += "&immutable=1"
    connection = sqlite3.connect(
        location, uri=True, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _prepare_for_writing(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    # FULL, not NORMAL: after a power cut NORMAL may lose updates that a checkpoint already counts on. One commit
    # per update makes the price of a few milliseconds invisible.
    connection.execute("PRAGMA synchronous = FULL")


def _check(connection: sqlite3.Connection, path: Path, *, thorough: bool) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if application != APPLICATION_ID:
        raise StoreError(f"{path} is not a forkgym run (its SQLite application id is {application:#x}).")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{path} was written by a newer forkgym (schema {version}; this one knows up to {SCHEMA_VERSION}). "
            "Upgrade: pip install -U forkgym."
        )
    if thorough:
        verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise StoreError(
                f"{path} is corrupted ({verdict}). Restore it from a copy, or move the run's directory away and "
                "start the run anew."
            )


class WriterLock:
    """Exclusive right to write one run directory, released by the system even when the process is killed.

    A POSIX record lock, because unlike ``flock`` it is not inherited by worker processes that outlive a killed
    trainer. It does not hold within one process, hence the registry.
    """

    _held: ClassVar[set[Path]] = set()

    def __init__(self, directory: Path) -> None:
        """Take the lock.

        Raises:
            RunLockedError: Somebody else holds it; the text names the process.
            StoreError: The lock file cannot be written.
        """
        self._path = directory.resolve() / LOCK_NAME
        self._descriptor: int | None = None
        if self._path in self._held:
            raise RunLockedError(f"{directory}: this process is writing the run already; close the other store first.")
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"{self._path} cannot be written ({error.strerror}); check permissions.") from error
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "an unknown process"
            os.close(descriptor)
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise StoreError(f"{self._path} cannot be locked ({error.strerror}).") from error
            raise RunLockedError(
                f"{directory}: {holder} is writing this run. Wait for it, stop it, or start another run under "
                "another name (--set run.name=NAME)."
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        self._descriptor = descriptor
        self._held.add(self._path)

    def release(self) -> None:
        """Give the lock back; harmless when it was given back before."""
        if self._descriptor is not None:
            # The file stays: removing it would let two processes lock two files of the same name.
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None
            self._held.discard(self._path)
