"""Where a streamed run's environments work: in place, in threads, or in processes that threads talk to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal

import msgspec

from forkgym.aio import Environments
from forkgym.core import SAME, Luck
from forkgym.runtime import Restarts
from forkgym.schedule.desk import Perform, perform_inline
from forkgym.train.remote import RemoteEnvironments, RemoteTextEnv

__all__ = ["Place", "SharedEnv", "Workshop", "workshop"]

MOST_THREADS = 256
Place = Literal["inline", "thread", "process", "declared"]


class SharedEnv:
    """An environment at the end of its episode that branches in several threads fork from, one at a time."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self._lock = threading.Lock()
        self.reviving = asyncio.Lock()

    @property
    def lost(self) -> bool:
        """Whether it was in a worker process that is gone."""
        return isinstance(self._env, RemoteTextEnv) and self._env.lost

    def fork(self, *, luck: Luck = SAME) -> Any:
        """An independent environment at this state."""
        with self._lock:
            return self._env.fork(luck=luck)

    def close(self) -> None:
        """Free what it holds."""
        with self._lock:
            self._env.close()


class _Threads:
    """Does work in threads. Who is cancelled waits until his work has ended, so that nothing goes on behind him."""

    def __init__(self, size: int) -> None:
        self._executor = ThreadPoolExecutor(size, thread_name_prefix="environment")

    async def perform(self, _name: str, work: Callable[[], Any]) -> Any:
        """Do the work in a thread."""
        future = asyncio.get_running_loop().run_in_executor(self._executor, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            while not future.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([future])
            if not future.cancelled():
                future.exception()  # seen
            raise

    def close(self) -> None:
        """End the threads; nothing runs in them any more."""
        self._executor.shutdown()


class Workshop(msgspec.Struct):
    """Where environments are made, and how their work is done."""

    make_env: Callable[[], Any]
    perform: Perform
    threaded: bool = False


@asynccontextmanager
async def workshop(
    make_env: Callable[[], Any],
    *,
    place: Place,
    size: int,
    remote: RemoteEnvironments | None = None,
    restarts: Restarts | None = None,
    perform: Perform | None = None,
) -> AsyncIterator[Workshop]:
    """Open the place in which environments work, for as long as the block lasts.

    Args:
        make_env: Makes an environment in this process.
        place: Where; ``declared`` asks an environment (``runs_in``).
        size: Most that work at once.
        remote: What runs in processes; without it threads take their place.
        restarts: How often worker processes are restarted.
        perform: Overrides how work is done, in this process.
    """
    where: str = place
    if where == "declared":
        env = make_env()
        where = env.runs_in
        env.close()
    if where == "process" and remote is None:
        where = "thread"
    if perform is not None or where == "inline":
        yield Workshop(make_env, perform or perform_inline)
        return
    threads = _Threads(min(size, MOST_THREADS))
    try:
        if where == "thread" or remote is None:
            yield Workshop(make_env, threads.perform, True)
            return
        which, loop = remote, asyncio.get_running_loop()
        async with Environments(run="process", size=which.workers, restarts=restarts) as environments:

            def make_remote() -> RemoteTextEnv:
                return RemoteTextEnv(loop, environments, which)

            yield Workshop(make_remote, threads.perform, True)
    finally:
        threads.close()
