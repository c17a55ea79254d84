"""Environments whose verbs are awaited: `make`, and `Environments` for many on shared workers.

The verbs themselves are `forkgym.core`'s, the workers `forkgym.runtime`'s; here one is put into the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, Self

from forkgym import core
from forkgym.core import SAME, ClosedEnvironmentError, Handle, Luck, Message, MisuseError, SnapshotError
from forkgym.core.portable import from_portable, to_portable
from forkgym.core.registry import creator_of
from forkgym.runtime import ActorError, ActorStatistics, Health, Pool, Restarts, Worker, WorkerDied
from forkgym.runtime.runners import RunnerName

__all__ = ["AsyncEnv", "AsyncSnapshot", "Environments", "make", "serve"]

_VERBS = frozenset({"reset", "step", "fork", "fork_many", "snapshot", "restore", "state_hash", "handle", "close"})


# ---------------------------------------------------------------------- in the worker


class _Server:
    """The environments and snapshots of one worker, by number. Messages: [what to drop, verb, number, arguments]."""

    def __init__(self, portable: bool) -> None:
        self._portable = portable
        self._held: dict[int, Any] = {}
        self._last = 0

    def __call__(self, message: tuple[list[int], str, int, dict[str, Any]]) -> Any:
        drops, verb, number, arguments = message
        for dropped in drops:
            self._drop(dropped)
        if self._portable:
            arguments = from_portable(arguments)
        answer = getattr(self, f"do_{verb}")(number, **arguments)
        return to_portable(answer, f"the answer of {verb}") if self._portable else answer

    def close(self) -> None:
        """Close everything."""
        for number in list(self._held):
            self._drop(number)

    def _drop(self, number: int) -> None:
        held = self._held.pop(number, None)
        if held is not None:
            held.close()

    def _hold(self, thing: Any) -> int:
        self._last += 1
        self._held[self._last] = thing
        return self._last

    def do_make(self, _: int, id: Any, handle: bytes | None, arguments: dict[str, Any]) -> int:
        return self._hold(core.make(id if handle is None else Handle.from_bytes(handle), **arguments))

    def do_reset(self, number: int, seed: int | None, options: dict[str, Any] | None) -> Any:
        return self._held[number].reset(seed=seed, options=options)

    def do_step(self, number: int, action: Any) -> Any:
        return self._held[number].step(action)

    def do_fork(self, number: int, stream: int | None) -> int:
        return self._hold(self._held[number].fork(luck=Luck(stream)))

    def do_fork_many(self, number: int, count: int, stream: int | None) -> list[int]:
        return [self._hold(fork) for fork in self._held[number].fork_many(count, luck=Luck(stream))]

    def do_snapshot(self, number: int) -> Any:
        snapshot = self._held[number].snapshot()
        return self._hold(snapshot), snapshot.turn, snapshot.state_hash

    def do_restore(self, number: int, snapshot: int) -> None:
        self._held[number].restore(self._held[snapshot])

    def do_state_hash(self, number: int) -> str:
        return str(self._held[number].state_hash())

    def do_handle(self, number: int) -> bytes:
        handle: Handle = self._held[number].handle()
        return handle.to_bytes()

    def do_close(self, number: int) -> None:
        self._drop(number)

    def do_get(self, number: int, name: str) -> Any:
        return getattr(self._held[number], name)

    def do_call(self, number: int, name: str, arguments: list[Any]) -> Any:
        return getattr(self._held[number], name)(*arguments)


def serve(portable: bool = False) -> Callable[[Any], Any]:
    """Entry point of a worker that holds environments.

    Args:
        portable: Whether messages and answers are in portable form (`forkgym.core.portable`), for a process.
    """
    return _Server(portable)


# ---------------------------------------------------------------------- in the loop


class _Place:
    """A worker as the environments in it see it: what it holds belongs to one generation of it."""

    def __init__(self, worker: Worker, portable: bool) -> None:
        self.worker = worker
        self.portable = portable
        self.living = 0
        self.idle: Callable[[], None] | None = None  # called when the last environment is closed
        self._drops: list[int] = []
        self._drops_of = 0

    async def ask(self, verb: str, number: int, generation: int, **arguments: Any) -> Any:
        """Have a verb done for something that the worker's generation holds."""
        drops: list[int] = []
        if generation == self._drops_of:
            drops, self._drops = self._drops, drops
        try:
            answer = await self.worker.call(self._message(drops, verb, number, arguments), generation=generation)
        except BaseException:
            if generation == self._drops_of:
                self._drops += drops  # whether they were dropped is not known; twice does no harm
            raise
        return from_portable(answer) if self.portable else answer

    async def make(self, **arguments: Any) -> tuple[int, int]:
        """Have an environment made; its number, and the generation that holds it."""
        generation, answer = await self.worker.call_new(self._message([], "make", 0, arguments))
        return int(from_portable(answer) if self.portable else answer), generation

    def _message(self, drops: list[int], verb: str, number: int, arguments: dict[str, Any]) -> list[Any]:
        content = to_portable(arguments, f"an argument of {verb}") if self.portable else arguments
        return [drops, verb, number, content]

    def drop(self, number: int, generation: int) -> None:
        """Have something closed with the next message (called when nothing refers to it any more)."""
        if generation > self._drops_of:
            self._drops, self._drops_of = [], generation
        if generation == self._drops_of:
            self._drops.append(number)

    def leave(self) -> None:
        """One environment less."""
        self.living -= 1
        if self.living == 0 and self.idle is not None:
            self.idle()


