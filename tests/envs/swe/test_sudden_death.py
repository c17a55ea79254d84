"""A trainer that is killed at any moment leaves no process and no mount, and after the next start no temporary file."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from forkgym_swe.harness import harness
from forkgym_swe.instance import Instance, dump_instances

from forkgym.sandbox import BackendUnavailableError, engine_for

_MARK = "4243"
TRAINER = f"""
import sys, threading
from forkgym_swe.task_env import TaskEnv

episodes = int(sys.argv[2])
print("ready", flush=True)

def call(env, tool, **arguments):
    return env.step({{"tool": tool, "arguments": arguments}})

def work(number):
    env = TaskEnv(tasks=sys.argv[1], memo=False)
    for episode in range(episodes):
        env.reset(seed=episode)
        call(env, "run_shell", command="(setsid nohup sleep {_MARK}.1 > /dev/null 2>&1 &); echo x > note.txt")
        twins = [env.fork() for _ in range(2)]
        for twin in twins:
            call(twin, "run_shell", command="echo y >> note.txt; (sleep {_MARK}.2 &); sleep 0.1")
            call(twin, "run_tests", test_filter="tests/test_other.py")
        call(env, "submit_patch")
        for twin in twins:
            twin.close()
    env.close()

threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("done", flush=True)
"""


def _start(tasks: Path, room: Path, episodes: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "FORKGYM_SANDBOX_STORE": str(room / "store"), "TMPDIR": str(room / "tmp")}
    command = [sys.executable, "-c", TRAINER, str(tasks), str(episodes)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def _status(pid: int) -> tuple[int, str]:
    """Parent and start time: the time tells a process from a later one with its number."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1]), fields[19]


def _family(root: int) -> dict[int, str]:
    """All descendants of a process, with their start times."""
    parents: dict[int, tuple[int, str]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            parents[int(name)] = _status(int(name))
        except OSError:
            continue
    found: dict[int, str] = {}
    waiting = [root]
    while waiting:
        parent = waiting.pop()
        for pid, (above, begun) in parents.items():
            if above == parent and pid not in found:
                found[pid] = begun
                waiting.append(pid)
    return found


def _alive(family: dict[int, str]) -> list[str]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            ours = family.get(int(name)) == _status(int(name))[1]
        except OSError:
            continue
        if ours or line.startswith(f"sleep {_MARK}."):
            found.append(f"{name}: {line}")
    return found


@pytest.mark.slow
def test_a_trainer_killed_at_ten_moments_leaves_nothing(task: Instance, tmp_path: Path) -> None:
    try:
        engine_for()
    except BackendUnavailableError as error:
        pytest.skip(str(error))
    (tmp_path / "tmp").mkdir()
    dump_instances(tmp_path / "tasks.jsonl", [task])
    moments = random.Random(4243)
    mounts = Path("/proc/self/mounts").read_text()
    seen, family_time = 0, ""
    for _ in range(10):
        trainer = _start(tmp_path / "tasks.jsonl", tmp_path, 1000)
        time.sleep(moments.uniform(0.0, 2.5))
        assert trainer.poll() is None, "it was to be killed at work"
        trainer.send_signal(signal.SIGSTOP)
        family, family_time = _family(trainer.pid), _status(trainer.pid)[1]
        seen += len(family)
        trainer.kill()
        trainer.communicate()
        deadline = time.monotonic() + 10
        while _alive(family) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert _alive(family) == []
        assert Path("/proc/self/mounts").read_text() == mounts
    assert seen > 20, "brokers and commands were running when it was killed"
    for name in ("image", "copies"):  # what a process leaves that was killed while it copied
        (tmp_path / "store" / "work" / f"{name}-{trainer.pid}-{family_time}-0badcafe" / "tree").mkdir(parents=True)
    half = harness().root.with_name(f".harness-half.{trainer.pid}")
    (half / "bin").mkdir(parents=True)
    last = _start(tmp_path / "tasks.jsonl", tmp_path, 1)
    said, _ = last.communicate(timeout=60)
    assert (said, last.returncode) == ("done\n", 0)
    assert os.listdir(tmp_path / "store" / "work") == []
    assert os.listdir(tmp_path / "tmp") == []
    assert not half.exists()
    assert Path("/proc/self/mounts").read_text() == mounts
