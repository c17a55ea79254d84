"""Mounted forks: a small layer is copied, a larger one frozen; neither parent nor child can tell which."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

import pytest

from forkgym.sandbox import BackendUnavailableError, Image, Limits, Sandbox
from forkgym.sandbox.broker import BrokerEngine
from forkgym.sandbox.images import OUTSIDE_ID
from forkgym.sandbox.inside.stores import COPIED_NAMES

LOOK = "find . /tmp -printf '%P %y %m %s %T@ %l %n\\n' && ls -U . pkg new && cat new/z new/a data.bin | md5sum"
SMALL_CHANGE = (
    "mkdir -m 700 new && echo one > new/z && echo two > new/a && chmod 4711 new/a && ln -s /nowhere new/link && "
    "mkfifo -m 640 new/pipe && rm a.txt && rm -r pkg && mkdir pkg && echo p > pkg/other && echo more >> data.bin && "
    "touch -d @5 new/z"
)


@pytest.fixture
def overlay(isolated: Callable[..., Sandbox]) -> Callable[..., Sandbox]:
    if isolated().backend != "overlay":
        pytest.skip("another backend copies everything")
    engine = isolated()._engine
    if not (isinstance(engine, BrokerEngine) and engine.compiled):
        pytest.skip("without a compiler nothing is copied")
    return isolated


def test_a_small_layer_is_copied_with_all_that_commands_can_see(overlay: Callable[..., Sandbox]) -> None:
    sandbox = overlay()
    assert sandbox.run(SMALL_CHANGE).ok
    looked = sandbox.run(LOOK)
    assert looked.ok, looked
    before = looked.stdout
    hash_before = sandbox.state_hash()
    child = sandbox.fork(mount=True)
    assert (sandbox.depth, child.depth) == (0, 0)
    assert child.run(LOOK).stdout == sandbox.run(LOOK).stdout == before
    assert child.state_hash() == sandbox.state_hash() == hash_before
    assert child.patch() == sandbox.patch()
    child.write("new/z", "childs")
    sandbox.write("new/a", "parents")
    assert sandbox.read("new/z") == b"one\n"
    assert child.read("new/a") == b"two\n"
    for side in (sandbox, child):
        assert side.run("ls -U pkg; echo later > pkg/later; ls -U pkg; test ! -e a.txt").exit_code == 0


def test_forks_of_copies_and_their_snapshots_are_states_like_others(overlay: Callable[..., Sandbox]) -> None:
    sandbox = overlay()
    sandbox.write("f", "0")
    family = [sandbox]
    for number in range(1, 6):
        child = family[-1].fork(mount=True)
        child.write("f", str(number))
        family.append(child)
    kept = [member.snapshot() for member in family]
    for member in family:
        member.write("f", "overwritten")
    for number, (member, snapshot) in enumerate(zip(family, kept, strict=True)):
        member.restore(snapshot)
        assert member.read("f") == str(number).encode()
    family[0].close()
    assert family[-1].fork(mount=True).run("cat f").stdout == "5"


@pytest.mark.parametrize(
    "command",
    [
        f"for n in $(seq {COPIED_NAMES + 1}); do echo $n > file$n; done",
        "echo linked > one && ln one two",
        "head -c 1000000 /dev/zero > big",
        "truncate -s 1000000 sparse",
    ],
    ids=["many names", "hard link", "large file", "sparse file"],
)
def test_what_is_not_copied_is_frozen(overlay: Callable[..., Sandbox], command: str) -> None:
    sandbox = overlay()
    assert sandbox.run(command).ok
    child = sandbox.fork(mount=True)
    assert (sandbox.depth, child.depth) == (1, 1)
    look = "ls -lU --time-style=full-iso && cat file3 one two 2>/dev/null"
    assert child.run(look).stdout == sandbox.run(look).stdout
    child.write("a.txt", "childs")
    assert sandbox.read("a.txt").startswith(b"alpha")
    assert child.state_hash() != sandbox.state_hash()


def test_a_copy_has_the_disk_limit_of_its_state(overlay: Callable[..., Sandbox]) -> None:
    sandbox = overlay(limits=Limits(disk=1 << 20))
    sandbox.write("f", "x" * 50_000)
    child = sandbox.fork(mount=True)
    for side in (sandbox, child):
        done = side.run("head -c 2000000 /dev/zero > full; stat -c %s full; rm full")
        assert "No space left" in done.stderr
        assert 900_000 < int(done.stdout) < 1 << 20
    outputs = [side.run("head -c 2000000 /dev/zero > full; stat -c %s full").stdout for side in (sandbox, child)]
    assert outputs[0] == outputs[1]


def test_a_fork_of_what_nobody_wrote_adds_nothing(overlay: Callable[..., Sandbox]) -> None:
    sandbox = overlay()
    sandbox.run("true")
    child = sandbox.fork(mount=True)
    grandchild = child.fork(mount=True)
    assert (sandbox.depth, child.depth, grandchild.depth) == (0, 0, 0)
    assert grandchild.state_hash() == sandbox.state_hash()


def test_a_command_may_have_a_large_environment(isolated: Callable[..., Sandbox]) -> None:
    sandbox = isolated()
    large = {f"LARGE{number}": "x" * 30_000 for number in range(20)}
    for variables in ({"LARGE0": "x" * 60_000}, large):
        done = sandbox.run('env | grep -c LARGE; printf %s "$LARGE0" | wc -c', env=variables)
        assert done.stdout.split() == [str(len(variables)), str(len(variables["LARGE0"]))]
    assert sandbox.run(["printf", "%s|", *["", "a", ""]]).stdout == "|a||"


@pytest.mark.skipif(os.geteuid() != 0, reason="overlay-root needs root")
def test_other_processes_of_the_same_user_leave_commands_their_own_number(image: Image) -> None:
    """Without user namespaces the kernel counts all processes of the user that runs the commands together."""
    try:
        sandbox = Sandbox.create(image, backend="overlay-root", limits=Limits(processes=30))
    except BackendUnavailableError as error:
        pytest.skip(str(error))
    others = [subprocess.Popen(["sleep", "60"], user=OUTSIDE_ID, group=OUTSIDE_ID, extra_groups=[]) for _ in range(40)]
    try:
        assert sandbox.run("for n in $(seq 10); do sleep 0.1 & done; wait").ok
        bomb = sandbox.run("for n in $(seq 100); do sleep 2 & done; wait", timeout=10)
        assert "fork" in bomb.stderr
    finally:
        for other in others:
            other.kill()
            other.wait()
