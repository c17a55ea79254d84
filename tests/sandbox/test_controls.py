"""Every attempt of the hostile set works where its guard is off, and fails in a sandbox, in an observation."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import forkgym.sandbox
from forkgym.sandbox import CompletedCommand, Image, Limits, Sandbox, engine_for, image_store
from forkgym.sandbox.broker import BrokerEngine
from forkgym.sandbox.limits import visible_directories

from .attempts import ATTEMPTS, MIB, Attempt
from .box import BoxUnavailableError, capable, run_directly, run_in_box

Create = Callable[..., Sandbox]
USUAL = {"memory": 1024 * MIB, "disk": 32 * MIB, "files": 5000, "processes": 100, "wall_seconds": 10}
AT_LEAST = 40
_works: dict[str, str] = {}
_SLEEP = str(4_000_000 + os.getpid())  # tests that run elsewhere at the same time sleep for another time


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Things of the host that nobody inside should reach: a secret, a folder, ports, sockets, processes, memory."""
    folder = tmp_path_factory.mktemp("host")
    (folder / "secret").write_text("BROKEN")
    (folder / "secret").chmod(0o644)
    for parent in (folder, *list(folder.parents)[:2]):
        parent.chmod(0o755)
    quiet = {"SECRET": "BROKEN", "PATH": os.defpath}
    victim = subprocess.Popen(["sleep", "300"], env=quiet)
    stand_in = subprocess.Popen(["sleep", "300"], env=quiet)
    name = f"forkgym-{os.getpid()}"
    shared = Path("/dev/shm") / name
    shared.write_text("BROKEN")
    library = ctypes.CDLL(None)
    key = os.getpid() & 0x7FFF_FFFF
    segment = library.shmget(key, 4096, 0o1666)
    suid = Path(tempfile.mkdtemp(dir="/var/tmp"))
    suid.chmod(0o755)
    shutil.copy(shutil.which("id") or "/usr/bin/id", suid / "whoami")
    (suid / "whoami").chmod(0o4755)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.socket(socket.AF_UNIX) as named,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as names,
    ):
        abstract.bind(f"\0{name}")
        abstract.listen()
        named.bind(str(folder / "socket"))
        named.listen()
        (folder / "socket").chmod(0o777)
        names.bind(("127.0.0.1", 0))
        threading.Thread(target=_answer, args=(names,), daemon=True).start()
        yield {
            "folder": str(folder),
            "secret": str(folder / "secret"),
            "store": str(image_store().root),
            "port": str(server.getsockname()[1]),
            "udp": str(names.getsockname()[1]),
            "abstract": name,
            "socket": str(folder / "socket"),
            "shared": str(shared),
            "shm": str(key),
            "pid": str(victim.pid),
            "broker": str(stand_in.pid),
            "prefix": sys.prefix,
            "suid": str(suid),
        }
    library.shmctl(segment, 0, None)
    shared.unlink()
    shutil.rmtree(suid)
    for process in (victim, stand_in):
        process.kill()
        process.wait()


def _answer(names: socket.socket) -> None:
    while True:
        try:
            _, who = names.recvfrom(100)
            names.sendto(b"BROKEN", who)
        except OSError:
            return


def _handle(path: str) -> str:
    """A command that opens a file by its handle, as a program does that wants out of a container."""
    handle = (ctypes.c_int * 34)(128)
    mount = ctypes.c_int()
    found = ctypes.CDLL(None, use_errno=True).name_to_handle_at(-100, os.fsencode(path), handle, ctypes.byref(mount), 0)
    content = bytes(handle)[: 8 + handle[0]] if found == 0 else bytes(8)
    text = (
        f"import ctypes, os; c = ctypes.CDLL(None, use_errno=True); h = ctypes.create_string_buffer({content!r}); "
        "f = c.open_by_handle_at(os.open('.', 0), h, 0); print(os.read(f, 9).decode() if f >= 0 else 'refused')"
    )
    return shlex.join(["python3", "-c", text])


def _broker_root() -> str:
    """A command that lists the broker's root: from the host by its namespace, else by what it would be called."""
    engine = engine_for()
    pid = engine.process_id if isinstance(engine, BrokerEngine) else 0
    package = Path(forkgym.sandbox.__file__).parent
    text = (
        "import os, sys\n"
        f"sys.path.insert(0, {str(package)!r})\n"
        "try:\n"
        "    from inside import kernel\n"
        f"    kernel.setns(os.open('/proc/{pid}/ns/mnt', 0), kernel.CLONE_NEWNS); os.chdir('/')\n"
        "except (ImportError, OSError): pass\n"
        "print('BROKEN' if 'images' in os.listdir('/') else 'nothing')"
    )
    return shlex.join(["python3", "-c", text])


def _text(attempt: Attempt, host: dict[str, str]) -> str | list[str]:
    leave = f"{shlex.quote(sys.executable)} -c 'import os, time; os.fork() and os._exit(0); os.setsid(); "
    leave += f'os.fork() and os._exit(0); os.execvp("sleep", ["sleep", "{_SLEEP}.2"])\' > /dev/null 2>&1 < /dev/null'
    things = {
        **host,
        "by_handle": _handle(host["secret"]),
        "broker_root": _broker_root(),
        "survive": f"setsid nohup sleep {_SLEEP}.1 > /dev/null 2>&1 < /dev/null & sleep 0.1",
        "daemon": leave,
        "as_nobody": "$(test $(id -u) != 0 || echo setpriv --reuid=65534 --clear-groups)",
    }

    def fill(text: str) -> str:
        for _ in range(2):
            for name, value in things.items():
                text = text.replace(f"@{name}@", value)
        return text

    return fill(attempt.command) if isinstance(attempt.command, str) else [fill(part) for part in attempt.command]


