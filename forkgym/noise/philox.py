"""Philox4x32-10 in plain Python and in numpy: the integers every other backend must reproduce bit for bit.

Only words live here; turning them into Gumbel noise and choices is `gumbel.py`'s work, making keys is
`keys.py`'s.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

MULTIPLIER_0: Final = 0xD2511F53
MULTIPLIER_1: Final = 0xCD9E8D57
WEYL_0: Final = 0x9E3779B9
WEYL_1: Final = 0xBB67AE85
ROUNDS: Final = 10
MASK_32: Final = 0xFFFFFFFF
MASK_64: Final = 0xFFFFFFFFFFFFFFFF

# Blocks of this many counters keep the temporaries of one round inside the L2 cache.
_BLOCK: Final = 8192

_M0 = np.uint64(MULTIPLIER_0)
_M1 = np.uint64(MULTIPLIER_1)
_LOW = np.uint64(MASK_32)
_HALF = np.uint64(32)


def check_key64(key64: int) -> int:
    """Return ``key64`` as a Python int, or say why it is not a 64-bit key.

    Raises:
        TypeError: ``key64`` is not an integer.
        ValueError: it does not fit into 64 unsigned bits.
    """
    if isinstance(key64, (bool, np.bool_)) or not isinstance(key64, (int, np.integer)):
        raise TypeError(f"a noise key must be an integer, got {type(key64).__name__}: use Key.hash64()")
    key = int(key64)
    if not 0 <= key <= MASK_64:
        raise ValueError(f"a noise key must lie in [0, 2**64), got {key}: use Key.hash64()")
    return key


def philox4x32(key64: int, counter: int) -> tuple[int, int, int, int]:
    """One block of Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").

    Args:
        key64: the key; its low 32 bits are Random123's ``key[0]``, its high 32 bits ``key[1]``.
        counter: 128-bit counter in [0, 2**128), least significant word first. forkgym itself uses ``token_id
            // 4``.

    Returns:
        Four 32-bit words.

    Raises:
        TypeError: the key is not an integer.
        ValueError: key or counter is out of range.
    """
    key = check_key64(key64)
    if not 0 <= counter < 1 << 128:
        raise ValueError(f"a Philox counter must lie in [0, 2**128), got {counter}")
    k0, k1 = key & MASK_32, key >> 32
    c0, c1, c2, c3 = ((int(counter) >> shift) & MASK_32 for shift in (0, 32, 64, 96))
    for _ in range(ROUNDS):
        p0, p1 = c0 * MULTIPLIER_0, c2 * MULTIPLIER_1
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK_32, (p0 >> 32) ^ c3 ^ k1, p0 & MASK_32
        k0, k1 = (k0 + WEYL_0) & MASK_32, (k1 + WEYL_1) & MASK_32
    return c0, c1, c2, c3


def philox_blocks(key64: int, counters: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Philox4x32-10 of many counters under one key.

    Args:
        key64: the key, already checked.
        counters: ``uint64[n]``, the low 64 bits of each counter (the high 64 bits are zero).

    Returns:
        ``uint64[n, 4]``: the four words of every counter, each below 2**32.
    """
    c0, c1 = counters & _LOW, counters >> _HALF
    c2 = np.zeros_like(c0)
    c3 = np.zeros_like(c0)
    k0, k1 = key64 & MASK_32, key64 >> 32
    for _ in range(ROUNDS):
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = (
            (p1 >> _HALF) ^ c1 ^ np.uint64(k0),
            p1 & _LOW,
            (p0 >> _HALF) ^ c3 ^ np.uint64(k1),
            p0 & _LOW,
        )
        k0, k1 = (k0 + WEYL_0) & MASK_32, (k1 + WEYL_1) & MASK_32
    return np.stack((c0, c1, c2, c3), axis=1)


def words(key64: int, n: int) -> npt.NDArray[np.uint32]:
    """The words of tokens 0 … n−1: ``w(v) = philox(key64, v // 4)[v % 4]``.

    Args:
        key64: the key of this choice.
        n: number of tokens (vocabulary size), at least 0.

    Returns:
        ``uint32[n]``.

    Raises:
        TypeError: the key is not an integer.
        ValueError: the key is out of range or ``n`` is negative.
    """
    key = check_key64(key64)
    if n < 0:
        raise ValueError(f"the number of words must not be negative, got {n}")
    blocks = (n + 3) // 4
    out = np.empty((blocks, 4), dtype=np.uint32)
    for start in range(0, blocks, _BLOCK):
        stop = min(start + _BLOCK, blocks)
        out[start:stop] = philox_blocks(key, np.arange(start, stop, dtype=np.uint64))
    return out.reshape(-1)[:n]


def words_at(key64: int, ids: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """The words of the given tokens only: ``words(key64, V)[ids]`` without the rest of the vocabulary.

    Args:
        key64: the key of this choice.
        ids: ``int[k]`` token ids, none negative.

    Returns:
        ``uint32[k]``.

    Raises:
        TypeError: the key is not an integer.
        ValueError: the key is out of range.
    """
    key = check_key64(key64)
    tokens = np.asarray(ids).astype(np.uint64)
    block_words = philox_blocks(key, tokens // np.uint64(4))
    lanes = (tokens % np.uint64(4)).astype(np.intp)
    return block_words[np.arange(tokens.size), lanes].astype(np.uint32)
