"""What a single attempt does not show: limits over many layers and forks, commands that run at once, sudden ends.

The attempts one by one, each with its control, are in `test_controls`.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from forkgym.sandbox import Limits, Sandbox

Create = Callable[..., Sandbox]
MIB = 1 << 20


def python(text: str) -> list[str]:
    return ["python3", "-c", text]


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
