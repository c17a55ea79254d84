"""Snapshots: cheap, reference-counted references to a state on this machine; what they hold is the env's affair."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from forkgym.core.errors import SnapshotError

__all__ = ["Snapshot"]


class _Shared:
    """What all references to one state hold together."""

    __slots__ = ("count", "payload", "release")

    def __init__(self, payload: Any, release: Callable[[Any], None] | None) -> None:
        self.payload = payload
        self.release = release
        self.count = 1

    def drop(self) -> None:
        self.count -= 1
        if self.count == 0:
            payload, self.payload = self.payload, None
            if self.release is not None:
                self.release(payload)


class Snapshot:
    """A state to come back to with `env.restore(snapshot)`, on any environment of the same id and arguments.

    Use it as a context manager, or call `close()`, or let it go: the state is freed with its last reference.

    Attributes:
        turn: Steps that had been taken.
        state_hash: Hash of the state (64 hexadecimal digits).
    """

    __slots__ = ("__weakref__", "_family", "_finalizer", "_shared", "state_hash", "turn")

    def __init__(
        self,
        payload: Any,
        *,
        family: object,
        turn: int,
        state_hash: str,
        release: Callable[[Any], None] | None = None,
    ) -> None:
        self._bind(_Shared(payload, release), family, turn, state_hash)

    def _bind(self, shared: _Shared, family: object, turn: int, state_hash: str) -> None:
        self._shared = shared
        self._family = family
        self.turn = turn
        self.state_hash = state_hash
        self._finalizer = weakref.finalize(self, shared.drop)

    def share(self) -> Snapshot:
        """Another reference to the same state, to be closed on its own.

        Raises:
            SnapshotError: This reference is closed.
        """
        self._require_open()
        twin = Snapshot.__new__(Snapshot)
        self._shared.count += 1
        twin._bind(self._shared, self._family, self.turn, self.state_hash)
        return twin

    def close(self) -> None:
        """Give up this reference; the last one frees the state. Closing twice is allowed."""
        self._finalizer()

    @property
    def closed(self) -> bool:
        """Whether this reference was given up."""
        return not self._finalizer.alive

    def payload_for(self, family: object) -> Any:
        """The held state, for an environment of this family.

        Raises:
            SnapshotError: The snapshot is closed, or comes from another environment.
        """
        self._require_open()
        if family != self._family:
            raise SnapshotError(
                f"This snapshot was taken from {self._family}, it cannot be restored into {family}. Restore it into "
                "an environment made with the same id and arguments, or carry the state over with env.handle()."
            )
        return self._shared.payload

    def _require_open(self) -> None:
        if self.closed:
            raise SnapshotError(
                "This snapshot is closed, so its state is gone. Take a new one with env.snapshot(), or keep a second "
                "reference with snapshot.share() before closing the first."
            )

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else self.state_hash[:12]
        return f"<Snapshot of {self._family} at turn {self.turn}: {state}>"
