"""What a command said, cut to length by rule: the first and the last half, and how much is missing between."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from typing import Any

import msgspec

__all__ = ["CompletedCommand", "Kept", "collect", "completed"]

_BLOCK = 1 << 16


class CompletedCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command that has ended.

    Attributes:
        argv: What was run.
        exit_code: As a shell would say it: 128 + the signal's number if one ended the command; 124 after a timeout.
        stdout: Standard output, cut by the rule of `Kept`; bytes that are no UTF-8 are replaced.
        stderr: Standard error, likewise.
        timed_out: The wall-clock limit ended it.
        output_exceeded: It wrote more than ``Limits.output_total`` and was killed.
        wall_seconds: Measured by the host.
        user_seconds: Processor time of all its processes that were waited for.
        system_seconds: Likewise, in the kernel.
        peak_memory: Largest resident size of one process, bytes.
    """

    argv: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str
    timed_out: bool = False
    output_exceeded: bool = False
    wall_seconds: float = 0.0
    user_seconds: float = 0.0
    system_seconds: float = 0.0
    peak_memory: int = 0

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with exit code 0."""
        return self.exit_code == 0


def exit_code(status: int | None, *, timed_out: bool) -> int:
    """An exit code as a shell would say it.

    Args:
        status: Wait status of the command; None if it was killed with its init.
        timed_out: By the wall clock.
    """
    if timed_out:
        return 124
    if status is None:
        return 137
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def completed(
    argv: tuple[str, ...],
    answer: dict[str, Any],
    output: Kept,
    error: Kept,
    *,
    exceeded: bool,
    wall_seconds: float,
) -> CompletedCommand:
    """What a spawner's answer and the streams come to.

    Args:
        argv: What was run.
        answer: Wait status, whether the clock ended it, and resources used.
        output: Standard output as far as it was kept.
        error: Standard error likewise.
        exceeded: It wrote more than it may in all.
        wall_seconds: Measured by the host.
    """
    return CompletedCommand(
        argv=argv,
        exit_code=exit_code(answer["status"], timed_out=answer["timed_out"]),
        stdout=output.text(complete=not exceeded),
        stderr=error.text(complete=not exceeded),
        timed_out=answer["timed_out"],
        output_exceeded=exceeded,
        wall_seconds=wall_seconds,
        user_seconds=answer.get("user_seconds", 0.0),
        system_seconds=answer.get("system_seconds", 0.0),
        peak_memory=answer.get("peak_memory", 0),
    )


class Kept:
    """The first and the last half of a stream.

    Args:
        limit: Bytes kept. The text is longer by one line that says how many were left out.
    """

    def __init__(self, limit: int) -> None:
        self._head_size, self._tail_size = limit - limit // 2, limit // 2
        self._head, self._tail = bytearray(), bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        """More bytes of the stream; how it is cut into calls makes no difference."""
        self.total += len(data)
        room = self._head_size - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room > 0 else data
        if len(self._tail) > 4 * self._tail_size + _BLOCK:
            del self._tail[: len(self._tail) - self._tail_size]

    def text(self, *, complete: bool = True) -> str:
        """The stream as text, with the marker where something is missing.

        Args:
            complete: False if the stream was ended by force: how much was written then is chance, so only the head
                and a marker without a number are given.
        """
        head = self._head.decode(errors="replace")
        if not complete:
            return f"{head}\n[... the rest is left out: too much output ...]\n"
        missing = self.total - len(self._head) - min(len(self._tail), self._tail_size)
        tail = bytes(self._tail[-self._tail_size :]) if self._tail_size else b""
        if missing <= 0:
            return (bytes(self._head) + bytes(self._tail)).decode(errors="replace")
        return f"{head}\n[... {missing} bytes left out ...]\n{tail.decode(errors='replace')}"


def collect(streams: list[tuple[int, Kept]], total: int, stop: Callable[[], None]) -> bool:
    """Read until every stream has ended, and close them.

    Args:
        streams: Read ends of pipes, and where their bytes go.
        total: Bytes of all streams together above which ``stop`` is called, once.
        stop: Ends the writers.

    Returns:
        Whether the total was exceeded.
    """
    poll = select.poll()
    open_streams = dict(streams)
    for descriptor in open_streams:
        poll.register(descriptor, select.POLLIN)
    exceeded = False
    try:
        while open_streams:
            for descriptor, _ in poll.poll():
                data = os.read(descriptor, _BLOCK)
                if data:
                    open_streams[descriptor].add(data)
                    continue
                poll.unregister(descriptor)
                del open_streams[descriptor]
                os.close(descriptor)
            if not exceeded and sum(kept.total for _, kept in streams) > total:
                exceeded = True
                stop()
    finally:
        for descriptor in open_streams:
            os.close(descriptor)
    return exceeded
