"""Removing base images that nobody has used for long.

What is in use is marked by `ImageStore`; this only reads the marks.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import msgspec

from .errors import SandboxError
from .images import ImageStore, process_mark
from .inside.trees import remove_tree

__all__ = ["Collected", "StoredImage", "collect", "stored_images"]

_DAY = 86_400.0


class StoredImage(msgspec.Struct, frozen=True, kw_only=True):
    """One image of a store.

    Attributes:
        id: Its name.
        bytes: What it holds, rounded up to pages.
        last_used: Seconds since 1970.
        in_use: A running process has used it.
    """

    id: str
    bytes: int
    last_used: float
    in_use: bool


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """What `collect` did.

    Attributes:
        removed: Images that are gone.
        removed_bytes: What they held.
        kept: Images that are still there.
        kept_bytes: What these hold.
    """

    removed: tuple[str, ...]
    removed_bytes: int
    kept: int
    kept_bytes: int


def stored_images(store: ImageStore) -> list[StoredImage]:
    """All images, the one unused for longest first."""
    used = store.used_by_the_living()
    found = []
    for file in (store.root / "manifests").glob("*.json"):
        try:
            size, last_used = json.loads(file.read_bytes())["size"], file.stat().st_mtime
        except FileNotFoundError:  # another process removes it at this moment
            continue
        found.append(StoredImage(id=file.stem, bytes=size, last_used=last_used, in_use=file.stem in used))
    return sorted(found, key=lambda image: (image.last_used, image.id))


def collect(
    *,
    unused_days: float | None = 30.0,
    most_bytes: int | None = None,
    dry_run: bool = False,
    store: ImageStore | None = None,
) -> Collected:
    """Remove base images, the one unused for longest first; never one that a running process has used.

    Args:
        unused_days: Remove what nobody has used for so many days; None for no such rule.
        most_bytes: Remove more until the store holds no more than this; None for no such rule.
        dry_run: Only say what would be removed.
        store: By default the user's.

    Raises:
        SandboxError: A rule is below zero.
    """
    if (unused_days or 0) < 0 or (most_bytes or 0) < 0:
        raise SandboxError("unused_days and most_bytes cannot be below zero; leave a rule out by None")
    place = ImageStore() if store is None else store
    place.clean()
    with place.locked(alone=True):
        images = stored_images(place)
        total, removed = sum(image.bytes for image in images), []
        oldest = -1.0 if unused_days is None else time.time() - unused_days * _DAY
        for image in images:
            too_much = most_bytes is not None and total > most_bytes
            if image.in_use or not (image.last_used < oldest or too_much):
                continue
            total -= image.bytes
            removed.append(image)
        doomed = [] if dry_run else [_set_aside(place, image.id) for image in removed]
    for folder in doomed:
        remove_tree(str(folder))
    return Collected(
        removed=tuple(image.id for image in removed),
        removed_bytes=sum(image.bytes for image in removed),
        kept=len(images) - len(removed),
        kept_bytes=total,
    )


def _set_aside(store: ImageStore, name: str) -> Path:
    """Take an image out of its place at once; removing its files may then take its time, or a crash its end."""
    target = store.root / "work" / f"gone-{process_mark(os.getpid())}-{os.urandom(4).hex()}"
    # The manifest first: one without its image would promise what is not there.
    (store.root / "manifests" / f"{name}.json").unlink()
    if (store.images / name).exists():
        (store.images / name).rename(target)
    return target
