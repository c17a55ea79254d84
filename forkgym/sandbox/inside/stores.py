"""The two ways to keep a state: overlay layers, or whole copies. Nothing here runs commands.

A store hands out numbered layers. ``begin`` makes a writable one over frozen ones, ``freeze`` ends its writing,
``root`` says where the merged tree can be seen (mounting it at first use).
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from typing import Protocol

from . import kernel
from .trees import Item, copy_tree, flatten, remove_tree, scan

__all__ = ["CopyStore", "OverlayStore", "Store"]

PARTS = ("tree", "tmp")
_KEPT_MOUNTS = 256
_SPARE = 8


class Store(Protocol):
    """Numbered layers over read-only images."""

    def begin(self, image: str, frozen: tuple[int, ...], space: int, files: int) -> int:
        """A new writable layer over ``frozen`` (topmost first) over ``image``; may grow by ``space`` bytes."""

    def root(self, layer: int) -> str:
        """Directory that shows the merged state of a writable layer: ``tree`` and ``tmp`` below it."""

    def freeze(self, layer: int) -> tuple[bool, int]:
        """End all writing to this layer, unless nothing was written: then it stays as it is.

        Returns:
            Whether it is frozen now, and the bytes it holds.
        """

    def scan(self, layer: int) -> list[Item]:
        """What the layer says about its paths, see `trees.scan`."""

    def flatten(self, frozen: tuple[int, ...]) -> tuple[int, int]:
        """One frozen layer that means the same as these; returns its number and bytes."""

    def drop(self, layer: int) -> None:
        """Forget a layer that no state refers to any more."""


class _Layer:
    def __init__(self, image: str, frozen: tuple[int, ...]) -> None:
        self.image = image
        self.frozen = frozen
        self.active = True
        self.empty = 0  # inodes of a layer that holds nothing but what the file systems made for themselves


class OverlayStore:
    """Each layer is an overlay upper on a tmpfs of its own, whose size is the layer's quota.

    Args:
        images: Directory of base images, each with ``tree`` and ``tmp``.
        layers: Empty directory for the tmpfs mounts; short, since the kernel limits the length of a mount's options.
        views: Empty directory for the overlay mounts.
    """

    def __init__(self, images: str, layers: str, views: str) -> None:
        self._images, self._layers, self._views = images, layers, views
        self._held: dict[int, _Layer] = {}
        self._mounted: OrderedDict[int, None] = OrderedDict()
        self._pinned: dict[int, int] = {}
        self._spare: list[int] = []
        self._next = 1

    def prepare(self) -> bool:
        """Make an empty layer ahead of need, while there is nothing else to do; False when there are enough."""
        if len(self._spare) >= _SPARE:
            return False
        self._spare.append(self._blank())
        return True

    def _blank(self) -> int:
        number = self._next
        self._next += 1
        folder = f"{self._layers}/{number}"
        os.mkdir(folder)
        try:
            kernel.mount("layer", folder, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=64k,mode=755")
            os.mkdir(f"{folder}/u", 0o755)
            os.mkdir(f"{folder}/w", 0o755)
            os.mkdir(f"{self._views}/{number}")
        except OSError:
            self._discard(number)
            raise
        return number

    def _new(self, image: str, frozen: tuple[int, ...], space: int, files: int) -> int:
        number = self._spare.pop() if self._spare else self._blank()
        options = f"size={max(space, 65_536)},nr_inodes={max(files, 64)}"
        flags = kernel.MS_REMOUNT | kernel.MS_NOSUID | kernel.MS_NODEV
        try:
            kernel.mount("layer", f"{self._layers}/{number}", "tmpfs", flags, options)
        except OSError:
            self._discard(number)
            raise
        self._held[number] = _Layer(image, frozen)
        return number

    def begin(self, image: str, frozen: tuple[int, ...], space: int, files: int) -> int:
        """See `Store.begin`."""
        return self._new(image, frozen, space, files)

    def root(self, layer: int) -> str:
        """See `Store.root`."""
        view = f"{self._views}/{layer}"
        if layer in self._mounted:
            self._mounted.move_to_end(layer)
            return view
        held = self._held[layer]
        if not held.active:
            raise ValueError(f"layer {layer} is frozen; writing starts on a new one")
        lower = ":".join([*(f"{self._layers}/{number}/u" for number in held.frozen), f"{self._images}/{held.image}"])
        upper = f"upperdir={self._layers}/{layer}/u,workdir={self._layers}/{layer}/w"
        flags = kernel.MS_NOSUID | kernel.MS_NODEV
        kernel.mount("state", view, "overlay", flags, f"lowerdir={lower},{upper},userxattr")
        self._mounted[layer] = None
        if not held.empty:
            status = os.statvfs(f"{self._layers}/{layer}")
            held.empty = status.f_files - status.f_ffree
        if len(self._mounted) > _KEPT_MOUNTS:
            idle = next((number for number in self._mounted if number not in self._pinned and number != layer), None)
            if idle is not None:
                self._unmount(idle)
        return view

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
            kernel.umount(f"{self._views}/{layer}")

    def freeze(self, layer: int) -> tuple[bool, int]:
        """See `Store.freeze`."""
        status = os.statvfs(f"{self._layers}/{layer}")
        if status.f_files - status.f_ffree <= self._held[layer].empty:
            return False, 0
        self._unmount(layer)
        self._held[layer].active = False
        return True, (status.f_blocks - status.f_bfree) * status.f_frsize

    def scan(self, layer: int) -> list[Item]:
        """See `Store.scan`."""
        return list(scan(f"{self._layers}/{layer}/u"))

    def flatten(self, frozen: tuple[int, ...]) -> tuple[int, int]:
        """See `Store.flatten`."""
        space = files = 0
        for number in frozen:
            status = os.statvfs(f"{self._layers}/{number}")
            space += (status.f_blocks - status.f_bfree) * status.f_frsize
            files += status.f_files - status.f_ffree
        layer = self._new(self._held[frozen[0]].image, (), space + 65_536, files + 64)
        flatten([f"{self._layers}/{number}/u" for number in frozen], f"{self._layers}/{layer}/u")
        self._held[layer].active = False
        status = os.statvfs(f"{self._layers}/{layer}")
        return layer, (status.f_blocks - status.f_bfree) * status.f_frsize

    def _discard(self, number: int) -> None:
        folder = f"{self._layers}/{number}"
        if os.path.ismount(folder):
            kernel.umount(folder)
        os.rmdir(folder)
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(f"{self._views}/{number}")

    def drop(self, layer: int) -> None:
        """See `Store.drop`."""
        self._unmount(layer)
        self._held.pop(layer, None)
        self._discard(layer)


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
        self._next = 1

    def begin(self, image: str, frozen: tuple[int, ...], space: int, files: int) -> int:
        """See `Store.begin`; only the topmost frozen layer counts, since it holds everything."""
        number = self._next
        self._next += 1
        folder = f"{self._layers}/{number}"
        os.mkdir(folder, 0o755)
        try:
            if self._capped:
                options = f"size={max(space, 65_536)},nr_inodes={max(files, 64)},mode=755"
                kernel.mount("copy", folder, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)
            source = f"{self._layers}/{frozen[0]}/u" if frozen else f"{self._images}/{image}"
            copy_tree(source, f"{folder}/u", reflink=self._reflink)
        except BaseException:
            self.drop(number)
            raise
        return number

    def root(self, layer: int) -> str:
        """See `Store.root`."""
        return f"{self._layers}/{layer}/u"

    def prepare(self) -> bool:
        """Nothing can be made ahead of need."""
        return False

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

    def flatten(self, frozen: tuple[int, ...]) -> tuple[int, int]:
        """See `Store.flatten`: the topmost is already whole."""
        return frozen[0], 0

    def drop(self, layer: int) -> None:
        """See `Store.drop`."""
        folder = f"{self._layers}/{layer}"
        if self._capped and os.path.ismount(folder):
            kernel.umount(folder)
        remove_tree(folder)
