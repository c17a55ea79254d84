"""How long a sandbox's fork, snapshot, restore, first command and state hash take, against cp, git and bubblewrap.

``python -m bench fork_latency [--repeats 100] [--backend auto] [--size small] [--json]``. The trees are made of the
source files of the installed packages. A fork counts as done when parent *and* child are mounted; in every repetition a
file is then changed in each and checked from the other side. The lazy fork (a tuple copy) is a row of its own, and so
is a whole cycle with the end of the child, which is done when nobody waits. The first row is a request that does
nothing: what the machine's load costs. All rows of a tree are timed in turns in one run; quote the ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sysconfig
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from forkgym.report.tables import render_table
from forkgym.sandbox import Image, Sandbox, close_engines, prepare

SIZES = {"small": 100, "medium": 2_000, "large": 6_000}
"""Files of each tree."""
_LARGEST = 200_000  # bytes of one file


class Wrong(Exception):
    """A fork saw what it must not see: the figures would mean nothing."""


def make_tree(target: Path, files: int) -> int:
    """Copy source files of the installed packages, in the order of their names.

    Args:
        target: New directory.
        files: How many.

    Returns:
        Bytes copied.
    """
    source = Path(sysconfig.get_paths()["purelib"])
    made = size = 0
    for path in sorted(source.rglob("*.py")):
        length = path.stat().st_size
        if length > _LARGEST or "__pycache__" in path.parts:
            continue
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
        made, size = made + 1, size + length
        if made == files:
            return size
    raise SystemExit(f"bench: only {made} source files are installed here, {files} are needed; see --size")


class Clock:
    """Seconds by row."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)

    @contextmanager
    def row(self, name: str) -> Iterator[None]:
        """Time a block."""
        start = time.perf_counter()
        yield
        self.seconds[name].append(time.perf_counter() - start)

    def milliseconds(self, quantile: float) -> dict[str, float]:
        """A quantile of every row."""
        return {name: round(float(np.percentile(times, quantile)) * 1e3, 4) for name, times in self.seconds.items()}


def _check(parent: Sandbox, child: Sandbox, number: int) -> None:
    """Change one file in each and look from the other side."""
    parent.write("changed", f"parent {number}")
    child.write("changed", f"child {number}")
    if parent.read("changed") != f"parent {number}".encode() or child.read("changed") != f"child {number}".encode():
        raise Wrong("a fork sees its sibling's write")


def _one_round(sandbox: Sandbox, clock: Clock, number: int) -> None:
    with clock.row("fork, lazy"):
        sandbox.fork()
    sandbox.write("changed", f"before {number}")
    with clock.row("nothing: one request"):
        sandbox.mount()
    with clock.row("fork, both mounted"):
        child = sandbox.fork(mount=True)
    _check(sandbox, child, number)
    child.close()
    many = sandbox.fork(mount=True)
    if sandbox.backend == "overlay":
        many.run(f"for n in $(seq 100); do echo {number} > many$n; done")
        with clock.row("fork after 100 changed files"):
            child = many.fork(mount=True)
        _check(many, child, number)
        child.close()
    many.close()
    with clock.row("snapshot of a changed state"):
        kept = sandbox.snapshot()
    sandbox.write("changed", "later")
    with clock.row("restore, mounted"):
        sandbox.restore(kept)
        sandbox.mount()
    if sandbox.read("changed") != f"parent {number}".encode():
        raise Wrong("a restored state is another")
    sandbox.state_hash()  # what the layers above the base hold is known from here on
    sandbox.write("changed", f"hash {number}")
    with clock.row("state hash, one file changed"):
        sandbox.state_hash()
    with clock.row("command: true"):
        sandbox.run(["true"])
    with clock.row("fork + first true"):
        child = sandbox.fork()
        done = child.run(["true"])
    if not done.ok:
        raise Wrong(f"true failed: {done.stderr}")


def cycle(sandbox: Sandbox, clock: Clock, count: int = 100) -> None:
    """Time writing, forking and closing without a pause: the broker must take away as many children as it makes."""
    start = time.perf_counter()
    for number in range(count):
        sandbox.write("changed", f"cycle {number}")
        sandbox.fork(mount=True).close()
    clock.seconds["write, fork and end of the child"].append((time.perf_counter() - start) / count)


