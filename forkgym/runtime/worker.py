"""The inside of a worker process: one thread reads frames (and sees the owner die), the main thread works on calls.

Started by `runners.ProcessRunner`; not meant to be started by hand.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import queue
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from forkgym.core.errors import ForkgymError
from forkgym.runtime import wire

__all__ = ["check_entry", "entry_point", "main"]

_PR_SET_PDEATHSIG = 1


def entry_point(entry: str) -> Callable[..., Callable[[Any], Any]]:
    """The function that "module:function" names.

    Raises:
        ForkgymError: There is none, or it stands in `__main__`, which another process does not have.
    """
    check_entry(entry)
    module, _, name = entry.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ForkgymError(f"The worker's entry point {entry!r} cannot be imported: {error}") from error
    if not callable(found):
        raise ForkgymError(f"The worker's entry point {entry!r} is a {type(found).__name__}, not a function.")
    function: Callable[..., Callable[[Any], Any]] = found
    return function


def check_entry(entry: str) -> None:
    """Refuse what cannot be an entry point, without importing anything.

    Raises:
        ForkgymError: It is not "module:function", or of `__main__`.
    """
    module, _, name = entry.partition(":")
    if not module or not name or module == "__main__":
        raise ForkgymError(f"A worker's entry point is 'module:function' of an importable module, not {entry!r}.")


class _Worker:
    """State of this process.

    The reading thread puts calls into `calls` and answers pings; both threads write, under a lock.
    """

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.calls: queue.SimpleQueue[wire.Message] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.busy_since = 0.0

    def send(self, message: wire.Message) -> None:
        frame = wire.encode(message)
        with self.lock:
            self.channel.sendall(frame)

    def read(self) -> None:
        """Read frames until the owner is gone, and then end this process and all that it started, at once."""
        try:
            with self.channel.makefile("rb") as stream:
                while len(prefix := stream.read(4)) == 4:
                    message = wire.decode(stream.read(wire.length(prefix)))
                    if isinstance(message, wire.Ping):
                        busy = time.monotonic() - self.busy_since if self.busy_since else 0.0
                        self.send(wire.Pong(message.id, busy))
                    else:
                        self.calls.put(message)
        except (OSError, wire.WireError) as error:
            print(f"forkgym worker {os.getpid()}: {error}", file=sys.stderr)
        _end_group()

    def work(self) -> None:
        """Call the entry point, then work on calls in order until told to stop."""
        start = self.calls.get()
        if not isinstance(start, wire.Start):
            return
        try:
            serve = entry_point(start.entry)(**start.config)
        except Exception as error:  # whatever it is, the owner is told
            self.send(wire.told(0, error))
            return
        self.send(wire.Ready())
        while isinstance(call := self.calls.get(), wire.Call):
            self.busy_since = time.monotonic()
            answer: wire.Message
            try:
                answer = wire.Result(call.id, serve(call.message))
            except Exception as error:
                answer = wire.told(call.id, error)
            self.busy_since = 0.0
            try:
                self.send(answer)
            except wire.WireError as error:
                self.send(wire.told(call.id, error))
        close = getattr(serve, "close", None)
        if close is not None:
            close()


def _end_group(leader: int = 0) -> NoReturn:
    """Kill the worker's process group: the worker (`leader`, by default this process) and all that it started."""
    if os.getpgrp() == (leader or os.getpid()):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _guarded(channel: socket.socket, owner: int) -> int:
    """Start a guard: a process that kills this group once the owner is gone, even if this process hangs.

    The reading thread does the same, but needs the interpreter. The guard dies with this process (so that the owner
    sees the socket close), which only Linux offers; elsewhere there is none.

    Returns:
        The guard's process id, or 0.
    """
    if os.getppid() != owner:
        _end_group()
    if sys.platform != "linux":
        return 0
    worker = os.getpid()
    guard = os.fork()
    if guard:
        return guard
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == worker:
        poll = select.poll()
        poll.register(channel.fileno(), select.POLLRDHUP)
        poll.poll()
    _end_group(worker)


def main(descriptor: int, owner: int) -> None:
    """Run the worker.

    Args:
        descriptor: File descriptor of the socket to the owner.
        owner: Process id of the owner.
    """
    channel = socket.socket(fileno=descriptor)
    guard = _guarded(channel, owner)
    worker = _Worker(channel)
    threading.Thread(target=worker.read, name="forkgym worker reader", daemon=True).start()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the owner is gone: the reader ends the process
        worker.work()
    if guard:
        os.kill(guard, signal.SIGKILL)
        os.waitpid(guard, 0)
