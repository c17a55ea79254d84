"""Starting one command inside the sandbox: by the compiled ``spawn.c`` where it could be built, else step by step here.

Who waits for it, and for how long, is the broker's business.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import signal
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from . import kernel
from .starter import Starter

__all__ = ["RESOURCES", "SAID", "TREE_TARGET", "Plan", "Spawner", "map_user"]

SAID = struct.Struct("@c3xi5l")
"""The start of what an init writes at the end: mark, wait status, seconds and microseconds (user, system), peak KiB."""
ADDR_NO_RANDOMIZE = 0x0004_0000
TREE_TARGET = "/testbed"
RESOURCES = {
    "cpu_seconds": resource.RLIMIT_CPU,
    "memory": resource.RLIMIT_AS,
    "processes": resource.RLIMIT_NPROC,
    "file_size": resource.RLIMIT_FSIZE,
    "open_files": resource.RLIMIT_NOFILE,
    "stack": resource.RLIMIT_STACK,
    "core": resource.RLIMIT_CORE,
}


class Plan(NamedTuple):
    """All that one command needs.

    Attributes:
        root: Directory with the merged ``tree`` and ``tmp``.
        argv: Program and arguments.
        environment: All of it.
        cwd: Directory inside the sandbox.
        limits: Name of a resource (see `RESOURCES`) → value.
        shared_memory: Bytes of /dev/shm.
        input: Descriptor of standard input.
        output: Descriptor of standard output.
        error: Descriptor of standard error.
        status: Write end of the status pipe.
        network: Descriptor of a network namespace that nobody else uses.
    """

    root: str
    argv: Sequence[str]
    environment: Mapping[str, str]
    cwd: str
    limits: Mapping[str, int]
    shared_memory: int
    input: int
    output: int
    error: int
    status: int
    network: int


class _Plan(ctypes.Structure):
    _fields_ = (
        *[(name, ctypes.c_int) for name in ("template", "network", "input", "output", "error", "status")],
        ("owner", ctypes.c_int),
        ("nest", ctypes.c_int),
        *[(name, ctypes.c_char_p) for name in ("tree", "tmp", "tree_target", "tmp_target", "shm", "cwd")],
        ("argv", ctypes.POINTER(ctypes.c_char_p)),
        ("envp", ctypes.POINTER(ctypes.c_char_p)),
        ("limits", ctypes.POINTER(ctypes.c_uint64)),
        ("filter", ctypes.c_char_p),
        ("filter_length", ctypes.c_uint64),
        ("persona", ctypes.c_uint64),
    )


class Spawner:
    """Starts commands in one broker.

    Args:
        library: Path of the compiled ``spawn.c``, or None for the Python way.
        executable: Descriptor of the compiled starter, or -1.
        template: Descriptor of the mount namespace with the empty root.
        owner: User and group id of commands.
        nest: Give each command a user namespace of its own (else it becomes ``owner`` by setuid).
        program: The system-call filter; empty for none.
    """

    def __init__(
        self, library: str | None, executable: int, template: int, owner: int, *, nest: bool, program: bytes
    ) -> None:
        self._template, self._owner, self._nest, self._program = template, owner, nest, program
        self._library = ctypes.CDLL(library) if library else None
        self._starter: Starter | None = None
        if executable >= 0:
            with contextlib.suppress(OSError):  # a cache where nothing may be executed: the library does it
                self._starter = Starter(
                    executable, template, owner, nest=nest, persona=ADDR_NO_RANDOMIZE, program=program
                )

    def start(self, plan: Plan) -> tuple[int, int]:
        """Start a command.

        Returns:
            Process id of its init and a descriptor of that process.

        Raises:
            OSError: No process could be made.
        """
        if self._starter is not None:
            started = self._starter.start(plan, _flat(plan.limits))
            if started is not None:
                return started
        return self._start_here(plan) if self._library is None else self._start_compiled(self._library, plan)

    def _start_compiled(self, library: ctypes.CDLL, plan: Plan) -> tuple[int, int]:
        raw = os.fsencode
        argv = (ctypes.c_char_p * (len(plan.argv) + 1))(*map(raw, plan.argv), None)
        pairs = [raw(f"{name}={value}") for name, value in plan.environment.items()]
        environment = (ctypes.c_char_p * (len(pairs) + 1))(*pairs, None)
        flat = _flat(plan.limits)
        limits = (ctypes.c_uint64 * (len(flat) + 1))(*flat, 2**64 - 1)
        packed = _Plan(
            template=self._template,
            network=plan.network,
            input=plan.input,
            output=plan.output,
            error=plan.error,
            status=plan.status,
            owner=self._owner,
            nest=int(self._nest),
            tree=raw(f"{plan.root}/tree"),
            tmp=raw(f"{plan.root}/tmp"),  # noqa: S108
            tree_target=raw(TREE_TARGET),
            tmp_target=b"/tmp",
            shm=b"size=%d,mode=1777" % plan.shared_memory,
            cwd=raw(plan.cwd),
            argv=argv,
            envp=environment,
            limits=limits,
            filter=self._program,
            filter_length=len(self._program) // 8,
            persona=ADDR_NO_RANDOMIZE,
        )
        descriptor = ctypes.c_int(-1)
        pid = library.forkgym_spawn(ctypes.byref(packed), ctypes.byref(descriptor))
        if pid < 0:
            raise OSError(-pid, f"clone3: {os.strerror(-pid)}")
        return pid, descriptor.value

    def _start_here(self, plan: Plan) -> tuple[int, int]:
        # The first fork's child makes the namespaces; its own child is the init, since unshare moves only children.
        read, write = os.pipe()
        middle = os.fork()
        if middle == 0:
            try:
                kernel.unshare(kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC)
                pid = os.fork()
                if pid == 0:
                    self._init(plan)
                os.write(write, struct.pack("<i", pid))
            except OSError as error:
                os.write(write, struct.pack("<i", -(error.errno or errno.EIO)))
            finally:
                os._exit(0)
        os.close(write)
        (pid,) = struct.unpack("<i", os.read(read, 4))
        os.close(read)
        os.waitpid(middle, 0)
        if pid < 0:
            raise OSError(-pid, f"unshare: {os.strerror(-pid)}")
        return pid, kernel.pidfd_open(pid)  # the broker is pid 1 here, so the init is its child now

    def _init(self, plan: Plan) -> None:
        try:
            self._enter(plan)
            self._confine(plan)
            child = os.fork()
            if child == 0:
                _command(plan)
            os.dup2(plan.status, 3)
            os.closerange(4, 65_536)
            for standard in range(3):
                os.close(standard)
            while True:
                ended, status = os.waitpid(-1, 0)
                if ended == child:
                    break
            # Whoever is left becomes a child of this process when its parent dies: no child left means nobody left.
            with contextlib.suppress(ChildProcessError):
                while True:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(-1, signal.SIGKILL)
                    os.waitpid(-1, 0)
            usage = resource.getrusage(resource.RUSAGE_CHILDREN)
            times = [int(part) for spent in (usage.ru_utime, usage.ru_stime) for part in (spent, spent % 1 * 1e6)]
            os.write(3, SAID.pack(b"S", status, *times, usage.ru_maxrss))
        except OSError as error:
            os.write(plan.status, f"E{error.errno or errno.EIO} {error.strerror}".encode())
        finally:
            os._exit(0)

    def _enter(self, plan: Plan) -> None:
        tree, tmp = kernel.open_tree(f"{plan.root}/tree"), kernel.open_tree(f"{plan.root}/tmp")  # noqa: S108
        if plan.network >= 0:
            kernel.setns(plan.network, kernel.CLONE_NEWNET)
        kernel.setns(self._template, kernel.CLONE_NEWNS)
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.move_mount(tree, TREE_TARGET)
        kernel.move_mount(tmp, "/tmp")  # noqa: S108
        unprivileged = kernel.MS_NOSUID | kernel.MS_NODEV
        kernel.mount("proc", "/proc", "proc", unprivileged | kernel.MS_NOEXEC)
        kernel.mount("shm", "/dev/shm", "tmpfs", unprivileged, f"size={plan.shared_memory},mode=1777")  # noqa: S108
        if self._nest:
            kernel.unshare(kernel.CLONE_NEWUSER)
            map_user(self._owner, self._owner)

    def _confine(self, plan: Plan) -> None:
        for name, value in plan.limits.items():
            resource.setrlimit(RESOURCES[name], (value, value))
        if not self._nest:
            os.setgroups([])
            os.setresgid(self._owner, self._owner, self._owner)
        kernel.drop_bounding_set()
        if not self._nest:
            os.setresuid(self._owner, self._owner, self._owner)
        kernel.drop_capabilities()
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        kernel.personality(ADDR_NO_RANDOMIZE)
        os.umask(0o022)
        # This process is a copy of the broker: keep the command from reading its memory. Execution lifts it.
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        if self._program:
            kernel.set_seccomp(self._program)


def _flat(limits: Mapping[str, int]) -> list[int]:
    return [number for name, value in limits.items() for number in (RESOURCES[name], value)]


def map_user(inside: int, outside: int, group: int | None = None) -> None:
    """Map one user and one group of a fresh user namespace (needs /proc)."""
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{inside} {outside} 1"),
        ("gid_map", f"{inside} {outside if group is None else group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _command(plan: Plan) -> None:
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        for descriptor, standard in ((plan.input, 0), (plan.output, 1), (plan.error, 2)):
            os.dup2(descriptor, standard)
        os.closerange(3, 65_536)
        try:
            os.chdir(plan.cwd)
        except OSError as error:
            os.write(2, f"sandbox: cannot enter {plan.cwd}: {error.strerror}\n".encode(errors="surrogateescape"))
            os._exit(126)
        try:
            os.execvpe(plan.argv[0], list(plan.argv), dict(plan.environment))  # noqa: S606
        except OSError as error:
            os.write(2, f"sandbox: cannot run {plan.argv[0]}: {error.strerror}\n".encode(errors="surrogateescape"))
            os._exit(127 if error.errno == errno.ENOENT else 126)
    finally:
        os._exit(125)
