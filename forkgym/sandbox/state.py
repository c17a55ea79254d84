"""What differs from the base: the algebra of layers, and the state's hash. Pure functions over scanned items.

A difference is a map path → entry, or None where the base has something and the state has nothing. Paths are relative
to an image: ``tree/…`` for the working tree, ``tmp/…`` for /tmp. Equal trees have equal differences however they came
about, since an entry equal to the base's is left out.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

__all__ = ["Difference", "Entry", "Manifest", "apply_layer", "hash_state", "is_scratch"]


class Entry(NamedTuple):
    """One name of a tree.

    Attributes:
        kind: ``f``ile, ``d``irectory, symbolic ``l``ink, ``p``ipe or ``s``ocket.
        mode: Permission bits; 0 for a link.
        target: Of a link.
        digest: BLAKE2b-128 of the content in hex; empty but for files.
    """

    kind: str
    mode: int
    target: str = ""
    digest: str = ""


Difference = dict[str, Entry | None]


class Manifest:
    """All names of a base.

    Args:
        entries: Path → entry.
    """

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self.entries = dict(entries)
        self._sorted = sorted(self.entries)

    def below(self, path: str) -> Sequence[str]:
        """Paths of everything inside directory ``path`` (the empty path: everything)."""
        if not path:
            return self._sorted
        first = bisect.bisect_left(self._sorted, f"{path}/")
        return self._sorted[first : bisect.bisect_left(self._sorted, f"{path}0")]  # "0" follows "/"

    def digest(self) -> str:
        """BLAKE2b-128 of all entries, in hex: the identity of a base."""
        hasher = blake2b(digest_size=16, person=b"forkgym-base")
        for path in self._sorted:
            hasher.update(_record(path, self.entries[path]))
        return hasher.hexdigest()


def _record(path: str, entry: Entry | None) -> bytes:
    """One unambiguous line: fields end with a zero byte, which no path or link can contain."""
    fields = [path, "-"] if entry is None else [path, entry.kind, f"{entry.mode:o}", entry.target, entry.digest]
    return b"\0".join(os.fsencode(field) for field in fields) + b"\0\n"


def _remove_below(difference: Difference, base: Manifest, path: str) -> None:
    for name in base.below(path):
        difference[name] = None
    prefix = f"{path}/" if path else ""
    for name in [name for name in difference if name.startswith(prefix) and name not in base.entries]:
        del difference[name]


def apply_layer(difference: Difference, base: Manifest, items: Iterable[Sequence[str | int]]) -> Difference:
    """What a layer's findings make of a difference.

    Args:
        difference: Before; not changed.
        base: The base's manifest.
        items: Findings of `inside.trees.scan`, parents first.

    Returns:
        The difference after the layer.
    """
    after = dict(difference)
    for path, kind, mode, target, digest in items:
        name = str(path)
        if kind == "o":
            _remove_below(after, base, name)
            continue
        if kind != "d":
            before = after[name] if name in after else base.entries.get(name)
            if before is not None and before.kind == "d":
                _remove_below(after, base, name)
        entry = None if kind == "x" else Entry(str(kind), int(mode), str(target), str(digest))
        if entry == base.entries.get(name):
            after.pop(name, None)
        else:
            after[name] = entry
    return after


def is_scratch(path: str, scratch: Iterable[str]) -> bool:
    """Whether a path (relative to an image) is declared scratch.

    Args:
        path: ``tree/…`` or ``tmp/…``.
        scratch: Names (``__pycache__``: that name anywhere) and absolute paths in the sandbox (``/tmp``).
    """
    inside = f"/tmp{path[3:]}" if path == "tmp" or path.startswith("tmp/") else f"/testbed{path[4:]}"  # noqa: S108
    parts = path.split("/")[1:]
    return any(
        inside == rule or inside.startswith(f"{rule}/") if rule.startswith("/") else rule in parts for rule in scratch
    )


def hash_state(
    base: str,
    cwd: str,
    environment: Mapping[str, str],
    difference: Difference,
    ignored: Callable[[str], bool],
) -> str:
    """The state's hash, BLAKE2b-128 in hex.

    Args:
        base: Identity of the base.
        cwd: Working directory.
        environment: The sandbox's variables.
        difference: What differs from the base.
        ignored: Says whether a path stays out.
    """
    hasher = blake2b(digest_size=16, person=b"forkgym-state")
    hasher.update(b"\0".join(os.fsencode(text) for text in (base, cwd, str(len(environment)))) + b"\0\n")
    for name in sorted(environment):
        hasher.update(os.fsencode(f"{name}={environment[name]}") + b"\0\n")
    for path in sorted(difference):
        if not ignored(path):
            hasher.update(_record(path, difference[path]))
    return hasher.hexdigest()
