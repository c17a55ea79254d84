"""Where a worker's function runs: in the loop's thread, in a thread of its own, or in a process of its own.

All three offer the same methods. Restarts are not decided here (see `pool.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Literal, Protocol

import anyio
import msgspec

from forkgym.core.errors import ForkgymError, nearest
from forkgym.runtime import wire
from forkgym.runtime.virtual import VirtualLoop, VirtualLoopError
from forkgym.runtime.worker import entry_point

__all__ = ["InlineRunner", "ProcessRunner", "Pulse", "RunnerName", "ThreadRunner", "WorkerDied", "make_runner"]

RunnerName = Literal["inline", "thread", "process"]

_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[3]); "
    "from forkgym.runtime.worker import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)


class WorkerDied(ForkgymError, RuntimeError):
    """A worker is gone: its process ended, or it was given up because a call took too long."""


class Pulse(msgspec.Struct, frozen=True):
    """Answer of a worker to a health check.

    Attributes:
        busy: Seconds it has been working on one call; 0 when idle.
        pid: Its process.
    """

    busy: float
    pid: int


class Runner(Protocol):
    """One worker."""

    async def start(self) -> None:
        """Call the entry point where the worker runs."""

    async def call(self, message: Any) -> Any:
        """Work on a message; raises what the function raises, or `WorkerDied`."""

    async def died(self) -> None:
        """Return when the worker is gone (never, for one that cannot die)."""

    async def pulse(self) -> Pulse:
        """Whether it is alive, and for how long it has been busy."""

    async def close(self, *, within: float) -> None:
        """End the worker: gracefully for so many seconds, then by force."""


class InlineRunner:
    """Calls the function in the loop's own thread: for work of microseconds."""

    def __init__(self, entry: str, config: dict[str, Any]) -> None:
        self._entry, self._config = entry, config
        self._serve: Callable[[Any], Any] | None = None

    async def start(self) -> None:
        """Call the entry point."""
        self._serve = entry_point(self._entry)(**self._config)

    async def call(self, message: Any) -> Any:
        """Call the function."""
        if self._serve is None:
            raise WorkerDied("This inline worker is closed.")
        return self._serve(message)

    async def died(self) -> None:
        """Never returns."""
        await anyio.sleep_forever()

    async def pulse(self) -> Pulse:
        """Idle: it has answered."""
        return Pulse(0.0, os.getpid())

    async def close(self, *, within: float) -> None:  # noqa: ARG002  # it works on nothing now
        """Free what the function holds."""
        serve, self._serve = self._serve, None
        close = getattr(serve, "close", None)
        if close is not None:
            close()


class ThreadRunner:
    """Calls the function in one thread of its own: for work that waits, or that leaves the interpreter's lock.

    A thread cannot be killed: one that is given up ends with its call, and never keeps the process from ending.
    """

    def __init__(self, entry: str, config: dict[str, Any]) -> None:
        self._entry, self._config = entry, config
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = queue.SimpleQueue()
        self._serve: Callable[[Any], Any] | None = None
        self._busy_since = 0.0
        self._ended: asyncio.Event = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def start(self) -> None:
        """Start the thread, and call the entry point in it."""
        _require_real(self._loop, "a thread")
        threading.Thread(target=self._run, name=f"forkgym {self._entry}", daemon=True).start()

        def begin() -> None:
            self._serve = entry_point(self._entry)(**self._config)

        await self._submit(begin)

    async def call(self, message: Any) -> Any:
        """Call the function in the thread."""
        serve = self._serve
        if serve is None:
            raise WorkerDied("This thread worker is closed.")
        return await self._submit(lambda: serve(message))

    async def died(self) -> None:
        """Never returns."""
        await anyio.sleep_forever()

    async def pulse(self) -> Pulse:
        """How long the thread has been at its present call."""
        return Pulse(time.monotonic() - self._busy_since if self._busy_since else 0.0, os.getpid())

    async def close(self, *, within: float) -> None:
        """Let the thread finish its call and free what the function holds; give it up after `within` seconds."""
        serve, self._serve = self._serve, None
        close = getattr(serve, "close", None)
        if close is not None:
            self._jobs.put((close, self._loop.create_future()))
        self._jobs.put(None)
        with anyio.move_on_after(within):
            await self._ended.wait()

    async def _submit(self, job: Callable[[], Any]) -> Any:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._jobs.put((job, future))
        return await future

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, future = item
            if future.cancelled():
                continue
            self._busy_since = time.monotonic()
            value: Any = None
            error: BaseException | None = None
            try:
                value = job()
            except BaseException as raised:
                error = raised
            self._busy_since = 0.0
            if not self._report(_settle, future, value, error):
                return
        self._report(self._ended.set)

    def _report(self, callback: Callable[..., object], *args: Any) -> bool:
        """Call in the loop's thread; False where the loop is closed, so that nobody waits any more."""
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            return False
        return True


