"""Luck: the keyed randomness of an environment, and the choice between sharing and refreshing it at a fork.

A draw is a pure function of (episode, stream, turn, name, how many draws of that name came before in this turn).
So a fork that shares luck sees the same future whatever else was drawn, and a refreshed one is reproducible.
The keys themselves are `forkgym.noise`'s.
"""

from __future__ import annotations

import hashlib

import msgspec
import numpy as np

from forkgym import noise

__all__ = ["SAME", "KeyedLuck", "Luck", "episode_of_seed"]

_MAX_STREAM = 2**64


class Luck(msgspec.Struct, frozen=True):
    """What a fork does with luck: `SAME` (share it with the parent) or `Luck.fresh(stream)`.

    Attributes:
        stream: None to keep the parent's stream, else the 64-bit stream that the fork reads from here on.
    """

    stream: int | None = None

    @classmethod
    def fresh(cls, stream: int) -> Luck:
        """Luck of its own, keyed by `stream` (never operating-system entropy).

        Args:
            stream: 1 … 2^64 - 1; 0 is the stream that every episode starts with. `forkgym.noise.stream_id`
                derives one from a branch's place in the tree.

        Raises:
            ValueError: `stream` is outside that range.
        """
        if type(stream) is not int or not 0 < stream < _MAX_STREAM:
            raise ValueError(f"a fresh luck stream is an integer from 1 to 2**64 - 1, not {stream!r}")
        return cls(stream)

    def __repr__(self) -> str:
        return "SAME" if self.stream is None else f"Luck.fresh({self.stream})"


SAME = Luck()
"""Share the parent's luck: the same actions meet the same draws."""


def episode_of_seed(seed: int) -> int:
    """The 64-bit episode of the luck keys: BLAKE2b-64 of the reset seed's decimal digits."""
    return int.from_bytes(hashlib.blake2b(b"%d" % seed, digest_size=8, person=b"forkgym.episode").digest(), "little")


class KeyedLuck:
    """The source of randomness that an environment's author uses: `self.luck.random("coin")`.

    Attributes:
        episode: 64-bit id of the episode (from the reset seed).
        stream: 64-bit stream; 0 until a fork takes fresh luck.
        turn: 0 during the reset, t during the t-th step.
    """

    __slots__ = ("_draws", "episode", "stream", "turn")

    def __init__(self, episode: int = 0, stream: int = 0, turn: int = 0) -> None:
        self.episode = episode
        self.stream = stream
        self.turn = turn
        self._draws: dict[str, int] = {}

    def start_turn(self, turn: int, stream: int) -> None:
        """Begin turn `turn` on `stream`: every name counts its draws from zero again."""
        self.turn = turn
        self.stream = stream
        self._draws.clear()

    def copy(self) -> KeyedLuck:
        """A luck at the same place, which counts its draws by itself."""
        fresh = KeyedLuck(self.episode, self.stream, self.turn)
        fresh._draws = dict(self._draws)
        return fresh

    def key64(self, name: str) -> int:
        """The 64-bit key of the next draw called `name`; counts as a draw."""
        draw = self._draws.get(name, 0)
        self._draws[name] = draw + 1
        return noise.luck_key(self.episode, self.stream, self.turn, name, draw)

    def random(self, name: str) -> float:
        """A uniform float in [0, 1) with 53 random bits."""
        high, low, _, _ = noise.philox4x32(self.key64(name), 0)
        return ((high >> 5) * 67108864 + (low >> 6)) / 9007199254740992.0

    def integers(self, name: str, low: int, high: int) -> int:
        """A uniform integer in [low, high), exactly uniform (drawn by rejection).

        Raises:
            ValueError: The range is empty or holds more than 2^64 integers.
        """
        span = high - low
        if not 0 < span <= _MAX_STREAM:
            raise ValueError(f"luck.integers({name!r}, {low}, {high}): need low < high and at most 2**64 values")
        limit = _MAX_STREAM - _MAX_STREAM % span
        while True:
            first, second, _, _ = noise.philox4x32(self.key64(name), 0)
            value = first << 32 | second
            if value < limit:
                return low + value % span

    def choice(self, name: str, n: int) -> int:
        """A uniform index in range(n)."""
        return self.integers(name, 0, n)

    def generator(self, name: str) -> np.random.Generator:
        """A numpy generator of this draw's own, for anything that needs many numbers; counts as one draw."""
        return noise.generator(self.key64(name))
