"""The record of one run: every episode, decision, branch and credit, one transaction per update.

A crash leaves whole updates only; ``truncate_after`` brings the record back to the update a checkpoint knows.
SQL tables are laid out in ``codec`` and ``database``; nothing here decides what is worth recording.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from forkgym.rollout.trace import Branch, Decision, Episode, Ledger, Turn
from forkgym.store.codec import BRANCHES, DECISIONS, EPISODES, TURNS, signed
from forkgym.store.database import FILE_NAME, WriterLock, connect, create_schema
from forkgym.store.errors import StoreError, explained

__all__ = ["Evaluation", "Event", "RunStore"]


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one evaluation.

    Attributes:
        update: Updates the policy had seen; 0 is the untrained policy.
        name: Which evaluation, e.g. ``sampled`` or ``greedy``.
        metrics: Its numbers.
    """

    update: int
    name: str
    metrics: dict[str, Any]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something worth knowing that is not a number: a quarantined task, a resume, a failed twin.

    Attributes:
        update: Update it happened in.
        name: Kind of event.
        detail: What happened, JSON-able.
    """

    update: int
    name: str
    detail: dict[str, Any]


class RunStore:
    """One run's SQLite file (``run.sqlite`` in the run's directory). Make it by ``create`` or ``open``.

    Writing needs the run's lock, reading does not and sees the last whole update.

    Attributes:
        path: The database file.
        config: The configuration as JSON.
        digest: Digest of the configuration's unchangeable part.
        versions: Versions of the software that started the run.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: WriterLock | None) -> None:
        self.path = path
        self._connection = connection
        self._lock = lock
        with explained(path, "reading the run's description"):
            row = connection.execute("SELECT config, digest, versions FROM run").fetchone()
        if row is None:
            raise StoreError(f"{path} holds no run's description; it is incomplete. Start the run anew.")
        self.config: str = row[0]
        self.digest: str = row[1]
        self.versions: dict[str, str] = msgspec.json.decode(row[2], type=dict[str, str])

    @staticmethod
    def exists(directory: str | os.PathLike[str]) -> bool:
        """Whether ``directory`` holds a run."""
        file = Path(directory) / FILE_NAME
        return file.is_file() and file.stat().st_size > 0

    @classmethod
    def create(
        cls, directory: str | os.PathLike[str], *, config: str, digest: str, versions: Mapping[str, str]
    ) -> RunStore:
        """Start the record of a new run and take its lock.

        Args:
            directory: Directory of the run; made if needed.
            config: Configuration as JSON.
            digest: Digest of its unchangeable part.
            versions: Software versions, name → version.

        Raises:
            StoreError: There is a run already, or the directory cannot be written.
        """
        folder = Path(directory)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{folder} cannot be made ({error.strerror}); check the path and permissions.") from error
        lock = WriterLock(folder)
        path = folder / FILE_NAME
        try:
            connection = create_schema(path)
            with explained(path, "creating the run"):
                connection.execute(
                    "INSERT INTO run VALUES (1, ?, ?, ?, ?)",
                    (config, digest, msgspec.json.encode(dict(versions)).decode(), time.time()),
                )
                connection.execute("COMMIT")
            return cls(path, connection, lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(cls, directory: str | os.PathLike[str], *, write: bool = False) -> RunStore:
        """Open the record of an existing run.

        Args:
            directory: Directory of the run, or the database file itself.
            write: Take the lock and open for writing.

        Raises:
            RunLockedError: ``write``, and another process writes this run.
            StoreError: There is no run, or its file is foreign, corrupted or of a newer schema.
        """
        given = Path(directory)
        path = given if given.name == FILE_NAME else given / FILE_NAME
        lock = WriterLock(path.parent) if write and path.is_file() else None
        try:
            return cls(path, connect(path, write=write), lock)
        except BaseException:
            if lock is not None:
                lock.release()
            raise

    # Writing

    def commit_update(
        self,
        update: int,
        *,
        episodes: Iterable[Episode],
        decisions: Iterable[Decision],
        metrics: Mapping[str, Any],
        ledger: Ledger,
    ) -> None:
        """Record one update, all of it or nothing.

        Args:
            update: Number of the update; larger than any recorded one.
            episodes: Its factual episodes.
            decisions: Their decisions, branches included; each decision's episode is among ``episodes``.
            metrics: What the progress line shows, JSON-able.
            ledger: The run's ledger after the update.

        Raises:
            StoreError: The update is recorded already, a decision belongs to no episode, or writing failed.
        """
        doing = f"recording update {update}"
        with self._transaction(doing) as connection:
            last = self.last_update()
            if last is not None and update <= last:
                raise StoreError(
                    f"{self.path}: update {update} comes after update {last}, which is recorded already; "
                    "call truncate_after first."
                )
            connection.execute(
                "INSERT INTO updates VALUES (?, ?, ?, ?)",
                (update, _to_json(metrics), _to_json(ledger), time.time()),
            )
            ids: dict[int, int] = {}
            for episode in episodes:
                row = EPISODES.encode([episode.generated_tokens], episode)
                ids[episode.key] = _insert(connection, EPISODES.insert, row)
                self._insert_turns(connection, episode.turns, "factual", episode=ids[episode.key])
            for decision in decisions:
                if decision.episode not in ids:
                    raise StoreError(
                        f"{self.path}: {doing}: a decision at turn {decision.turn} belongs to episode "
                        f"{decision.episode}, which is not among the update's episodes."
                    )
                self._insert_decision(connection, decision, ids[decision.episode])

    def add_evaluation(self, update: int, name: str, metrics: Mapping[str, Any]) -> None:
        """Record an evaluation; one of the same update and name is replaced (a resumed run repeats it)."""
        with self._transaction(f"recording evaluation {name!r}") as connection:
            connection.execute(
                "INSERT OR REPLACE INTO evaluations (update_number, name, metrics, recorded) VALUES (?, ?, ?, ?)",
                (update, name, _to_json(metrics), time.time()),
            )

    def add_event(self, update: int, name: str, **detail: Any) -> None:
        """Record an event; ``detail`` is JSON-able."""
        with self._transaction(f"recording event {name!r}") as connection:
            connection.execute(
                "INSERT INTO events (update_number, name, detail, recorded) VALUES (?, ?, ?, ?)",
                (update, name, _to_json(detail), time.time()),
            )

    def truncate_after(self, update: int) -> int:
        """Forget everything after ``update``, so that the record agrees with a checkpoint taken there.

        Args:
            update: Last update to keep; −1 forgets all of them.

        Returns:
            Number of updates dropped.

        Raises:
            StoreError: The checkpoint is ahead of the record: an update it counts on was never recorded.
        """
        with self._transaction(f"going back to update {update}") as connection:
            last = self.last_update()
            # Before the first update nothing is recorded, whether counting starts at 0 or at 1.
            if update > 0 and (last is None or last < update):
                recorded = "no update" if last is None else f"updates up to {last}"
                raise StoreError(
                    f"{self.path} has recorded {recorded}, but the checkpoint is of update {update}: they do not "
                    "belong together. Use the store that came with the checkpoint, or start the run anew."
                )
            dropped = connection.execute("DELETE FROM updates WHERE number > ?", (update,)).rowcount
            for table in ("episodes", "evaluations", "events"):
                connection.execute(f"DELETE FROM {table} WHERE update_number > ?", (update,))  # noqa: S608 - constants
        return int(dropped)

    # Reading

    def last_update(self) -> int | None:
        """Number of the last recorded update, ``None`` before the first."""
        (last,) = self._one("SELECT max(number) FROM updates")
        return None if last is None else int(last)

    def metrics(self) -> list[dict[str, Any]]:
        """Metrics of every update in order, each with its ``update``."""
        rows = self._all("SELECT number, metrics FROM updates ORDER BY number")
        return [{"update": number, **msgspec.json.decode(text)} for number, text in rows]

    def ledger(self, update: int | None = None) -> Ledger:
        """The run's ledger after ``update`` (by default the last); empty before the first.

        Raises:
            StoreError: There is no such update.
        """
        wanted = self.last_update() if update is None else update
        if wanted is None:
            return Ledger()
        row = self._one("SELECT ledger FROM updates WHERE number = ?", (wanted,))
        if row is None:
            raise StoreError(f"{self.path} has no update {wanted}; the last one is {self.last_update()}.")
        return msgspec.json.decode(row[0], type=Ledger)

    def evaluations(self) -> list[Evaluation]:
        """Every evaluation in order of update and name."""
        rows = self._all("SELECT update_number, name, metrics FROM evaluations ORDER BY update_number, name")
        return [
            Evaluation(update=update, name=name, metrics=msgspec.json.decode(metrics)) for update, name, metrics in rows
        ]

    def events(self) -> list[Event]:
        """Every event in order."""
        rows = self._all("SELECT update_number, name, detail FROM events ORDER BY id")
        return [Event(update=update, name=name, detail=msgspec.json.decode(detail)) for update, name, detail in rows]

    def episodes(self, update: int) -> list[Episode]:
        """Episodes of one update in order of group and member."""
        rows = self._all(f"{EPISODES.select} WHERE update_number = ? ORDER BY group_number, member", (update,))
        return [EPISODES.decode(row, turns=self._turns("episode_id", row[0], "factual")) for row in rows]

    def episode(self, key: int) -> Episode:
        """The episode with this key.

        Raises:
            StoreError: There is none.
        """
        row = self._one(f"{EPISODES.select} WHERE key = ?", (signed(key),)) if 0 <= key < 2**64 else None
        if row is None:
            raise StoreError(f"{self.path} has no episode {key}.{self._some_keys()}")
        episode: Episode = EPISODES.decode(row, turns=self._turns("episode_id", row[0], "factual"))
        return episode

    def decisions(self, update: int | None = None, *, episode: int | None = None) -> list[Decision]:
        """Decisions with their branches, in order of update, group, member and turn.

        Args:
            update: Only those of this update.
            episode: Only those of the episode with this key.
        """
        conditions, values = [], []
        if update is not None:
            conditions.append("update_number = ?")
            values.append(update)
        if episode is not None:
            conditions.append("episode = ?")
            values.append(signed(episode))
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        order = " ORDER BY update_number, group_number, member, turn"
        rows = self._all(f"{DECISIONS.select}{where}{order}", tuple(values))
        return [DECISIONS.decode(row, branches=self._branches(row[0])) for row in rows]

    def close(self) -> None:
        """Close the file and give the lock back; harmless when closed before."""
        try:
            if self._lock is not None:
                with explained(self.path, "closing the run"):
                    # Leaves one file behind instead of three.
                    self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            self._connection.close()
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Helpers

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[sqlite3.Connection]:
        if self._lock is None:
            raise StoreError(f"{self.path} is open for reading only; open it with write=True for {doing}.")
        with explained(self.path, doing):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                # A full disk rolls back by itself.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def _insert_decision(self, connection: sqlite3.Connection, decision: Decision, episode: int) -> None:
        decision_id = _insert(connection, DECISIONS.insert, DECISIONS.encode([episode], decision))
        for branch in decision.branches:
            branch_id = _insert(connection, BRANCHES.insert, BRANCHES.encode([decision_id], branch))
            self._insert_turns(connection, branch.turns, "alternative", branch=branch_id)
            self._insert_turns(connection, branch.factual_turns, "paired", branch=branch_id)

    @staticmethod
    def _insert_turns(
        connection: sqlite3.Connection,
        turns: Iterable[Turn],
        arm: str,
        *,
        episode: int | None = None,
        branch: int | None = None,
    ) -> None:
        connection.executemany(TURNS.insert, (TURNS.encode([episode, branch, arm], turn) for turn in turns))

    def _turns(self, link: str, owner: int, arm: str) -> list[Turn]:
        rows = self._all(f"{TURNS.select} WHERE {link} = ? AND arm = ? ORDER BY id", (owner, arm))
        return [TURNS.decode(row) for row in rows]

    def _branches(self, decision: int) -> list[Branch]:
        rows = self._all(f"{BRANCHES.select} WHERE decision_id = ? ORDER BY id", (decision,))
        return [
            BRANCHES.decode(
                row,
                turns=self._turns("branch_id", row[0], "alternative"),
                factual_turns=self._turns("branch_id", row[0], "paired"),
            )
            for row in rows
        ]

    def _some_keys(self) -> str:
        rows = self._all("SELECT key FROM episodes ORDER BY id LIMIT 3")
        keys = ", ".join(str(row[0] % 2**64) for row in rows)
        return f" Its first keys: {keys}." if keys else " It has no episodes yet."

    def _one(self, query: str, values: tuple[Any, ...] = ()) -> Any:
        with explained(self.path, "reading"):
            return self._connection.execute(query, values).fetchone()

    def _all(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        with explained(self.path, "reading"):
            return self._connection.execute(query, values).fetchall()


def _insert(connection: sqlite3.Connection, statement: str, values: list[Any]) -> int:
    row = connection.execute(statement, values).lastrowid
    if row is None:
        raise StoreError("SQLite gave no row id for an inserted row.")
    return row


def _to_json(value: Any) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()
