"""Sandboxes where no namespace is allowed: whole copies of the files, and plain processes with limits.

This keeps files of forks apart and repeats well; it protects the host from nothing. Hence it must be asked for by name
(``isolation="none"``).
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import subprocess
import sys
import time
import weakref
from collections import deque
from pathlib import Path
from typing import Any

from .engine import Command, Layer
from .errors import SandboxClosedError, SandboxError
from .images import Image, ImageStore, process_mark
from .inside import kernel
from .inside.serve import make_parents
from .inside.stores import CopyStore
from .inside.trees import Item, remove_tree
from .output import CompletedCommand, Kept, collect, completed

__all__ = ["LocalEngine"]

_PROGRAM = "import sys; sys.path.insert(0, sys.argv.pop(1)); from inside.alone import main; main()"


class LocalEngine:
    """Copies in a folder of the store, commands as children of this process: see `Engine`.

    Args:
        store: Where the images are.
        reflink: Share blocks copy-on-write; needs btrfs, XFS or alike below the store.
        preload: A library that commands may load.
    """

    isolation = "none"
    whole_copies = True

    def __init__(self, store: ImageStore, *, reflink: bool = False, preload: Path | None = None) -> None:
        self.preload = str(preload or "")
        self.backend = "reflink" if reflink else "copy"
        self._folder = store.root / "work" / f"copies-{process_mark(os.getpid())}-{os.urandom(4).hex()}"
        self._folder.mkdir(mode=0o700)
        self._store = CopyStore(str(store.images), str(self._folder), capped=False, reflink=reflink)
        self._unused: deque[int] = deque()
        self._numbers = itertools.count(1)
        self._closed = False
        pid = os.getpid()
        self._finalizer = weakref.finalize(self, _remove_own, str(self._folder), pid)

    @property
    def alive(self) -> bool:
        """See `Engine.alive`."""
        return not self._closed

    def _ready(self) -> None:
        if self._closed:
            raise SandboxClosedError("the sandbox engine is closed; create a new sandbox")
        with contextlib.suppress(IndexError):
            while True:
                layer = self._unused.popleft()
                if self._store.forget(layer):
                    self._store.discard(layer)

    def begin(self, image: Image, frozen: tuple[Layer, ...], space: int, files: int) -> Layer:
        """See `Engine.begin`; there is no limit on the disk space of a copy."""
        self._ready()
        number = next(self._numbers)
        self._store.begin(number, image.id, tuple(layer.number for layer in frozen), space, files)
        return Layer(number, self._unused)

    def freeze(self, layer: Layer) -> bool:
        """See `Engine.freeze`."""
        frozen, layer.bytes = self._store.freeze(layer.number)
        return frozen

    def mount(self, *layers: Layer) -> None:
        """See `Engine.mount`: a copy is there from the beginning."""

    def fork(
        self,
        layer: Layer,
        image: Image,
        frozen: tuple[Layer, ...],  # noqa: ARG002
        space: int,
        files: int,
    ) -> tuple[Layer, Layer]:
        """See `Engine.fork`."""
        self.freeze(layer)
        return self.begin(image, (layer,), space, files), self.begin(image, (layer,), space, files)

    def scan(self, layer: Layer) -> list[Item]:
        """See `Engine.scan`."""
        self._ready()
        return self._store.scan(layer.number)

    def flatten(self, frozen: tuple[Layer, ...]) -> Layer:
        """See `Engine.flatten`: the topmost copy is whole."""
        return frozen[0]

    def open(self, layer: Layer, part: str, path: str, flags: int, *, parents: bool = False) -> int:
        """See `Engine.open`."""
        self._ready()
        root = os.open(f"{self._store.root(layer.number)}/{part}", os.O_PATH | os.O_CLOEXEC)
        try:
            if parents:
                make_parents(root, path)
            return kernel.open_beneath(root, path, flags, 0o644)
        finally:
            os.close(root)

    def run(self, layer: Layer, command: Command) -> CompletedCommand:
        """See `Engine.run`; ``/testbed`` and ``/tmp`` are where this copy lies."""
        self._ready()
        root = self._store.root(layer.number)
        temporary = f"{root}/tmp"  # noqa: S108
        environment = {**command.environment, "TMPDIR": temporary, "HOME": temporary}
        config = {
            "argv": command.argv,
            "environment": environment,
            "cwd": _outside(root, command.cwd),
            "timeout": command.timeout,
            "limits": command.limits.resources(processes=False),
            "host": os.getpid(),
        }
        output, error = Kept(command.limits.output), Kept(command.limits.output)
        started = time.perf_counter()
        process, streams, report = _start(config, command, output, error)
        exceeded = collect(streams, command.limits.output_total, process.terminate)
        with open(report, "rb") as file:
            said = file.read()
        process.wait()
        answer: dict[str, Any] = json.loads(said) if said else {"status": None, "timed_out": False}
        return completed(
            command.argv, answer, output, error, exceeded=exceeded, wall_seconds=time.perf_counter() - started
        )

    def close(self) -> None:
        """Remove all copies."""
        self._closed = True
        self._finalizer()


def _outside(root: str, cwd: str) -> str:
    for inside, part in (("/testbed", "tree"), ("/tmp", "tmp")):  # noqa: S108
        if cwd == inside or cwd.startswith(f"{inside}/"):
            return f"{root}/{part}{cwd[len(inside) :]}"
    raise SandboxError(f"cwd {cwd} is outside /testbed and /tmp; without namespaces there is nothing else to enter")


def _start(
    config: dict[str, object], command: Command, output: Kept, error: Kept
) -> tuple[subprocess.Popen[bytes], list[tuple[int, Kept]], int]:
    memory, stdin = os.memfd_create("config"), os.memfd_create("stdin")
    report_read, report_write = os.pipe()
    read, write = os.pipe()
    streams = [(read, output)]
    second_write = write
    if not command.merge_stderr:
        second_read, second_write = os.pipe()
        streams.append((second_read, error))
    try:
        with open(memory, "wb", closefd=False) as file:
            file.write(json.dumps(config).encode())
        with open(stdin, "wb", closefd=False) as file:
            file.write(command.stdin)
        os.lseek(stdin, 0, os.SEEK_SET)
        arguments = ["-I", "-S", "-B", "-c", _PROGRAM, str(Path(__file__).parent), str(memory), str(report_write)]
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, *arguments],
            stdin=stdin,
            stdout=write,
            stderr=second_write,
            pass_fds=(memory, report_write),
            env={"PATH": os.defpath},
            cwd="/",
        )
    except BaseException:
        for descriptor in (report_read, *(stream for stream, _ in streams)):
            os.close(descriptor)
        raise
    finally:
        for descriptor in {memory, stdin, report_write, write, second_write}:
            os.close(descriptor)
    return process, streams, report_read


def _remove_own(folder: str, pid: int) -> None:
    if os.getpid() == pid:
        with contextlib.suppress(OSError):
            remove_tree(folder)


def supports_reflink(folder: Path) -> bool:
    """Whether the file system of ``folder`` shares blocks copy-on-write."""
    import fcntl

    from .inside.trees import FICLONE

    names = [folder / f"reflink-{process_mark(os.getpid())}-{os.urandom(4).hex()}-{part}" for part in "ab"]
    try:
        with open(names[0], "wb+") as first, open(names[1], "wb") as second:
            first.write(b"x" * 4096)
            first.flush()
            fcntl.ioctl(second.fileno(), FICLONE, first.fileno())
        return True
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.EXDEV, errno.ENOSYS):
            return False
        raise
    finally:
        for name in names:
            name.unlink(missing_ok=True)