class _Held:
    """Something a worker holds; freed by `close`, or when nothing refers to this object any more."""

    def __init__(self, place: _Place, number: int, generation: int) -> None:
        self._place = place
        self._number = number
        self._generation = generation
        self._finalizer = weakref.finalize(self, place.drop, number, generation)
        self._finalizer.atexit = False

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return not self._finalizer.alive

    async def _free(self) -> None:
        if self._finalizer.detach() is None:
            return
        try:
            with contextlib.suppress(ActorError, WorkerDied):  # then the worker is gone, and what it held with it
                await self._place.ask("close", self._number, self._generation)
        except BaseException:
            self._place.drop(self._number, self._generation)
            raise


class AsyncSnapshot(_Held):
    """A state to come back to with `await env.restore(snapshot)`; it lives in the worker that holds the environment.

    Attributes:
        turn: Steps that had been taken.
        state_hash: Hash of the state.
    """

    def __init__(self, place: _Place, number: int, generation: int, turn: int, state_hash: str) -> None:
        super().__init__(place, number, generation)
        self.turn = turn
        self.state_hash = state_hash

    async def close(self) -> None:
        """Free the state; closing twice is allowed."""
        await self._free()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncEnv(_Held):
    """An environment in a worker. Every verb means what it means on `forkgym.core.Env`, and is awaited.

    Verbs take effect in the order in which they were called. One that is cancelled, or fails with `ActorFailed`, may
    have happened or not: go back with `restore`, or make the environment again from a handle.

    Attributes:
        id: Registered id.
    """

    def __init__(self, place: _Place, number: int, generation: int, id: str) -> None:
        super().__init__(place, number, generation)
        self.id = id
        place.living += 1
        self._leaver = weakref.finalize(self, place.leave)
        self._leaver.atexit = False

    @property
    def worker(self) -> str:
        """Name of the worker that holds it."""
        return self._place.worker.name

    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode; see `forkgym.core.Env.reset`."""
        observation, info = await self._ask("reset", seed=seed, options=options)
        return observation, info

    async def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one action; see `forkgym.core.Env.step`."""
        observation, reward, terminated, truncated, info = await self._ask("step", action=action)
        return observation, reward, terminated, truncated, info

    async def fork(self, *, luck: Luck = SAME) -> AsyncEnv:
        """An independent environment at this very state, in the same worker."""
        return self._beside(await self._ask("fork", stream=luck.stream))

    async def fork_many(self, count: int, *, luck: Luck = SAME) -> list[AsyncEnv]:
        """`count` forks at this state, in the same worker, by one message."""
        numbers = await self._ask("fork_many", count=count, stream=luck.stream)
        return [self._beside(number) for number in numbers]

    async def snapshot(self) -> AsyncSnapshot:
        """A reference to this state in the worker, for `restore`."""
        number, turn, state_hash = await self._ask("snapshot")
        return AsyncSnapshot(self._place, number, self._generation, turn, state_hash)

    async def restore(self, snapshot: AsyncSnapshot) -> None:
        """Rewind in place.

        Raises:
            SnapshotError: The snapshot is closed, of another environment, or in another worker.
        """
        if not isinstance(snapshot, AsyncSnapshot):
            raise SnapshotError(f"restore takes what 'await env.snapshot()' gave, not a {type(snapshot).__name__}.")
        if snapshot.closed:
            raise SnapshotError("This snapshot is closed, so its state is gone. Take a new one with env.snapshot().")
        if snapshot._place is not self._place or snapshot._generation != self._generation:
            raise SnapshotError(
                f"This snapshot is in worker {snapshot._place.worker.name!r}, the environment in {self.worker!r} (or "
                "that worker was restarted since). Carry the state over with env.handle() and make(handle)."
            )
        await self._ask("restore", snapshot=snapshot._number)

    async def state_hash(self) -> str:
        """Hash of the canonical state; see `forkgym.core.Env.state_hash`."""
        found: str = await self._ask("state_hash")
        return found

    async def handle(self) -> Handle:
        """The portable record of this episode: make it again anywhere, in another worker too."""
        return Handle.from_bytes(await self._ask("handle"))

    async def messages(self) -> list[Message]:
        """The conversation so far, for a `forkgym.core.TextEnv`."""
        found: list[Message] = await self._ask("call", name="messages", arguments=[])
        return found

    async def get(self, name: str) -> Any:
        """A public attribute of the environment, such as "fork_support", "turn", "splits" or "max_turns"."""
        self._require_public(name)
        return await self._ask("get", name=name)

    async def call(self, name: str, *arguments: Any) -> Any:
        """The answer of another public method of the environment, such as `call("parse", text)`."""
        self._require_public(name)
        if name in _VERBS:
            raise MisuseError(f"{name} has a method of its own here: await env.{name}(...).")
        return await self._ask("call", name=name, arguments=list(arguments))

    async def close(self) -> None:
        """Free what the environment holds; allowed more than once. Forks and snapshots stay usable."""
        await self._free()
        self._leaver()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ask(self, verb: str, **arguments: Any) -> Any:
        if self.closed:
            raise ClosedEnvironmentError(
                f"Cannot {verb} {self.id}: it is closed. Make a new one with forkgym.aio.make, or close it later; "
                "forks and snapshots taken before stay usable."
            )
        return await self._place.ask(verb, self._number, self._generation, **arguments)

    def _beside(self, number: int) -> AsyncEnv:
        return AsyncEnv(self._place, number, self._generation, self.id)

    @staticmethod
    def _require_public(name: str) -> None:
        if name.startswith("_"):
            raise MisuseError(f"{name} is private to the environment.")

    def __repr__(self) -> str:
        return f"<AsyncEnv {self.id} in {self.worker}{' (closed)' if self.closed else ''}>"


