"""Attempts to get out, to look out, or to take more than was given. An attempt that works prints BROKEN.

Each is first shown to work where the guard that it tests is off (the control), in a form that hurts nobody.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forkgym.sandbox import Image, Limits, Sandbox

Create = Callable[..., Sandbox]
MIB = 1 << 20


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Things of the host that nobody inside should reach: a secret file, a folder, a port, a socket, a process."""
    folder = tmp_path_factory.mktemp("host")
    (folder / "secret").write_text("BROKEN")
    (folder / "secret").chmod(0o644)
    for parent in (folder, *list(folder.parents)[:2]):
        parent.chmod(0o755)
    victim = subprocess.Popen(["sleep", "300"], env={"SECRET": "BROKEN", "PATH": os.defpath})
    name = f"forkgym-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0{name}")
        abstract.listen()
        shared = Path("/dev/shm") / name
        shared.write_text("BROKEN")
        yield {
            "folder": str(folder),
            "secret": str(folder / "secret"),
            "port": str(server.getsockname()[1]),
            "abstract": name,
            "shared": str(shared),
            "pid": str(victim.pid),
        }
        shared.unlink()
    victim.kill()
    victim.wait()


def python(text: str) -> list[str]:
    return ["python3", "-c", text]


OUTWARD: dict[str, str | list[str]] = {
    "read a file by its path": "cat {secret}",
    "read a file by going up": "cat " + "../" * 20 + "{secret}",
    "read a file by a link": "ln -s {secret} l; cat l",
    "read a file by a hard link": "ln {secret} h && cat h",
    "read a file by another process's root": "cat /proc/{pid}/root{secret}",
    "read another process's variables": "tr '\\0' ' ' < /proc/{pid}/environ",
    "write a file by its path": "echo x > {folder}/w1 && echo BROKEN",
    "write a file by a link to a folder": "ln -s {folder} d; echo x > d/w2 && echo BROKEN",
    "write a file by a moved link": "ln -s /nowhere d2; ln -sfn {folder} d2; cp a.txt d2/w3 && echo BROKEN",
    "remove a file": "touch {folder}/gone 2>/dev/null; rm {folder}/gone && echo BROKEN",
    "see another process": "kill -0 {pid} && echo BROKEN",
    "list processes": "grep -alz sleep /proc/{pid}/cmdline && echo BROKEN",
    "connect to a port of the host": python(
        "import socket; socket.create_connection(('127.0.0.1', {port}), 2); print('BROKEN')"
    ),
    "connect to an abstract socket of the host": python(
        "import socket; socket.socket(socket.AF_UNIX).connect('\\0{abstract}'); print('BROKEN')"
    ),
    "read the host's shared memory": "cat {shared}",
}


@pytest.mark.parametrize("attempt", OUTWARD)
def test_nothing_outside_can_be_reached(attempt: str, isolated: Create, image: Image, host: dict[str, str]) -> None:
    template = OUTWARD[attempt]
    command = template.format(**host) if isinstance(template, str) else [part.format(**host) for part in template]
    control = Sandbox.create(image, backend="copy", isolation="none").run(command)
    assert "BROKEN" in control.stdout, f"the control shows nothing: {control}"
    done = isolated().run(command)
    assert "BROKEN" not in done.stdout
    assert not done.timed_out
    assert not set(os.listdir(host["folder"])) - {"secret", "w1", "w2", "w3"}, "only the controls wrote"


def test_the_controls_are_the_only_writers(isolated: Create, host: dict[str, str]) -> None:
    for name in ("w1", "w2", "w3"):
        Path(host["folder"], name).unlink(missing_ok=True)
    isolated().run(f"mkdir -p {host['folder']}; for n in 1 2 3; do echo x > {host['folder']}/w$n; done")
    assert os.listdir(host["folder"]) == ["secret"]


