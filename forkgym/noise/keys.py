"""Keys of the noise: how (episode, turn, branch, line, position) becomes 64 bits, byte for byte.

Streams, episode ids, environment luck and the controller's coins are hashed here too. How a stream of tokens
walks through keys is `layouts.py`; what a key's noise looks like is `philox.py` and `gumbel.py`.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final

import msgspec
import numpy as np

from forkgym.noise.philox import MASK_64, check_key64

# SplitMix64 (Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators", figure 14 and its
# mix64).
GAMMA: Final = 0x9E3779B97F4A7C15
MIX_1: Final = 0xBF58476D1CE4E5B9
MIX_2: Final = 0x94D049BB133111EB

# Which walk a prefix belongs to: keys of different layouts never coincide by construction.
TAG_LINE: Final = 0
TAG_TURN: Final = 1
TAG_EPISODE: Final = 2
TAG_NGRAM: Final = 3

FACTUAL_STREAM: Final = 0
_PREFIX = struct.Struct("<BQQQ")


class Key(msgspec.Struct, frozen=True):
    """Names one token choice of one trajectory (layout ``turn-line``).

    Attributes:
        episode: 64-bit episode id, see `episode_id`.
        turn: turn of the episode, from 0.
        branch: 64-bit stream id: 0 is the factual episode, otherwise see `stream_id`.
        line: number of 0x0A bytes generated so far in this turn, below 2**32.
        position: tokens since the last token that held a 0x0A byte, below 2**32.
    """

    episode: int
    turn: int
    branch: int = FACTUAL_STREAM
    line: int = 0
    position: int = 0

    def hash64(self) -> int:
        """The 64-bit Philox key.

        ``P`` = BLAKE2b with 8 bytes of digest, personal string ``b"forkgym.noise/1"``, over 25 bytes: the
        layout's tag (0, one byte), then episode, turn and branch as little-endian unsigned 64-bit integers;
        ``P`` is the digest read little-endian. The result is output number ``n = line·2³² + position`` of
        SplitMix64 seeded with ``P``: ``mix64(P + (n + 1)·0x9E3779B97F4A7C15)``. As that is a bijection of
        ``n``, keys of one turn never collide.

        Returns:
            An integer in [0, 2**64).

        Raises:
            ValueError: a field is negative or too large.
        """
        if not (0 <= self.line < 1 << 32 and 0 <= self.position < 1 << 32):
            raise ValueError(f"line and position must lie in [0, 2**32), got {self.line} and {self.position}")
        return splitmix64(turn_prefix(TAG_LINE, self.episode, self.turn, self.branch), self.line << 32 | self.position)


def mix64(z: int) -> int:
    """SplitMix64's finaliser: a bijection of 64-bit integers.

    Args:
        z: an integer in [0, 2**64).

    Returns:
        An integer in [0, 2**64).
    """
    z = (z ^ (z >> 30)) * MIX_1 & MASK_64
    z = (z ^ (z >> 27)) * MIX_2 & MASK_64
    return z ^ (z >> 31)


def splitmix64(seed: int, index: int) -> int:
    """Output number ``index`` (from 0) of SplitMix64 seeded with ``seed``.

    Args:
        seed: 64-bit state.
        index: which output, in [0, 2**64).

    Returns:
        An integer in [0, 2**64).
    """
    return mix64((seed + (index + 1) * GAMMA) & MASK_64)


def turn_prefix(tag: int, episode: int, turn: int, branch: int) -> int:
    """The part of a key that is constant over a turn, see `Key.hash64`.

    Args:
        tag: the layout's tag, one byte.
        episode: 64-bit episode id.
        turn: the turn, or 0 for layouts without one.
        branch: 64-bit stream id.

    Returns:
        A 64-bit integer.

    Raises:
        ValueError: a part does not fit into its bytes.
    """
    try:
        data = _PREFIX.pack(tag, episode, turn, branch)
    except struct.error as error:
        raise ValueError(
            "episode, turn and branch of a noise key must be integers in [0, 2**64), "
            f"got episode={episode!r}, turn={turn!r}, branch={branch!r}"
        ) from error
    digest = hashlib.blake2b(data, digest_size=8, person=b"forkgym.noise/1").digest()
    return int.from_bytes(digest, "little")


def _hash_parts(person: bytes, *parts: int | str) -> int:
    """BLAKE2b-64 of the parts: an integer as 8 bytes, a string as length (8 bytes) and UTF-8 bytes."""
    pieces: list[bytes] = []
    for part in parts:
        if isinstance(part, str):
            text = part.encode()
            pieces += (len(text).to_bytes(8, "little"), text)
            continue
        try:
            pieces.append(int(part).to_bytes(8, "little"))
        except OverflowError as error:
            raise ValueError(f"{person.decode()} needs integers in [0, 2**64), got {part!r}") from error
    digest = hashlib.blake2b(b"".join(pieces), digest_size=8, person=person).digest()
    return int.from_bytes(digest, "little")


def episode_id(run_seed: int, split: str, update: int, task: int, member: int) -> int:
    """The 64-bit id of an episode: what makes its noise its own.

    Args:
        run_seed: the run's seed.
        split: task split, e.g. ``"train"``.
        update: the update the episode is collected for.
        task: index of the task in its split.
        member: index of the episode in its group.

    Returns:
        BLAKE2b-64 of the five, personal string ``b"forkgym.episode"``; integers as little-endian u64, the
        string as its UTF-8 length (u64) and bytes.

    Raises:
        ValueError: an integer is negative or too large.
    """
    return _hash_parts(b"forkgym.episode", run_seed, split, update, task, member)


def stream_id(parent: int, turn: int, purpose: str, index: int, pair: int = 0) -> int:
    """The 64-bit id of a branch's noise stream; the factual stream is 0 and is never returned.

    Args:
        parent: stream of the trajectory that is forked.
        turn: turn of the fork.
        purpose: what reads it, e.g. ``"alternative"``, ``"continuation"``, ``"oracle"``.
        index: number of the branch at this turn.
        pair: number of the coupled pair.

    Returns:
        BLAKE2b-64 of the five, personal string ``b"forkgym.stream"``, encoded as in `episode_id`.

    Raises:
        ValueError: an integer is negative or too large.
    """
    return _hash_parts(b"forkgym.stream", parent, turn, purpose, index, pair) or 1


def luck_key(episode: int, stream: int, turn: int, name: str, draw: int) -> int:
    """The 64-bit key of one draw of an environment's luck.

    Args:
        episode: 64-bit episode id.
        stream: stream whose luck is read (a twin reads its parent's).
        turn: the environment's turn.
        name: what the environment draws, e.g. ``"dice"``.
        draw: how many draws of that name came before in this turn.

    Returns:
        BLAKE2b-64 of the five, personal string ``b"forkgym.luck"``, encoded as in `episode_id`.

    Raises:
        ValueError: an integer is negative or too large.
    """
    return _hash_parts(b"forkgym.luck", episode, stream, turn, name, draw)


def coin(episode: int, turn: int, purpose: str, index: int = 0) -> float:
    """A keyed uniform number for the controller's own choices (branch coins, selectors, task order).

    Args:
        episode: 64-bit episode id.
        turn: the turn decided about.
        purpose: what is decided, e.g. ``"branch"``.
        index: number of the coin for that purpose.

    Returns:
        ``(h // 2**12 + ½)·2⁻⁵²`` of the BLAKE2b-64 ``h`` (personal string ``b"forkgym.coin"``): strictly
        inside (0, 1), so ``coin(…) < q`` is always true at q = 1 and never at q = 0.

    Raises:
        ValueError: an integer is negative or too large.
    """
    return ((_hash_parts(b"forkgym.coin", episode, turn, purpose, index) >> 12) + 0.5) * 2.0**-52


def generator(key64: int) -> np.random.Generator:
    """A numpy generator that is a function of the key (permutations, draws from numpy's distributions).

    The bits are Philox4x64-10 keyed by ``key64``. numpy may change a distribution's algorithm between its
    releases; where a number must never change, use `coin` or `forkgym.noise.words`.

    Args:
        key64: the key, e.g. from `luck_key`.

    Returns:
        A fresh `numpy.random.Generator`.

    Raises:
        TypeError: the key is not an integer.
        ValueError: the key is out of range.
    """
    return np.random.Generator(np.random.Philox(key=check_key64(key64)))
