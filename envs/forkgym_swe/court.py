"""The tree that a verdict is about: the task's own, with the agent's changes of everything that is not protected."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable

import msgspec

from forkgym.sandbox import TREE, Change, Limits, Sandbox
from forkgym_swe.checkout import Prepared
from forkgym_swe.instance import InstanceError
from forkgym_swe.protection import CONFIGURATION

__all__ = ["fingerprint_tests", "judge", "kept_changes"]

_ROOM = 64 << 20
_FILES = 8_192


def judge(sandbox: Sandbox, prepared: Prepared) -> Sandbox:
    """A new sandbox with the tree that a verdict is about; the caller closes it.

    Raises:
        InstanceError: The sandbox is not one of this task's.
    """
    if sandbox.image.id != prepared.image.id:
        raise InstanceError("this sandbox was made of another tree than the task's; make it by Prepared.open")
    court = prepared.open(limits=_roomier(sandbox.limits))
    try:
        kept = kept_changes(sandbox, prepared)
        _remove(court, {*prepared.missing, *(change.path for change in kept if _replaces(change))})
        for change in kept:
            if change.after is not None and change.after.kind == "f":
                court.write(f"{TREE}/{change.path}", sandbox.read(f"{TREE}/{change.path}"))
        _special(court, kept)
        for path in prepared.changed:
            court.write(f"{TREE}/{path}", prepared.tests[path])
    except BaseException:
        court.close()
        raise
    return court


def kept_changes(sandbox: Sandbox, prepared: Prepared) -> list[Change]:
    """What of the agent's changes gets into the judged tree."""
    return [change for change in sandbox.diff() if not change.path.startswith("/") and not _protected(change, prepared)]


def fingerprint_tests(court: Sandbox, prepared: Prepared) -> dict[str, object]:
    """What of the harness's files differs from the task's tree: runs must leave it as it is.

    Looked at are the task's test code and configuration, and byte code beside it; what tests write besides is their
    affair.
    """
    folders = {posixpath.dirname(path) for path in prepared.tests}
    found: dict[str, object] = {}
    for place, entry in court.difference().items():
        path = place.removeprefix("tree/")
        if path == place:
            continue
        folder, _, name = path.rpartition("/")
        if path in prepared.tests:
            watched = name.endswith(".py") or name in CONFIGURATION
        elif name.endswith(".pyc"):
            watched = folder.removesuffix("__pycache__").rstrip("/") in folders
        else:
            watched = name == "conftest.py" or name in CONFIGURATION
        if watched:
            found[path] = entry
    return found


def _roomier(limits: Limits) -> Limits:
    """An agent that filled its disk must not keep the tests out of the judged tree."""
    return msgspec.structs.replace(limits, disk=limits.disk + _ROOM, files=limits.files + _FILES)


def _protected(change: Change, prepared: Prepared) -> bool:
    if prepared.protection.covers(change.path, new=change.kind == "added"):
        return True
    # A link or a file in the place of a folder of tests would take them away; so would a folder in the place of a file.
    if change.after is None or change.after.kind != "d":
        replaced = change.after is not None or (change.before is not None and change.before.kind == "d")
        if replaced and any(path.startswith(f"{change.path}/") for path in prepared.tests):
            return True
    parts = change.path.split("/")
    return any("/".join(parts[:count]) in prepared.tests for count in range(1, len(parts)))


def _replaces(change: Change) -> bool:
    """Whether the old name has to go first."""
    return change.before is not None and (change.after is None or change.after.kind != change.before.kind)


def _remove(court: Sandbox, paths: Iterable[str]) -> None:
    names = sorted(paths)
    if names:
        court.run(["xargs", "-0", "rm", "-rf", "--"], stdin=b"\0".join(map(os.fsencode, names)), cwd=TREE)


def _special(court: Sandbox, changes: Iterable[Change]) -> None:
    """Links, folders and modes, which only commands can make."""
    for change in changes:
        after, before = change.after, change.before
        if after is None:
            continue
        if after.kind == "l":
            court.run(["ln", "-sfn", "--", after.target, change.path], cwd=TREE)
        elif after.kind == "d":
            court.run(["mkdir", "-p", "--", change.path], cwd=TREE)
        usual = 0o644 if after.kind == "f" else 0o755
        if before is not None and before.kind == after.kind:
            usual = before.mode
        if after.kind in "fd" and after.mode != usual:
            court.run(["chmod", f"{after.mode:o}", "--", change.path], cwd=TREE)
