"""What is opt-in: seeded random bytes and a clock of one's own, on every backend, in forks, and in the state hash."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from forkgym.sandbox import Clock, Image, Sandbox, SandboxError
from forkgym.sandbox.broker import compiled
from forkgym.sandbox.engines import image_store
from forkgym.sandbox.repeat import compiled_repeat

RANDOM = r"""
import os, random, secrets, uuid
print(os.urandom(8).hex(), uuid.uuid4(), secrets.token_hex(4), random.random())
with open("/dev/urandom", "rb") as device, open("/dev/random", "rb") as other:
    print(device.read(8).hex(), other.read(8).hex())
"""


@pytest.fixture(autouse=True)
def _compiler() -> None:
    try:
        compiled_repeat(image_store())
    except SandboxError as error:
        pytest.skip(str(error))


def test_random_bytes_are_a_function_of_the_seed(create: Callable[..., Sandbox]) -> None:
    program = ["python3", "-c", RANDOM]
    first, again, other = (create(random_seed=seed) for seed in (7, 7, 8))
    # Process ids are part of the stream's key, and without namespaces they are the host's.
    same = first.isolation == "namespaces"
    said = first.run(program)
    assert said.ok, said.stderr
    assert (again.run(program).stdout == said.stdout) is same
    assert (first.fork().run(program).stdout == said.stdout) is same
    assert other.run(program).stdout != said.stdout
    parts = said.stdout.split()
    assert len(set(parts)) == len(parts)


def test_without_a_seed_they_are_not(isolated: Callable[..., Sandbox]) -> None:
    plain = isolated()
    assert plain.run(["python3", "-c", RANDOM]).stdout != plain.run(["python3", "-c", RANDOM]).stdout
    clocked = isolated(clock=Clock(at=0))
    assert clocked.run(["python3", "-c", RANDOM]).stdout != clocked.run(["python3", "-c", RANDOM]).stdout


def test_a_shell_reads_the_same_devices(isolated: Callable[..., Sandbox]) -> None:
    sandbox = isolated(random_seed=1)
    command = "head -c 8 < /dev/urandom | od -An -tx1; head -c 8 /dev/random | od -An -tx1; wc -c < /dev/urandom"
    first, second = sandbox.run(command), sandbox.fork().run(command)
    assert first.stdout == second.stdout
    assert first.stdout.splitlines()[2] == str(1 << 20)
    assert first.stdout != isolated(random_seed=2).run(command).stdout


def test_the_bytes_look_random(isolated: Callable[..., Sandbox]) -> None:
    """Each byte value's count among 2^20 is within seven standard deviations of its mean: fails by chance < 1e-9."""
    program = (
        "import collections, os; print(max(abs(n - 4096) for n in collections.Counter(os.urandom(1 << 20)).values()))"
    )
    assert int(isolated(random_seed=3).run(["python3", "-c", program]).stdout) < 7 * 64


def test_a_frozen_clock_stands_still(create: Callable[..., Sandbox]) -> None:
    sandbox = create(clock=Clock(at=1_000_000_000.25, frozen=True))
    program = "import time; a = time.time(); time.sleep(0.02); print(a, time.time(), time.monotonic() > 0)"
    assert sandbox.run(["python3", "-c", program]).stdout == "1000000000.25 1000000000.25 True\n"
    assert sandbox.run(["date", "-u", "+%F %T"]).stdout == "2001-09-09 01:46:40\n"


def test_a_clock_goes_on_from_its_beginning_in_every_process_of_a_command(create: Callable[..., Sandbox]) -> None:
    sandbox = create(clock=Clock(at=1_000_000_000))
    for _ in range(2):
        first, later = (float(text) for text in sandbox.run("date +%s.%N; sleep 0.2; date +%s.%N").stdout.split())
        assert 0 <= first - 1_000_000_000 < 10
        assert 0.2 <= later - first < 10


def test_both_are_part_of_the_states_hash(isolated: Callable[..., Sandbox], image: Image) -> None:
    states = [{}, {"random_seed": 1}, {"random_seed": 2}, {"clock": Clock(at=1)}, {"clock": Clock(at=1, frozen=True)}]
    hashes = [isolated(**options).state_hash() for options in states]
    assert len(set(hashes)) == len(hashes)
    child = isolated(random_seed=1).fork()
    assert child.state_hash() == hashes[1]
    assert Sandbox.create(image, isolation="none", backend="copy", random_seed=1).state_hash() == hashes[1]


def test_what_cannot_be_is_said(isolated: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SandboxError, match="64 bits"):
        isolated(random_seed=-1)
    with pytest.raises(SandboxError, match="since 1970"):
        Clock(at=float("nan"))
    monkeypatch.setenv("FORKGYM_SANDBOX_COMPILER", "")
    assert compiled(image_store(), "repeat", ("repeat.c",)) is None
    with pytest.raises(SandboxError, match="install a C compiler"):
        isolated(random_seed=1, visible=["/usr/lib"])  # an engine that is not there yet
    assert isolated().run("true").ok
