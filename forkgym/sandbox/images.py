"""Base images: read-only copies of directories, named by their content and shared by all sandboxes of a user.

The store is a folder of the user's cache; `ImageStore.clean` is the janitor for what a crash left in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from .errors import SandboxError
from .inside.trees import CACHES, copy_tree, remove_tree, scan
from .state import Entry, Manifest

__all__ = ["OUTSIDE_ID", "Image", "ImageStore", "process_mark"]

OUTSIDE_ID = 1_879_048_185
"""User and group that own images, and run commands, when the host process is root: a number nobody else has."""


class Image:
    """A prepared base.

    Attributes:
        id: BLAKE2b-128 of its manifest, in hex.
        manifest: Every name in it.
        size: Bytes on a tmpfs, rounded up to pages.
        path: Where it lies; holds ``tree`` and an empty ``tmp``.
    """

    def __init__(self, id: str, manifest: Manifest, size: int, path: Path) -> None:
        self.id, self.manifest, self.size, self.path = id, manifest, size, path

    def __repr__(self) -> str:
        return f"Image({self.id}, {len(self.manifest.entries)} names, {self.size >> 10} KiB)"


def process_mark(pid: int | str) -> str:
    """Process id and start time: tells a process from a later one with the same number."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return f"{pid}-gone"
    return f"{pid}-{text.rpartition(')')[2].split()[19]}"


