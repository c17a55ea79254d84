"""`Sandbox`: a working tree and commands in it, that forks. What it stands on is chosen in ``engines``."""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from .engine import Command, Engine, Layer
from .engines import engine_for, image_store
from .errors import SandboxClosedError, SandboxError, SandboxPathError
from .images import Image
from .limits import Limits, check_timeout, command_environment
from .output import CompletedCommand
from .patch import render_patch
from .repeat import Clock, repeat_variables
from .state import Difference, Entry, apply_layer, hash_state, is_scratch

if TYPE_CHECKING:
    from .network import Network

__all__ = ["DEFAULT_SCRATCH", "MAXIMUM_DEPTH", "TREE", "Change", "Sandbox", "Snapshot"]

TREE = "/testbed"
"""Where commands find the working tree."""
MAXIMUM_DEPTH = 32
"""Frozen layers above the base; one more and they are merged into one."""
DEFAULT_SCRATCH = ("/tmp", "__pycache__", ".pytest_cache", ".hypothesis")  # noqa: S108
"""Paths that fork with the state and stay out of its hash and its differences."""


class Change(msgspec.Struct, frozen=True):
    """One name of the working tree that differs from the base.

    Attributes:
        path: Relative to the working tree (absolute for what lies outside it).
        kind: ``added``, ``modified`` or ``deleted``.
        before: In the base.
        after: Now.
    """

    path: str
    kind: str
    before: Entry | None
    after: Entry | None


class Snapshot:
    """A frozen state: a tuple of layers, a directory and variables. Costs nothing to keep but its changed bytes.

    Attributes:
        image: The base.
        cwd: Working directory of commands.
        environment: The sandbox's own variables.
    """

    __slots__ = ("_engine", "_layers", "cwd", "environment", "image")

    def __init__(
        self, engine: Engine, image: Image, layers: tuple[Layer, ...], cwd: str, environment: Mapping[str, str]
    ) -> None:
        self._engine, self.image, self._layers, self.cwd = engine, image, layers, cwd
        self.environment = dict(environment)

    @property
    def depth(self) -> int:
        """Frozen layers above the base."""
        return len(self._layers)

    def __repr__(self) -> str:
        return f"Snapshot(base={self.image.id[:12]}, depth={self.depth}, cwd={self.cwd!r})"


