"""What an environment remembers of the episode in progress: enough to rebuild it and to prove the result.

Plain data and pure functions; the verbs that keep it stand in `verbs.py`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from forkgym.core.hashing import CHAIN_BYTES, chain_link

__all__ = ["Journal"]


class Journal(msgspec.Struct):
    """The record of one episode.

    Attributes:
        seed: Seed of the reset.
        options: Options of the reset, in portable form.
        segments: (turn, stream): from the step after `turn` on, luck comes from `stream`. Empty means stream 0.
        actions: Actions so far, in portable form.
        chain: One 16-byte link a turn, the reset's first: BLAKE2b of the link before, the action, what the
            environment answered and the state hash.
        interaction: Last link of the chain of interactions (as `chain`, without state hashes): the declared state
            of an environment that has no other.
        ended: The episode is over (terminated or truncated).
        failed: The last step raised an error half-way, so the state is not to be trusted.
    """

    seed: int
    options: dict[str, Any]
    segments: list[tuple[int, int]] = msgspec.field(default_factory=list)
    actions: list[Any] = msgspec.field(default_factory=list)
    chain: list[bytes] = msgspec.field(default_factory=list)
    interaction: bytes = bytes(CHAIN_BYTES)
    ended: bool = False
    failed: bool = False

    @property
    def turn(self) -> int:
        """Steps taken since the reset."""
        return len(self.actions)

    @property
    def stream(self) -> int:
        """The luck stream of the next step."""
        return self.segments[-1][1] if self.segments else 0

    def copy(self) -> Journal:
        """An independent copy; items are shared, since none is ever changed in place."""
        return Journal(
            seed=self.seed,
            options=self.options,
            segments=list(self.segments),
            actions=list(self.actions),
            chain=list(self.chain),
            interaction=self.interaction,
            ended=self.ended,
            failed=self.failed,
        )

    def refresh_luck(self, stream: int) -> None:
        """Record that luck comes from `stream` from here on; a later choice at the same turn replaces it."""
        if self.segments and self.segments[-1][0] == self.turn:
            self.segments.pop()
        self.segments.append((self.turn, stream))

    def note(self, exchange: tuple[Any, ...]) -> None:
        """Extend the chain of interactions by what was done and answered."""
        self.interaction = chain_link(self.interaction, exchange, f"the answer of turn {self.turn}")

    def link(self, exchange: tuple[Any, ...], state_hash: str) -> None:
        """Extend the state-hash chain by one turn."""
        previous = self.chain[-1] if self.chain else bytes(CHAIN_BYTES)
        self.chain.append(chain_link(previous, (exchange, state_hash)))