_SYSCALL = "import ctypes, os; c = ctypes.CDLL(None, use_errno=True); r = {call}; print('BROKEN' if r >= 0 else r)"
FILTERED = {
    "a user namespace": "c.unshare(0x10000000)",
    "a traced process": "c.ptrace(0, 0, None, None)",
    "the kernel's keyring": "c.syscall(248, b'user', b'forkgym', b'x', 1, -3)",
    "io_uring": "c.syscall(425, 4, ctypes.create_string_buffer(120))",
    "a memory of another process": (
        "c.process_vm_readv(os.getpid(), ctypes.byref((ctypes.c_size_t * 2)(0, 0)), 0, "
        "ctypes.byref((ctypes.c_size_t * 2)(0, 0)), 0, 0)"
    ),
    "userfaultfd": "c.syscall(323, 1)",
    "a file handle": "c.name_to_handle_at(-100, b'/', (ctypes.c_int * 40)(128), ctypes.byref(ctypes.c_int()), 0)",
    "a packet of the hypervisor": "c.socket(40, 1, 0)",
}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of these calls are those of x86-64")
@pytest.mark.parametrize("attempt", FILTERED)
def test_dangerous_calls_are_refused(attempt: str, isolated: Create) -> None:
    command = python(_SYSCALL.format(call=FILTERED[attempt]))
    control = isolated(seccomp=False).run(command)
    if "BROKEN" not in control.stdout:
        pytest.skip(f"this kernel has no {attempt} to refuse: {control.stdout}{control.stderr}")
    assert "BROKEN" not in isolated().run(command).stdout


ALWAYS: dict[str, str | list[str]] = {
    "write to the host's programs": "touch /usr/bin/BROKEN && echo BROKEN",
    "write to the root": "mkdir /BROKEN && echo BROKEN",
    "write to /etc": "echo x >> /etc/passwd && echo BROKEN",
    "change a device": "chmod 600 /dev/null && echo BROKEN",
    "make a device": "mknod d b 254 0 && echo BROKEN",
    "mount": "mount -t tmpfs x /tmp && echo BROKEN",
    "mount again with writing": "mount -o remount,rw / && echo BROKEN",
    "unmount /proc": "umount -l /proc && ls /proc && echo BROKEN",
    "change the root": "chroot / true && echo BROKEN",
    "change the kernel": "echo BROKEN > /proc/sys/kernel/core_pattern && echo BROKEN",
    "change the host's name": "hostname BROKEN && hostname",
    "press the magic key": "echo h > /proc/sysrq-trigger && echo BROKEN",
    "read kernel messages": "dmesg | grep -q . && echo BROKEN",
    "read the memory of the init": "head -c 1 /proc/1/mem && echo BROKEN; cat /proc/1/environ && echo BROKEN",
    "read where the init's memory lies": "grep -q . /proc/1/maps && echo BROKEN",
    "look at the init's root": "ls /proc/1/root/ && echo BROKEN",
    "open a stream of the init": "ls -l /proc/1/fd | grep -q socket && echo BROKEN",
    "find the broker's folders": "ls -d /images /l /m /t && echo BROKEN",
    "find the broker's configuration": "grep -az images /proc/1/cmdline && echo BROKEN",
    "inherit a descriptor": python(
        "import os; folder = '/proc/self/fd/'\n"
        "print(*['BROKEN' for name in os.listdir(folder) if int(name) > 2 and os.path.exists(folder + name)])"
    ),
    "hold a capability": "grep -E 'Cap(Prm|Eff|Bnd|Amb):.*[1-9a-f]' /proc/self/status && echo BROKEN",
    "gain by a setuid program": "su -c 'echo BROKEN' root < /dev/null",
    "raise a limit": "ulimit -n 100000 && echo BROKEN",
    "set the clock": "date -s 2001-01-01 && echo BROKEN",
    "resolve a name": "getent hosts example.com && echo BROKEN",
    "have a route": "tail -n +2 /proc/net/route | grep . && echo BROKEN",
    "become another user": python("import os; os.setuid(0); print('BROKEN')"),
    "give a file away": python("import os; os.chown('a.txt', 0, 0); print('BROKEN')"),
    "end the init": "kill -9 1; kill -TERM 1; sleep 0.05; kill -0 1 || echo BROKEN",
    "run as root": "test $(id -u) = 0 && echo BROKEN",
}


