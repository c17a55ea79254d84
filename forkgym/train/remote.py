"""Environments in worker processes for rollouts that are played in threads: a synchronous face of `forkgym.aio`.

Only what rollouts use is here. A worker that dies takes its environments along; `revive` makes an episode's again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar

import msgspec

from forkgym.aio import AsyncEnv, AsyncSnapshot, Environments
from forkgym.core import SAME, ForkgymError, Handle, Luck
from forkgym.core.text import Message
from forkgym.rollout.episode import PlayedEpisode, environment_seed

__all__ = ["RemoteEnvironments", "RemoteTextEnv", "revive"]

T = TypeVar("T")


class RemoteEnvironments(msgspec.Struct, frozen=True, kw_only=True):
    """Which environment runs in worker processes.

    Attributes:
        id: Registered id.
        kwargs: Constructor arguments, portable.
        workers: Worker processes.
    """

    id: str
    kwargs: dict[str, Any] = {}
    workers: int = 2


class _RemoteSnapshot:
    """A snapshot in a worker; freed with the next message to it once it is closed or forgotten."""

    def __init__(self, held: AsyncSnapshot) -> None:
        self._held: AsyncSnapshot | None = held

    def opened(self) -> AsyncSnapshot:
        """The snapshot itself."""
        if self._held is None:
            raise ForkgymError("this snapshot is closed")
        return self._held

    def close(self) -> None:
        """Forget the state; allowed more than once."""
        self._held = None


class RemoteTextEnv:
    """A text environment in a worker process, for rollouts: every verb but ``close`` blocks and must run in a thread.

    Args:
        loop: The loop that talks to the workers.
        environments: The workers.
        which: What to make.
        held: An environment that is there already.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        environments: Environments,
        which: RemoteEnvironments,
        held: AsyncEnv | None = None,
    ) -> None:
        self._loop = loop
        self._environments = environments
        self._which = which
        self._held = held
        self.spec = SimpleNamespace(id=which.id)
        if held is None:
            self._held = self._wait(environments.make(which.id, **which.kwargs))

    @property
    def lost(self) -> bool:
        """Whether the worker that held it is gone."""
        held = self._held
        return held is not None and held._place.worker.generation != held._generation

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        return self._wait(self._opened().reset(seed=seed, options=options))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one action."""
        return self._wait(self._opened().step(action))

    def messages(self) -> list[Message]:
        """The conversation so far."""
        return self._wait(self._opened().messages())

    def parse(self, text: str) -> Any:
        """The action that a text means."""
        return self._wait(self._opened().call("parse", text))

    def fork(self, *, luck: Luck = SAME) -> RemoteTextEnv:
        """An independent environment at this state, in the same worker."""
        return RemoteTextEnv(self._loop, self._environments, self._which, self._wait(self._opened().fork(luck=luck)))

    def snapshot(self) -> _RemoteSnapshot:
        """A reference to this state."""
        return _RemoteSnapshot(self._wait(self._opened().snapshot()))

    def restore(self, snapshot: _RemoteSnapshot) -> None:
        """Rewind."""
        self._wait(self._opened().restore(snapshot.opened()))

    def state_hash(self) -> str:
        """Hash of the state."""
        return self._wait(self._opened().state_hash())

    def handle(self) -> Handle:
        """The portable record of the episode."""
        return self._wait(self._opened().handle())

    def close(self) -> None:
        """Have what it holds freed with the next message to its worker; allowed more than once, on any thread."""
        self._held = None

    def _opened(self) -> AsyncEnv:
        if self._held is None:
            raise ForkgymError(f"this environment ({self._which.id}) is closed")
        return self._held

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


def revive(played: PlayedEpisode, env: Any) -> None:
    """Give an episode whose worker died a new environment: its actions are taken again, without the policy.

    Args:
        played: The episode; its environment and snapshots are replaced.
        env: A fresh environment of the same id.

    Raises:
        ForkgymError: The environment answered otherwise than it did.
    """
    episode = played.episode
    snapshots: list[Any] = []
    env.reset(seed=environment_seed(episode.key), options={"split": episode.split, "task": episode.task})
    for turn in episode.turns:
        snapshots.append(env.snapshot())
        env.step(turn.action)
        if turn.state_hash and (found := env.state_hash()) != turn.state_hash:
            raise ForkgymError(
                f"an episode of {episode.environment} could not be made again after its worker died: at turn "
                f"{turn.index} the state is {found}, not {turn.state_hash}; the environment is not deterministic"
            )
    snapshots.append(env.snapshot())
    for snapshot in played.snapshots:
        snapshot.close()
    played.env.close()
    played.snapshots, played.env = snapshots, env