class Environments:
    """Workers that hold environments, restarted when they are lost.

        async with Environments(run="process", size=4) as environments:
            env = await environments.make("toy/Chain-v0")

    When a worker is lost, its environments and snapshots are gone: verbs raise `ActorFailed` (the worker was lost
    during the verb) or `WorkerDied` (before it). Make them again from their handles.

    Args:
        run: "inline", "thread" or "process".
        size: Number of workers; a new environment goes to the one that holds the fewest.
        restarts: Limits of the workers' restarts.
        mailbox: Verbs that wait at each worker at most.
        call_timeout: Seconds of one verb after which a worker is given up.
    """

    def __init__(
        self,
        *,
        run: RunnerName = "inline",
        size: int = 1,
        restarts: Restarts | None = None,
        mailbox: int = 16,
        call_timeout: float | None = None,
    ) -> None:
        portable = run == "process"
        self._pool = Pool(
            "forkgym.aio:serve",
            size=size,
            run=run,
            config={"portable": portable},
            name="environments",
            mailbox=mailbox,
            restarts=restarts,
            call_timeout=call_timeout,
        )
        self._places = [_Place(worker, portable) for worker in self._pool.workers]

    async def make(
        self, id: str | Handle, *, max_episode_steps: int | None = None, worker: int | None = None, **kwargs: Any
    ) -> AsyncEnv:
        """An environment, or one at the state that a handle records.

        Args:
            id: A registered id, or a handle.
            max_episode_steps: As for `forkgym.make`.
            worker: Index of the worker to hold it.
            **kwargs: Constructor arguments; portable data for a process.
        """
        places = self._places if worker is None else [self._places[worker]]
        place = min(places, key=lambda place: (not place.worker.alive, place.living + place.worker.outstanding))
        if max_episode_steps is not None:
            kwargs["max_episode_steps"] = max_episode_steps
        handle = id.to_bytes() if isinstance(id, Handle) else None
        named = id.env if isinstance(id, Handle) else id
        number, generation = await place.make(id=named, handle=handle, arguments=kwargs)
        return AsyncEnv(place, number, generation, named)

    async def check(self, timeout: float = 5.0) -> list[Health]:
        """Whether the workers are alive; see `forkgym.runtime.Pool.check`."""
        return await self._pool.check(timeout)

    def statistics(self) -> list[ActorStatistics]:
        """The workers and their mailboxes at this moment."""
        return self._pool.statistics()

    async def __aenter__(self) -> Self:
        await self._pool.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._pool.__aexit__(kind, error, trace)


