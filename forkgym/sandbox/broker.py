"""The host's side of the broker: starting it, talking to it, compiling its fast path. `inside` is the other side."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from .engine import Command, Layer
from .errors import BackendUnavailableError, SandboxClosedError, SandboxError
from .images import OUTSIDE_ID, Image, ImageStore, process_mark
from .inside.rootfs import PRELOADED
from .inside.serve import receive, send
from .inside.trees import Item
from .output import CompletedCommand, Kept, collect, completed

__all__ = ["AGENT_ID", "BrokerEngine", "compiled_spawner"]

AGENT_ID = 1000
"""User and group of every command, as commands see it."""
_INSIDE = Path(__file__).parent / "inside"
_PROGRAM = "import os, sys; sys.path.insert(0, os.environ['INSIDE']); from inside.serve import main; main()"


def compiled(store: ImageStore, name: str, sources: Sequence[str], *options: str) -> Path | None:
    """A compiled C file from the cache, built now if it is not there.

    Args:
        store: Where the cache is.
        name: What it is called there.
        sources: Files of ``inside``.
        options: Of the compiler.

    Returns:
        None without a C compiler, if it fails, or if ``FORKGYM_SANDBOX_COMPILER`` is set to nothing.
    """
    compiler = shutil.which(os.environ.get("FORKGYM_SANDBOX_COMPILER", "cc") or "/nonexistent")
    paths = [_INSIDE / source for source in sources]
    mark = blake2b("\0".join(options).encode(), digest_size=8)
    for path in paths:
        mark.update(path.read_bytes())
    target = store.root / "lib" / f"{name}-{os.uname().machine}-{mark.hexdigest()}"
    if compiler is None:
        return None
    if target.exists():
        return target
    partial = store.root / "work" / f"{name}-{process_mark(os.getpid())}-{os.urandom(4).hex()}"
    command = [compiler, "-O2", *options, "-o", str(partial), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        partial.unlink(missing_ok=True)
        return None
    partial.chmod(0o755)
    partial.rename(target)
    return target


def compiled_spawner(store: ImageStore) -> Path | None:
    """The library that makes layers and starts commands, see `compiled`."""
    return compiled(store, "spawn", ("spawn.c", "layers.c"), "-shared", "-fPIC")


def compiled_starter(store: ImageStore) -> Path | None:
    """The program that starts commands; None also where there is no static C library."""
    return compiled(store, "starter", ("spawn.c",), "-static", "-DSTARTER")


class BrokerEngine:
    """One broker process: see `Engine`.

    Args:
        store: Where the images are.
        backend: ``overlay`` or ``copy`` (each copy on a tmpfs).
        user_namespace: False only for root on machines that forbid user namespaces.
        visible: Directories of the host that commands may read.
        seccomp: Filter system calls.
        etc: More files for the sandbox's own ``/etc``: path below it → text.
        preload: A library that commands may load; they see it at `preload`.
        compiled: Use the compiled spawner where it can be built.

    Raises:
        BackendUnavailableError: The kernel refused a step; the text says which.
    """

    isolation = "namespaces"

    def __init__(
        self,
        store: ImageStore,
        *,
        backend: str = "overlay",
        user_namespace: bool = True,
        visible: tuple[str, ...] = (),
        seccomp: bool = True,
        etc: Mapping[str, str] | None = None,
        preload: Path | None = None,
        compiled: bool = True,
    ) -> None:
        self.backend = backend
        self.whole_copies = backend != "overlay"
        self._user_namespace = user_namespace
        self._pid = os.getpid()
        self._unused: deque[int] = deque()
        self._numbers = itertools.count(1)
        self._local = threading.local()
        self._lock = threading.Lock()
        library = compiled_spawner(store) if compiled else None
        self.compiled = library is not None
        self.preload = PRELOADED if preload else ""
        starter = compiled_starter(store) if compiled else None
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = mine
        config = {
            "host": os.getpid(),
            "images": str(store.images),
            "point": str(store.root / "mount"),
            "visible": visible,
            "library": None if library is None else str(library),
            "starter": None if starter is None else str(starter),
            "backend": backend,
            "owner": AGENT_ID if user_namespace else OUTSIDE_ID,
            "outside": OUTSIDE_ID if os.geteuid() == 0 else os.geteuid(),
            "user_namespace": user_namespace,
            "seccomp": seccomp,
            "etc": dict(etc or {}),
            "preload": None if preload is None else str(preload),
        }
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", "-S", "-B", "-c", _PROGRAM],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            env={"PATH": os.defpath, "INSIDE": str(Path(__file__).parent)},
            cwd="/",
            start_new_session=True,
        )
        theirs.close()
        send(mine, config)
        answer, _ = receive(mine)
        if answer is None or "error" in answer:
            self.close()
            reason = "it ended at once" if answer is None else answer["error"][1]
            raise BackendUnavailableError(f"the sandbox broker could not start: {reason}")

    @property
    def alive(self) -> bool:
        """See `Engine.alive`."""
        return self._control.fileno() >= 0 and self._process.poll() is None

    @property
    def process_id(self) -> int:
        """Process id of the launcher, the broker's parent."""
        return self._process.pid

    def _channel(self) -> socket.socket:
        if os.getpid() != self._pid:
            raise SandboxError(
                f"this sandbox belongs to process {self._pid}, and a forked process uses it; create one here instead"
            )
        channel: socket.socket | None = getattr(self._local, "channel", None)
        if channel is None:
            channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with self._lock, theirs:
                try:
                    send(self._control, {}, (theirs.fileno(),))
                except OSError:
                    raise SandboxClosedError("the sandbox broker is gone; create a new sandbox") from None
            self._local.channel = channel
        return channel

    def _unused_now(self) -> list[int]:
        found = []
        with contextlib.suppress(IndexError):
            while True:
                found.append(self._unused.popleft())
        return found

    def _ask(self, op: str, *layers: Layer, **message: Any) -> tuple[dict[str, Any], list[int]]:
        channel = self._channel()
        self._tell(channel, op, (), message, layers)
        answer = self._hear(channel)
        for layer in layers:
            layer.birth = None
        return answer

    def _tell(
        self,
        channel: socket.socket,
        op: str,
        descriptors: tuple[int, ...],
        message: dict[str, Any],
        layers: tuple[Layer, ...],
    ) -> None:
        message["op"] = op
        births = [layer.birth for layer in layers if layer.birth is not None]
        if births:
            message["begin"] = births
        if self._unused:
            message["unused"] = self._unused_now()
        try:
            send(channel, message, descriptors)
        except OSError:
            raise SandboxClosedError("the sandbox broker is gone; create a new sandbox") from None

    def _hear(self, channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
        try:
            answer, descriptors = receive(channel)
        except ConnectionResetError:
            answer, descriptors = None, []
        if answer is None:
            raise SandboxClosedError("the sandbox broker is gone; create a new sandbox")
        if "error" in answer:
            raise OSError(*answer["error"])
        return answer, descriptors

    def begin(self, image: Image, frozen: tuple[Layer, ...], space: int, files: int) -> Layer:
        """See `Engine.begin`."""
        number = next(self._numbers)
        return Layer(number, self._unused, (number, image.id, [old.number for old in frozen], space, files))

    def mount(self, *layers: Layer) -> None:
        """See `Engine.mount`."""
        self._ask("mount", *layers, layers=[layer.number for layer in layers])

    def freeze(self, layer: Layer) -> bool:
        """See `Engine.freeze`."""
        answer, _ = self._ask("freeze", layer, layer=layer.number)
        layer.bytes = answer["bytes"]
        return bool(answer["frozen"])

    def fork(
        self, layer: Layer, image: Image, frozen: tuple[Layer, ...], space: int, files: int
    ) -> tuple[Layer, Layer | None]:
        """See `Engine.fork`."""
        below = [] if self.whole_copies else [old.number for old in frozen]
        child, after = (Layer(next(self._numbers), self._unused) for _ in range(2))
        answer, _ = self._ask(
            "fork",
            layer,
            layer=layer.number,
            child=child.number,
            after=after.number,
            on=(image.id, below, space, files),
        )
        if not answer["frozen"]:
            return child, None
        layer.bytes = answer["bytes"]
        return child, after

    def scan(self, layer: Layer) -> list[Item]:
        """See `Engine.scan`."""
        answer, _ = self._ask("scan", layer, layer=layer.number)
        return [Item(*item) for item in answer["items"]]

    def flatten(self, frozen: tuple[Layer, ...]) -> Layer:
        """See `Engine.flatten`."""
        layer = Layer(next(self._numbers), self._unused)
        answer, _ = self._ask("flatten", layer=layer.number, frozen=[old.number for old in frozen])
        layer.bytes = answer["bytes"]
        return layer

    def open(self, layer: Layer, part: str, path: str, flags: int, *, parents: bool = False) -> int:
        """See `Engine.open`."""
        _, descriptors = self._ask(
            "open", layer, layer=layer.number, part=part, path=path, flags=flags, mode=0o644, parents=parents
        )
        return descriptors[0]

    def listen(self, port: int) -> tuple[int, socket.socket]:
        """Make a network for one command at a time, in which this process listens.

        Args:
            port: On the loopback of that network. Below 1024 no command can take it.

        Returns:
            The network's number for `Command.network`, and the listening socket. The network goes when `unlisten` has
            been called and the socket is closed.
        """
        answer, descriptors = self._ask("listen", port=port)
        return answer["network"], socket.socket(fileno=descriptors[0])

    def unlisten(self, network: int) -> None:
        """Let go of a network that no command uses."""
        self._ask("unlisten", network=network)

    def run(self, layer: Layer, command: Command) -> CompletedCommand:
        """See `Engine.run`."""
        channel = self._channel()
        limits = command.limits
        output, error = Kept(limits.output), Kept(limits.output)
        descriptors, streams = _standard_streams(command, output, error)
        resources = limits.resources()
        if not self._user_namespace:
            resources["processes"] += _tasks_of(OUTSIDE_ID)
        message = {
            "layer": layer.number,
            "argv": command.argv,
            "environment": dict(command.environment),
            "cwd": command.cwd,
            "timeout": command.timeout,
            "limits": resources,
            "shared_memory": limits.shared_memory,
            "network": command.network,
        }
        started = time.perf_counter()
        try:
            self._tell(channel, "run", descriptors, message, (layer,))
        except BaseException:
            for stream, _ in streams:
                os.close(stream)
            raise
        finally:
            for descriptor in set(descriptors):
                os.close(descriptor)
        try:
            exceeded = collect(streams, limits.output_total, lambda: send(channel, {"op": "kill"}))
        except BaseException:
            # An interrupt: the channel's answer is still to come, so the channel cannot be used again.
            del self._local.channel
            channel.close()
            raise
        answer, _ = self._hear(channel)
        layer.birth = None
        return completed(
            command.argv, answer, output, error, exceeded=exceeded, wall_seconds=time.perf_counter() - started
        )

    def close(self) -> None:
        """End the broker and with it every command, mount and layer."""
        self._control.close()
        channel = getattr(self._local, "channel", None)
        if channel is not None:
            channel.close()
        if os.getpid() == self._pid:
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()  # the broker asked to die with its launcher
                self._process.wait()


def _standard_streams(
    command: Command, output: Kept, error: Kept
) -> tuple[tuple[int, int, int], list[tuple[int, Kept]]]:
    """Descriptors for the command's standard streams, and the ends to read from."""
    if command.stdin:
        source = os.memfd_create("stdin", os.MFD_CLOEXEC)
        with open(source, "wb", closefd=False) as file:
            file.write(command.stdin)
        os.lseek(source, 0, os.SEEK_SET)
    else:
        source = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    read, write = os.pipe()
    _hand_over(source, write)
    if command.merge_stderr:
        return (source, write, write), [(read, output)]
    second_read, second_write = os.pipe()
    _hand_over(second_write)
    return (source, write, second_write), [(read, output), (second_read, error)]


def _tasks_of(user: int) -> int:
    """Processes and threads that a user has: without a user namespace the kernel counts them against each other."""
    found = 0
    with os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdigit():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                    if entry.stat().st_uid == user:
                        found += os.stat(f"{entry.path}/task").st_nlink - 2
    return found


def _hand_over(*descriptors: int) -> None:
    """Let the command open its streams again by name (/dev/stdout), though another user made them."""
    if os.geteuid() == 0:
        for descriptor in descriptors:
            if not stat.S_ISCHR(os.fstat(descriptor).st_mode):
                os.fchown(descriptor, OUTSIDE_ID, OUTSIDE_ID)