@pytest.mark.parametrize("attempt", ALWAYS)
def test_what_is_never_allowed(attempt: str, isolated: Create) -> None:
    """No control: each would need root on the host, and with it the real harm."""
    sandbox = isolated()
    done = sandbox.run(ALWAYS[attempt])
    assert "BROKEN" not in done.stdout
    assert sandbox.run("echo well").stdout == "well\n"


_SLEEPERS = (
    "import subprocess, sys\n"
    "children = []\n"
    "try:\n"
    "    for _ in range(40): children.append(subprocess.Popen(['sleep', '5']))\n"
    "    print('BROKEN')\n"
    "except OSError as error: print(error)\n"
)
GREEDY: dict[str, tuple[object, str, int, int]] = {
    # attempt: (command, limit, tight, wide)
    "memory": (python("len(bytearray(300_000_000)); print('BROKEN')"), "memory", 256 * MIB, 1024 * MIB),
    "processes": (python(_SLEEPERS), "processes", 20, 100),
    "disk": ("dd if=/dev/zero of=big bs=1M count=8 2>&1 && echo BROKEN", "disk", 4 * MIB, 32 * MIB),
    "disk in /tmp": ("dd if=/dev/zero of=/tmp/big bs=1M count=8 2>&1 && echo BROKEN", "disk", 4 * MIB, 32 * MIB),
    "files": (python("[open(f'f{n}', 'w').close() for n in range(900)]; print('BROKEN')"), "files", 500, 2000),
    "one file": ("dd if=/dev/zero of=big bs=1M count=3 2>&1 && echo BROKEN", "file_size", MIB, 8 * MIB),
    "descriptors": (python("f = [open('/dev/null') for _ in range(200)]; print('BROKEN')"), "open_files", 100, 400),
    "shared memory": (
        "dd if=/dev/zero of=/dev/shm/big bs=1M count=3 2>&1 && echo BROKEN",
        "shared_memory",
        MIB,
        8 * MIB,
    ),
}


@pytest.mark.parametrize("attempt", GREEDY)
def test_no_more_than_the_limit(attempt: str, isolated: Create) -> None:
    command, limit, tight, wide = GREEDY[attempt]
    usual = {"memory": 1024 * MIB, "disk": 32 * MIB, "processes": 100, "wall_seconds": 10}
    assert "BROKEN" in isolated(limits=Limits(**{**usual, limit: wide})).run(command).stdout
    sandbox = isolated(limits=Limits(**{**usual, limit: tight}))
    assert "BROKEN" not in sandbox.run(command).stdout
    assert sandbox.run("echo well").stdout == "well\n"


def test_the_disk_limit_counts_all_layers_of_a_state(isolated: Create) -> None:
    sandbox = isolated(limits=Limits(disk=4 * MIB))
    for number in range(3):
        sandbox.run(f"head -c 1000000 /dev/zero > part{number}")
        sandbox.snapshot()
    assert sandbox.run("head -c 1300000 /dev/zero > last").ok is False
    assert sandbox.fork().run("head -c 1300000 /dev/zero > last").ok is False
    with pytest.raises(OSError, match="space"):
        sandbox.write("more", bytes(2 * MIB))


def test_one_greedy_fork_leaves_its_sibling_its_share(isolated: Create) -> None:
    parent = isolated(limits=Limits(disk=4 * MIB))
    child = parent.fork()
    child.run("head -c 9000000 /dev/zero > all")
    assert parent.run("head -c 3000000 /dev/zero > mine").ok


def test_processor_time_ends_a_busy_loop(isolated: Create) -> None:
    done = isolated(limits=Limits(cpu_seconds=1, wall_seconds=20)).run("while :; do :; done")
    assert done.exit_code in (128 + 24, 128 + 9)
    assert not done.timed_out


def test_a_fork_bomb_ends_with_its_command(isolated: Create) -> None:
    sandbox = isolated(limits=Limits(processes=40, wall_seconds=1, memory=256 * MIB))
    bomb = python("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass")
    done = sandbox.run(bomb)
    assert done.timed_out
    assert sandbox.run("ls /proc | grep -c '^[0-9]'").stdout.strip() in ("4", "5")
    sibling = isolated(limits=Limits(processes=40))
    assert sibling.run("(true); (true); echo well").stdout == "well\n"