_hosts: set[asyncio.Task[None]] = set()


class _Making:
    """What `make` returns: to be awaited, or entered with `async with`."""

    def __init__(self, id: str | Handle, run: RunnerName, kwargs: dict[str, Any]) -> None:
        self._id, self._kwargs = id, kwargs
        self._environments = Environments(run=run)
        self._host: asyncio.Task[None] | None = None

    async def __aenter__(self) -> AsyncEnv:
        await self._environments.__aenter__()
        try:
            return await self._environments.make(self._id, **self._kwargs)
        except BaseException as error:
            await self._environments.__aexit__(type(error), error, None)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._environments.__aexit__(kind, error, trace)

    def __await__(self) -> Generator[Any, Any, AsyncEnv]:
        return self._hosted().__await__()

    async def _hosted(self) -> AsyncEnv:
        """The environment, its worker kept by a task that ends with the last environment in it, or with the loop."""
        made: asyncio.Future[AsyncEnv] = asyncio.get_running_loop().create_future()
        idle = asyncio.Event()

        async def host() -> None:
            try:
                async with self as env:
                    env._place.idle = idle.set
                    made.set_result(env)
                    del env  # or it would never be freed
                    await idle.wait()
            except BaseException as error:
                if made.done() or not isinstance(error, Exception):
                    made.cancel()
                    raise
                made.set_exception(error)

        task = asyncio.create_task(host(), name="forkgym.aio.make")
        _hosts.add(task)  # a loop refers to its tasks weakly
        task.add_done_callback(_hosts.discard)
        try:
            return await made
        except BaseException:
            task.cancel()
            raise


def make(id: str | Handle, *, run: RunnerName | None = None, **kwargs: Any) -> _Making:
    """An environment whose verbs are awaited, in a worker of its own.

        async with forkgym.aio.make("toy/Chain-v0") as env:        # the block's end ends the worker
            observation, info = await env.reset(seed=0)

        env = await forkgym.aio.make("toy/Chain-v0")               # the worker ends with the last close

    Forks and snapshots stand in the same worker.

    Args:
        id: A registered id, or a handle.
        run: "inline", "thread" or "process"; by default what the environment's class declares (`Env.runs_in`).
        **kwargs: Constructor arguments, and `max_episode_steps`.

    Raises:
        UnknownEnvironmentError: No such id.
    """
    declared: RunnerName = getattr(creator_of(id.env if isinstance(id, Handle) else id), "runs_in", "inline")
    return _Making(id, declared if run is None else run, kwargs)
