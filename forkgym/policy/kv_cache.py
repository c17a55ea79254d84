"""Slots of keys and values for the invariant forward pass, and their copies in and out (numpy only).

Which turn sits in which slot is the engine's business.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from forkgym.policy.invariant_kernels import BLOCK

__all__ = ["SlotCache", "StoredPrefix"]

FloatArray = npt.NDArray[np.float32]


class StoredPrefix(msgspec.Struct, frozen=True):
    """Keys and values of the first ``length`` tokens of a trajectory; never written after it was made.

    Attributes:
        keys: ``float32[layers, groups, blocks, head_width, BLOCK]``; places after ``length`` are not read.
        values: ``float32[layers, groups, length, head_width]``.
        length: Tokens held.
    """

    keys: FloatArray
    values: FloatArray
    length: int


class SlotCache:
    """A growing block of equal slots, each of which holds one running turn's keys and values.

    Attributes:
        keys: ``float32[layers, slots, groups, blocks, head_width, BLOCK]``: time in blocks of `BLOCK` tokens.
        values: ``float32[layers, slots, groups, length, head_width]``.
    """

    def __init__(self, *, layers: int, groups: int, head_width: int, length: int) -> None:
        """Start without slots; ``length`` is the most tokens a slot can hold."""
        self._shape = (layers, groups, head_width, -(-length // BLOCK) * BLOCK)
        self.keys: FloatArray = np.zeros((layers, 0, groups, 0, head_width, BLOCK), dtype=np.float32)
        self.values: FloatArray = np.zeros((layers, 0, groups, length, head_width), dtype=np.float32)
        self._free: list[int] = []

    @property
    def slots(self) -> int:
        """Slots allocated."""
        return int(self.keys.shape[1])

    def take(self) -> int:
        """Reserve the lowest free slot, growing the block (doubling) when there is none."""
        if not self._free:
            self._grow(max(8, 2 * self.slots))
        slot = min(self._free)
        self._free.remove(slot)
        return slot

    def give_back(self, slot: int) -> None:
        """Free a slot; its numbers stay until they are overwritten and are never read."""
        self._free.append(slot)

    def load(self, slot: int, prefix: StoredPrefix, length: int) -> None:
        """Copy the first ``length`` tokens of a stored prefix into a slot."""
        blocks = -(-length // BLOCK)
        self.keys[:, slot, :, :blocks] = prefix.keys[:, :, :blocks]
        self.values[:, slot, :, :length] = prefix.values[:, :, :length]

    def store(self, slot: int, length: int) -> StoredPrefix:
        """Copy the first ``length`` tokens of a slot out."""
        keys = self.keys[:, slot, :, : -(-length // BLOCK)].copy()
        values = self.values[:, slot, :, :length].copy()
        return StoredPrefix(keys, values, length)

    def _grow(self, slots: int) -> None:
        layers, groups, head_width, length = self._shape
        old = self.slots
        keys: FloatArray = np.zeros((layers, slots, groups, length // BLOCK, head_width, BLOCK), dtype=np.float32)
        values: FloatArray = np.zeros((layers, slots, groups, length, head_width), dtype=np.float32)
        if old:
            keys[:, :old] = self.keys
            values[:, :old] = self.values
        self.keys, self.values = keys, values
        self._free += range(old, slots)