class Sandbox:
    """A directory tree with commands that run in it, isolated, limited, repeatable, and cheap to fork.

    One thread at a time may use one sandbox; different sandboxes may be used by different threads. Made by
    `Sandbox.create` or `fork`.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        limits: Limits,
        scratch: tuple[str, ...],
        shell: str,
        repeat: Mapping[str, str] | None = None,
    ) -> None:
        self._engine = snapshot._engine
        self._repeat = repeat or {}
        self.image, self.limits, self.scratch, self._shell = snapshot.image, limits, scratch, shell
        self._closed = False
        self._adopt(snapshot)

    @classmethod
    def create(
        cls,
        base: str | os.PathLike[str] | Image,
        *,
        backend: str = "auto",
        isolation: str = "namespaces",
        limits: Limits | None = None,
        env: Mapping[str, str] | None = None,
        scratch: Iterable[str] = DEFAULT_SCRATCH,
        skip: Iterable[str] = (),
        visible: Sequence[str] | None = None,
        seccomp: bool = True,
        shell: str = "/bin/sh",
        network: Network | None = None,
        random_seed: int | None = None,
        clock: Clock | None = None,
    ) -> Sandbox:
        """A sandbox over a base directory, which is copied once for all sandboxes and never written.

        Args:
            base: A directory, or what `prepare` made of one.
            backend: ``overlay``, ``overlay-root``, ``reflink``, ``copy``, or ``auto`` for the first that works here.
            isolation: ``namespaces``; or ``none``: files are kept apart, processes are not isolated at all.
            limits: What commands may use.
            env: Variables beside the deterministic ones.
            scratch: See `DEFAULT_SCRATCH`.
            skip: Names of the base that are left out wherever they occur (besides ``__pycache__``).
            visible: Absolute directories of the host that commands may read; default: system programs and this
                Python.
            seccomp: Filter system calls.
            shell: Runs command strings, by ``-c``.
            network: Recorded answers and a package index for its commands; by default they reach nobody.
            random_seed: Random bytes of the system come from a stream of this number, the same for each command.
            clock: What the time of day is; see `Clock`.

        Raises:
            BackendUnavailableError: This machine cannot do that; the text says why.
            SandboxError: The base is no directory.
        """
        source = engine_for if network is None else network.engine
        wanted = random_seed is not None or clock is not None
        engine = source(backend, isolation=isolation, visible=visible, seccomp=seccomp, repeat=wanted)
        repeat = repeat_variables(engine.preload, random_seed, clock) if wanted else None
        image = base if isinstance(base, Image) else image_store().admit(base, skip=skip)
        start = Snapshot(engine, image, (), TREE, env or {})
        return cls(start, limits or Limits(), tuple(scratch), shell, repeat)

    def _adopt(self, snapshot: Snapshot) -> None:
        self._layers, self.cwd = snapshot._layers, snapshot.cwd
        self.environment = dict(snapshot.environment)
        self._upper: Layer | None = None
        self._touched = False
        self._current: Difference | None = None

    # --- what is there

    @property
    def backend(self) -> str:
        """What keeps the files: ``overlay``, ``reflink`` or ``copy``."""
        return self._engine.backend

    @property
    def isolation(self) -> str:
        """``namespaces`` or ``none``."""
        return self._engine.isolation

    @property
    def depth(self) -> int:
        """Frozen layers above the base."""
        return len(self._layers)

    def __repr__(self) -> str:
        how = "closed" if self._closed else f"{self.backend}, isolation {self.isolation}, depth {self.depth}"
        return f"Sandbox(base={self.image.id[:12]}, {how})"

    def _writable(self) -> Layer:
        if self._closed:
            raise SandboxClosedError("this sandbox is closed; create or fork another")
        if self._upper is None:
            self._upper = self._engine.begin(self.image, self._layers, *self._room())
        return self._upper

    def _room(self) -> tuple[int, int]:
        """Bytes and files that a layer above the frozen ones may hold."""
        space, files = self.limits.disk - sum(layer.bytes for layer in self._layers), self.limits.files
        if self._engine.whole_copies:
            return self.image.size + space, len(self.image.manifest.entries) + files
        return space, files

    def mount(self) -> None:
        """Make the writable layer and its view now, not at the first command: for those who measure."""
        self._engine.mount(self._writable())

    # --- commands and files

    def run(
        self,
        command: str | Sequence[str],
        *,
        timeout: float | None = None,
        stdin: str | bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        merge_stderr: bool = False,
    ) -> CompletedCommand:
        """Run a command to its end; whatever it left running is killed.

        Args:
            command: A program and its arguments, or a string for the shell.
            timeout: Wall-clock seconds, instead of ``limits.wall_seconds``.
            stdin: What it reads; by default nothing.
            env: More variables for this command only.
            cwd: Another directory for this command only, absolute or relative to `cwd`.
            merge_stderr: Put standard error into standard output, in the order of writing.

        Raises:
            SandboxError: The command is empty or holds a zero byte, or the timeout is no positive number of seconds.
        """
        argv = (self._shell, "-c", command) if isinstance(command, str) else tuple(command)
        variables = {**command_environment(), **self._repeat, **self.environment, **(env or {})}
        folder = self.cwd if cwd is None else posixpath.normpath(posixpath.join(self.cwd, cwd))
        if not argv or any("\0" in text for text in (*argv, folder, *variables, *variables.values())):
            raise SandboxError("a command needs at least a program, and no text of it may hold a zero byte")
        layer = self._writable()
        self._touch()
        return self._engine.run(
            layer,
            Command(
                argv=argv,
                environment=variables,
                cwd=folder,
                stdin=stdin.encode() if isinstance(stdin, str) else stdin,
                timeout=self.limits.wall_seconds if timeout is None else check_timeout("timeout", timeout),
                limits=self.limits,
                merge_stderr=merge_stderr,
            ),
        )

    def _touch(self) -> None:
        self._touched, self._current = True, None

    def _open(self, path: str, flags: int, *, parents: bool = False) -> int:
        part, relative = _locate(posixpath.join(self.cwd, path))
        layer = self._writable()
        try:
            descriptor = self._engine.open(layer, part, relative, flags | os.O_NONBLOCK | os.O_NOCTTY, parents=parents)
        except OSError as error:
            if error.errno in (errno.EXDEV, errno.ELOOP):
                raise SandboxPathError(f"{path} leads out of its root by a link") from None
            raise OSError(error.errno, os.strerror(error.errno or errno.EIO), path) from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise SandboxPathError(f"{path} is no plain file; use a command for it")
        return descriptor

    def read(self, path: str) -> bytes:
        """Content of a file, without running a command.

        Args:
            path: Relative to `cwd`, or absolute below ``/testbed`` or ``/tmp``. Links out of there are not followed.

        Raises:
            OSError: It is not there.
            SandboxPathError: It is no plain file or lies outside.
        """
        with open(self._open(path, os.O_RDONLY), "rb") as file:
            return file.read()

    def write(self, path: str, content: str | bytes) -> None:
        """Replace the content of a file, making it and its directories if need be.

        Args:
            path: As for `read`.
            content: Text is written as UTF-8.

        Raises:
            OSError: The disk limit is reached, or a directory is in the way.
            SandboxPathError: It is no plain file or lies outside.
        """
        data = content.encode(errors="surrogateescape") if isinstance(content, str) else content
        self._touch()
        with open(self._open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, parents=True), "wb") as file:
            file.write(data)

    # --- states

    def snapshot(self) -> Snapshot:
        """The state as it is now. A tuple copy, and one mount less, if anything was written since the last one."""
        if self._closed:
            raise SandboxClosedError("this sandbox is closed; it has no state any more")
        if self._upper is not None and self._touched:
            self._freeze(self._upper)
        return self._snapshot_of_frozen()

    def _snapshot_of_frozen(self) -> Snapshot:
        return Snapshot(self._engine, self.image, self._layers, self.cwd, self.environment)

    def _freeze(self, upper: Layer) -> None:
        known = self._current
        if self._engine.freeze(upper):
            self._frozen(upper, known)
        self._touched = False

    def _frozen(self, upper: Layer, known: Difference | None) -> None:
        self._layers = (upper,) if self._engine.whole_copies else (upper, *self._layers)
        upper.difference = known
        self._upper, self._touched = None, False
        if len(self._layers) > MAXIMUM_DEPTH:
            difference = self._difference_of_frozen()
            self._layers = (self._engine.flatten(self._layers),)
            self._layers[0].difference = difference

    def restore(self, snapshot: Snapshot) -> None:
        """Go back (or over) to a state of the same base.

        Raises:
            SandboxError: The snapshot belongs to another base or another kind of sandbox.
        """
        if self._closed:
            raise SandboxClosedError("this sandbox is closed; create or fork another")
        if snapshot._engine is not self._engine or snapshot.image.id != self.image.id:
            raise SandboxError("this snapshot is of another base or backend; fork from a sandbox of its own base")
        self._adopt(snapshot)

    def fork(self, *, mount: bool = False) -> Sandbox:
        """An independent sandbox in the same state; neither sees what the other does from here on.

        Args:
            mount: Make the writable layers of both now. By default each is made when it is first needed, and a fork is
                the copy of a tuple.
        """
        if not mount or self._closed:
            return Sandbox(self.snapshot(), self.limits, self.scratch, self._shell, self._repeat)
        if self._upper is None or not self._touched or len(self._layers) >= MAXIMUM_DEPTH:
            child = self.fork()
            self._engine.mount(self._writable(), child._writable())
            return child
        upper, known = self._upper, self._current
        layer, after = self._engine.fork(upper, self.image, self._layers, *self._room())
        if after is not None:
            self._frozen(upper, known)
            self._upper = after
        child = Sandbox(self._snapshot_of_frozen(), self.limits, self.scratch, self._shell, self._repeat)
        child._upper = layer
        if after is None:
            child._touched, child._current = True, known
        return child

    def chdir(self, path: str) -> None:
        """Change the directory of later commands; part of the state.

        Raises:
            SandboxPathError: It is outside of ``/testbed`` and ``/tmp``.
        """
        target = posixpath.normpath(posixpath.join(self.cwd, path))
        _locate(target)
        self.cwd = target

    def setenv(self, name: str, value: str | None) -> None:
        """Set a variable of later commands, or with None remove it; part of the state."""
        if not name or "=" in name or "\0" in f"{name}{value}":
            raise SandboxError(f"{name!r} cannot name a variable, or its value holds a zero byte")
        if value is None:
            self.environment.pop(name, None)
        else:
            self.environment[name] = value

    # --- differences

    def _difference_of_frozen(self) -> Difference:
        known = next((n for n, layer in enumerate(self._layers) if layer.difference is not None), len(self._layers))
        difference = (self._layers[known].difference if known < len(self._layers) else None) or {}
        for layer in reversed(self._layers[:known]):
            difference = apply_layer(difference, self.image.manifest, self._engine.scan(layer))
            layer.difference = difference
        return difference

    def difference(self) -> Difference:
        """What differs from the base, scratch paths included: path in the image → entry, None for deleted."""
        if self._closed:
            raise SandboxClosedError("this sandbox is closed; it has no state any more")
        if self._current is None:
            frozen = self._difference_of_frozen()
            if self._upper is None or not self._touched:
                self._current = frozen
            else:
                self._current = apply_layer(frozen, self.image.manifest, self._engine.scan(self._upper))
        return self._current

    def diff(self) -> tuple[Change, ...]:
        """What differs from the base, by path, scratch paths left out."""
        changes = []
        for path, after in sorted(self.difference().items()):
            if is_scratch(path, self.scratch):
                continue
            before = self.image.manifest.entries.get(path)
            kind = "deleted" if after is None else "added" if before is None else "modified"
            outside = not path.startswith("tree/")
            name = (TREE + path[4:] if path == "tree" else f"/{path}") if outside else path.removeprefix("tree/")
            changes.append(Change(name, kind, before, after))
        return tuple(changes)

    def patch(self) -> str:
        """The same as a patch for ``git apply``, binary files included."""
        kept = {path: entry for path, entry in self.difference().items() if not is_scratch(path, self.scratch)}

        def before(path: str) -> bytes:
            return (self.image.path / path).read_bytes()

        def after(path: str) -> bytes:
            return self.read(f"{TREE}/{path.removeprefix('tree/')}")

        return render_patch(self.image.manifest.entries, kept, before, after)

    def state_hash(self) -> str:
        """BLAKE2b-128 of base, directory, variables and all that differs from the base, in hex.

        Equal trees have equal hashes however they were reached. Times, inode numbers, the history of layers and scratch
        paths do not count.
        """
        scratch = self.scratch
        difference = self.difference()
        variables = {name: text for name, text in self._repeat.items() if name != "LD_PRELOAD"} | self.environment
        return hash_state(self.image.id, self.cwd, variables, difference, lambda path: is_scratch(path, scratch))

    # --- the end

    def close(self) -> None:
        """Let go of the state; snapshots and forks of it stay usable. Twice is no error."""
        self._closed, self._layers, self._upper = True, (), None
        self._current = None

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _locate(path: str) -> tuple[str, str]:
    """Part and relative path of an absolute path of the sandbox."""
    if "\0" in path:
        raise SandboxPathError("a path cannot hold a zero byte")
    normal = posixpath.normpath(path)
    for root, part in ((TREE, "tree"), ("/tmp", "tmp")):  # noqa: S108
        if normal == root:
            return part, "."
        if normal.startswith(f"{root}/"):
            return part, normal[len(root) + 1 :]
    raise SandboxPathError(f"{path} is outside of {TREE} and /tmp; only a command can read other places")