class ProcessRunner:
    """Calls the function in a process of its own: for work that computes, may crash, or must be killed.

    The process leads a process group and ends with this process, however this one ends, and so does all that it
    started: a thread in it and (on Linux) a guard beside it see their socket close.
    """

    def __init__(self, entry: str, config: dict[str, Any]) -> None:
        self._entry, self._config = entry, config
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._gone: WorkerDied | None = None

    async def start(self) -> None:
        """Start the process, and call the entry point in it."""
        _require_real(asyncio.get_running_loop(), "a process")
        encoded = wire.encode(wire.Start(self._entry, self._config))
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                ours.setblocking(False)
                self._process = subprocess.Popen(  # noqa: S603  # our own interpreter and program
                    [sys.executable, "-c", _PROGRAM, str(theirs.fileno()), str(os.getpid()), json.dumps(sys.path)],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=2,  # what an environment prints is not what its owner prints
                    start_new_session=True,
                )
            reader, self._writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()
            raise
        ready = self._expect(0)
        self._reading = asyncio.get_running_loop().create_task(self._read(reader), name=f"read {self._entry}")
        self._writer.write(encoded)
        await ready

    async def call(self, message: Any) -> Any:
        """Have the function called there."""
        id = next(self._ids)
        return await self._exchange(id, wire.Call(id, message))

    async def died(self) -> None:
        """Return when the process has ended."""
        if self._reading is not None:
            await asyncio.wait([self._reading])

    async def pulse(self) -> Pulse:
        """Ask the process; it answers while it works."""
        id = next(self._ids)
        busy: float = await self._exchange(id, wire.Ping(id))
        return Pulse(busy, self._process.pid if self._process is not None else 0)

    async def close(self, *, within: float) -> None:
        """Let the process finish its call; kill it and what it started after `within` seconds."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            if within > 0 and self._gone is None and self._writer is not None and self._reading is not None:
                self._writer.write(wire.encode(wire.Stop()))
                with anyio.move_on_after(within):
                    await self.died()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # children that it left, too
            process.wait()
            if self._reading is not None:
                self._reading.cancel()
            if self._writer is not None:
                self._writer.close()

    def _expect(self, id: int) -> asyncio.Future[Any]:
        if self._gone is not None:
            raise self._gone
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[id] = future
        return future

    async def _exchange(self, id: int, message: wire.Message) -> Any:
        frame = wire.encode(message)
        if self._writer is None:
            raise WorkerDied("This process worker has not been started.")
        future = self._expect(id)
        try:
            self._writer.write(frame)
            await self._writer.drain()
            return await future
        except ConnectionError as error:
            raise self._death() from error
        finally:
            self._waiting.pop(id, None)  # a late answer is dropped

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                self._take(wire.decode(await reader.readexactly(wire.length(await reader.readexactly(4)))))
        except (asyncio.IncompleteReadError, ConnectionError, wire.WireError) as error:
            self._gone = self._death(error if isinstance(error, wire.WireError) else None)
        finally:
            gone = self._gone = WorkerDied("This process worker was closed.") if self._gone is None else self._gone
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(gone)
                    future.exception()  # whoever waits gets it; if nobody does, it is not news

    def _take(self, message: wire.Message) -> None:
        id = 0 if isinstance(message, wire.Ready) else getattr(message, "id", -1)
        future = self._waiting.get(id)
        if future is None or future.done():
            return
        if isinstance(message, wire.Failed):
            future.set_exception(wire.untold(message))
        elif isinstance(message, wire.Pong):
            future.set_result(message.busy)
        else:
            future.set_result(getattr(message, "value", None))

    def _death(self, cause: Exception | None = None) -> WorkerDied:
        if self._gone is not None:
            return self._gone
        process = self._process
        if process is None:
            return WorkerDied("This process worker was closed.")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)  # its end of the socket is closed: it is ending
        code = process.returncode
        how = "stopped answering" if code is None else f"ended with status {code}"
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        return WorkerDied(f"Worker process {process.pid} ({self._entry}) {how}{f': {cause}' if cause else ''}.")


def _settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    elif isinstance(error, StopIteration):  # a future cannot hold one
        future.set_exception(RuntimeError(f"the worker raised StopIteration: {error}"))
    else:
        future.set_exception(error)


def _require_real(loop: asyncio.AbstractEventLoop, what: str) -> None:
    if isinstance(loop, VirtualLoop):
        raise VirtualLoopError(f"The virtual loop runs no worker in {what}; use run='inline' there.")


_RUNNERS: dict[str, type[InlineRunner] | type[ThreadRunner] | type[ProcessRunner]] = {
    "inline": InlineRunner,
    "thread": ThreadRunner,
    "process": ProcessRunner,
}


def make_runner(run: str, entry: str, config: dict[str, Any]) -> Runner:
    """A worker that is not started yet; call it from the loop that will use it.

    Args:
        run: "inline", "thread" or "process".
        entry: "module:function"; the function takes the config and returns the function of a message.
        config: Keyword arguments; plain data for a process.

    Raises:
        ForkgymError: No such runner.
    """
    check_runner(run)
    return _RUNNERS[run](entry, config)


def check_runner(run: str) -> None:
    """Refuse a runner that does not exist, with the nearest that does.

    Raises:
        ForkgymError: No such runner.
    """
    if run not in _RUNNERS:
        raise ForkgymError(
            f"There is no runner {run!r}.{nearest(str(run), _RUNNERS)} There are 'inline', 'thread' and 'process'."
        )
