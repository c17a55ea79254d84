"""The protocol between a sandbox and whatever keeps its files and runs its commands. No implementation lives here."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from .images import Image
from .inside.trees import Item
from .limits import Limits
from .output import CompletedCommand
from .state import Difference

__all__ = ["Command", "Engine", "Layer"]


class Layer:
    """A numbered layer of an engine, forgotten there when nothing refers to it here.

    Attributes:
        number: The engine's number.
        bytes: What it holds, once frozen.
        difference: Of the state whose topmost frozen layer this is, once it was asked for. A frozen layer lies on one
            stack for ever, so this never changes.
        birth: What the engine has to be told before it can use a new layer; None once it was.
    """

    __slots__ = ("__weakref__", "_unused", "birth", "bytes", "difference", "number")

    def __init__(self, number: int, unused: deque[int], birth: tuple[Any, ...] | None = None, size: int = 0) -> None:
        self.number, self.bytes, self._unused, self.birth = number, size, unused, birth
        self.difference: Difference | None = None

    def __del__(self) -> None:
        self._unused.append(self.number)


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """One command to run.

    Attributes:
        argv: Program and arguments.
        environment: All variables.
        cwd: Directory as the sandbox names it.
        stdin: What it reads.
        timeout: Wall-clock seconds.
        limits: Everything else.
        merge_stderr: Standard error goes into standard output, in order.
        network: A network of `BrokerEngine.listen`; -1 for one with nothing in it.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    cwd: str
    stdin: bytes
    timeout: float
    limits: Limits
    merge_stderr: bool
    network: int = -1


class Engine(Protocol):
    """Keeps layers and runs commands; shared by all sandboxes of a process that use the same options.

    Attributes:
        backend: ``overlay``, ``reflink`` or ``copy``.
        isolation: ``namespaces`` or ``none``.
        whole_copies: A layer holds the whole state, so a state needs only its topmost.
        preload: Path, as commands see it, of the library that makes them repeatable; empty without one.
    """

    backend: str
    isolation: str
    preload: str
    whole_copies: bool

    @property
    def alive(self) -> bool:
        """Whether it can still be used."""

    def begin(self, image: Image, frozen: tuple[Layer, ...], space: int, files: int) -> Layer:
        """A new writable layer, made and mounted at its first use."""

    def mount(self, *layers: Layer) -> None:
        """Make the views of writable layers now."""

    def freeze(self, layer: Layer) -> bool:
        """Freeze a layer; False if nothing was written to it, and it stays writable."""

    def fork(
        self, layer: Layer, image: Image, frozen: tuple[Layer, ...], space: int, files: int
    ) -> tuple[Layer, Layer | None]:
        """Make a mounted sibling of a mounted writable layer that shows the same, in one request.

        Returns:
            The sibling, and None where the layer stays writable; else the layer is frozen now, and the second is to be
            written in its place.
        """

    def scan(self, layer: Layer) -> list[Item]:
        """Findings of a layer."""

    def flatten(self, frozen: tuple[Layer, ...]) -> Layer:
        """One layer for many."""

    def open(self, layer: Layer, part: str, path: str, flags: int, *, parents: bool = False) -> int:
        """Open a file of the merged state; the descriptor is the caller's."""

    def run(self, layer: Layer, command: Command) -> CompletedCommand:
        """Run a command to its end."""

    def close(self) -> None:
        """End everything that runs and forget all layers."""
