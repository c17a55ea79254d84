"""Every backend that works on this machine, and a small base to build sandboxes on."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forkgym.sandbox import BackendUnavailableError, Image, Limits, Sandbox, close_engines, engine_for, prepare
from forkgym.sandbox.local import supports_reflink

FAST = [("overlay", "namespaces"), ("copy", "none")]
SLOW = [("overlay-root", "namespaces"), ("copy", "namespaces")]
SLOW += [("reflink", "none")] if supports_reflink(Path(tempfile.gettempdir())) else []
SMALL = Limits(disk=4 << 20, files=2_000, memory=1 << 30, wall_seconds=20, processes=64)


@pytest.fixture(scope="session", autouse=True)
def _own_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setenv("FORKGYM_SANDBOX_STORE", str(tmp_path_factory.mktemp("store")))
    yield
    close_engines()
    patch.undo()


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree with a bit of everything."""
    root = tmp_path_factory.mktemp("base") / "tree"
    (root / "pkg" / "deep").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "a.txt").write_text("alpha\nbeta\ngamma\n")
    (root / "pkg" / "one.py").write_text("x = 1\n")
    (root / "pkg" / "deep" / "two.py").write_text("y = 2\n")
    (root / "pkg" / "__pycache__").mkdir()
    (root / "pkg" / "__pycache__" / "one.pyc").write_bytes(b"stale")
    (root / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("pkg/one.py")
    (root / "data.bin").write_bytes(bytes(range(256)))
    return root


@pytest.fixture(scope="session")
def image(base: Path) -> Image:
    return prepare(str(base))


@pytest.fixture(
    params=[*FAST, *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW)], ids=lambda kind: "-".join(kind)
)
def kind(request: pytest.FixtureRequest) -> tuple[str, str]:
    backend, isolation = request.param
    try:
        engine_for(backend, isolation=isolation)
    except BackendUnavailableError as error:
        pytest.skip(str(error))
    return request.param


@pytest.fixture
def create(kind: tuple[str, str], image: Image) -> Callable[..., Sandbox]:
    """Make a sandbox of the backend under test."""

    def make(**options: Any) -> Sandbox:
        return Sandbox.create(image, **{"backend": kind[0], "isolation": kind[1], "limits": SMALL, **options})

    return make


@pytest.fixture
def isolated(image: Image) -> Callable[..., Sandbox]:
    """Make a sandbox of the best isolated backend here."""
    try:
        engine_for()
    except BackendUnavailableError as error:
        pytest.skip(str(error))

    def make(**options: Any) -> Sandbox:
        return Sandbox.create(image, **{"limits": SMALL, **options})

    return make
