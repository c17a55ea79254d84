"""What a sandbox promises, on every backend that this machine can carry."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from forkgym.sandbox import (
    MAXIMUM_DEPTH,
    BackendUnavailableError,
    Image,
    Limits,
    Sandbox,
    SandboxClosedError,
    SandboxError,
    SandboxPathError,
    prepare,
)

Create = Callable[..., Sandbox]


def test_a_command_says_what_it_did(create: Create) -> None:
    done = create().run("cat a.txt; echo oops >&2; exit 3")
    assert (done.exit_code, done.stdout, done.stderr, done.ok) == (3, "alpha\nbeta\ngamma\n", "oops\n", False)
    assert done.wall_seconds > 0
    assert done.peak_memory > 0


def test_arguments_are_passed_as_they_are(create: Create) -> None:
    assert create().run(["printf", "%s|", "a b", "$HOME", "ü", ""]).stdout == "a b|$HOME|ü||"


def test_standard_input_variables_and_directory(create: Create) -> None:
    sandbox = create(env={"COLOUR": "red"})
    assert sandbox.run("cat", stdin="typed").stdout == "typed"
    assert sandbox.run("echo $COLOUR $SIZE", env={"SIZE": "9"}).stdout == "red 9\n"
    assert sandbox.run("ls", cwd="pkg/deep").stdout == "two.py\n"
    sandbox.chdir("pkg")
    assert sandbox.run("ls one.py").stdout == "one.py\n"
    assert sandbox.read("one.py") == b"x = 1\n"


def test_streams_can_be_opened_by_name_and_merged_in_order(create: Create) -> None:
    done = create().run("echo 1; echo 2 > /dev/stderr; echo 3 > /dev/stdout", merge_stderr=True)
    assert done.stdout == "1\n2\n3\n"


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        (["no-such-program"], 127, "cannot run no-such-program"),
        (["./a.txt"], 126, "cannot run ./a.txt"),
        ("kill -SEGV $$", 139, ""),
    ],
)
def test_ends_of_commands_are_those_of_a_shell(create: Create, command: object, code: int, text: str) -> None:
    done = create().run(command)
    assert done.exit_code == code
    assert text in done.stderr


def test_a_directory_that_is_gone_is_reported_by_the_command(create: Create) -> None:
    sandbox = create()
    sandbox.chdir("empty")
    sandbox.run("rmdir ../empty")
    done = sandbox.run("true")
    assert done.exit_code == 126
    assert "cannot enter" in done.stderr


def test_the_base_holds_no_byte_code_and_is_never_written(create: Create, base: Path, image: Image) -> None:
    sandbox = create()
    assert "pyc" not in sandbox.run("find . -name '*.pyc'").stdout
    sandbox.run("echo changed > a.txt; rm -r pkg; chmod 600 run.sh")
    assert prepare(str(base)).id == image.id
    assert create().run("cat a.txt; ls pkg").stdout == "alpha\nbeta\ngamma\ndeep\none.py\n"


def test_a_fork_and_its_parent_never_see_each_other(create: Create) -> None:
    parent = create()
    parent.write("shared.txt", "before")
    child = parent.fork()
    parent.write("a.txt", "parent")
    child.run("echo child > a.txt; rm pkg/one.py; echo more >> shared.txt; echo t > $TMPDIR/t")
    assert parent.read("a.txt") == b"parent"
    assert child.read("a.txt") == b"child\n"
    assert parent.read("shared.txt") == b"before"
    assert parent.run("cat pkg/one.py; ls $TMPDIR/t 2>/dev/null").stdout == "x = 1\n"
    assert child.run("ls pkg").stdout == "deep\n"


def test_a_mounted_fork_is_the_same_as_a_lazy_one(create: Create) -> None:
    parent = create()
    for mount in (True, False, True):
        parent.write("n", f"{mount}")
        child = parent.fork(mount=mount)
        assert child.state_hash() == parent.state_hash()
        child.write("c", "1")
        parent.write("p", "1")
        assert child.run("ls c p 2>/dev/null").stdout == "c\n"
        assert parent.run("ls c p 2>/dev/null").stdout == "p\n"
        parent.run("rm p")


def test_restore_goes_back_and_forward(create: Create) -> None:
    sandbox = create()
    start = sandbox.snapshot()
    sandbox.run("echo new > new; rm a.txt")
    sandbox.chdir("pkg")
    sandbox.setenv("STEP", "1")
    later, mark = sandbox.snapshot(), sandbox.state_hash()
    sandbox.run("rm -rf /testbed/pkg/deep")
    sandbox.restore(start)
    assert sandbox.run("ls").stdout == "a.txt\ndata.bin\nempty\nlink\npkg\nrun.sh\n"
    assert (sandbox.cwd, sandbox.environment) == ("/testbed", {})
    sandbox.restore(later)
    assert sandbox.state_hash() == mark
    assert sandbox.run("cat /testbed/new; ls; echo $STEP").stdout == "new\ndeep\none.py\n1\n" or (
        sandbox.isolation == "none"
    )


def test_a_snapshot_of_an_unchanged_state_adds_no_layer(image: Image, isolated: Create) -> None:
    sandbox = isolated()
    sandbox.run("cat a.txt; ls -R")
    assert sandbox.snapshot().depth == 0
    sandbox.write("x", "1")
    assert sandbox.snapshot().depth == 1
    sandbox.run("cat x")
    assert sandbox.snapshot().depth == 1


def test_equal_trees_hash_equal_however_they_were_reached(create: Create) -> None:
    first, second, untouched = create(), create(), create()
    first.run("mkdir new && echo 1 > new/f && chmod 640 new/f && ln -s f new/l && rm -r pkg && mkdir pkg")
    second.run("mkdir -p new/x && rmdir new/x && echo 2 > new/g")
    second.fork()
    second.run(
        "rm -r pkg && mkdir pkg; cd new; ln -s f l; mv g h; echo 1 > h; mv h f; chmod 640 f; echo a > $TMPDIR/noise"
    )
    assert first.state_hash() == second.state_hash()
    assert first.state_hash() != untouched.state_hash()
    again = create()
    again.run(
        "cp a.txt b; rm a.txt; echo q > a.txt; cat b > a.txt; rm b; chmod 600 run.sh; chmod 755 run.sh; touch link"
    )
    assert again.state_hash() == untouched.state_hash()
    assert again.diff() == ()


@pytest.mark.parametrize(
    "change",
    [
        "echo >> a.txt",
        "chmod 700 run.sh",
        "ln -sfn a.txt link",
        "rm a.txt",
        "mkdir empty/e",
        "rmdir empty",
        "mkfifo pipe",
        "rm link; cp pkg/one.py link",
        "mkdir q; touch q/__pycache__x",
        "rm -r pkg; touch pkg",
    ],
)
def test_every_kind_of_change_changes_the_hash(create: Create, change: str) -> None:
    sandbox = create()
    before = sandbox.state_hash()
    assert sandbox.run(change).ok
    assert sandbox.state_hash() != before
    assert sandbox.diff()


def test_directory_and_variables_are_part_of_the_state(create: Create) -> None:
    sandbox = create()
    marks = {sandbox.state_hash()}
    sandbox.chdir("pkg")
    marks.add(sandbox.state_hash())
    sandbox.setenv("A", "b")
    marks.add(sandbox.state_hash())
    assert len(marks) == 3
    sandbox.chdir("..")
    sandbox.setenv("A", None)
    assert sandbox.state_hash() in marks


def test_scratch_paths_fork_but_do_not_count(create: Create) -> None:
    sandbox = create(scratch=("/tmp", "cache", "/testbed/build"))
    before = sandbox.state_hash()
    sandbox.run("mkdir -p cache build pkg/cache; echo 1 | tee cache/f build/f pkg/cache/f")
    assert sandbox.state_hash() == before
    assert sandbox.fork().run("cat build/f pkg/cache/f").stdout == "1\n1\n"


def test_the_hash_is_the_same_on_every_backend(image: Image, create: Create) -> None:
    def change(sandbox: Sandbox) -> str:
        sandbox.run("rm -r pkg/deep; mkdir pkg/deep; echo z > pkg/deep/z; rm a.txt; chmod 700 run.sh; ln -s q s")
        return sandbox.state_hash()

    try:
        reference = Sandbox.create(image, backend="overlay")
    except BackendUnavailableError as error:
        pytest.skip(str(error))
    assert change(create()) == change(reference)


def test_flattening_keeps_the_state(create: Create) -> None:
    deep, flat = create(), create()
    steps = MAXIMUM_DEPTH + 4 if deep.backend == "overlay" else 22  # copies never grow deep
    commands = [f"echo {n} > f{n % 7}; rm -f f{(n + 3) % 7}" for n in range(steps)]
    commands[5] = "rm -r pkg"
    commands[9] = "mkdir pkg; echo p > pkg/p"
    commands[20] = "rm a.txt; mkdir a.txt; touch a.txt/in; chmod 700 a.txt"
    early = None
    for number, command in enumerate(commands):
        deep.run(command)
        snapshot = deep.snapshot()
        assert deep.depth <= MAXIMUM_DEPTH
        if number == 12:
            early = snapshot
        flat.run(command)
    assert deep.state_hash() == flat.state_hash()
    assert deep.run("ls -R; cat f*").stdout == flat.run("ls -R; cat f*").stdout
    assert early is not None
    deep.restore(early)
    assert deep.run("ls pkg").stdout == "p\n"


def test_the_patch_gives_the_same_tree_when_git_applies_it(create: Create, base: Path, tmp_path: Path) -> None:
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is not installed")
    sandbox = create()
    sandbox.run(
        "printf 'alpha\\nBETA\\ngamma' > a.txt; rm -r pkg/deep; mkdir new; printf 'no end' > 'new/with space.txt';"
        "head -c 100 data.bin | tac > data2; cp data.bin new/copy; printf '\\001\\002' >> data.bin; chmod 644 run.sh;"
        "ln -sfn a.txt link; : > new/empty; printf 'q\\n' > 'new/quote\"d'; rm pkg/one.py; ln -s there pkg/one.py"
    )
    target = tmp_path / "copy"
    shutil.copytree(base, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    patch = sandbox.patch()
    subprocess.run([git, "init", "-q"], cwd=target, check=True)
    subprocess.run([git, "apply"], cwd=target, input=patch, text=True, check=True)
    shutil.rmtree(target / ".git")
    again = Sandbox.create(prepare(str(target)), backend="copy", isolation="none")
    want = {path: (entry.kind, entry.target, entry.digest) for path, entry in _effective(sandbox).items()}
    found = {p: (e.kind, e.target, e.digest) for p, e in again.image.manifest.entries.items() if e.kind != "d"}
    assert found == want
    assert {change.path for change in sandbox.diff()} >= {"a.txt", "new/empty", "pkg/deep/two.py", "run.sh"}


def _effective(sandbox: Sandbox) -> dict:
    entries = {**sandbox.image.manifest.entries, **sandbox.difference()}
    return {path: entry for path, entry in entries.items() if entry is not None and entry.kind != "d"}


def test_read_and_write_stay_inside(create: Create) -> None:
    sandbox = create()
    sandbox.run("ln -s /etc/passwd out; ln -s /etc dir; mkfifo pipe; ln -s a.txt in")
    assert sandbox.read("in").startswith(b"alpha")
    for path in ("out", "dir/passwd", "pipe", "pkg", "/etc/passwd", "../../etc/passwd", "a\0b"):
        with pytest.raises(SandboxPathError):
            sandbox.read(path)
    for path in ("out", "dir/new", "/usr/x", "../x"):
        with pytest.raises(SandboxPathError):
            sandbox.write(path, "no")
    with pytest.raises(FileNotFoundError):
        sandbox.read("nothing")
    sandbox.write("some/new/place.txt", "ü")
    assert sandbox.run("cat some/new/place.txt").stdout == "ü"


def test_misuse_is_explained(create: Create, base: Path) -> None:
    sandbox = create()
    with pytest.raises(SandboxError, match="at least a program"):
        sandbox.run([])
    with pytest.raises(SandboxError, match="zero byte"):
        sandbox.run("a\0b")
    with pytest.raises(SandboxError, match="not a directory"):
        Sandbox.create(base / "a.txt")
    with pytest.raises(SandboxError, match="there is no backend 'magic'"):
        Sandbox.create(base, backend="magic")
    with pytest.raises(SandboxError, match="above zero"):
        Limits(disk=0)
    with pytest.raises(SandboxPathError):
        sandbox.chdir("/etc")
    snapshot = sandbox.snapshot()
    sandbox.close()
    sandbox.close()
    for verb in (sandbox.snapshot, sandbox.fork, sandbox.state_hash, lambda: sandbox.run("true")):
        with pytest.raises(SandboxClosedError):
            verb()
    other = create()
    other.restore(snapshot)
    assert other.run("true").ok


def test_output_is_cut_by_rule(create: Create) -> None:
    sandbox = create(limits=Limits(output=20, output_total=1 << 20))
    done = sandbox.run("printf '%0100d' 7; printf '%015d' 3 >&2")
    assert done.stdout == f"{'0' * 10}\n[... 80 bytes left out ...]\n{'0' * 9}7"
    assert done.stderr == "0" * 14 + "3"
    flood = sandbox.run("yes", timeout=20)
    assert flood.output_exceeded
    assert not flood.timed_out
    assert flood.stdout == "y\ny\ny\ny\ny\n\n[... the rest is left out: too much output ...]\n"


def test_a_timeout_ends_the_whole_tree(create: Create) -> None:
    sandbox = create()
    done = sandbox.run("echo first; (setsid sleep 61 &) ; setsid nohup sleep 62 & sleep 63", timeout=0.5)
    assert (done.exit_code, done.timed_out, done.stdout) == (124, True, "first\n")
    assert done.wall_seconds < 5
    assert not _running("sleep", "61", "62", "63")


def test_nothing_runs_on_after_a_command(create: Create) -> None:
    sandbox = create()
    done = sandbox.run("setsid sleep 64 & (setsid nohup sleep 65 > /dev/null 2>&1 &) ; echo done")
    assert done.stdout == "done\n"
    assert not _running("sleep", "64", "65")


def _running(program: str, *arguments: str) -> list[str]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if words[0].endswith(program) and words[1] in arguments:
            found.append(" ".join(words))
    return found


def test_determined_by_default(create: Create) -> None:
    program = "import os,sys,time; print(hash('a'), time.tzname, os.umask(0), sys.flags.dont_write_bytecode)"
    outputs = {create().run(["python3", "-c", program]).stdout for _ in range(2)}
    assert len(outputs) == 1
    assert "('UTC', 'UTC') 18 1" in outputs.pop()
    addresses = {create().run("grep stack /proc/self/maps").stdout.split("-")[0] for _ in range(3)}
    assert len(addresses) == 1


def test_nothing_of_the_hosts_environment_gets_in(create: Create, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "secret-token")
    assert "secret-token" not in create().run("env; cat /proc/self/environ").stdout


def test_threads_use_different_sandboxes_at_once(create: Create) -> None:
    outputs: dict[int, str] = {}

    def work(number: int) -> None:
        sandbox = create()
        for step in range(3):
            sandbox.run(f"echo {number} >> mine")
            sandbox = sandbox.fork() if step % 2 else sandbox
        outputs[number] = sandbox.read("mine").decode()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outputs == {number: f"{number}\n" * 3 for number in range(4)}


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 1e30, 0.0, -1.0])
def test_a_time_that_no_clock_can_wait_for_is_refused_and_the_sandbox_goes_on(create: Create, seconds: float) -> None:
    with pytest.raises(SandboxError, match="above zero"):
        Limits(wall_seconds=seconds)
    with create() as sandbox:
        with pytest.raises(SandboxError, match="timeout"):
            sandbox.run(["true"], timeout=seconds)
        assert sandbox.run(["true"]).ok