def _survivors() -> list[int]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(f"sleep\0{_SLEEP}.".encode()):
                found.append(int(pid))
        except OSError:
            continue
    return found


def _outlived() -> str:
    deadline = time.monotonic() + 1
    found = _survivors()
    while not found and time.monotonic() < deadline:
        time.sleep(0.02)
        found = _survivors()
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    return "BROKEN" if found else ""


def _sandbox(
    attempt: Attempt, create: Create, host: dict[str, str], *, wide: bool = False, **options: object
) -> Sandbox:
    name, tight, loose = attempt.limit
    limits = Limits(**{**USUAL, **({name: loose if wide else tight} if name else {})})
    if "@suid@" in attempt.command:
        options["visible"] = (*visible_directories(), host["suid"])
    return create(limits=limits, **options)


def _control(attempt: Attempt, create: Create, image: Image, host: dict[str, str]) -> str:
    command = _text(attempt, host)
    if attempt.needs and not capable(attempt.needs):
        pytest.skip(f"the control needs the capability {attempt.needs} on the machine itself")
    if attempt.control == "box":
        try:
            return run_in_box(command, prepare=attempt.prepare)
        except BoxUnavailableError as error:
            pytest.skip(str(error))
    if attempt.name == "end the init":
        command = f"sh -c {shlex.quote(str(command))}; exit"  # the parent that is ended is this shell, not the test
    if attempt.control == "direct":
        with open(host["secret"], "rb") as secret:
            said = run_directly(command, pass_fds=[secret.fileno()], env={"FORKGYM_TEST_SECRET": "BROKEN"})
        return said + (_outlived() if "outlive" in attempt.name else "")
    if attempt.control == "plain":
        done = Sandbox.create(image, backend="copy", isolation="none").run(command)
    else:
        off = {"seccomp": False} if attempt.control == "unfiltered" else {"wide": True}
        done = _sandbox(attempt, create, host, **off).run(command)
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTEMPTS)
def test_it_works_without_its_guard(name: str, isolated: Create, image: Image, host: dict[str, str]) -> None:
    attempt = ATTEMPTS[name]
    isolated()
    said = _control(attempt, isolated, image, host)
    if "BROKEN" not in said and (attempt.control == "unfiltered" or "absent" in said):
        pytest.skip(f"this kernel has nothing to refuse here: {said.strip()}")
    assert "BROKEN" in said
    _works[name] = attempt.control


def _state_of_the_host(host: dict[str, str]) -> tuple[object, ...]:
    kept = set(os.listdir(host["folder"])) - {"w1", "w2", "w3"}
    return (
        sorted(kept),
        Path(host["secret"]).read_text(),
        Path(f"/proc/{host['pid']}/cmdline").read_bytes(),
        socket.gethostname(),
        Path("/proc/self/mounts").read_text(),
        Path("/proc/sys/kernel/core_pattern").read_text(),
        os.getpriority(os.PRIO_PROCESS, 0),
        os.stat("/dev/null").st_mode,
        _survivors(),
    )


_LONG = {name: pytest.mark.slow for name in ("time", "processor time") if name in ATTEMPTS}


@pytest.mark.parametrize("name", [pytest.param(name, marks=_LONG.get(name, ())) for name in ATTEMPTS])
def test_it_fails_in_a_sandbox(name: str, isolated: Create, host: dict[str, str]) -> None:
    attempt = ATTEMPTS[name]
    for file in ("w1", "w2", "w3"):
        Path(host["folder"], file).unlink(missing_ok=True)
    before = _state_of_the_host(host)
    sandbox = _sandbox(attempt, isolated, host)
    command = _text(attempt, host)
    done = sandbox.run(command, timeout=1 if attempt.name == "time" else 10)
    assert isinstance(done, CompletedCommand), "an observation, whatever happens"
    assert "BROKEN" not in done.stdout
    assert done.timed_out == (attempt.name == "time")
    assert done.output_exceeded == (attempt.name == "output without end")
    sibling = isolated() if attempt.limit[0] else sandbox
    assert sibling.run("echo well").stdout == "well\n"
    assert _state_of_the_host(host) == before
    assert set(os.listdir(host["folder"])) == {"secret", "socket"}


@pytest.mark.slow
def test_there_are_enough_of_them() -> None:
    """Where the machine allows the controls (root, or user namespaces), at least forty ran and worked."""
    if len(ATTEMPTS) < 2 * AT_LEAST:
        pytest.skip("the calls of this processor have other numbers")
    kinds = {attempt.control for attempt in ATTEMPTS.values()}
    assert kinds == {"plain", "box", "direct", "unfiltered", "wide"}
    tried = [name for name, attempt in ATTEMPTS.items() if not attempt.needs or capable(attempt.needs)]
    if len(_works) < len(tried) // 2:
        pytest.skip(f"only {len(_works)} of {len(tried)} controls were asked for in this run")
    assert len(_works) >= AT_LEAST, f"only {len(_works)} controls worked"
