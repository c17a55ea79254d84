"""Random programs of edits, commands, forks and snapshots: a model in plain Python says what each state must be."""

from __future__ import annotations

import copy
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from forkgym.sandbox import BackendUnavailableError, Image, Limits, Sandbox, Snapshot, engine_for, prepare

NAMES = st.sampled_from(["a", "b", "d", "d/a", "d/b", "d/e", "d/e/f", "ü x"])
TEXTS = st.sampled_from(["", "one\n", "two\n", "\0bin"])
MODES = st.sampled_from([0o644, 0o600, 0o755, 0o700])
Tree = dict[str, tuple[Any, ...]]
BASE: Tree = {
    "a": ("f", 0o644, "one\n"),
    "d": ("d", 0o755),
    "d/a": ("f", 0o755, "two\n"),
    "d/e": ("d", 0o755),
    "d/e/f": ("l", "../a"),
}


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _below(tree: Tree, path: str) -> list[str]:
    return [name for name in tree if name.startswith(f"{path}/")]


class World:
    """A sandbox and what it must hold."""

    def __init__(self, sandbox: Sandbox, tree: Tree) -> None:
        self.sandbox, self.tree = sandbox, tree


class Programs(RuleBasedStateMachine):
    backend, isolation = "overlay", "namespaces"
    image: Image
    worlds: Bundle[World] = Bundle("worlds")
    snapshots: Bundle[tuple[Snapshot, Tree]] = Bundle("snapshots")

    def __init__(self) -> None:
        super().__init__()
        self.alive: list[World] = []
        self.hashes: dict[str, str] = {}

    @initialize(target=worlds)
    def start(self) -> World:
        sandbox = Sandbox.create(
            self.image, backend=self.backend, isolation=self.isolation, limits=Limits(disk=4 << 20, files=1000)
        )
        return self._new(sandbox, dict(BASE))

    def _new(self, sandbox: Sandbox, tree: Tree) -> World:
        world = World(sandbox, copy.copy(tree))
        self.alive.append(world)
        return world

    def _sh(self, world: World, *argv: str) -> bool:
        return world.sandbox.run(argv).ok

    @staticmethod
    def _fits(world: World, path: str) -> bool:
        """Whether the parent is a directory (a link to one would be another place)."""
        return not _parent(path) or world.tree.get(_parent(path), ("",))[0] == "d"

    @rule(world=worlds, path=NAMES, text=TEXTS)
    def write(self, world: World, path: str, text: str) -> None:
        tree = world.tree
        old = tree.get(path)
        if not self._fits(world, path) or (old is not None and old[0] != "f"):
            return
        world.sandbox.write(path, text)
        tree[path] = ("f", 0o644 if old is None else old[1], text)

    @rule(world=worlds, path=NAMES)
    def remove(self, world: World, path: str) -> None:
        if not self._fits(world, path):
            return
        assert self._sh(world, "rm", "-r", path) == (path in world.tree)
        for name in [path, *_below(world.tree, path)]:
            world.tree.pop(name, None)

    @rule(world=worlds, path=NAMES)
    def make_directory(self, world: World, path: str) -> None:
        if not self._fits(world, path):
            return
        assert self._sh(world, "mkdir", path) == (path not in world.tree)
        world.tree.setdefault(path, ("d", 0o755))

    @rule(world=worlds, path=NAMES, there=st.sampled_from(["a", "../a", "nowhere"]))
    def link(self, world: World, path: str, there: str) -> None:
        if self._fits(world, path) and path not in world.tree:
            assert self._sh(world, "ln", "-s", there, path)
            world.tree[path] = ("l", there)

    @rule(world=worlds, path=NAMES, mode=MODES)
    def change_mode(self, world: World, path: str, mode: int) -> None:
        old = world.tree.get(path)
        if old is not None and old[0] != "l" and (old[0] == "f" or mode & 0o100):
            assert self._sh(world, "chmod", f"{mode:o}", path)
            world.tree[path] = (old[0], mode, *old[2:])

    @rule(world=worlds, source=NAMES, new=NAMES)
    def rename(self, world: World, source: str, new: str) -> None:
        tree = world.tree
        if source not in tree or not self._fits(world, new) or new in tree or f"{new}/".startswith(f"{source}/"):
            return
        assert self._sh(world, "mv", source, new)
        for name in [source, *_below(tree, source)]:
            tree[new + name[len(source) :]] = tree.pop(name)

    @rule(world=worlds)
    def look(self, world: World) -> None:
        """A command that changes nothing that counts."""
        assert self._sh(world, "sh", "-c", "ls -R > $TMPDIR/seen; mkdir z && touch z/z && rm -r z")

    @rule(target=worlds, world=worlds, mount=st.booleans())
    def fork(self, world: World, mount: bool) -> World:
        child = world.sandbox.fork(mount=mount)
        return self._new(child, world.tree)

    @rule(target=snapshots, world=worlds)
    def snapshot(self, world: World) -> tuple[Snapshot, Tree]:
        return world.sandbox.snapshot(), dict(world.tree)

    @rule(world=worlds, kept=snapshots)
    def restore(self, world: World, kept: tuple[Snapshot, Tree]) -> None:
        world.sandbox.restore(kept[0])
        world.tree = dict(kept[1])

    @precondition(lambda self: len(self.alive) > 1)
    @rule(world=consumes(worlds))
    def close(self, world: World) -> None:
        world.sandbox.close()
        self.alive.remove(world)

    @invariant()
    def every_state_is_the_model(self) -> None:
        for world in self.alive:
            key = repr(sorted(world.tree.items()))
            mark = world.sandbox.state_hash()
            assert self.hashes.setdefault(key, mark) == mark, "equal trees, unequal hashes"
            entries = {**world.sandbox.image.manifest.entries, **world.sandbox.difference()}
            found = {
                path.removeprefix("tree/"): entry
                for path, entry in entries.items()
                if entry is not None and path.startswith("tree/")
            }
            assert {name: (e.kind, e.mode or e.target) for name, e in found.items()} == {
                name: entry[:2] for name, entry in world.tree.items()
            }
        assert len(set(self.hashes.values())) == len(self.hashes), "unequal trees, equal hashes"

    def teardown(self) -> None:
        for world in self.alive:
            for path, entry in world.tree.items():
                if entry[0] == "f":
                    assert world.sandbox.read(path) == entry[2].encode()
            listing = world.sandbox.run("find . -mindepth 1 | sort").stdout.split("\n")[:-1]
            assert listing == sorted((f"./{name}" for name in world.tree), key=os.fsencode)


@pytest.fixture(scope="module")
def program_image() -> Image:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for path, entry in BASE.items():
            if entry[0] == "d":
                (root / path).mkdir(mode=entry[1])
            elif entry[0] == "f":
                (root / path).write_text(entry[2])
                (root / path).chmod(entry[1])
            else:
                (root / path).symlink_to(entry[1])
        return prepare(folder)


def _run(kind: tuple[str, str], image: Image, examples: int, steps: int) -> None:
    machine = type("Programs", (Programs,), {"backend": kind[0], "isolation": kind[1], "image": image})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
            database=None,
        ),
    )


def test_random_programs(program_image: Image) -> None:
    try:
        engine_for("overlay")
    except BackendUnavailableError as error:
        pytest.skip(str(error))
    _run(("overlay", "namespaces"), program_image, examples=4, steps=12)


@pytest.mark.slow
def test_many_random_programs(kind: tuple[str, str], program_image: Image) -> None:
    """300 programs on overlays, fewer where a command costs more."""
    examples = {("overlay", "namespaces"): 300, ("copy", "none"): 8}.get(kind, 30)
    _run(kind, program_image, examples=examples, steps=15)
