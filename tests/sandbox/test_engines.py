"""What stands under a sandbox: the probe, machines that allow less, the image store and its janitor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from forkgym.sandbox import (
    BACKENDS,
    BackendUnavailableError,
    Image,
    ImageStore,
    Limits,
    Sandbox,
    SandboxClosedError,
    SandboxError,
    Snapshot,
    engine_for,
    image_store,
    prepare,
    probe,
)
from forkgym.sandbox.broker import BrokerEngine, compiled_spawner
from forkgym.sandbox.limits import visible_directories
from forkgym.sandbox.local import LocalEngine

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_probe_tries_every_backend_and_says_why() -> None:
    results = {(result.backend, result.isolation): result for result in probe()}
    assert {backend for backend, _ in results} == set(BACKENDS)
    assert all(result.reason for result in results.values())
    assert results["copy", "none"].available
    assert "NOT isolated" in results["copy", "none"].reason
    for (backend, isolation), result in results.items():
        if result.available:
            assert engine_for(backend, isolation=isolation).isolation == isolation
        else:
            with pytest.raises(BackendUnavailableError, match=r"\w"):
                engine_for(backend, isolation=isolation)


def _elsewhere(program: str, folder: Path, **options: object) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.defpath,
        "HOME": str(folder),
        "FORKGYM_SANDBOX_STORE": str(folder / "store"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *(path for path in sys.path if path.endswith("site-packages"))]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    python = options.pop("python", sys.executable)
    command = [str(python), "-c", program]
    return subprocess.run(command, env=environment, cwd=folder, text=True, capture_output=True, timeout=60, **options)


_WITHOUT = """
import os, sys
from forkgym.sandbox.inside import kernel, seccomp
from forkgym.sandbox import Sandbox, BackendUnavailableError
kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
kernel.set_seccomp(seccomp.system_call_filter())  # this machine now allows neither namespaces nor mounts
os.makedirs("base"); open("base/f", "w").write("1")
try:
    Sandbox.create("base")
except BackendUnavailableError as error:
    print(error)
sandbox = Sandbox.create("base", isolation="none")
child = sandbox.fork()
child.run("echo 2 > f")
print(sandbox.backend, sandbox.isolation, sandbox.read("f"), child.read("f"))
"""


def test_without_namespaces_isolation_must_be_given_up_by_name(tmp_path: Path) -> None:
    done = _elsewhere(_WITHOUT, tmp_path)
    assert done.returncode == 0, done.stderr
    first, last = done.stdout.splitlines()
    assert first.startswith(
        "no isolated sandbox on this machine: overlay: the sandbox broker could not start: [Errno 1]"
    )
    assert "isolation='none' works anywhere" in first
    assert last == "copy none b'1' b'2\\n'" or last == "reflink none b'1' b'2\\n'"


_ROOTLESS = """
import json, os
from forkgym.sandbox import Sandbox, Limits
os.makedirs("base/d"); open("base/d/f", "w").write("1"); open("base/g", "w").write("1")
sandbox = Sandbox.create("base", backend="overlay", limits=Limits(disk=4 << 20, processes=20))
done = sandbox.run("rm -r d && mkdir d && echo new > d/n; chmod 000 g; ls d; id -u; cat /etc/shadow; touch /usr/x")
child = sandbox.fork(mount=True)
child.run("echo child > d/n")
full = sandbox.run("head -c 9000000 /dev/zero > big || rm big")
print(json.dumps([os.getuid(), done.stdout, done.stderr, sandbox.read("d/n").decode(), child.read("d/n").decode(),
    sorted(change.path for change in sandbox.diff()), full.exit_code]))
