"""Walking, copying and merging file trees and overlay layers. Pure file work: no mounts, no processes.

A layer is an overlay ``upper`` directory in the ``user.*`` attribute format: a character device 0:0 is a deletion and
``user.overlay.opaque = y`` on a directory hides everything below it in the layers beneath.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import NamedTuple

__all__ = ["CACHES", "FICLONE", "Item", "copy_tree", "flatten", "is_whiteout", "remove_tree", "scan"]

OPAQUE = "user.overlay.opaque"
FICLONE = 0x4004_9409
CACHES = frozenset({"__pycache__"})
"""Never copied into a base: a stale byte-code file outlives an edit within the same second."""


class Item(NamedTuple):
    """One finding of a scan.

    Attributes:
        path: Relative to the scanned directory.
        kind: ``f``ile, ``d``irectory, symbolic ``l``ink, ``p``ipe, ``s``ocket; ``x``: deleted here; ``o``: whatever
            lower layers hold below this directory is hidden (stands before the directory's own ``d``).
        mode: Permission bits; 0 for links and marks.
        target: Of a link.
        digest: BLAKE2b-128 of a file's content, in hex.
    """

    path: str
    kind: str
    mode: int
    target: str
    digest: str


def is_whiteout(status: os.stat_result) -> bool:
    """Whether this is the overlay's mark for a deleted name."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def is_opaque(path: str) -> bool:
    """Whether this directory hides what lower layers hold below it."""
    try:
        return os.getxattr(path, OPAQUE, follow_symlinks=False) == b"y"
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP):
            return False
        raise


@contextlib.contextmanager
def _readable(path: str, status: os.stat_result, bits: int) -> Iterator[None]:
    """Lift a mode that keeps even the owner out (matters only for a user without privileges)."""
    lifted = False
    if not os.access(path, os.R_OK | (os.X_OK if bits & 0o100 else 0), effective_ids=True):
        os.chmod(path, stat.S_IMODE(status.st_mode) | bits)
        lifted = True
    try:
        yield
    finally:
        if lifted:
            os.chmod(path, stat.S_IMODE(status.st_mode))


def _digest(path: str, status: os.stat_result) -> str:
    hasher = blake2b(digest_size=16)
    with _readable(path, status, 0o400), open(path, "rb", buffering=0) as file:
        while block := file.read(1 << 20):
            hasher.update(block)
    return hasher.hexdigest()


def scan(root: str, *, skip: Iterable[str] = ()) -> Iterator[Item]:
    """Everything below ``root``, parents before children, names in byte order.

    Args:
        root: A plain tree or a layer.
        skip: Names that are left out wherever they occur, with all below them.

    Yields:
        One item for each name (two for an opaque directory).
    """
    skipped = frozenset(skip)
    pending = [""]
    while pending:
        folder = pending.pop()
        absolute = os.path.join(root, folder) if folder else root
        with _readable(absolute, os.lstat(absolute), 0o500):
            with os.scandir(absolute) as entries:
                found = sorted(entries, key=lambda entry: os.fsencode(entry.name))
            below = []
            for entry in found:
                if entry.name in skipped:
                    continue
                path = f"{folder}/{entry.name}" if folder else entry.name
                status = entry.stat(follow_symlinks=False)
                kind = stat.S_IFMT(status.st_mode)
                mode = stat.S_IMODE(status.st_mode)
                if kind == stat.S_IFDIR:
                    if is_opaque(entry.path):
                        yield Item(path, "o", 0, "", "")
                    yield Item(path, "d", mode, "", "")
                    below.append(path)
                elif kind == stat.S_IFREG:
                    yield Item(path, "f", mode, "", _digest(entry.path, status))
                elif kind == stat.S_IFLNK:
                    yield Item(path, "l", 0, os.readlink(entry.path), "")
                elif is_whiteout(status):
                    yield Item(path, "x", 0, "", "")
                elif kind in (stat.S_IFIFO, stat.S_IFSOCK):
                    yield Item(path, "p" if kind == stat.S_IFIFO else "s", mode, "", "")
        pending += reversed(below)


def _copy_file(source: str, target: str, status: os.stat_result, *, reflink: bool) -> None:
    with _readable(source, status, 0o400), open(source, "rb") as read:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as write:
            if reflink:
                fcntl.ioctl(write.fileno(), FICLONE, read.fileno())
            else:
                shutil.copyfileobj(read, write, 1 << 20)


