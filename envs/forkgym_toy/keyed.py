"""Many keys at once: `forkgym.noise`'s keys, words and Gumbel noise as numpy arrays over trajectories.

The definitions are `forkgym.noise`'s, repeated here for batches; the tests compare them word for word.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from forkgym.noise import luck_key
from forkgym.noise.keys import GAMMA, MIX_1, MIX_2, turn_prefix
from forkgym.noise.philox import MULTIPLIER_0, MULTIPLIER_1, ROUNDS, WEYL_0, WEYL_1

__all__ = ["gumbels", "luck_uniforms", "prefixes", "splitmix", "words"]

Keys = npt.NDArray[np.uint64]

_LOW: Final = np.uint64(0xFFFFFFFF)
_HALF: Final = np.uint64(32)


def prefixes(tag: int, episodes: Iterable[int], turn: int, stream: int) -> Keys:
    """The part of a key that is constant over a turn, for many episodes: ``uint64[N]``."""
    return np.array([turn_prefix(tag, int(episode), turn, stream) for episode in episodes], dtype=np.uint64)


def splitmix(seeds: Keys, index: Keys) -> Keys:
    """Output ``index`` of SplitMix64 seeded with ``seeds``, elementwise: ``uint64[N]``."""
    with np.errstate(over="ignore"):
        z = seeds + (index + np.uint64(1)) * np.uint64(GAMMA)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(MIX_1)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(MIX_2)
    return np.asarray(z ^ (z >> np.uint64(31)), dtype=np.uint64)


def words(keys: Keys, count: int) -> Keys:
    """Philox4x32-10 words 0 … count − 1 of every key.

    Args:
        keys: ``uint64[N]``.
        count: Words a key.

    Returns:
        ``uint64[N, count]``, each below 2**32.
    """
    blocks = (count + 3) // 4
    c0 = np.broadcast_to(np.arange(blocks, dtype=np.uint64), (keys.size, blocks)).copy()
    c1, c2, c3 = np.zeros_like(c0), np.zeros_like(c0), np.zeros_like(c0)
    k0, k1 = (keys & _LOW)[:, None], (keys >> _HALF)[:, None]
    for _ in range(ROUNDS):
        p0, p1 = c0 * np.uint64(MULTIPLIER_0), c2 * np.uint64(MULTIPLIER_1)
        c0, c1, c2, c3 = (p1 >> _HALF) ^ c1 ^ k0, p1 & _LOW, (p0 >> _HALF) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + np.uint64(WEYL_0)) & _LOW, (k1 + np.uint64(WEYL_1)) & _LOW
    return np.stack((c0, c1, c2, c3), axis=2).reshape(keys.size, 4 * blocks)[:, :count]


def gumbels(keys: Keys, count: int) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise ``−log(−log((w + ½)·2⁻³²))`` of tokens 0 … count − 1: ``float64[N, count]``."""
    uniform = (words(keys, count).astype(np.float64) + 0.5) * 2.0**-32
    return -np.log(-np.log(uniform))


def luck_uniforms(episodes: Iterable[int], stream: int, turn: int, name: str) -> npt.NDArray[np.float64]:
    """The first draw called ``name`` of an environment's turn, as `forkgym.core.KeyedLuck.random` takes it.

    Args:
        episodes: Episode ids; the environment is reset with an id's low 63 bits as its seed, as rollouts do.
        stream: Luck stream.
        turn: Step of the environment, from 1.
        name: Name of the draw.

    Returns:
        ``float64[N]`` in [0, 1).
    """
    keys = [luck_key(_luck_episode(int(episode)), stream, turn, name, 0) for episode in episodes]
    drawn = words(np.array(keys, dtype=np.uint64), 2).astype(np.int64)
    high: npt.NDArray[Any] = drawn[:, 0] >> 5
    low: npt.NDArray[Any] = drawn[:, 1] >> 6
    return np.asarray((high * 67108864 + low) / 9007199254740992.0, dtype=np.float64)


def _luck_episode(episode: int) -> int:
    seed = episode & (2**63 - 1)
    digest = hashlib.blake2b(b"%d" % seed, digest_size=8, person=b"forkgym.episode").digest()
    return int.from_bytes(digest, "little")
