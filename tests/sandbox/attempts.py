"""The hostile set: what each attempt does, which guard stops it, and where it works because that guard is off.

An attempt prints BROKEN when it succeeded. The same text runs in the control and in the sandbox, so each is mild: where
the real thing would hurt the machine, it asks for what changes nothing and is refused only for want of the right.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["ATTEMPTS", "MIB", "Attempt"]

MIB = 1 << 20
Command = str | Sequence[str]


class Attempt(NamedTuple):
    """One attempt.

    Attributes:
        name: What it tries.
        guard: What stops it.
        control: Where the guard is off: ``plain`` (a sandbox without isolation), ``unfiltered`` (without the
            system-call filter), ``wide`` (with a larger limit), ``box`` (a throw-away machine), ``direct`` (a plain
            child process).
        command: The text; ``@name@`` stands for a thing of the host.
        prepare: Run before it in the box.
        needs: Capability that the control needs on the machine itself.
        limit: Name of the limit, its tight and its wide value.
    """

    name: str
    guard: str
    control: str
    command: Command
    prepare: str = ""
    needs: str = ""
    limit: tuple[str, int, int] = ("", 0, 0)


def python(*lines: str) -> list[str]:
    """A command that runs these lines."""
    return ["python3", "-c", "\n".join(lines)]


def call(expression: str, *before: str) -> list[str]:
    """A command that makes one system call; BROKEN if it is not refused."""
    start = "import ctypes, os, errno; c = ctypes.CDLL(None, use_errno=True)"
    return python(start, *before, f"r = {expression}", "print('BROKEN' if r >= 0 else os.strerror(ctypes.get_errno()))")


def permitted(expression: str, *before: str) -> list[str]:
    """A command that makes a call which can only fail; BROKEN if it fails for another reason than a missing right."""
    start = "import ctypes, os, errno; c = ctypes.CDLL(None, use_errno=True)"
    name = "('BROKEN' if r >= 0 else {1: 'refused', 13: 'refused', 38: 'absent'}.get(ctypes.get_errno(), 'BROKEN'))"
    return python(start, *before, f"r = {expression}", f"print{name}")


def _attempt(text: str) -> list[str]:
    """A command that runs one statement; BROKEN if it raises no OSError."""
    return python(
        "import ctypes, os, socket, struct, fcntl",
        "try:",
        f"    {text}",
        "    print('BROKEN')",
        "except OSError as e: print(e)",
    )


ROOTS = "the root is an allow list"
FILES = [
    Attempt("read a file by its path", ROOTS, "plain", "cat @secret@"),
    Attempt("read a file by going up", ROOTS, "plain", "cat " + "../" * 20 + "@secret@"),
    Attempt("read a file by a link", ROOTS, "plain", "ln -s @secret@ l; cat l"),
    Attempt("read a file by a hard link", ROOTS, "plain", "ln @secret@ h && cat h"),
    Attempt(
        "read a file by an archive with a link",
        ROOTS,
        "plain",
        "ln -s @folder@ d; tar chf t.tar d; tar xOf t.tar d/secret",
    ),
    Attempt("read the store of all sandboxes", ROOTS, "plain", "ls @store@/images && echo BROKEN"),
    Attempt("write a file by its path", ROOTS, "plain", "echo x > @folder@/w1 && echo BROKEN"),
    Attempt("write a file by a link to a folder", ROOTS, "plain", "ln -s @folder@ d; echo x > d/w2 && echo BROKEN"),
    Attempt(
        "write a file by a moved link",
        ROOTS,
        "plain",
        "ln -s /no d2; ln -sfn @folder@ d2; cp a.txt d2/w3 && echo BROKEN",
    ),
    Attempt("remove a file", ROOTS, "plain", "touch @folder@/gone 2>/dev/null; rm @folder@/gone && echo BROKEN"),
    Attempt("read the host's shared memory", "a /dev/shm of its own", "plain", "cat @shared@"),
    Attempt("write to the programs", "read-only mounts", "box", "touch /usr/bin/BROKEN && echo BROKEN"),
    Attempt("replace the interpreter", "read-only mounts", "box", 'touch "@prefix@/BROKEN" && echo BROKEN'),
    Attempt("write to the root", "a read-only root", "box", "mkdir /BROKEN && echo BROKEN"),
    Attempt("write to /etc", "a read-only root", "box", "echo x >> /etc/passwd && echo BROKEN"),
    Attempt("change a device", "read-only mounts", "box", "chmod 600 /dev/full && echo BROKEN"),
    Attempt("make a device", "no capability", "direct", "mknod d b 254 0 && echo BROKEN", needs="mknod"),
    Attempt("read a device", "five devices", "direct", "test -r /dev/kmsg && echo BROKEN", needs="syslog"),
    Attempt("write to /sys", "no /sys", "box", "echo 1400 > /sys/class/net/lo/mtu && echo BROKEN"),
    Attempt("give a file away", "no capability", "direct", _attempt("os.chown('a.txt', 1, 1)"), needs="chown"),
    Attempt("open a file by its handle", "system-call filter", "direct", "@by_handle@", needs="dac_read_search"),
]

PROC = "processes of its own"
PROCESSES = [
    Attempt("read a file by another process's root", PROC, "plain", "cat /proc/@pid@/root@secret@"),
    Attempt("read another process's variables", PROC, "plain", "tr '\\0' ' ' < /proc/@pid@/environ"),
    Attempt("see another process", PROC, "plain", "kill -0 @pid@ && echo BROKEN"),
    Attempt("signal another process", PROC, "plain", "kill -CONT @pid@ && echo BROKEN"),
    Attempt("list processes", PROC, "plain", "grep -alz sleep /proc/@pid@/cmdline && echo BROKEN"),
    Attempt("end the broker", PROC, "direct", "kill -TERM @broker@ && echo BROKEN"),
    Attempt(
        "reach into another process's memory",
        PROC,
        "plain",
        python(
            "pid = '@pid@'",
            "line = next(l for l in open(f'/proc/{pid}/maps') if ' rw' in l)",
            "memory = open(f'/proc/{pid}/mem', 'r+b', 0)",
            "memory.seek(int(line.split('-')[0], 16))",
            "memory.read(8) and print('BROKEN')",
        ),
    ),
    Attempt(
        "end the init",
        "the init is process 1",
        "direct",
        "kill -9 $PPID; sleep 0.05; case $(cut -d ' ' -f 3 /proc/$PPID/stat) in Z | '') echo BROKEN ;; esac",
    ),
    Attempt(
        "read the memory of the init",
        "the init is not dumpable",
        "box",
        python(
            "line = next(l for l in open('/proc/1/maps') if ' r' in l)",
            "memory = open('/proc/1/mem', 'rb', 0)",
            "memory.seek(int(line.split('-')[0], 16))",
            "memory.read(8) and print('BROKEN')",
        ),
    ),
    Attempt(
        "read the variables of the init",
        "the init is not dumpable",
        "box",
        "cat /proc/1/environ > /dev/null && echo BROKEN",
    ),
    Attempt(
        "read where the init's memory lies", "the init is not dumpable", "box", "grep -q . /proc/1/maps && echo BROKEN"
    ),
    Attempt(
        "look at the init's root", "the init is not dumpable", "box", "ls /proc/1/root/ > /dev/null && echo BROKEN"
    ),
    Attempt(
        "look at the init's streams", "the init is not dumpable", "box", "ls -l /proc/1/fd/ | grep -q . && echo BROKEN"
    ),
    Attempt("see the broker's folders", "a root of its own", "direct", "@broker_root@", needs="sys_admin"),
    Attempt(
        "inherit a descriptor",
        "descriptors are closed",
        "direct",
        python(
            "import os; folder = '/proc/self/fd/'",
            "print(*['BROKEN' for name in os.listdir(folder) if int(name) > 2 and os.path.exists(folder + name)])",
        ),
    ),
    Attempt(
        "read secrets among the variables", "an environment of its own", "direct", "env | grep FORKGYM_TEST_SECRET"
    ),
    Attempt("outlive the command", "the init kills all", "direct", "@survive@"),
    Attempt("outlive the command as a daemon", "the init kills all", "direct", "@daemon@"),
]

NET, CAPABILITY = "a network of its own", "no capability"
NETWORK = [
    Attempt(
        "connect to a port of the host", NET, "plain", _attempt("socket.create_connection(('127.0.0.1', @port@), 2)")
    ),
    Attempt(
        "connect to an abstract socket",
        NET,
        "plain",
        _attempt("socket.socket(socket.AF_UNIX).connect('\\0@abstract@')"),
    ),
    Attempt(
        "connect to a socket by its path", ROOTS, "plain", _attempt("socket.socket(socket.AF_UNIX).connect('@socket@')")
    ),
    Attempt(
        "ask a name server",
        NET,
        "plain",
        python(
            "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(0.3)",
            "try:",
            "    s.sendto(b'who', ('127.0.0.1', @udp@)); print(s.recv(100).decode())",
            "except OSError as e: print(e)",
        ),
    ),
    Attempt(
        "resolve a name",
        "an /etc of its own",
        "box",
        "getent hosts forkgym.test && echo BROKEN",
        prepare="echo '10.9.9.9 forkgym.test' >> /etc/hosts",
    ),
    Attempt(
        "find a way out",
        NET,
        "box",
        _attempt("s = socket.socket(2, 2); s.connect(('10.9.9.9', 9))"),
        prepare="ip link set lo up; ip addr add 10.9.9.1/24 dev lo",
    ),
    Attempt(
        "change the network",
        CAPABILITY,
        "box",
        _attempt("fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sH14x', b'lo', 0x41))"),
    ),
    Attempt(
        "change the network's settings", CAPABILITY, "box", "echo 1 > /proc/sys/net/ipv4/ip_forward && echo BROKEN"
    ),
    Attempt("open a raw socket", CAPABILITY, "box", _attempt("socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)")),
    Attempt("listen to packets", "system-call filter", "box", _attempt("socket.socket(17, socket.SOCK_RAW, 0x300)")),
    Attempt(
        "take a low port",
        CAPABILITY,
        "box",
        _attempt("socket.create_server(('127.0.0.1', 53))"),
        prepare="ip link set lo up",
    ),
    Attempt(
        "attach to shared memory by number",
        "messages of its own",
        "plain",
        python(
            "import ctypes; c = ctypes.CDLL(None, use_errno=True)",
            "print('BROKEN' if c.shmget(@shm@, 0, 0) >= 0 else 'nothing')",
        ),
    ),
]

KERNEL = [
    Attempt("mount", "system-call filter", "box", "mount -t tmpfs x /tmp && echo BROKEN"),
    Attempt(
        "mount again with writing",
        "system-call filter",
        "box",
        "for p in /mnt /usr; do mount -o remount,bind,rw $p && touch $p/x && echo BROKEN; done",
    ),
    Attempt("unmount", "system-call filter", "box", "umount -l /dev/shm && echo BROKEN"),
    Attempt("mount by the newer calls", "system-call filter", "box", call("c.syscall(430, b'tmpfs', 0)")),
    Attempt("copy a mount", "system-call filter", "box", call("c.syscall(428, -100, b'/', 1)")),
    Attempt("change the root", "system-call filter", "box", "chroot / true && echo BROKEN"),
    Attempt(
        "leave a root by another",
        "system-call filter",
        "box",
        python(
            "import os; os.makedirs('x/y', exist_ok=True); os.chroot('x')",
            "for _ in range(64): os.chdir('..')",
            "os.chroot('.'); print('BROKEN' if os.path.exists('/usr') else 'inside')",
        ),
    ),
    Attempt(
        "pivot the root",
        "system-call filter",
        "box",
        call("c.syscall(155, b'.', b'.')", "os.chdir('p')"),
        prepare="mkdir p; mount -t tmpfs p p",
    ),
    Attempt("change the host's name", "system-call filter", "box", "hostname BROKEN; hostname"),
    Attempt("change the domain's name", "system-call filter", "box", call("c.setdomainname(b'x', 1)")),
    Attempt("enter a namespace", "system-call filter", "box", call("c.setns(os.open('/proc/self/ns/uts', 0), 0)")),
    Attempt(
        "hold a capability",
        CAPABILITY,
        "box",
        "grep -E 'Cap(Prm|Eff|Bnd|Amb):.*[1-9a-f]' /proc/self/status && echo BROKEN",
    ),
    Attempt("run as root", "a user of its own", "box", "test $(id -u) = 0 && echo BROKEN"),
    Attempt("become another user", CAPABILITY, "direct", _attempt("os.setresuid(1, 1, 1)"), needs="setuid"),
    Attempt(
        "gain by a setuid program",
        "no_new_privs, nosuid",
        "direct",
        "@as_nobody@ @suid@/whoami -u | grep -x 0 && echo BROKEN",
        needs="setuid",
    ),
    Attempt(
        "change the kernel",
        "read-only settings",
        "direct",
        'v=$(cat /proc/sys/kernel/core_pattern) && echo "$v" > /proc/sys/kernel/core_pattern && echo BROKEN',
        needs="sys_admin",
    ),
    Attempt(
        "press the magic key",
        "no right to it",
        "direct",
        "test -e /proc/sysrq-trigger || echo absent; echo h > /proc/sysrq-trigger && echo BROKEN",
        needs="sys_admin",
    ),
    Attempt("read kernel messages", "system-call filter", "direct", call("c.klogctl(10, None, 0)"), needs="syslog"),
    Attempt(
        "set the clock",
        "system-call filter",
        "direct",
        call("c.adjtimex(b)", "b = ctypes.create_string_buffer(208); b[0:2] = b'\\0\\1'"),
        needs="sys_time",
    ),
    Attempt(
        "remove a kernel module",
        "system-call filter",
        "direct",
        permitted("c.syscall(176, b'no_such', 0)"),
        needs="sys_module",
    ),
    Attempt(
        "restart the machine", "system-call filter", "direct", permitted("c.syscall(169, 1, 2, 3, 0)"), needs="sys_boot"
    ),
    Attempt("swap to a file", "system-call filter", "direct", permitted("c.swapon(b'/no/such', 0)"), needs="sys_admin"),
    Attempt(
        "load a program into the kernel",
        "system-call filter",
        "direct",
        permitted("c.syscall(321, 0, (ctypes.c_uint32 * 12)(2, 4, 4, 1), 48)"),
        needs="bpf",
    ),
    Attempt(
        "be served before others",
        CAPABILITY,
        "direct",
        _attempt("os.setpriority(os.PRIO_PROCESS, 0, -1)"),
        needs="sys_nice",
    ),
    Attempt(
        "run in real time",
        CAPABILITY,
        "direct",
        _attempt("os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))"),
        needs="sys_nice",
    ),
    Attempt("dump core", "limits", "direct", "ulimit -Hc | grep -v '^0$' && ulimit -c unlimited && echo BROKEN"),
    Attempt("make a user namespace", "system-call filter", "unfiltered", call("c.unshare(0x10000000)")),
    Attempt(
        "clone into a user namespace",
        "system-call filter",
        "unfiltered",
        python(
            "import ctypes, os; c = ctypes.CDLL(None, use_errno=True)",
            "r = c.syscall(56, 0x10000000 | 17, 0, 0, 0, 0)",
            "r == 0 and os._exit(0)",
            "print('BROKEN' if r > 0 else 'refused', flush=True)",
        ),
    ),
    Attempt(
        "clone3 into a user namespace",
        "system-call filter",
        "unfiltered",
        python(
            "import ctypes, os; c = ctypes.CDLL(None, use_errno=True)",
            "r = c.syscall(435, (ctypes.c_uint64 * 8)(0x10000000, 0, 0, 0, 17), 64)",
            "r == 0 and os._exit(0)",
            "print('BROKEN' if r > 0 else 'refused', flush=True)",
        ),
    ),
    Attempt("trace a process", "system-call filter", "unfiltered", call("c.ptrace(0, 0, None, None)")),
    Attempt(
        "read a process's memory by a call",
        "system-call filter",
        "unfiltered",
        call(
            "c.process_vm_readv(os.getpid(), v, 0, v, 0, 0)",
            "v = ctypes.byref((ctypes.c_size_t * 2)(0, 0))",
        ),
    ),
    Attempt(
        "compare processes",
        "system-call filter",
        "unfiltered",
        call("c.syscall(312, os.getpid(), os.getpid(), 1, 0, 0)"),
    ),
    Attempt(
        "take a descriptor of a process",
        "system-call filter",
        "unfiltered",
        call("c.syscall(438, os.pidfd_open(os.getpid()), 0, 0)"),
    ),
    Attempt(
        "use the kernel's keyring",
        "system-call filter",
        "unfiltered",
        call("c.syscall(248, b'user', b'forkgym', b'x', 1, -3)"),
    ),
    Attempt(
        "use io_uring", "system-call filter", "unfiltered", call("c.syscall(425, 4, ctypes.create_string_buffer(120))")
    ),
    Attempt("use userfaultfd", "system-call filter", "unfiltered", call("c.syscall(323, 1)")),
    Attempt(
        "take a file's handle",
        "system-call filter",
        "unfiltered",
        call("c.name_to_handle_at(-100, b'/', (ctypes.c_int * 40)(128), ctypes.byref(ctypes.c_int()), 0)"),
    ),
    Attempt("talk to the hypervisor", "system-call filter", "unfiltered", call("c.socket(40, 1, 0)")),
    Attempt(
        "change a descriptor table of the processor",
        "system-call filter",
        "unfiltered",
        call("c.syscall(154, 0, ctypes.create_string_buffer(64), 64)"),
    ),
    Attempt("choose memory nodes", "system-call filter", "unfiltered", call("c.syscall(238, 0, None, 0)")),
    Attempt("watch the whole file system", "system-call filter", "unfiltered", call("c.syscall(300, 0x200, 0)")),
]

_SLEEPERS = python(
    "import subprocess, sys",
    "children = []",
    "try:",
    "    for _ in range(40): children.append(subprocess.Popen(['sleep', '5']))",
    "    print('BROKEN')",
    "except OSError as error: print(error)",
)
_BURN = python("import time", "while time.process_time() < 1.3: pass", "print('BROKEN')")
GREEDY = [
    Attempt(
        "memory",
        "limits",
        "wide",
        python("len(bytearray(300_000_000)); print('BROKEN')"),
        limit=("memory", 256 * MIB, 1024 * MIB),
    ),
    Attempt("processes", "limits", "wide", _SLEEPERS, limit=("processes", 20, 100)),
    Attempt(
        "disk",
        "limits",
        "wide",
        "dd if=/dev/zero of=big bs=1M count=8 2>&1 && echo BROKEN",
        limit=("disk", 4 * MIB, 32 * MIB),
    ),
    Attempt(
        "disk in /tmp",
        "limits",
        "wide",
        "dd if=/dev/zero of=/tmp/big bs=1M count=8 && echo BROKEN",
        limit=("disk", 4 * MIB, 32 * MIB),
    ),
    Attempt(
        "a million files",
        "limits",
        "wide",
        python("[open(f'f{n}', 'w').close() for n in range(900)]; print('BROKEN')"),
        limit=("files", 500, 2000),
    ),
    Attempt(
        "one large file",
        "limits",
        "wide",
        "dd if=/dev/zero of=big bs=1M count=3 2>&1 && echo BROKEN",
        limit=("file_size", MIB, 8 * MIB),
    ),
    Attempt(
        "descriptors",
        "limits",
        "wide",
        python("f = [open('/dev/null') for _ in range(200)]; print('BROKEN')"),
        limit=("open_files", 100, 400),
    ),
    Attempt(
        "shared memory",
        "limits",
        "wide",
        "dd if=/dev/zero of=/dev/shm/big bs=1M count=3 2>&1 && echo BROKEN",
        limit=("shared_memory", MIB, 8 * MIB),
    ),
    Attempt(
        "output without end",
        "limits",
        "wide",
        "head -c 3000000 /dev/zero | tr '\\0' x; echo BROKEN",
        limit=("output_total", MIB, 16 * MIB),
    ),
    Attempt("processor time", "limits", "wide", _BURN, limit=("cpu_seconds", 1, 10)),
    Attempt("time", "limits", "wide", "trap '' TERM INT HUP; sleep 1.3; echo BROKEN", limit=("wall_seconds", 1, 10)),
    Attempt("a limit of its own", "limits", "wide", "ulimit -n 900 && echo BROKEN", limit=("open_files", 100, 1000)),
]

ATTEMPTS = {attempt.name: attempt for attempt in (*FILES, *PROCESSES, *NETWORK, *KERNEL, *GREEDY)}
if len(ATTEMPTS) != len(FILES) + len(PROCESSES) + len(NETWORK) + len(KERNEL) + len(GREEDY):
    raise ValueError("two attempts have one name")
if os.uname().machine != "x86_64":
    # The numbers of the calls are those of x86-64; elsewhere the tests of the filter's table stand for them.
    ATTEMPTS = {name: attempt for name, attempt in ATTEMPTS.items() if "syscall(" not in str(attempt.command)}
