"""What every token engine offers: requests in, completions out, one decoding step at a time.

The protocol is synchronous and incremental (``submit`` then ``step``), so a plain loop, an actor or an
asyncio scheduler can drive it. Concrete engines live beside this file; nothing here imports torch.
"""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

import msgspec

from forkgym.noise import KeyStream

__all__ = ["Completion", "Engine", "EngineStatistics", "GenerationRequest", "Sampling"]

FinishReason = Literal["stop", "length"]


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How the tokens of one turn are drawn.

    Attributes:
        temperature: Softmax temperature τ > 0; ignored when ``greedy``.
        top_p: Nucleus mass in (0, 1]; 1 keeps the whole vocabulary.
        max_tokens: Most tokens one turn may have, the end-of-turn token included.
        greedy: Take the lowest-id argmax instead of a keyed sample.
        stop_tokens: Token ids that end the turn; the token itself belongs to the turn.
        stop_strings: Strings that end the turn as soon as the decoded turn contains one.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 64
    greedy: bool = False
    stop_tokens: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()


class GenerationRequest(msgspec.Struct, kw_only=True):
    """One turn to be generated.

    Attributes:
        context: Every token id before the turn: prompt, earlier turns and observations.
        keys: Key stream already positioned at the turn (``start_turn`` was called); the engine advances it.
        sampling: How tokens are drawn and where the turn ends.
        version: Policy version that must produce the tokens.
        cache: Handle of a stored key/value cache whose first ``cache_length`` tokens equal the context's.
        cache_length: Number of leading context tokens to take from ``cache`` (0 when ``cache`` is ``None``).
        consume_cache: Continue in place and give the handle up (no copy); otherwise the prefix is forked.
        keep_cache: Store the cache after the turn and return its handle in the completion.
    """

    context: list[int]
    keys: KeyStream
    sampling: Sampling
    version: int = 0
    cache: int | None = None
    cache_length: int = 0
    consume_cache: bool = False
    keep_cache: bool = True


class Completion(msgspec.Struct, kw_only=True):
    """A finished turn, token by token.

    Attributes:
        tokens: Sampled ids in order, the stop token included.
        logprobs: Log-probability of each sampled token under the behaviour distribution (grammar mask, then
            temperature, then nucleus, renormalised), float64.
        entropies: Entropy in nats of that distribution at each token.
        gini_impurities: ``1 − Σ_v π(v)²`` at each token (Gini): the probability that two draws differ.
        finish_reason: ``"stop"`` when a stop token or string ended the turn, else ``"length"``.
        cache: Handle of the stored cache (context and turn), or ``None``.
        fed_tokens: Context tokens the engine had to compute because no cache held them.
        supports: Under nucleus sampling, the ids each token was drawn from, ascending; ``None`` where every
            token of the vocabulary was possible (``top_p`` = 1) or none was drawn (greedy).
    """

    tokens: list[int]
    logprobs: list[float]
    entropies: list[float]
    gini_impurities: list[float]
    finish_reason: FinishReason
    cache: int | None = None
    fed_tokens: int = 0
    supports: list[list[int]] | None = None


class EngineStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since the engine was made; tokens are counted once, seconds are wall time inside ``step``."""

    generated_tokens: int = 0
    fed_tokens: int = 0
    reused_tokens: int = 0
    seconds: float = 0.0
    running: int = 0
    stored_caches: int = 0


@runtime_checkable
class Engine(Protocol):
    """A source of tokens.

    Where ``batch_invariant`` is true, results depend on a request's context, keys and version, never on its
    companions; elsewhere up to a measured mismatch rate.
    """

    batch_invariant: bool

    def submit(self, request: GenerationRequest) -> int:
        """Queue a turn and return its ticket.

        Raises:
            ValueError: The request cannot be served (empty context, unknown version or cache, too long).
        """
        ...

    def step(self) -> list[tuple[int, Completion]]:
        """Advance every running request by one token and return those that finished, in ticket order."""
        ...

    def cancel(self, ticket: int) -> None:
        """Drop a request that has not finished; its cache is freed."""
        ...

    def release(self, cache: int) -> None:
        """Free a stored cache."""
        ...

    def publish(self, version: int, weights: object) -> None:
        """Make an immutable policy version available (``weights`` is what the engine's learner hands over)."""
        ...

    def retire(self, version: int) -> None:
        """Forget a version that has no open episode."""
        ...

    def statistics(self) -> EngineStatistics:
        """Counters for the ledger and the live view."""
        ...
