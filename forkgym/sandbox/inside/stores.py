"""The two ways to keep a state: overlay layers, or whole copies. Nothing here runs commands.

A store keeps numbered layers; the host gives the numbers. ``begin`` makes a writable one over frozen ones, ``freeze``
ends its writing, ``root`` says where the merged tree can be seen (mounting it at first use).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections import OrderedDict
from typing import Protocol

from . import kernel
from .trees import Item, copy_tree, flatten, remove_tree, scan

__all__ = ["CopyStore", "OverlayStore", "Store"]

PARTS = ("tree", "tmp")
_KEPT_MOUNTS = 256
COPIED_NAMES, COPIED_BYTES = 12, 128 << 10
"""A fork copies a layer that holds no more than this; freezing it and mounting again would take longer."""
_NOT_COPIED = (errno.E2BIG, errno.EMLINK)


class Store(Protocol):
    """Numbered layers over read-only images."""

    def begin(self, layer: int, image: str, frozen: tuple[int, ...], space: int, files: int) -> None:
        """Make a writable layer over ``frozen`` (topmost first) over ``image``, which may grow by ``space`` bytes.

        Nothing happens if it is there.
        """

    def fork(self, layer: int, child: int) -> bool:
        """Make a mounted sibling of a writable layer that holds the same, if the layer is small; else do nothing."""

    def root(self, layer: int) -> str:
        """Directory that shows the merged state of a writable layer: ``tree`` and ``tmp`` below it."""

    def freeze(self, layer: int) -> tuple[bool, int]:
        """End all writing to this layer, unless nothing was written: then it stays as it is.

        Returns:
            Whether it is frozen now, and the bytes it holds.
        """

    def scan(self, layer: int) -> list[Item]:
        """What the layer says about its paths, see `trees.scan`."""

    def flatten(self, layer: int, frozen: tuple[int, ...]) -> int:
        """Make one frozen layer that means the same as these; returns its bytes."""

    def forget(self, layer: int) -> bool:
        """Know nothing of a layer any more; whether there is something to `discard`."""

    def discard(self, layer: int) -> None:
        """Take away what is there of a forgotten layer."""


class _Layer:
    def __init__(self, image: str, frozen: tuple[int, ...], space: int, files: int) -> None:
        self.image, self.frozen, self.space, self.files = image, frozen, space, files
        self.active = True
        self.empty = 0  # inodes of a layer that holds nothing but what the file systems made for themselves


class OverlayStore:
    """Each layer is an overlay upper on a tmpfs of its own, whose size is the layer's quota.

    The view is mounted inside that tmpfs, so that both go with one unmount: each costs a grace period of the kernel.

    Args:
        images: Directory of base images, each with ``tree`` and ``tmp``.
        layers: Empty directory for the tmpfs mounts; short, since the kernel limits the length of a mount's options.
        library: The compiled ``layers.c``, or None: then a fork never copies.
        owner: User of all files of the state, if the broker is another; else -1.
    """

    def __init__(self, images: str, layers: str, library: ctypes.CDLL | None = None, owner: int = -1) -> None:
        self._images, self._layers, self._library, self._owner = images, layers, library, owner
        self._held: dict[int, _Layer] = {}
        self._mounted: OrderedDict[int, None] = OrderedDict()
        self._pinned: dict[int, int] = {}
        self._newest_first = -1
        if library is not None:
            library.forkgym_layer.argtypes = [*[ctypes.c_char_p] * 4, *[ctypes.c_long] * 2, *[ctypes.c_int] * 2]
            self._newest_first = self._find_order(library)

    def _find_order(self, library: ctypes.CDLL) -> int:
        folder = f"{self._layers}/order"
        os.mkdir(folder)
        try:
            kernel.mount("order", folder, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=64k")
            try:
                order: int = library.forkgym_newest_first(folder.encode())
            finally:
                kernel.umount(folder)
        finally:
            os.rmdir(folder)
        return order

    def begin(self, layer: int, image: str, frozen: tuple[int, ...], space: int, files: int) -> None:
        """See `Store.begin`."""
        if layer not in self._held:
            self._make(layer, _Layer(image, frozen, space, files), mount=True)

    def fork(self, layer: int, child: int) -> bool:
        """See `Store.fork`."""
        held = self._held[layer]
        if self._newest_first < 0 or not held.active or layer not in self._mounted:
            return False
        names, size = self._content(layer)
        if names > COPIED_NAMES or size > COPIED_BYTES:
            return False
        sibling = _Layer(held.image, held.frozen, held.space, held.files)
        sibling.empty = held.empty
        try:
            self._make(child, sibling, mount=True, source=layer)
        except OSError as error:
            if error.errno in _NOT_COPIED:
                return False
            raise
        return True

    def _make(self, number: int, held: _Layer, *, mount: bool, source: int | None = None) -> None:
        folder = f"{self._layers}/{number}"
        quota = f"size={max(held.space, 65_536)},nr_inodes={max(held.files, 64)},mode=755"
        options = self._options(number, held) if mount else None
        try:
            if self._library is not None:
                result = self._library.forkgym_layer(
                    folder.encode(),
                    quota.encode(),
                    None if source is None else f"{self._layers}/{source}/u".encode(),
                    None if options is None else options.encode(),
                    COPIED_NAMES,
                    COPIED_BYTES,
                    self._newest_first,
                    self._owner,
                )
                if result:
                    raise OSError(-result, f"layer {number}: {os.strerror(-result)}")
            else:
                os.mkdir(folder)
                kernel.mount("layer", folder, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, quota)
                for part in "uwv":
                    os.mkdir(f"{folder}/{part}", 0o755)
                if options is not None:
                    kernel.mount("state", f"{folder}/v", "overlay", kernel.MS_NOSUID | kernel.MS_NODEV, options)
        except OSError:
            self.discard(number)
            raise
        self._held[number] = held
        if mount:
            self._shown(number)

    def _options(self, number: int, held: _Layer) -> str:
        lower = ":".join([*(f"{self._layers}/{below}/u" for below in held.frozen), f"{self._images}/{held.image}"])
        folder = f"{self._layers}/{number}"
        return f"lowerdir={lower},upperdir={folder}/u,workdir={folder}/w,userxattr"

    def _shown(self, layer: int) -> None:
        self._mounted[layer] = None
        held = self._held[layer]
        if not held.empty:
            status = os.statvfs(f"{self._layers}/{layer}")
            held.empty = status.f_files - status.f_ffree
        if len(self._mounted) > _KEPT_MOUNTS:
            idle = next((number for number in self._mounted if number not in self._pinned and number != layer), None)
            if idle is not None:
                self._unmount(idle)

    def root(self, layer: int) -> str:
        """See `Store.root`."""
        view = f"{self._layers}/{layer}/v"
        if layer in self._mounted:
            self._mounted.move_to_end(layer)
            return view
        held = self._held[layer]
        if not held.active:
            raise ValueError(f"layer {layer} is frozen; writing starts on a new one")
        kernel.mount("state", view, "overlay", kernel.MS_NOSUID | kernel.MS_NODEV, self._options(layer, held))
        self._shown(layer)
        return view

    def _content(self, layer: int) -> tuple[int, int]:
        """Names and bytes that a layer holds."""
        status = os.statvfs(f"{self._layers}/{layer}")
        return (
            status.f_files - status.f_ffree - self._held[layer].empty,
            (status.f_blocks - status.f_bfree) * status.f_frsize,
        )

    def pin(self, layer: int) -> None:
        """Keep the view mounted while a command runs in it."""
        self._pinned[layer] = self._pinned.get(layer, 0) + 1

    def unpin(self, layer: int) -> None:
        """The command has ended."""
        self._pinned[layer] -= 1
        if not self._pinned[layer]:
            del self._pinned[layer]

    def _unmount(self, layer: int) -> None:
        if layer in self._mounted:
            del self._mounted[layer]
            kernel.umount(f"{self._layers}/{layer}/v")

    def freeze(self, layer: int) -> tuple[bool, int]:
        """See `Store.freeze`."""
        names, size = self._content(layer)
        if names <= 0:
            return False, 0
        self._unmount(layer)
        self._held[layer].active = False
        return True, size

    def scan(self, layer: int) -> list[Item]:
        """See `Store.scan`."""
        return list(scan(f"{self._layers}/{layer}/u"))

    def flatten(self, layer: int, frozen: tuple[int, ...]) -> int:
        """See `Store.flatten`."""
        space = files = 0
        for number in frozen:
            status = os.statvfs(f"{self._layers}/{number}")
            space += (status.f_blocks - status.f_bfree) * status.f_frsize
            files += status.f_files - status.f_ffree
        image = self._held[frozen[0]].image
        self._make(layer, _Layer(image, (), space + 65_536, files + 64), mount=False)
        flatten([f"{self._layers}/{number}/u" for number in frozen], f"{self._layers}/{layer}/u")
        self._held[layer].active = False
        return self._content(layer)[1]

    def discard(self, layer: int) -> None:
        """See `Store.discard`."""
        folder = f"{self._layers}/{layer}"
        if os.path.ismount(folder):
            kernel.umount(folder)
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(folder)

    def forget(self, layer: int) -> bool:
        """See `Store.forget`."""
        self._mounted.pop(layer, None)  # the view goes with the tmpfs below it
        return self._held.pop(layer, None) is not None


class CopyStore:
    """Each layer is a whole copy of the state. Slow, and works wherever files can be written.

    Args:
        images: Directory of base images.
        layers: Directory for the copies.
        capped: Put each copy on a tmpfs of its own size (needs the right to mount).
        reflink: Share blocks with the image copy-on-write; needs btrfs, XFS or alike, and no ``capped``.
    """

    def __init__(self, images: str, layers: str, *, capped: bool, reflink: bool = False) -> None:
        self._images, self._layers, self._capped, self._reflink = images, layers, capped, reflink
        self._held: set[int] = set()

    def begin(self, layer: int, image: str, frozen: tuple[int, ...], space: int, files: int) -> None:
        """See `Store.begin`; only the topmost frozen layer counts, since it holds everything."""
        if layer in self._held:
            return
        folder = f"{self._layers}/{layer}"
        os.mkdir(folder, 0o755)
        try:
            if self._capped:
                options = f"size={max(space, 65_536)},nr_inodes={max(files, 64)},mode=755"
                kernel.mount("copy", folder, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)
            source = f"{self._layers}/{frozen[0]}/u" if frozen else f"{self._images}/{image}"
            copy_tree(source, f"{folder}/u", reflink=self._reflink)
        except BaseException:
            self.discard(layer)
            raise
        self._held.add(layer)

    def fork(self, layer: int, child: int) -> bool:  # noqa: ARG002
        """See `Store.fork`; freezing costs nothing here."""
        return False

    def root(self, layer: int) -> str:
        """See `Store.root`."""
        return f"{self._layers}/{layer}/u"

    def pin(self, layer: int) -> None:
        """Nothing to keep: a copy is always there."""

    def unpin(self, layer: int) -> None:
        """Nothing was kept."""

    def freeze(self, layer: int) -> tuple[bool, int]:  # noqa: ARG002
        """See `Store.freeze`; whoever continues gets a copy, so the bytes do not add up."""
        return True, 0

    def scan(self, layer: int) -> list[Item]:
        """See `Store.scan`: everything there is, with a mark that it hides all of the base."""
        return [Item("", "o", 0, "", ""), *scan(self.root(layer))]

    def flatten(self, layer: int, frozen: tuple[int, ...]) -> int:  # noqa: ARG002
        """See `Store.flatten`; nobody asks, since the topmost copy is already whole."""
        raise ValueError("copies are never merged")

    def discard(self, layer: int) -> None:
        """See `Store.discard`."""
        folder = f"{self._layers}/{layer}"
        if self._capped and os.path.ismount(folder):
            kernel.umount(folder)
        remove_tree(folder)

    def forget(self, layer: int) -> bool:
        """See `Store.forget`."""
        known = layer in self._held
        self._held.discard(layer)
        return known
