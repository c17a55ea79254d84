"""From what a user names (a folder, an archive, a git checkout, a project, a sample) to a subject for task making."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from forkgym_swe.checkout import digest_files, source_files
from forkgym_swe.instance import InstanceError, Source

from .fetching import fetch_project, install_requirements, is_fetched, source_of
from .injection import Subject
from .projects import SAMPLE_SPLITS, Project, find_project
from .suites import Tests

__all__ = ["SourceError", "catalogued", "find_subject", "git"]

_ARCHIVE = re.compile(r"(?P<name>.+)-(?P<version>[0-9][^-]*)\.tar\.gz")


class SourceError(InstanceError):
    """What the user named is no source of tasks; the text says what would be."""


def find_subject(
    named: str,
    *,
    tests: Tests | None = None,
    split: Literal["train", "validation", "test"] = "train",
    fetch: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Subject:
    """What to make tasks of.

    Args:
        named: A directory, an archive ``NAME-VERSION.tar.gz``, ``sample:NAME``, or a project of the catalogue. A
            directory that is a git checkout stands for its current commit.
        tests: How the tests run; by default guessed (a catalogued project knows it).
        split: Where the tasks belong, unless the catalogue says it.
        fetch: Get what is missing by pip.
        say: Takes one line about each thing fetched.

    Raises:
        SourceError: It is none of these.
        InstanceError: A source or a requirement is missing, or could not be fetched.
    """
    path = Path(named).expanduser()
    if named.startswith("sample:"):
        name = named.removeprefix("sample:")
        if name not in SAMPLE_SPLITS:
            raise SourceError(f"there is no sample {name!r}; samples: {', '.join(sorted(SAMPLE_SPLITS))}")
        found = _plain(Source(kind="sample", name=name), tests, SAMPLE_SPLITS[name])
    elif path.is_dir():
        found = _plain(_git_source(path) if (path / ".git").exists() else _folder_source(path), tests, split)
    elif path.is_file():
        found = _plain(_archive_source(path), tests, split)
    else:
        project = find_project(named)
        if project is None:
            raise SourceError(
                f"{named!r} is no directory, no archive and no project of the catalogue "
                "(forkgym make-tasks --list shows them)"
            )
        return catalogued(project, fetch=fetch, say=say)
    if fetch:
        install_requirements(found.tests.requires, say=say)
    return found


def catalogued(project: Project, *, fetch: bool = False, say: Callable[[str], None] = lambda _: None) -> Subject:
    """A project of the catalogue.

    Raises:
        SourceError: It is not in the cache, and fetching was not asked for.
    """
    if fetch:
        fetch_project(project, say=say)
    elif not is_fetched(project):
        raise SourceError(f"{project.name} {project.version} is not in the cache; add --fetch to get it by pip")
    return Subject(
        name=project.name,
        source=source_of(project),
        tests=Tests(python_path=project.python_path, test_paths=project.test_paths, requires=project.requires),
        split=project.split,
    )


def _plain(source: Source, tests: Tests | None, split: Literal["train", "validation", "test"]) -> Subject:
    files = source_files(source)
    if tests is None:
        nested = any(re.fullmatch(r"src/[^/]+(/__init__)?\.py", path) for path in files)
        tests = Tests(python_path=("src",) if nested else (".",))
    if source.kind == "sample":
        source = Source(kind="sample", name=source.name, digest=digest_files(files))
    return Subject(name=source.name, source=source, tests=tests, split=split)


def _folder_source(path: Path) -> Source:
    place = path.resolve()
    files = source_files(Source(kind="folder", name=place.name, location=str(place)))
    return Source(kind="folder", name=place.name, digest=digest_files(files), location=str(place))


def _archive_source(path: Path) -> Source:
    found = _ARCHIVE.fullmatch(path.name)
    if found is None:
        raise SourceError(f"{path} is not called NAME-VERSION.tar.gz, so it is no source distribution")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Source(
        kind="sdist", name=found["name"], version=found["version"], digest=digest, location=str(path.resolve())
    )


def _git_source(path: Path) -> Source:
    commit = git(path, "rev-parse", "HEAD").strip()
    return Source(kind="git", name=path.resolve().name, version=commit, location=str(path.resolve()))


def git(path: Path, *arguments: str) -> str:
    """What git says in a checkout; hooks, pagers and the user's configuration have no part in it.

    Raises:
        SourceError: git refused.
    """
    command = ["git", "-c", f"safe.directory={path.resolve()}", "-c", "core.quotePath=false", "-C", str(path)]
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(  # noqa: S603
        [*command, *arguments], capture_output=True, env={**environment, "LC_ALL": "C.UTF-8"}, check=False
    )
    if done.returncode:
        raise SourceError(f"git {arguments[0]} failed in {path}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode(errors="replace")