def _own(target: str, status: os.stat_result) -> None:
    """Give a copy made by root to the owner of the original."""
    if os.geteuid() == 0:
        os.chown(target, status.st_uid, status.st_gid, follow_symlinks=False)


def _copy_node(
    source: str, target: str, status: os.stat_result, *, reflink: bool = False, keep_owner: bool = False
) -> None:
    """Copy one name that is no directory: content, mode, times, marks."""
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFLNK:
        os.symlink(os.readlink(source), target)
        if keep_owner:
            _own(target, status)
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)
        return
    if kind == stat.S_IFREG:
        _copy_file(source, target, status, reflink=reflink)
    elif kind in (stat.S_IFIFO, stat.S_IFSOCK):
        os.mknod(target, kind | 0o600)
    elif is_whiteout(status):
        os.mknod(target, stat.S_IFCHR, 0)
        return
    else:
        raise OSError(errno.EPERM, f"{source} is a device file; a sandbox holds none")
    if keep_owner:
        _own(target, status)
    os.chmod(target, stat.S_IMODE(status.st_mode))
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def copy_tree(source: str, target: str, *, skip: Iterable[str] = (), reflink: bool = False) -> None:
    """Copy a directory with modes, times and links into a new directory. Never makes hard links.

    Args:
        source: Directory, copied as it is (links are not followed).
        target: Must not exist.
        skip: Names left out wherever they occur.
        reflink: Share blocks copy-on-write; fails where the file system cannot.

    Raises:
        OSError: The copy failed; what was made stays and is the caller's to remove.
    """
    skipped = frozenset(skip)
    status = os.lstat(source)
    os.mkdir(target, 0o700)
    with _readable(source, status, 0o500), os.scandir(source) as entries:
        for entry in entries:
            if entry.name in skipped:
                continue
            destination = f"{target}/{entry.name}"
            inner = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(inner.st_mode):
                copy_tree(entry.path, destination, skip=skipped, reflink=reflink)
            else:
                _copy_node(entry.path, destination, inner, reflink=reflink)
    if is_opaque(source):
        os.setxattr(target, OPAQUE, b"y")
    os.chmod(target, stat.S_IMODE(status.st_mode))
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def remove_tree(path: str) -> None:
    """Remove a directory whatever the modes inside it; nothing happens if it is not there."""

    def retry(_function: object, name: str, _info: object) -> None:
        parent = os.path.dirname(name)
        for folder in (parent, name):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                if not os.path.islink(folder):
                    os.chmod(folder, 0o700)
        if os.path.isdir(name) and not os.path.islink(name):
            shutil.rmtree(name, ignore_errors=True)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)

    if os.path.lexists(path):
        shutil.rmtree(path, onerror=retry)


def _remove(path: str, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        remove_tree(path)
    else:
        os.unlink(path)


def _merge(source: str, target: str) -> None:
    with os.scandir(source) as entries:
        found = list(entries)
    for entry in found:
        destination = f"{target}/{entry.name}"
        status = entry.stat(follow_symlinks=False)
        try:
            current: os.stat_result | None = os.lstat(destination)
        except FileNotFoundError:
            current = None
        if not stat.S_ISDIR(status.st_mode):
            if current is not None:
                _remove(destination, current)
            _copy_node(entry.path, destination, status, keep_owner=True)
            continue
        opaque = is_opaque(entry.path)
        if current is not None and (opaque or not stat.S_ISDIR(current.st_mode)):
            # A directory over a file or a deletion hides whatever the base holds there.
            _remove(destination, current)
            opaque, current = True, None
        if current is None:
            os.mkdir(destination, 0o700)
        if opaque:
            os.setxattr(destination, OPAQUE, b"y")
        _merge(entry.path, destination)
        _own(destination, status)
        os.chmod(destination, stat.S_IMODE(status.st_mode))
        os.utime(destination, ns=(status.st_atime_ns, status.st_mtime_ns))


def flatten(layers: Iterable[str], target: str) -> None:
    """Merge layers into one that means the same over the same base.

    Args:
        layers: Upper directories, the topmost first.
        target: Existing empty directory, the new layer.
    """
    for layer in reversed(list(layers)):
        _merge(layer, target)
