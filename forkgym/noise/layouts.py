"""Layouts: how a stream of tokens walks through keys, and so what a twin shares with its factual episode.

Which stream a turn reads (factual, alternative, continuation) is the rollout's decision; this file only
counts.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from forkgym.noise.keys import (
    GAMMA,
    MIX_1,
    MIX_2,
    TAG_EPISODE,
    TAG_LINE,
    TAG_NGRAM,
    TAG_TURN,
    splitmix64,
    turn_prefix,
)
from forkgym.noise.philox import MASK_32, MASK_64

NGRAM_CONTEXT: Final = 4
# Stands before the first token of an n-gram context; no vocabulary reaches it.
NO_TOKEN: Final = MASK_32


class Layout(enum.StrEnum):
    """Which parts of a token's place go into its key.

    `TURN_LINE` and `TURN` are exact and give unbiased twin credit. `EPISODE` is exact for each trajectory
    alone but its credit is conditionally biased (a shorter alternative makes the twin read the noise that
    chose the factual turn). `NGRAM` is inexact: keys can repeat inside a trajectory. `INDEPENDENT` walks like
    `TURN_LINE`, but its branches must read streams of their own, so nothing is coupled.
    """

    TURN_LINE = "turn-line"
    TURN = "turn"
    EPISODE = "episode"
    NGRAM = "ngram"
    INDEPENDENT = "independent"

    @property
    def couples(self) -> bool:
        """True where a branch's later turns read the noise of the trajectory they were forked from."""
        return self is not Layout.INDEPENDENT

    @property
    def exact(self) -> bool:
        """True where no key can repeat inside a trajectory, so every token is an exact sample."""
        return self is not Layout.NGRAM

    @property
    def unbiased_credit(self) -> bool:
        """True where no noise that chose a turn can be read again after it, so E[D | s, y] = A."""
        return self not in (Layout.EPISODE, Layout.NGRAM)


_TAGS: Final = {
    Layout.TURN_LINE: TAG_LINE,
    Layout.TURN: TAG_TURN,
    Layout.EPISODE: TAG_EPISODE,
    Layout.NGRAM: TAG_NGRAM,
    # The same walk as turn-line, so both layouts see the same factual episodes and only their branches
    # differ.
    Layout.INDEPENDENT: TAG_LINE,
}


def newline_table(token_bytes: Iterable[bytes]) -> npt.NDArray[np.uint8]:
    """How many line ends each token holds: the table `KeyStream` needs, one per tokenizer.

    Args:
        token_bytes: for every token id in order, the bytes it decodes to.

    Returns:
        ``uint8[V]``: the number of 0x0A bytes in the token.

    Raises:
        ValueError: a token holds more than 255 of them.
    """
    counts = [token.count(b"\n") for token in token_bytes]
    if counts and max(counts) > 255:
        raise ValueError(f"token {counts.index(max(counts))} holds {max(counts)} line ends; at most 255 are supported")
    return np.array(counts, dtype=np.uint8)


def _line_table(layout: Layout, newlines: npt.NDArray[np.uint8] | None) -> bytes | None:
    """The newline table as bytes (indexing bytes is several times faster than indexing an array)."""
    if newlines is None:
        if layout is Layout.TURN_LINE:
            raise ValueError(
                "the turn-line layout needs the tokenizer's newline table (see newline_table); "
                "pass zeros where no token holds a line end"
            )
        return None
    table = np.asarray(newlines)
    if table.ndim != 1 or table.dtype != np.uint8:
        raise ValueError(f"newlines must be uint8[V], got {table.dtype}{list(table.shape)}: see newline_table")
    return table.tobytes() if layout in (Layout.TURN_LINE, Layout.INDEPENDENT) else None


