"""`Instance`: one repository task as data, and files of them. What foreign formats look like stands in ``formats``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from forkgym.core import ForkgymError

__all__ = ["Difficulty", "Instance", "InstanceError", "Source", "dump_instances", "load_instances"]

SourceKind = Literal["sdist", "git", "folder", "sample"]


class InstanceError(ForkgymError, ValueError):
    """A task file or a task's repository is not what it should be; the text says what and where."""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where the files of a repository come from.

    Attributes:
        kind: ``sdist`` (a source distribution in the source cache), ``git`` (a commit of a local repository or mirror),
            ``folder`` (a directory), ``sample`` (a project that ships with this package).
        name: Project name, or ``owner/name``.
        version: Release of an sdist, commit of a git source, else "".
        digest: SHA-256 of an sdist's file or of a folder's sorted content, in hex; "" for git.
        location: File or directory; "" where the name and version are enough to find it.
    """

    kind: SourceKind
    name: str
    version: str = ""
    digest: str = ""
    location: str = ""


class Difficulty(msgspec.Struct, frozen=True, kw_only=True):
    """How much a task asks for.

    Attributes:
        files: Files that the gold patch changes.
        lines: Lines that it adds and removes.
        tests: Tests that fail before and pass after.
    """

    files: int
    lines: int
    tests: int


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One task: a broken repository, the tests that must pass in the end, and how we know.

    The files of `source` with `bug_patch` are the broken tree. The agent's tree is the broken tree without
    `hidden_tests`. The verdict puts the tests of the repaired repository in: those of the broken tree with
    `test_patch`.

    Attributes:
        id: Unique within a task file.
        repository: Project; splits never share one.
        split: ``train``, ``validation`` or ``test``.
        source: Where the files come from.
        bug_patch: From the source's files to the broken tree; "" when the source is broken already.
        patch: Gold patch, from the broken tree to the repaired one; code only.
        test_patch: What the verdict changes in the tests; "" when they are in the source.
        hidden_tests: Ids of tests (``path::Class::function``) that the agent's tree lacks.
        fail_to_pass: Ids of tests that fail before the gold patch and pass after it.
        pass_to_pass: Ids of tests that pass before and after.
        problem_statement: The issue's text.
        hints: What was said about the issue besides; agents do not see it by default.
        created_at: ISO date of the commit, or "".
        operator: Name of the bug injection operator, or "".
        difficulty: How much it asks for.
        python_path: Directories of the tree that tests import from, such as ``src``.
        requires: Requirements of the tests beside pytest, in pip's notation.
        test_paths: Where the tests lie, for the test runner; empty for its own choice.
        provenance: How it was made: free text by name, for people.
    """

    id: str
    repository: str
    split: Literal["train", "validation", "test"] = "train"
    source: Source
    bug_patch: str = ""
    patch: str
    test_patch: str = ""
    hidden_tests: tuple[str, ...] = ()
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...] = ()
    problem_statement: str
    hints: str = ""
    created_at: str = ""
    operator: str = ""
    difficulty: Difficulty | None = None
    python_path: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    test_paths: tuple[str, ...] = ()
    provenance: dict[str, str] = {}


def load_instances(path: str | os.PathLike[str]) -> list[Instance]:
    """Read a task file in this project's own format: one JSON object a line.

    Raises:
        InstanceError: A line is no instance, or two have the same id; names the line and the field.
        OSError: The file cannot be read.
    """
    found: list[Instance] = []
    lines: dict[str, int] = {}
    decoder = msgspec.json.Decoder(Instance)
    for number, line in enumerate(Path(path).read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            instance = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InstanceError(f"{path}, line {number} is no task instance: {error}") from error
        if instance.id in lines:
            raise InstanceError(f"{path}, lines {lines[instance.id]} and {number} both have the id {instance.id!r}")
        lines[instance.id] = number
        found.append(instance)
    return found


def dump_instances(path: str | os.PathLike[str], instances: Iterable[Instance]) -> None:
    """Write a task file; it appears whole or not at all.

    Raises:
        OSError: The file cannot be written.
    """
    target = Path(path)
    data = b"".join(msgspec.json.encode(instance, order="sorted") + b"\n" for instance in instances)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    partial.write_bytes(data)
    os.replace(partial, target)
