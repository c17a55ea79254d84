"""Takes away layers that no state refers to any more, in a process of its own beside the broker.

An unmount waits for grace periods of the kernel, which take milliseconds on a busy machine; no request should wait
for that.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable

__all__ = ["Undertaker"]

_NUMBER = struct.Struct("<Q")


class Undertaker:
    """Does what it is told in order, while the caller goes on.

    Args:
        discard: Takes away one layer; runs in the new process, which is a copy of this one.
        most: Layers that may wait; then the caller waits.
    """

    def __init__(self, discard: Callable[[int], None], most: int = 128) -> None:
        self._discard, self._most, self._waiting = discard, most, 0
        read, self._orders = os.pipe()
        self._done, write = os.pipe()
        if os.fork() == 0:
            os.close(self._orders)
            os.close(self._done)
            _work(read, write, discard)
        os.close(read)
        os.close(write)
        os.set_blocking(self._done, False)

    def take(self, layer: int) -> None:
        """Have a layer taken away; nobody may know it any more."""
        try:
            os.write(self._orders, _NUMBER.pack(layer))
        except BrokenPipeError:  # it died: then this process does the work
            self._discard(layer)
            return
        self._waiting += 1
        if self._waiting > self._most // 2:
            with contextlib.suppress(BlockingIOError):
                self._waiting -= len(os.read(self._done, self._most))
        if self._waiting > self._most:
            os.set_blocking(self._done, True)
            self._waiting -= len(os.read(self._done, self._most)) or self._waiting
            os.set_blocking(self._done, False)


def _work(orders: int, done: int, discard: Callable[[int], None]) -> None:
    try:
        while data := os.read(orders, _NUMBER.size):
            discard(*_NUMBER.unpack(data))
            os.write(done, b".")
    finally:
        os._exit(0)