class KeyStream:
    """Turns the tokens of one trajectory into the keys of its choices.

    Call `start_turn`, then for every generated token `key64`, choose the token with that key,
    `advance(token)`.

    Attributes:
        layout: the layout, fixed.
        episode: the 64-bit episode id, fixed.
        counter: tokens generated since the episode began. The ``episode`` layout's key; it survives
            `start_turn`, and a twin that does not start as a `copy` must be given its factual episode's value
            at the fork.
    """

    __slots__ = ("_context", "_newlines", "_place", "_prefix", "_tag", "counter", "episode", "layout")

    def __init__(self, layout: Layout | str, episode: int, *, newlines: npt.NDArray[np.uint8] | None) -> None:
        """Start before the first turn.

        Args:
            layout: the layout or its name.
            episode: 64-bit episode id, see `forkgym.noise.episode_id`.
            newlines: ``uint8[V]``, the number of 0x0A bytes of each token; may be None except for
                ``turn-line``.

        Raises:
            ValueError: an unknown layout, or a missing or malformed table.
        """
        self.layout = Layout(layout)
        self.episode = episode
        self.counter = 0
        self._newlines = _line_table(self.layout, newlines)
        self._tag = _TAGS[self.layout]
        self._prefix: int | None = None
        self._place = 0
        self._context: tuple[int, ...] = (NO_TOKEN,) * NGRAM_CONTEXT

    @property
    def line(self) -> int:
        """Line ends generated so far in this turn (0 for layouts without lines)."""
        return self._place >> 32

    @property
    def position(self) -> int:
        """Tokens generated since the last line end of this turn."""
        return self._place & MASK_32

    def start_turn(self, turn: int, stream: int) -> None:
        """Begin a turn: line and position go back to 0.

        Args:
            turn: the turn's number in its episode.
            stream: the 64-bit stream read in this turn (0 = factual, see `forkgym.noise.stream_id`).

        Raises:
            ValueError: turn, stream or episode is not an integer in [0, 2**64).
        """
        keyed_turn = turn if self._tag in (TAG_LINE, TAG_TURN) else 0
        self._prefix = turn_prefix(self._tag, self.episode, keyed_turn, stream)
        self._place = 0

    def key64(self) -> int:
        """The key of the next token.

        Returns:
            An integer in [0, 2**64).

        Raises:
            RuntimeError: no turn was started.
        """
        prefix = self._prefix
        if prefix is None:
            raise RuntimeError("call start_turn(turn, stream) before the first key of an episode")
        if self._tag == TAG_NGRAM:
            a, b, c, d = self._context
            return splitmix64(splitmix64(prefix, a << 32 | b), c << 32 | d)
        place = self.counter if self._tag == TAG_EPISODE else self._place
        # splitmix64(prefix, place), written out: this runs once per generated token.
        z = (prefix + (place + 1) * GAMMA) & MASK_64
        z = (z ^ (z >> 30)) * MIX_1 & MASK_64
        z = (z ^ (z >> 27)) * MIX_2 & MASK_64
        return z ^ (z >> 31)

    def advance(self, token: int) -> None:
        """A generated token was appended.

        Args:
            token: its id.

        Raises:
            ValueError: the id is negative or outside the newline table.
        """
        if token < 0:
            raise ValueError(f"a token id must not be negative, got {token}")
        self.counter += 1
        table = self._newlines
        if table is None:
            self._place += 1
            if self._tag == TAG_NGRAM:
                self._context = (*self._context[1:], int(token))
            return
        if token >= len(table):
            raise ValueError(f"token {token} is outside the newline table of {len(table)} tokens")
        line_ends = table[token]
        if line_ends:
            self._place = ((self._place >> 32) + line_ends) << 32
        else:
            self._place += 1

    def observe(self, tokens: Sequence[int] | npt.NDArray[Any]) -> None:
        """Prompt or observation tokens were appended; only the ``ngram`` layout's context sees them.

        Args:
            tokens: their ids, in order.

        Raises:
            ValueError: an id is negative.
        """
        if self._tag != TAG_NGRAM:
            return
        last = [int(token) for token in tokens[-NGRAM_CONTEXT:]]
        if any(token < 0 for token in last):
            raise ValueError(f"token ids must not be negative, got {last}")
        self._context = (*self._context, *last)[-NGRAM_CONTEXT:]

    def copy(self) -> KeyStream:
        """An independent stream at the same place (a fork of the trajectory).

        Returns:
            A new `KeyStream`.
        """
        twin = KeyStream.__new__(KeyStream)
        for name in KeyStream.__slots__:
            setattr(twin, name, getattr(self, name))
        return twin

    def __repr__(self) -> str:
        """Where the stream stands."""
        return (
            f"KeyStream({self.layout.value!r}, episode={self.episode}, line={self.line}, "
            f"position={self.position}, counter={self.counter})"
        )