class ImageStore:
    """The folder with all images.

    Args:
        root: By default ``$FORKGYM_SANDBOX_STORE``, else ``forkgym/sandbox`` in the user's cache.
    """

    def __init__(self, root: Path | None = None) -> None:
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        default = os.environ.get("FORKGYM_SANDBOX_STORE") or f"{cache}/forkgym/sandbox"
        self.root = (Path(default) if root is None else root).expanduser().absolute()
        for name in ("images", "manifests", "mount", "work", "used", "lib"):
            (self.root / name).mkdir(mode=0o755, parents=True, exist_ok=True)
        status = self.root.stat()
        if status.st_uid != os.geteuid() or status.st_mode & stat.S_IWOTH:
            raise SandboxError(
                f"the image store {self.root} belongs to user {status.st_uid} or everybody may write to it; "
                "set FORKGYM_SANDBOX_STORE to a folder of your own"
            )
        self._used: set[str] = set()
        self._marks: Path | None = None
        self._pid = 0

    @contextlib.contextmanager
    def locked(self, *, alone: bool = False) -> Iterator[None]:
        """Keep images from being removed (or with ``alone`` from being taken into use) meanwhile."""
        descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            yield
        finally:
            os.close(descriptor)

    def _mark(self, name: str) -> None:
        """Write down that this process uses an image; the janitor removes the marks of dead processes."""
        if self._pid != os.getpid():
            self._pid, self._used = os.getpid(), set()
            self._marks = self.root / "used" / f"use-{process_mark(os.getpid())}-{os.urandom(4).hex()}"
        if name not in self._used and self._marks is not None:
            with self._marks.open("a") as file:
                file.write(f"{name}\n")
            self._used.add(name)
        os.utime(self.root / "manifests" / f"{name}.json")

    def used_by_the_living(self) -> set[str]:
        """Images that a running process has taken into use."""
        found: set[str] = set()
        for file in (self.root / "used").glob("use-*"):
            if process_mark(file.name.split("-")[1]) in file.name:
                with contextlib.suppress(FileNotFoundError):  # that process's janitor was here
                    found.update(file.read_text().split())
        return found

    @property
    def images(self) -> Path:
        """Folder with one folder for each image."""
        return self.root / "images"

    @contextlib.contextmanager
    def workplace(self) -> Iterator[Path]:
        """A folder for files that are being made into an image; after a crash `clean` removes it."""
        folder = self.root / "work" / f"files-{process_mark(os.getpid())}-{os.urandom(4).hex()}"
        folder.mkdir(mode=0o755)
        try:
            yield folder
        finally:
            remove_tree(str(folder))

    def admit(self, source: str | os.PathLike[str], *, skip: Iterable[str] = ()) -> Image:
        """Make an image of a directory, or find the one that is there.

        Args:
            source: A directory; links in it are kept as links. Byte-code caches are left out.
            skip: More names to leave out wherever they occur (``.git``).

        Raises:
            SandboxError: ``source`` is no directory.
        """
        path = Path(source).expanduser().absolute()
        if not path.is_dir():
            raise SandboxError(f"the base {path} is not a directory; give the directory whose copies should be forked")
        left_out = CACHES | frozenset(skip)
        wanted = self._scan(path, left_out)[0].digest()
        with self.locked():
            known = self._load(wanted)
        if known is not None:
            return known
        partial = self.root / "work" / f"image-{process_mark(os.getpid())}-{os.urandom(4).hex()}"
        partial.mkdir(mode=0o755)
        try:
            copy_tree(str(path), str(partial / "tree"), skip=left_out)
            (partial / "tmp").mkdir()
            os.chmod(partial / "tmp", 0o755)  # noqa: S103
            if os.geteuid() == 0:
                _give_away(str(partial))
            manifest, size = self._scan(partial / "tree", left_out)
            with self.locked():
                return self._publish(partial, manifest, size)
        finally:
            remove_tree(str(partial))

    @staticmethod
    def _scan(tree: Path, skip: frozenset[str]) -> tuple[Manifest, int]:
        entries = {"tree": Entry("d", stat.S_IMODE(tree.stat().st_mode)), "tmp": Entry("d", 0o755)}
        size = 0
        for path, kind, mode, target, digest in scan(str(tree), skip=skip):
            entries[f"tree/{path}"] = Entry(kind, mode, target, digest)
            if kind == "f":
                size += -(-os.lstat(tree / path).st_size // 4096) * 4096
        return Manifest(entries), size + 4096 * len(entries)

    def _publish(self, partial: Path, manifest: Manifest, size: int) -> Image:
        name = manifest.digest()
        file = self.root / "manifests" / f"{name}.json"
        temporary = self.root / "work" / f"manifest-{process_mark(os.getpid())}-{os.urandom(4).hex()}"
        temporary.write_text(json.dumps({"size": size, "entries": manifest.entries}))
        # The folder first: a manifest without its image would promise what is not there.
        try:
            partial.rename(self.images / name)
        except OSError as error:
            # Another process may have stored the same image meanwhile: then its folder is as good as ours.
            if not (self.images / name).is_dir():
                raise SandboxError(f"the image {name} could not be stored in {self.images}: {error}") from error
        temporary.rename(file)
        self._mark(name)
        return Image(name, manifest, size, self.images / name)

    def _load(self, name: str) -> Image | None:
        folder = self.images / name
        try:
            found = json.loads((self.root / "manifests" / f"{name}.json").read_text())
        except FileNotFoundError:
            return None
        if not folder.is_dir():
            return None
        owner = OUTSIDE_ID if os.geteuid() == 0 else os.geteuid()
        if (folder / "tmp").stat().st_uid != owner:
            return None
        self._mark(name)
        manifest = Manifest({path: Entry(*entry) for path, entry in found["entries"].items()})
        return Image(name, manifest, found["size"], folder)

    def clean(self) -> list[str]:
        """Remove what processes left here that no longer run; returns the names of what was removed."""
        removed = []
        for entry in (*(self.root / "work").iterdir(), *(self.root / "used").iterdir()):
            pid = entry.name.split("-")[1]
            if process_mark(pid) not in entry.name:
                if entry.is_dir():
                    remove_tree(str(entry))
                else:
                    entry.unlink(missing_ok=True)
                removed.append(entry.name)
        return sorted(removed)


def _give_away(root: str) -> None:
    for folder, folders, files in os.walk(root):
        os.chown(folder, OUTSIDE_ID, OUTSIDE_ID)
        for name in (*folders, *files):
            os.chown(f"{folder}/{name}", OUTSIDE_ID, OUTSIDE_ID, follow_symlinks=False)