def memory_of_forks(image: Image, backend: str, count: int = 1_000) -> float:
    """MiB that so many live forks of one state take beyond the bytes that each has written.

    What the kernel holds in slabs, per-processor memory and shared memory, and what this process and the broker have
    grown by. Other work on the machine counts too.
    """

    def held() -> int:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        kernel = sum(int(lines[name].split()[0]) for name in ("Shmem", "Slab", "Percpu", "PageTables"))
        return kernel + sum(_resident(process) for process in _own_processes())

    with Sandbox.create(image, backend=backend) as sandbox:
        sandbox.write("changed", "all see this")
        sandbox.fork(mount=True).close()
        before = held()
        forks = []
        for number in range(count):
            child = sandbox.fork(mount=True)
            child.write("own", f"fork {number}")
            forks.append(child)
        return round((held() - before) / 1024 - count * 4096 / 2**20, 1)


def _own_processes() -> list[str]:
    """This process and those below it."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[path.parent.name] = path.read_text().rpartition(")")[2].split()[1]
    own = [str(os.getpid())]
    for name in own:
        own += [child for child, parent in parents.items() if parent == name]
    return own


def _resident(process: str) -> int:
    """KiB."""
    try:
        text = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("RssAnon:")), 0)


class Rivals:
    """Copying the tree, checking it out of git, committing and resetting, and bubblewrap for the command.

    Args:
        tree: The tree.
        folder: For copies.
    """

    def __init__(self, tree: Path, folder: Path) -> None:
        self._tree, self._folder, self._git = tree, folder, shutil.which("git")
        self._repository = folder / "repository"
        if self._git:
            shutil.copytree(tree, self._repository)
            for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "base"]):
                self._run_git(*command)

    def quick(self, clock: Clock, number: int) -> None:
        """Time once what takes milliseconds."""
        with clock.row("true, no sandbox"):
            subprocess.run(["true"], check=True)
        if wrapper := shutil.which("bwrap"):
            command = [wrapper, "--unshare-all", "--ro-bind", "/", "/", "--bind", str(self._tree), "/mnt"]
            command += ["--proc", "/proc", "--dev", "/dev", "true"]
            with clock.row("true in bubblewrap"):
                subprocess.run(command, check=True)
        if self._git:
            changed = self._repository / "changed"
            changed.write_text(f"commit {number}")
            with clock.row("git add and commit (snapshot)"):
                self._run_git("add", "-A")
                self._run_git("commit", "-q", "-m", "state")
            changed.write_text(f"reset {number}")
            (self._repository / "new").write_text("")
            with clock.row("git reset and clean (restore)"):
                self._run_git("reset", "-q", "--hard")
                self._run_git("clean", "-fdq")

    def _run_git(self, *arguments: str) -> None:
        name = ["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0"]
        subprocess.run([str(self._git), *name, *arguments], cwd=self._repository, check=True, capture_output=True)

    def one_round(self, clock: Clock) -> None:
        """Time each of the slow ones once and remove what it made."""
        place = self._folder / "place"
        with clock.row("cp -r"):
            subprocess.run(["cp", "-r", str(self._tree), str(place)], check=True)
        shutil.rmtree(place)
        if self._git:
            command = [self._git, "worktree", "add", "-q", "--detach", str(place)]
            with clock.row("git worktree add"):
                subprocess.run(command, cwd=self._repository, check=True, capture_output=True)
            shutil.rmtree(place)
            subprocess.run([self._git, "worktree", "prune"], cwd=self._repository, check=True)


def depth_ratio(image: Image, backend: str, repeats: int = 20) -> float:
    """Median time of a mounted fork after 100 snapshots, over the same after one."""
    medians = []
    for depth in (1, 100):
        clock = Clock()
        for _ in range(repeats if depth == 1 else 1):
            sandbox = Sandbox.create(image, backend=backend)
            for step in range(depth):
                sandbox.write("changed", f"{step}")
                sandbox.snapshot()
            for step in range(1 if depth == 1 else repeats):
                here = sandbox.fork()
                here.write("changed", f"fork {step}")
                with clock.row("fork"):
                    here.fork(mount=True)
        medians.append(clock.milliseconds(50)["fork"])
    return round(medians[1] / medians[0], 2)


def measure(size: str, files: int, repeats: int, backend: str) -> dict[str, Any]:
    """Times for one tree.

    Args:
        size: Name of the tree.
        files: Its files.
        repeats: Repetitions of the cheap rows; the rivals get fewer.
        backend: As for `Sandbox.create`.

    Returns:
        ``p10_ms`` (the least disturbed), ``p50_ms`` and ``p95_ms`` by row, and how many times cheaper a fork is
        than the rivals.
    """
    clock = Clock()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tree = folder / "tree"
        length = make_tree(tree, files)
        image = prepare(str(tree))
        sandbox = Sandbox.create(image, backend=backend)
        for number in range(3):
            _one_round(sandbox, Clock(), number)
        rivals = Rivals(tree, folder)
        rivals.one_round(Clock())
        batches = max(1, min(3, repeats))
        for batch in range(batches):
            for number in range(batch, repeats, batches):
                _one_round(sandbox, clock, number)
                if number % 3 == 0:
                    rivals.quick(clock, number)
            rivals.one_round(clock)
            cycle(sandbox, clock)
        used, isolation = sandbox.backend, sandbox.isolation
        deep = depth_ratio(image, backend) if used == "overlay" else None
        memory = memory_of_forks(image, backend) if used == "overlay" else None
    middle = clock.milliseconds(50)
    fork = middle["fork, both mounted"]
    return {
        "tree": size,
        "files": files,
        "bytes": length,
        "backend": used,
        "isolation": isolation,
        "repeats": repeats,
        "p10_ms": clock.milliseconds(10),
        "p50_ms": middle,
        "p95_ms": clock.milliseconds(95),
        "fork_times_cheaper_than": {
            rival: round(middle[rival] / fork, 1) for rival in ("cp -r", "git worktree add") if rival in middle
        },
        "first_command_over_plain": round(middle["fork + first true"] / middle["true, no sandbox"], 2),
        "depth_100_over_depth_1": deep,
        "thousand_forks_mib": memory,
        "bubblewrap": shutil.which("bwrap") is not None,
        "load": round(os.getloadavg()[0], 1),
    }


def main(argv: Sequence[str]) -> int:
    """Run the bench; returns 0."""
    parser = argparse.ArgumentParser(prog="bench fork_latency", description=__doc__)
    parser.add_argument("--repeats", type=int, default=100, help="repetitions of the cheap rows (default 100)")
    parser.add_argument("--backend", default="auto", help="overlay, overlay-root, copy or auto (default)")
    parser.add_argument("--size", action="append", choices=SIZES, help="only this tree; may be repeated")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    options = parser.parse_args(argv)
    if options.repeats < 1:
        parser.error("--repeats must be at least 1")
    results = [measure(size, SIZES[size], options.repeats, options.backend) for size in options.size or SIZES]
    close_engines()
    for quantile in ("p10_ms", "p50_ms", "p95_ms"):
        names = list(results[0][quantile])
        rows = [{"": name} | {f"{r['tree']} ({r['files']})": r[quantile].get(name) for r in results} for name in names]
        print(render_table(rows, title=f"{quantile[:3]}, milliseconds, backend {results[0]['backend']}"))
    rows = [
        {
            "tree": r["tree"],
            **r["fork_times_cheaper_than"],
            "fork + true / plain true": r["first_command_over_plain"],
            "depth 100 / depth 1": r["depth_100_over_depth_1"],
            "1,000 forks, MiB": r["thousand_forks_mib"],
            "load": r["load"],
        }
        for r in results
    ]
    if not results[0]["bubblewrap"]:
        print("bubblewrap is not installed: no row for it")
    print(render_table(rows, title="a mounted fork is so many times cheaper than (p50)"))
    if options.json:
        print(json.dumps({"bench": "fork_latency", "results": results}))
    return 0
