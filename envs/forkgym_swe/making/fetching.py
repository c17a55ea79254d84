"""Bring a catalogued project's source and its tests' requirements into the cache, by pip, when the user asks.

Nothing here runs unless a command was told to fetch; everything else only looks into the cache.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from forkgym_swe.checkout import site_directory
from forkgym_swe.harness import cache_root
from forkgym_swe.instance import InstanceError, Source
from forkgym_swe.sources import find_sdist

from .projects import Project

__all__ = ["FetchError", "fetch_project", "install_requirements", "is_fetched", "source_of"]

_TIMEOUT = 600


class FetchError(InstanceError):
    """Something could not be fetched, or is not what was pinned; the text says what to do."""


def source_of(project: Project) -> Source:
    """Where a catalogued project's files come from."""
    return Source(kind="sdist", name=project.name, version=project.version, digest=project.digest)


def is_fetched(project: Project) -> bool:
    """Whether source and requirements are in the cache."""
    try:
        find_sdist(source_of(project))
        site_directory(project.requires)
    except InstanceError:
        return False
    return True


def fetch_project(project: Project, *, say: Callable[[str], None] = lambda _: None) -> Path:
    """Fetch a project's source distribution and its tests' requirements, as far as they are not there.

    pip asks a source distribution for its requirements before it saves it, and so runs its build backend.

    Args:
        project: Of the catalogue.
        say: Takes one line about each step.

    Raises:
        FetchError: pip failed, or the file is another than the pinned one.
    """
    source = source_of(project)
    try:
        archive = find_sdist(source)
    except InstanceError:
        say(f"fetching {project.name} {project.version}")
        archive = _download(project)
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != project.digest:
        raise FetchError(
            f"{archive} has the SHA-256 {found}, but {project.name} {project.version} is pinned as {project.digest}; "
            "remove the file and fetch again"
        )
    install_requirements(project.requires, say=say)
    return archive


def install_requirements(requires: Sequence[str], *, say: Callable[[str], None] = lambda _: None) -> None:
    """Install what tests need into the cache, once.

    Args:
        requires: In pip's notation.
        say: Takes one line about each step.

    Raises:
        FetchError: pip failed.
    """
    place = site_directory(requires, create=True)
    if place is None or Path(place).is_dir():
        return
    say(f"installing {', '.join(requires)}")
    target = Path(place)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        _pip("install", "--no-compile", "--target", str(partial / "site"), *requires)
        os.replace(partial / "site", target)
    finally:
        shutil.rmtree(partial)


def _download(project: Project) -> Path:
    folder = cache_root() / "sources"
    folder.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".fetch-", dir=folder))
    try:
        wanted = f"{project.name}=={project.version}"
        _pip("download", "--no-deps", "--no-binary", ":all:", "--dest", str(partial), wanted)
        files = sorted(path for path in partial.iterdir() if path.name.endswith(".tar.gz"))
        if len(files) != 1:
            raise FetchError(f"pip gave no .tar.gz of {wanted} but {[path.name for path in files]}")
        target = folder / files[0].name
        os.replace(files[0], target)
    finally:
        shutil.rmtree(partial)
    return target


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)  # noqa: S603
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"pip did not end within {_TIMEOUT} s: {' '.join(arguments)}") from error
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-4:])
        raise FetchError(f"pip failed: {' '.join(arguments)}\n{last}\nIs there a network, and does the release exist?")
