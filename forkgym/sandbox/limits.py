"""What a command may use, and the environment that makes its output repeatable. Values only; `inside` enforces them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import msgspec

from .errors import SandboxError

__all__ = ["DETERMINISTIC_ENVIRONMENT", "Limits", "command_environment", "is_own_place", "visible_directories"]
_OWN_PLACES = ("/tmp", "/testbed", "/proc", "/dev", "/etc")  # noqa: S108

DETERMINISTIC_ENVIRONMENT: Mapping[str, str] = {
    "HOME": "/tmp",  # noqa: S108
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "LOGNAME": "agent",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONNOUSERSITE": "1",
    "SHELL": "/bin/sh",
    "SOURCE_DATE_EPOCH": "315532800",
    "TERM": "dumb",
    "TMPDIR": "/tmp",  # noqa: S108
    "TZ": "UTC",
    "USER": "agent",
}
"""Set for every command before the sandbox's own variables. Nothing of the host's environment gets in."""


LONGEST = 1e9
"""Seconds that a command may take at most."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one command, and one sandbox, may use.

    Attributes:
        wall_seconds: Default timeout of a command; then its whole process tree is killed.
        cpu_seconds: Processor time of each process.
        memory: Address space of each process, bytes.
        processes: Processes and threads of one command at a time.
        file_size: Bytes of one file.
        disk: Bytes that a state may hold beyond its base.
        files: Files that a layer may hold (changed, added and deleted names count).
        open_files: Descriptors of each process.
        shared_memory: Bytes of /dev/shm, empty at the start of each command.
        output: Bytes kept of standard output, and as many of standard error: the first and the last half.
        output_total: A command that writes more than this is killed.
    """

    wall_seconds: float = 60.0
    cpu_seconds: int = 120
    memory: int = 4 << 30
    processes: int = 256
    file_size: int = 256 << 20
    disk: int = 512 << 20
    files: int = 65_536
    open_files: int = 1024
    shared_memory: int = 64 << 20
    output: int = 1 << 16
    output_total: int = 64 << 20

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not getattr(self, name) > 0:
                raise SandboxError(f"limit {name} is {getattr(self, name)}; it must be above zero")
        check_timeout("limit wall_seconds", self.wall_seconds)

    def resources(self, *, processes: bool = True) -> dict[str, int]:
        """The limits that setrlimit(2) knows, by the names of `inside.spawn.RESOURCES`.

        Args:
            processes: Include the number of processes; without a user namespace the kernel would count all processes
                of the user.
        """
        found = {
            "cpu_seconds": self.cpu_seconds,
            "memory": self.memory,
            "file_size": self.file_size,
            "open_files": self.open_files,
            "stack": 8 << 20,
            "core": 0,
        }
        return found | {"processes": self.processes} if processes else found


def check_timeout(name: str, seconds: float) -> float:
    """The seconds, if a clock can wait for them.

    Raises:
        SandboxError: They are no number above zero, or more than thirty years.
    """
    if not 0 < seconds <= LONGEST:
        raise SandboxError(f"{name} is {seconds}; it must be above zero and at most {LONGEST:,.0f} seconds")
    return seconds


def command_environment() -> dict[str, str]:
    """The deterministic environment, with this interpreter first on the path."""
    folders = [f"{sys.prefix}/bin", f"{sys.base_prefix}/bin", "/usr/local/bin", "/usr/bin", "/bin"]
    return {**DETERMINISTIC_ENVIRONMENT, "PATH": ":".join(dict.fromkeys(folders))}


def is_own_place(path: str) -> bool:
    """Whether a sandbox has its own files at this path, so that nothing of the host can be shown there."""
    return any(f"{path}/".startswith(f"{place}/") for place in _OWN_PLACES)


def visible_directories() -> tuple[str, ...]:
    """What commands see of the host by default, read-only: system programs and libraries, and this Python."""
    wanted = ["/usr", *(f"/{name}" for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"))]
    wanted += [os.path.realpath(sys.base_prefix), os.path.abspath(sys.prefix)]
    kept: list[str] = []
    for path in wanted:
        if (
            not is_own_place(path)
            and os.path.isdir(path)
            and not os.path.islink(path)
            and not any(f"{path}/".startswith(f"{k}/") for k in kept)
        ):
            kept.append(path)
    return tuple(kept)