def test_killing_everything_inside_hurts_only_inside(isolated: Create) -> None:
    sandbox = isolated()
    assert sandbox.run("sleep 30 & kill -9 -1; echo after").exit_code in (0, 137)
    assert sandbox.run("echo well").stdout == "well\n"


def test_commands_that_run_at_once_cannot_meet(isolated: Create) -> None:
    """Not by loopback ports, abstract sockets, shared memory, semaphores, nor by their process ids."""
    import threading

    listen = python(
        "import socket, time; s = socket.create_server(('127.0.0.1', 4567)); u = socket.socket(socket.AF_UNIX)\n"
        "u.bind('\\0meet'); u.listen(); open('/dev/shm/meet', 'w').close(); time.sleep(0.8)"
    )
    seek = python(
        "import socket, time, os\n"
        "def attempt(f):\n"
        "    try: f(); print('BROKEN')\n"
        "    except OSError: pass\n"
        "for _ in range(3):\n"
        "    attempt(lambda: socket.create_connection(('127.0.0.1', 4567), 1))\n"
        "    attempt(lambda: socket.socket(socket.AF_UNIX).connect('\\0meet'))\n"
        "    attempt(lambda: os.stat('/dev/shm/meet')); time.sleep(0.1)\n"
    )
    together = isolated()
    both = 'python3 -c "$LISTEN" & sleep 0.3; python3 -c "$SEEK"'
    assert "BROKEN" in together.run(both, env={"LISTEN": listen[2], "SEEK": seek[2]}).stdout
    first, second = isolated(), isolated()
    thread = threading.Thread(target=first.run, args=(listen,))
    thread.start()
    time.sleep(0.3)
    done = second.run(seek)
    thread.join()
    assert (done.stdout, done.exit_code) == ("", 0)


def _hold(pipe: object, store: str) -> None:
    os.environ["FORKGYM_SANDBOX_STORE"] = store
    sandbox = Sandbox.create(Path(store) / "source", limits=Limits(disk=4 * MIB))
    sandbox.write("x", "1")
    child = sandbox.fork(mount=True)
    copy = Sandbox.create(Path(store) / "source", backend="copy", isolation="none")
    copy.write("y", "1")
    pipe.send("ready")
    import threading

    threading.Thread(target=copy.run, args=("sleep 401 & sleep 402",), daemon=True).start()
    child.run("(setsid sleep 403 &); setsid nohup sleep 404 & sleep 405")


def _leftovers(marker: str) -> list[str]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            text = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            environment = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if marker in environment or text.startswith("sleep 40"):
            found.append(f"{pid}: {text}")
    return found


def _crash(tmp_path: Path, delay: float) -> None:
    from forkgym.sandbox import ImageStore

    (tmp_path / "source").mkdir(exist_ok=True)
    (tmp_path / "source" / "f").write_text("1")
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_hold, args=(theirs, str(tmp_path)))
    mounts = Path("/proc/self/mounts").read_text()
    process.start()
    assert ours.recv() == "ready"
    time.sleep(delay)
    process.kill()
    process.join()
    deadline = time.monotonic() + 10
    while _leftovers(str(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert _leftovers(str(tmp_path)) == []
    assert Path("/proc/self/mounts").read_text() == mounts
    ImageStore(tmp_path).clean()
    assert os.listdir(tmp_path / "work") == []


def test_killing_the_host_process_leaves_nothing(isolated: Create, tmp_path: Path) -> None:
    isolated()
    _crash(tmp_path, 0.2)


@pytest.mark.slow
def test_killing_the_host_process_at_any_moment_leaves_nothing(isolated: Create, tmp_path: Path) -> None:
    isolated()
    for number in range(10):
        _crash(tmp_path, 0.037 * number)


def test_a_forked_process_is_told_to_make_its_own(isolated: Create) -> None:
    sandbox = isolated()
    sandbox.write("x", "1")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            sandbox.read("x")
        except Exception as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        assert "belongs to process" in file.read()
    os.waitpid(pid, 0)
    assert sys.platform == "linux"
    assert sandbox.read("x") == b"1"
