"""System calls that Python does not wrap: mounts, namespaces, openat2, prctl. Thin: one function per call.

Nothing here decides what is mounted or isolated; see ``rootfs`` and ``spawn``. Numbers above 423 are the same on all
architectures of Linux.
"""

from __future__ import annotations

import ctypes
import os
import struct

__all__ = [
    "CLONE_NEWIPC",
    "CLONE_NEWNET",
    "CLONE_NEWNS",
    "CLONE_NEWPID",
    "CLONE_NEWUSER",
    "CLONE_NEWUTS",
    "bind",
    "drop_bounding_set",
    "drop_capabilities",
    "keep_capabilities",
    "mount",
    "move_mount",
    "open_beneath",
    "open_tree",
    "personality",
    "pidfd_open",
    "pivot_root",
    "prctl",
    "read_only",
    "set_seccomp",
    "setns",
    "umount",
    "unshare",
]

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x0002_0000, 0x0400_0000, 0x0800_0000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x1000_0000, 0x2000_0000, 0x4000_0000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 0x1000, 0x4000, 1 << 18
MS_REMOUNT = 32
MNT_DETACH = 2
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV = 1, 2, 4
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP = 1, 4, 24, 38, 22
_AT_FDCWD, _AT_RECURSIVE, _AT_EMPTY_PATH = -100, 0x8000, 0x1000
_RESOLVE_BENEATH, _RESOLVE_NO_MAGICLINKS = 0x08, 0x02

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _raw(text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text)


def mount(source: str, target: str, kind: str | None, flags: int = 0, data: str | None = None) -> None:
    """Mount, by the system call of that name."""
    result = _libc.mount(_raw(source), _raw(target), _raw(kind), ctypes.c_ulong(flags), _raw(data))
    _check(result, f"mount {kind or 'bind'} on {target}")


def bind(source: str, target: str) -> None:
    """Recursive bind mount."""
    mount(source, target, None, MS_BIND | MS_REC)


def umount(target: str) -> None:
    """Detach a mount now; it goes when nobody uses it any more."""
    _check(_libc.umount2(_raw(target), MNT_DETACH), f"umount {target}")


def make_private() -> None:
    """Stop mounts from travelling between this namespace and the one it was copied from."""
    mount("none", "/", None, MS_REC | MS_PRIVATE)


def read_only(target: str, *, recursive: bool = True, devices: bool = False, writable: bool = False) -> None:
    """Set nosuid, and unless told otherwise read-only and nodev, on a mount and all below it (Linux 5.12).

    Args:
        target: The mount point.
        recursive: Also everything mounted below.
        devices: Leave device files usable.
        writable: Leave the mount writable.
    """
    wanted = ATTR_NOSUID | (0 if writable else ATTR_RDONLY) | (0 if devices else ATTR_NODEV)
    attributes = struct.pack("<4Q", wanted, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    _check(_syscall(442, _AT_FDCWD, _raw(target), flags, attributes, 32), f"mount_setattr {target}")


def open_tree(path: str) -> int:
    """A detached copy of the mount at ``path``, as a descriptor."""
    return _check(_syscall(428, _AT_FDCWD, _raw(path), 1 | os.O_CLOEXEC | _AT_RECURSIVE), f"open_tree {path}")


def move_mount(descriptor: int, target: str) -> None:
    """Attach a detached mount."""
    _check(_syscall(429, descriptor, b"", _AT_FDCWD, _raw(target), 4), f"move_mount {target}")


def pivot_root(new_root: str) -> None:
    """Make ``new_root`` (a mount point) the root of this namespace and let go of the old one."""
    os.chdir(new_root)
    number = 155 if os.uname().machine == "x86_64" else 41
    _check(_syscall(number, b".", b"."), "pivot_root")
    umount(".")
    os.chdir("/")


def unshare(flags: int) -> None:
    """Leave namespaces for new ones."""
    _check(_libc.unshare(flags), "unshare")


def setns(descriptor: int, kind: int) -> None:
    """Enter the namespace behind a descriptor."""
    _check(_libc.setns(descriptor, kind), "setns")


def pidfd_open(pid: int) -> int:
    """A descriptor that becomes readable when the process ends."""
    return os.pidfd_open(pid)


def prctl(option: int, value: int = 0) -> None:
    """Change an attribute of this process that takes one argument."""
    zero = ctypes.c_ulong(0)
    _check(_libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero), f"prctl {option}")


def personality(value: int) -> None:
    """Set the execution domain, which says among other things whether addresses are random."""
    _check(_libc.personality(ctypes.c_ulong(value)), "personality")


def drop_bounding_set() -> None:
    """Let nothing that is executed later gain a capability."""
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:  # past the last capability this kernel knows
            break


def drop_capabilities() -> None:
    """Give up every capability this process holds."""
    header, none = struct.pack("<Ii", 0x2008_0522, 0), bytes(24)
    _check(_syscall(126 if os.uname().machine == "x86_64" else 91, header, none), "capset")


def keep_capabilities() -> None:
    """Let what is executed next have the capabilities of this process (Linux 4.3)."""
    x86 = os.uname().machine == "x86_64"
    header, held = struct.pack("<Ii", 0x2008_0522, 0), ctypes.create_string_buffer(24)
    _check(_syscall(125 if x86 else 90, header, held), "capget")
    low = list(struct.unpack("<6I", held.raw))  # effective, permitted, inheritable, twice
    low[2], low[5] = low[1], low[4]
    _check(_syscall(126 if x86 else 91, header, struct.pack("<6I", *low)), "capset")
    permitted = low[1] | low[4] << 32
    for capability in range(64):
        if permitted >> capability & 1:
            two, zero = ctypes.c_ulong(2), ctypes.c_ulong(0)
            _check(_libc.prctl(47, two, ctypes.c_ulong(capability), zero, zero), "raise ambient")


def set_seccomp(program: bytes) -> None:
    """Install a classic BPF filter (needs no_new_privs or CAP_SYS_ADMIN)."""
    held = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HxxxxxxP", len(program) // 8, ctypes.addressof(held))
    _check(_libc.prctl(PR_SET_SECCOMP, ctypes.c_ulong(2), header, ctypes.c_ulong(0), ctypes.c_ulong(0)), "seccomp")


def open_beneath(directory: int, path: str, flags: int, mode: int = 0) -> int:
    """Open by openat2(2), which never leaves ``directory``, whatever links and dots say (Linux 5.6).

    Args:
        directory: Descriptor of the directory.
        path: Relative path; links that lead outside fail with EXDEV.
        flags: As for open(2).
        mode: Permission bits of a file that is created.
    """
    how = struct.pack(
        "<3Q", flags | os.O_CLOEXEC, mode if flags & os.O_CREAT else 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS
    )
    return _check(_syscall(437, directory, _raw(path), how, len(how)), path)
