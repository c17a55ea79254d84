"""The starter: a small process beside the broker that copies itself for each command; a copy of the broker costs more.

It is ``spawn.c`` with a ``main`` of its own, linked statically since the broker's root holds no libraries.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
import struct
from typing import TYPE_CHECKING

from . import kernel

if TYPE_CHECKING:
    from .spawn import Plan

__all__ = ["Starter"]

_LARGEST = 96 << 10  # bytes of one request, well below what a socket takes


class Starter:
    """Starts commands through the process.

    Args:
        executable: Descriptor of the compiled program.
        template: Descriptor of the mount namespace with the empty root.
        owner: User and group id of commands.
        nest: Give each command a user namespace of its own.
        persona: Execution domain of commands.
        program: The system-call filter; empty for none.

    Raises:
        OSError: It could not be started (a cache on a file system without execution).
    """

    def __init__(self, executable: int, template: int, owner: int, *, nest: bool, persona: int, program: bytes) -> None:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = mine
        with theirs:
            self._process = os.fork()
            if self._process == 0:
                _become(executable, theirs.fileno(), template)
        mine.send(struct.pack("<3Q", owner, nest, persona) + program)
        if not mine.recv(4):
            os.waitpid(self._process, 0)
            mine.close()
            raise OSError(errno.ENOEXEC, "the starter did not start")

    def start(self, plan: Plan, limits: list[int]) -> tuple[int, int] | None:
        """Start a command; see `spawn.Spawner.start`.

        Args:
            plan: The command.
            limits: Pairs of resource and value.

        Returns:
            Process id of its init, a child of the broker, and a descriptor of it. None if the request is too large.

        Raises:
            OSError: No process could be made.
        """
        raw = os.fsencode
        texts = [f"{plan.root}/tree", f"{plan.root}/tmp"]  # noqa: S108
        texts += [f"size={plan.shared_memory},mode=1777", plan.cwd, *plan.argv]
        texts += [f"{name}={value}" for name, value in plan.environment.items()]
        head = struct.pack(f"<4I{len(limits)}Q", len(plan.argv), len(plan.environment), len(limits), 0, *limits)
        data = head + b"".join([raw(text) + b"\0" for text in texts])
        if len(data) > _LARGEST:
            return None
        descriptors = array.array("i", (plan.input, plan.output, plan.error, plan.status, plan.network))
        self._channel.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
        answer = self._channel.recv(4)
        if not answer:
            raise OSError(errno.EPIPE, "the starter of commands is gone")
        (pid,) = struct.unpack("<i", answer)
        if pid < 0:
            raise OSError(-pid, f"clone3: {os.strerror(-pid)}")
        return pid, kernel.pidfd_open(pid)


def _become(executable: int, channel: int, template: int) -> None:
    try:
        kernel.keep_capabilities()
        high = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 64) for number in (executable, channel, template)]
        os.dup2(high[1], 3)
        os.dup2(high[2], 4)
        os.execve(high[0], ["init"], {})  # noqa: S606
    finally:
        os._exit(1)