"""


def test_an_ordinary_user_needs_no_privileges(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("user")
    options: dict[str, object] = {}
    if os.geteuid() == 0:
        version = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
        if not os.access(version, os.X_OK):
            pytest.skip(f"there is no {version} that another user than root could run")
        for parent in (folder, *list(folder.parents)[:2]):
            parent.chmod(0o755)
        os.chown(folder, 12_345, 12_345)
        options = {"user": 12_345, "group": 12_345, "extra_groups": [], "python": version}
    done = _elsewhere(_ROOTLESS, folder, **options)
    if "BackendUnavailableError" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    user, output, error, mine, childs, paths, code = json.loads(done.stdout)
    assert user != 0
    assert output == "n\n1000\n"
    assert "shadow" in error
    assert "Read-only file system" in error
    assert (mine, childs) == ("new\n", "child\n")
    assert paths == ["d/f", "d/n", "g"]
    assert code == 0


def test_without_a_compiler_commands_behave_the_same(image: Image) -> None:
    store = image_store()
    compiled = compiled_spawner(store)
    if compiled is None:
        pytest.skip("there is no C compiler to compare with")
    try:
        engines = [BrokerEngine(store, visible=visible_directories(), compiled=compiled) for compiled in (True, False)]
    except BackendUnavailableError as error:
        pytest.skip(str(error))
    assert [engine.compiled for engine in engines] == [True, False]
    limits = Limits(disk=4 << 20, processes=20, wall_seconds=10)
    sandboxes = [Sandbox(Snapshot(engine, image, (), "/testbed", {}), limits, (), "/bin/sh") for engine in engines]
    for command in (
        "id; pwd; ulimit -a; grep -E '^(Cap|NoNewPrivs|Seccomp)' /proc/self/status; umask; hostname; env | sort",
        "stat -c '%A %U %n' / /* /dev/*; cut -d' ' -f2- /proc/mounts | grep -v -e ^/testbed -e ^/tmp",
        "cat /proc/self/uid_map /proc/self/gid_map; ls /proc/self/fd",
        "cat /proc/self/personality; cat /proc/1/environ; kill -9 1; kill -SEGV $$",
        "setsid sleep 60 & exit 3",
        "no-such-program",
        "unshare -U true; echo $?",
        "echo a > b; rm -r pkg; cat",
    ):
        first, second = (sandbox.run(command, stdin="typed") for sandbox in sandboxes)
        assert (first.exit_code, first.stdout, first.stderr) == (second.exit_code, second.stdout, second.stderr)
    assert sandboxes[1].run("sleep 60", timeout=0.3).timed_out
    assert sandboxes[0].state_hash() == sandboxes[1].state_hash()
    for engine in engines:
        engine.close()
    for sandbox in sandboxes:
        with pytest.raises(SandboxClosedError, match="broker is gone"):
            sandbox.run("true")


def test_an_image_is_named_by_its_content(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "store")
    for name in ("one", "two"):
        (tmp_path / name / "d").mkdir(parents=True)
        (tmp_path / name / "d" / "f").write_text("same")
        (tmp_path / name / "__pycache__").mkdir()
        (tmp_path / name / "__pycache__" / f"{name}.pyc").write_text(name)
    one, two = store.admit(tmp_path / "one"), store.admit(tmp_path / "two")
    assert (one.id, one.path) == (two.id, two.path)
    (tmp_path / "two" / "d" / "f").chmod(0o600)
    assert store.admit(tmp_path / "two").id != one.id
    (tmp_path / "one" / ".git").mkdir()
    assert store.admit(tmp_path / "one", skip=[".git"]).id == one.id
    again = ImageStore(tmp_path / "store").admit(tmp_path / "one", skip=[".git"])
    assert again.manifest.entries == one.manifest.entries
    assert again.size == one.size > 0


def test_processes_may_admit_the_same_base_at_once(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(200):
        (source / f"f{number}").write_text(str(number))
    found: list[Image] = []
    stores = [ImageStore(tmp_path / "store") for _ in range(4)]
    threads = [threading.Thread(target=lambda store=store: found.append(store.admit(source))) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len({image.id for image in found}) == 1
    assert os.listdir(tmp_path / "store" / "work") == []


def test_the_janitor_removes_what_the_dead_left_and_nothing_else(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "store")
    engine = LocalEngine(store)
    work = store.root / "work"
    dead = work / "copies-999999999-1-abcd"
    (dead / "sub").mkdir(parents=True)
    (dead / "sub").chmod(0o000)
    (work / f"image-{os.getpid()}-12345-abcd").mkdir()  # this number, but another process's start
    assert len(store.clean()) == 2
    assert len(os.listdir(work)) == 1
    engine.close()
    assert os.listdir(work) == []


def test_a_store_that_others_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store").chmod(0o777)
    with pytest.raises(SandboxError, match="everybody may write"):
        ImageStore(tmp_path / "store")


def test_what_is_visible_is_an_allow_list(isolated: Callable[..., Sandbox], tmp_path: Path) -> None:
    shared = ROOT / "docs"
    if str(ROOT).startswith("/tmp/"):
        pytest.skip("this checkout lies below /tmp, which every sandbox has for itself")
    sandbox = isolated(visible=["/usr", str(shared)])
    done = sandbox.run(f"head -c 1 {shared}/noise.md; echo; ls {ROOT}; touch {shared}/x")
    assert done.stdout == "#\ndocs\n"
    assert "Read-only" in done.stderr
    for place in ("relative", str(tmp_path / "missing"), str(tmp_path), "/proc"):
        with pytest.raises(SandboxError, match="visible place"):
            isolated(visible=[place])


def test_dropped_states_free_their_memory(image: Image) -> None:
    """The shared memory of the machine returns to what it was: frozen layers go with the last state that holds them."""
    try:
        sandbox = Sandbox.create(image, backend="overlay", limits=Limits(disk=64 << 20))
    except BackendUnavailableError as error:
        pytest.skip(str(error))

    def shared_kib() -> int:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("Shmem:")))

    sandbox.run("true")
    before = shared_kib()
    for _ in range(4):
        child = sandbox.fork()
        child.run("head -c 20000000 /dev/zero > big")
        held = child.snapshot()
        assert child.fork().run("stat -c %s big").stdout == "20000000\n"
        assert shared_kib() - before > 15_000
        del child, held
        for _ in range(5):
            sandbox.run("sleep 0.02")
    assert shared_kib() - before < 15_000


def test_a_lost_broker_is_an_error_of_its_sandboxes_only(isolated: Callable[..., Sandbox]) -> None:
    options = {"visible": ["/usr"]}  # an engine of its own
    sandbox = isolated(**options)
    assert sandbox.run("true").ok
    engine = sandbox._engine
    assert isinstance(engine, BrokerEngine)
    os.kill(engine.process_id, signal.SIGKILL)
    while engine.alive:
        time.sleep(0.01)
    with pytest.raises(SandboxClosedError, match="create a new sandbox"):
        sandbox.run("true")
    assert isolated(**options).run("echo well").stdout == "well\n"


def test_prepare_takes_a_path(base: Path, image: Image) -> None:
    assert prepare(str(base)).id == image.id
    assert "names" in repr(image)


def test_another_store_has_engines_of_its_own(
    isolated: Callable[..., Sandbox], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isolated().run("true").ok, "an engine of the first store is running"
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "other").write_text("only in the second store")
    monkeypatch.setenv("FORKGYM_SANDBOX_STORE", str(tmp_path / "store"))
    assert Sandbox.create(tmp_path / "tree").run("cat other").stdout == "only in the second store"
