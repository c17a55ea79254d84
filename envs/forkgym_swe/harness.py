"""What test runs need from outside a tree: an interpreter with pytest alone, and the program that reports.

Both lie in one directory that sandboxes show read-only; it is made once from this installation's own pytest.
"""

from __future__ import annotations

import compileall
import os
import py_compile
import shutil
import sys
import threading
from functools import lru_cache
from hashlib import blake2b
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from forkgym_swe.instance import InstanceError

__all__ = ["Harness", "cache_root", "harness", "shown"]

_OWN_PLACES = ("/tmp", "/testbed", "/proc", "/dev", "/etc")  # noqa: S108
_PROGRAM = Path(__file__).parent / "inside" / "pytest_run.py"
_lock = threading.Lock()


class Harness:
    """The directory.

    Attributes:
        root: Where it lies, for the host and for commands in a sandbox.
        python: Its interpreter.
        program: The program that runs pytest.
        visible: Directories that a sandbox must show.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.python, self.program = str(root / "bin" / "python"), str(root / "pytest_run.py")
        self.visible = (*_system(), str(root))

    def environment(self, python_path: tuple[str, ...] = (), site: str | None = None) -> dict[str, str]:
        """Variables that let an agent's commands find this Python, the tree's packages and the tests' requirements.

        They belong to single commands, not to a sandbox's state: paths of this machine must not get into state hashes.
        """
        folders = [f"{self.root}/bin", "/usr/local/bin", "/usr/bin", "/bin"]
        places = [*(f"/testbed/{path}".rstrip("/.") for path in python_path), *([site] if site else [])]
        found = {"PATH": ":".join(folders), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "80"}
        return found | ({"PYTHONPATH": ":".join(places)} if places else {})


def cache_root() -> Path:
    """``$FORKGYM_SWE_CACHE``, or ``forkgym/swe`` in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("FORKGYM_SWE_CACHE") or f"{cache}/forkgym/swe").expanduser().absolute()


def shown(path: Path) -> Path:
    """The directory itself, or a copy of it where a sandbox can show it: sandboxes have a ``/tmp`` of their own.

    Raises:
        InstanceError: The place for copies belongs to somebody else.
    """
    real = Path(os.path.realpath(path))
    if not any(f"{real}/".startswith(f"{place}/") for place in _OWN_PLACES):
        return real
    status = real.stat()
    mark = blake2b(f"{real}\0{status.st_ino}\0{status.st_mtime_ns}".encode(), digest_size=8).hexdigest()
    target = _shown_root() / f"{real.name}-{mark}"
    if not target.is_dir():
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed, with the same number
        shutil.copytree(real, partial, symlinks=True)
        _publish(partial, target)
    return target


def _shown_root() -> Path:
    root = Path(f"/var/tmp/forkgym-swe-{os.geteuid()}")  # noqa: S108
    root.mkdir(mode=0o755, exist_ok=True)
    status = root.lstat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022 or root.is_symlink():
        raise InstanceError(f"{root} belongs to somebody else; set FORKGYM_SWE_CACHE to a directory outside of /tmp")
    return root


def _publish(partial: Path, target: Path) -> None:
    try:
        partial.rename(target)
    except OSError:
        # Another process was faster: its copy has the same name, so the same content.
        if not target.is_dir():
            raise
        shutil.rmtree(partial)


def _system() -> tuple[str, ...]:
    """System programs and the base interpreter; not this environment, where the tasks' own answers may be installed."""
    wanted = [*(f"/{name}" for name in ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"))]
    wanted.append(os.path.realpath(sys.base_prefix))
    kept: list[str] = []
    for path in wanted:
        if os.path.isdir(path) and not os.path.islink(path) and not any(f"{path}/".startswith(f"{k}/") for k in kept):
            kept.append(path)
    return tuple(kept)


def _sweep(root: Path) -> None:
    """Remove what processes left half made that no longer run: ``.NAME.PID``."""
    for partial in root.glob(".*.*"):
        number = partial.name.rpartition(".")[2]
        if number.isdecimal() and not Path(f"/proc/{number}").exists():
            shutil.rmtree(partial, ignore_errors=True)  # another process may be sweeping too


@lru_cache(maxsize=8)
def _harness_in(root: Path) -> Harness:
    _sweep(root)
    files = _files_of_pytest()
    versions = sorted(f"{name} {version}" for name, version in {(d, v) for d, v, _, _ in files})
    text = "\0".join([sys.version, os.path.realpath(sys.executable), *versions])
    mark = blake2b(text.encode() + _PROGRAM.read_bytes(), digest_size=8).hexdigest()
    target = root / f"harness-{mark}"
    if not target.is_dir():
        root.mkdir(mode=0o755, parents=True, exist_ok=True)
        partial = root / f".harness-{mark}.{os.getpid()}"
        shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed, with the same number
        _build(partial, files)
        _publish(partial, target)
    return Harness(target)


def harness() -> Harness:
    """The harness of this installation, made at first use (about a second).

    Raises:
        InstanceError: pytest is not installed.
    """
    root = cache_root()
    if any(f"{os.path.realpath(root)}/".startswith(f"{place}/") for place in _OWN_PLACES):
        root = _shown_root()
    with _lock:
        return _harness_in(root)


def _files_of_pytest() -> list[tuple[str, str, Path, Path]]:
    """(distribution, version, file, place in site-packages) of pytest and all that it requires."""
    found: list[tuple[str, str, Path, Path]] = []
    seen: set[str] = set()
    waiting = ["pytest"]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError as error:
            raise InstanceError(f"{name} is not installed; install forkgym[swe]") from error
        for file in distribution.files or ():
            if not file.parts or file.parts[0] in ("..", "__pycache__") or "__pycache__" in file.parts:
                continue
            found.append((name, distribution.version, Path(str(distribution.locate_file(file))), Path(*file.parts)))
        for text in distribution.requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return found


def _build(root: Path, files: list[tuple[str, str, Path, Path]]) -> None:
    """A virtual environment by hand: pip and its own packages have no place in it."""
    packages = root / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    packages.mkdir(parents=True)
    for _, _, source, place in files:
        (packages / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, packages / place)
    (root / "bin").mkdir()
    base = os.path.realpath(sys.executable)
    for name in ("python", "python3"):
        (root / "bin" / name).symlink_to(base)
    pytest = root / "bin" / "pytest"
    pytest.write_text('#!/bin/sh\nexec python -m pytest "$@"\n')
    pytest.chmod(0o755)
    (root / "pyvenv.cfg").write_text(
        f"home = {os.path.dirname(base)}\ninclude-system-site-packages = false\n"
        f"version = {sys.version_info[0]}.{sys.version_info[1]}.{sys.version_info[2]}\n"
    )
    shutil.copyfile(_PROGRAM, root / _PROGRAM.name)
    # Sandboxes write no byte code, so an uncompiled package would be compiled at each start.
    compileall.compile_dir(
        str(packages), quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH, workers=1
    )
