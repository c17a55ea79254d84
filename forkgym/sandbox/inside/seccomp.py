"""The system-call filter of a sandbox, as a classic BPF program; numbers for x86-64 and AArch64.

A deny list on purpose: agents run arbitrary programs, so everything is allowed but what administers the machine,
looks into other processes, makes namespaces or reaches kernel code with a bad record.
"""

from __future__ import annotations

import errno
import os
import struct

__all__ = ["DENIED", "supported", "system_call_filter"]

# name -> (x86-64, AArch64); None where the architecture has no such call
DENIED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "unshare": (272, 97),
    "setns": (308, 268),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "create_module": (174, None),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "lookup_dcookie": (212, 18),
    "vhangup": (153, 58),
    "syslog": (103, 116),
    "fanotify_init": (300, 262),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "uselib": (134, None),
    "nfsservctl": (180, 42),
}
# Number of: clone, clone3, socket, ioctl.
_SPECIAL = {"x86_64": (56, 435, 41, 16), "aarch64": (220, 435, 198, 29)}
_AUDIT = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
_NAMESPACES = 0x7E02_0000  # every CLONE_NEW* bit that clone(2) takes
_FAMILIES = (1, 2, 10, 16)  # unix, inet, inet6, netlink: a namespace of its own covers these, and no other (vsock!)
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL, _ALLOW, _ERROR = 0x8000_0000, 0x7FFF_0000, 0x0005_0000


def supported() -> bool:
    """Whether there is a table for this machine's architecture."""
    return os.uname().machine in _AUDIT


def _op(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("<HBBI", code, yes, no, value)


def system_call_filter() -> bytes:
    """The program: 8 bytes an instruction, for ``prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER)``.

    Raises:
        ValueError: On an architecture without a table.
    """
    machine = os.uname().machine
    if machine not in _AUDIT:
        raise ValueError(f"no system-call table for {machine}; run with seccomp=False there, or add its numbers")
    column = 0 if machine == "x86_64" else 1
    clone, clone3, socket, ioctl = _SPECIAL[machine]
    refuse, absent = _op(_RETURN, _ERROR | errno.EPERM), _op(_RETURN, _ERROR | errno.ENOSYS)
    family_absent = _op(_RETURN, _ERROR | errno.EAFNOSUPPORT)
    allow = _op(_RETURN, _ALLOW)
    program = [_op(_LOAD, 4), _op(_EQUAL, _AUDIT[machine], 1, 0), _op(_RETURN, _KILL), _op(_LOAD, 0)]
    if machine == "x86_64":  # the x32 table would pass under other numbers
        program += [_op(_AT_LEAST, 0x4000_0000, 0, 1), refuse]
    # glibc falls back from clone3 to clone, whose flags a filter can read.
    program += [_op(_EQUAL, clone3, 0, 1), absent]
    program += [_op(_EQUAL, clone, 0, 4), _op(_LOAD, 16), _op(_ANY_BIT, _NAMESPACES, 0, 1), refuse, allow]
    program += [_op(_EQUAL, socket, 0, 3 + len(_FAMILIES)), _op(_LOAD, 16)]
    program += [_op(_EQUAL, family, len(_FAMILIES) - index, 0) for index, family in enumerate(_FAMILIES)]
    program += [family_absent, allow]
    first, second = _TERMINAL_INPUT
    program += [_op(_EQUAL, ioctl, 0, 5), _op(_LOAD, 24), _op(_EQUAL, first, 1, 0), _op(_EQUAL, second, 0, 1)]
    program += [refuse, allow]
    for numbers in DENIED.values():
        number = numbers[column]
        if number is not None:
            program += [_op(_EQUAL, number, 0, 1), refuse]
    return b"".join([*program, allow])
