"""What all engines do alike: admit requests, draw keyed tokens, end turns, keep books (numpy only).

Where logits come from and where caches live is a subclass's business: `torch_engine.py` and `scripted.py`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from forkgym.noise import behaviour_logprobs, sample_batch, token_statistics
from forkgym.policy.engine import Completion, EngineStatistics, FinishReason, GenerationRequest, Sampling

__all__ = ["ActiveTurn", "MismatchReport", "ServingEngine", "generate", "measure_mismatch", "nucleus_supports"]

# A stop string is looked for in the text of this many last tokens plus one for each of its characters.
_STOP_WINDOW = 8


class ActiveTurn:
    """A request that is being served.

    Attributes:
        ticket: The number `submit` returned.
        request: The request itself.
        tokens: Ids drawn so far.
        supports: Under nucleus sampling, the ids each of them was drawn from.
        computed: Number of tokens (context, then drawn ones) whose keys and values the engine holds.
        reused: Context tokens that came from a cache.
        place: Whatever the engine needs to find the turn again (a slot, a cache object); while the turn waits, the
            stored prefix it will begin from.
    """

    __slots__ = (
        "computed",
        "entropies",
        "gini_impurities",
        "logprobs",
        "place",
        "request",
        "reused",
        "supports",
        "ticket",
        "tokens",
    )

    def __init__(self, ticket: int, request: GenerationRequest) -> None:
        self.ticket = ticket
        self.request = request
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.entropies: list[float] = []
        self.gini_impurities: list[float] = []
        self.supports: list[list[int]] = []
        self.computed = 0
        self.reused = 0
        self.place: Any = None

    @property
    def history(self) -> list[int]:
        """Context and drawn tokens, in order."""
        return self.request.context + self.tokens


class ServingEngine(ABC):
    """The engine protocol without the model: queueing, keyed sampling, stop rules, caches' books, statistics.

    A subclass writes `_begin`, `_advance`, `_end` and the version hooks. Every decision is taken by
    `forkgym.noise` in float64 from float32 logits, so a token depends on its logits and its key only.
    """

    batch_invariant: bool = True

    def __init__(
        self,
        *,
        decode: Callable[[Sequence[int]], str] | None,
        max_running: int,
        max_context: int | None,
        version: int = 0,
    ) -> None:
        """Start with one policy version and nothing to do.

        Args:
            decode: Token ids to text; only needed by requests with stop strings.
            max_running: Most turns served at once; further ones wait in ticket order.
            max_context: Most tokens of context and turn together, or ``None`` for no limit.
            version: Number of the version the engine starts with.
        """
        if max_running < 1:
            raise ValueError(f"max_running must be at least 1, got {max_running}")
        self.max_running = max_running
        self.max_context = max_context
        self._decode = decode
        self._versions: set[int] = {version}
        self._pending: list[ActiveTurn] = []
        self._running: list[ActiveTurn] = []
        self._caches: dict[int, tuple[int, list[int], Any]] = {}  # handle -> (version, token ids, stored object)
        self._next_ticket = 0
        self._next_cache = 0
        self._generated = 0
        self._fed = 0
        self._reused = 0
        self._seconds = 0.0

    # ---- hooks -------------------------------------------------------------------------------------------------

    @abstractmethod
    def _begin(self, turn: ActiveTurn, stored: Any, length: int) -> None:
        """Make room for a turn whose first ``length`` tokens are in ``stored`` (``None`` when 0)."""

    @abstractmethod
    def _advance(self, turns: list[ActiveTurn]) -> tuple[list[ActiveTurn], npt.NDArray[np.float32]]:
        """Compute; return the turns whose next token can be drawn and their logits ``float32[n, V]``."""

    @abstractmethod
    def _end(self, turn: ActiveTurn, *, keep: bool) -> Any:
        """Free the turn's room; with ``keep`` return an object that holds its first ``computed`` tokens."""

    def _install(self, version: int, weights: object) -> None:
        """Make a policy version ready."""
        raise NotImplementedError

    def _uninstall(self, version: int) -> None:
        """Forget a policy version's weights."""
        raise NotImplementedError

    # ---- the protocol ------------------------------------------------------------------------------------------

    def submit(self, request: GenerationRequest) -> int:
        """Queue a turn and return its ticket.

        The turn ends with reason ``length`` at ``max_tokens`` or where the engine's ``max_context`` is full.

        Raises:
            ValueError: The request cannot be served: empty or too long context, unknown version or cache, a cache of
                another version, or one whose tokens are not a prefix of the context.
        """
        self._check(request)
        ticket = self._next_ticket
        self._next_ticket += 1
        turn = ActiveTurn(ticket, request)
        if request.cache is not None:
            # Resolved now, so that the caller may release the handle while the turn still waits.
            entry = self._caches.pop(request.cache) if request.consume_cache else self._caches[request.cache]
            # The last context token is always computed again: its logits are what the turn begins with.
            turn.reused = min(request.cache_length, len(request.context) - 1, self._stored_length(entry[2]))
            turn.place = entry[2] if turn.reused else None
        self._pending.append(turn)
        return ticket

    def step(self) -> list[tuple[int, Completion]]:
        """Serve every running turn by one step and return those that ended, in ticket order."""
        started = time.perf_counter()
        while self._pending and len(self._running) < self.max_running:
            self._admit(self._pending.pop(0))
        finished: list[tuple[int, Completion]] = []
        if self._running:
            ready, logits = self._advance(self._running)
            if ready:
                self._draw(ready, logits)
                for turn in ready:
                    reason = self._finish_reason(turn)
                    if reason is not None:
                        finished.append((turn.ticket, self._complete(turn, reason)))
        if finished:
            done = {ticket for ticket, _ in finished}
            self._running = [turn for turn in self._running if turn.ticket not in done]
            finished.sort(key=lambda item: item[0])
        self._seconds += time.perf_counter() - started
        return finished

    def cancel(self, ticket: int) -> None:
        """Drop a turn that has not ended; a cache it consumed is gone with it.

        Raises:
            ValueError: No open turn has this ticket.
        """
        for queue in (self._pending, self._running):
            for position, turn in enumerate(queue):
                if turn.ticket == ticket:
                    del queue[position]
                    if queue is self._running:
                        self._end(turn, keep=False)
                    return
        raise ValueError(f"ticket {ticket} is not open: it was never issued, has finished or was cancelled")

    def release(self, cache: int) -> None:
        """Free a stored cache.

        Raises:
            ValueError: No such cache is stored.
        """
        if self._caches.pop(cache, None) is None:
            raise ValueError(f"cache {cache} is not stored: it was consumed, released or never existed")

    def publish(self, version: int, weights: object) -> None:
        """Make an immutable policy version available.

        Raises:
            ValueError: The version exists already: versions never change, choose a new number.
        """
        if version in self._versions:
            raise ValueError(f"version {version} is already published and immutable: publish under a new number")
        self._install(version, weights)
        self._versions.add(version)

    def retire(self, version: int) -> None:
        """Forget a version and free its stored caches.

        Raises:
            ValueError: The version is unknown or still has open turns.
        """
        if version not in self._versions:
            raise ValueError(f"version {version} is not published (known: {sorted(self._versions)})")
        open_turns = [turn.ticket for turn in self._pending + self._running if turn.request.version == version]
        if open_turns:
            raise ValueError(f"version {version} still has open turns (tickets {open_turns}): finish or cancel them")
        self._uninstall(version)
        self._caches = {handle: entry for handle, entry in self._caches.items() if entry[0] != version}
        self._versions.discard(version)

    def statistics(self) -> EngineStatistics:
        """Counters for the ledger and the live view."""
        return EngineStatistics(
            generated_tokens=self._generated,
            fed_tokens=self._fed,
            reused_tokens=self._reused,
            seconds=self._seconds,
            running=len(self._running) + len(self._pending),
            stored_caches=len(self._caches),
        )

    # ---- the shared part ---------------------------------------------------------------------------------------

    def _check(self, request: GenerationRequest) -> None:
        """Refuse what cannot be served, before anything is changed."""
        sampling = request.sampling
        if not request.context:
            raise ValueError("the context is empty: a turn needs at least one token before it (the prompt)")
        if request.version not in self._versions:
            raise ValueError(f"version {request.version} is not published (known: {sorted(self._versions)})")
        if self.max_context is not None and len(request.context) >= self.max_context:
            raise ValueError(
                f"the context has {len(request.context)} tokens and leaves no room in max_context={self.max_context}: "
                "raise max_context or end the episode earlier"
            )
        if sampling.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {sampling.max_tokens}")
        if not (sampling.temperature > 0 and 0 < sampling.top_p <= 1):
            raise ValueError(
                f"temperature must be > 0 and top_p in (0, 1], got {sampling.temperature} and {sampling.top_p}; "
                "for the argmax say greedy=True"
            )
        if sampling.stop_strings and self._decode is None:
            raise ValueError("stop strings need text: give the engine a renderer (decode)")
        if request.cache is None:
            if request.cache_length:
                raise ValueError(f"cache_length is {request.cache_length} but no cache is given")
            return
        if request.cache not in self._caches:
            raise ValueError(f"cache {request.cache} is not stored: it was consumed, released or never existed")
        version, tokens, _ = self._caches[request.cache]
        if version != request.version:
            raise ValueError(f"cache {request.cache} belongs to version {version}, the request to {request.version}")
        length = request.cache_length
        if not 0 <= length <= min(len(tokens), len(request.context)) or tokens[:length] != request.context[:length]:
            raise ValueError(
                f"the first cache_length={length} tokens of cache {request.cache} ({len(tokens)} tokens) are not the "
                f"context's ({len(request.context)} tokens): pass the length of their common prefix"
            )

    def _admit(self, turn: ActiveTurn) -> None:
        """Start a queued turn, from its cached prefix where it has one."""
        stored, turn.place = turn.place, None
        turn.computed = turn.reused
        self._begin(turn, stored, turn.reused)
        self._reused += turn.reused
        self._running.append(turn)

    def _stored_length(self, stored: Any) -> int:
        """Tokens a stored object holds."""
        raise NotImplementedError

    def _draw(self, turns: list[ActiveTurn], logits: npt.NDArray[np.float32]) -> None:
        """Draw one token for each turn: keyed noise, or the lowest-id argmax."""
        first = turns[0].request.sampling
        groups: dict[tuple[float, float, bool], list[int]] = {}
        if all(turn.request.sampling is first for turn in turns):
            groups[first.temperature, first.top_p, first.greedy] = list(range(len(turns)))
        else:
            for row, turn in enumerate(turns):
                sampling = turn.request.sampling
                groups.setdefault((sampling.temperature, sampling.top_p, sampling.greedy), []).append(row)
        for (temperature, top_p, greedy), rows in groups.items():
            part = logits if len(rows) == len(turns) else logits[rows]
            if greedy:
                tokens = part.argmax(axis=1).astype(np.int64)
            else:
                keys = np.array([turns[row].request.keys.key64() for row in rows], dtype=np.uint64)
                tokens = sample_batch(part, keys, temperature, top_p)
            statistics = token_statistics(part, tokens, temperature, top_p)
            columns = [np.asarray(column).tolist() for column in statistics]
            for row, token, logprob, entropy, gini_impurity in zip(rows, tokens.tolist(), *columns, strict=True):
                turn = turns[row]
                turn.tokens.append(token)
                turn.logprobs.append(logprob)
                turn.entropies.append(entropy)
                turn.gini_impurities.append(gini_impurity)
                turn.request.keys.advance(token)
            if top_p < 1.0 and not greedy:
                for row, support in zip(rows, nucleus_supports(part, tokens, temperature, top_p), strict=True):
                    turns[row].supports.append(support)
        self._generated += len(turns)

    def _finish_reason(self, turn: ActiveTurn) -> FinishReason | None:
        """Why the turn ends after its last token, or ``None``."""
        sampling = turn.request.sampling
        if turn.tokens[-1] in sampling.stop_tokens:
            return "stop"
        if sampling.stop_strings and self._has_stop_string(turn, sampling):
            return "stop"
        length = len(turn.request.context) + len(turn.tokens)
        if len(turn.tokens) >= sampling.max_tokens or (self.max_context is not None and length >= self.max_context):
            return "length"
        return None

    def _has_stop_string(self, turn: ActiveTurn, sampling: Sampling) -> bool:
        if self._decode is None:
            raise ValueError("stop strings need text: give the engine a renderer (decode)")
        window = max(map(len, sampling.stop_strings)) + _STOP_WINDOW
        text = self._decode(turn.tokens[-window:])
        return any(stop in text for stop in sampling.stop_strings)

    def _complete(self, turn: ActiveTurn, reason: FinishReason) -> Completion:
        """Close a turn and store its cache where it is asked for."""
        keep = turn.request.keep_cache
        stored = self._end(turn, keep=keep)
        handle: int | None = None
        if keep:
            handle = self._next_cache
            self._next_cache += 1
            self._caches[handle] = (turn.request.version, turn.history, stored)
        fed = len(turn.request.context) - turn.reused
        self._fed += fed
        return Completion(
            tokens=turn.tokens,
            logprobs=turn.logprobs,
            entropies=turn.entropies,
            gini_impurities=turn.gini_impurities,
            finish_reason=reason,
            cache=handle,
            fed_tokens=fed,
            supports=turn.supports or None,
        )


def nucleus_supports(
    logits: npt.NDArray[np.float32], tokens: npt.NDArray[np.int64], temperature: float, top_p: float
) -> list[list[int]]:
    """The nucleus of each row, ascending, as the sampler restricts its argmax.

    A sampled token always belongs to it: where the last bit of a probability decides about the nucleus's edge, the
    compiled sampler and this may differ, and a run that learns from such a token must not stop there for ever.

    Args:
        logits: ``float32[B, V]``.
        tokens: ``int64[B]``: what was sampled.
        temperature: τ.
        top_p: Nucleus mass.
    """
    possible = np.isfinite(behaviour_logprobs(logits, temperature, top_p))
    possible[np.arange(len(tokens)), tokens] = True
    return [np.flatnonzero(row).tolist() for row in possible]


def generate(engine: ServingEngine, requests: Sequence[GenerationRequest]) -> list[Completion]:
    """Serve requests to the end, all at once, and return their completions in the requests' order.

    Args:
        engine: An engine with no other open turns.
        requests: What to generate; the requests' key streams are advanced.

    Raises:
        RuntimeError: The engine is busy with other turns (their completions would be lost).
    """
    if engine.statistics().running:
        raise RuntimeError("the engine has other open turns: drive it with submit and step instead")
    tickets = [engine.submit(request) for request in requests]
    completions: dict[int, Completion] = {}
    while len(completions) < len(tickets):
        completions.update(engine.step())
    return [completions[ticket] for ticket in tickets]


class MismatchReport(msgspec.Struct, frozen=True, kw_only=True):
    """How often a request's tokens change with its companions.

    Attributes:
        requests: Requests compared.
        changed_requests: Requests with at least one different token.
        tokens: Tokens compared; a request counts up to and including its first difference.
        changed_tokens: First differences.
        largest_logprob_difference: Largest absolute difference of log-probabilities where the tokens agree (nats).
        identical: Every token and every log-probability agreed, bit for bit.
    """

    requests: int
    changed_requests: int
    tokens: int
    changed_tokens: int
    largest_logprob_difference: float
    identical: bool

    @property
    def rate(self) -> float:
        """Changed tokens by tokens compared."""
        return self.changed_tokens / self.tokens if self.tokens else 0.0


def measure_mismatch(engine: ServingEngine, requests: Sequence[GenerationRequest]) -> MismatchReport:
    """Serve each request alone and then all together, under the same keys, and count what changed.

    Args:
        engine: An engine with no open turns; caches made here are released.
        requests: Requests without caches; they are copied, so their key streams stay where they are.

    Returns:
        The counts; `MismatchReport.rate` is what a run logs.
    """
    copies = [msgspec.structs.replace(r, keys=r.keys.copy(), keep_cache=False) for r in requests]
    alone = [generate(engine, [copy])[0] for copy in copies]
    copies = [msgspec.structs.replace(r, keys=r.keys.copy(), keep_cache=False) for r in requests]
    together = generate(engine, copies)
    changed = compared = 0
    largest = 0.0
    identical = True
    for one, other in zip(alone, together, strict=True):
        same = [a == b for a, b in zip(one.tokens, other.tokens, strict=False)]
        differs = not all(same) or len(one.tokens) != len(other.tokens)
        agree = same.index(False) if False in same else len(same)
        compared += min(agree + 1, len(same)) if differs else agree
        changed += differs
        for a, b in zip(one.logprobs[:agree], other.logprobs[:agree], strict=True):
            largest = max(largest, abs(a - b))
        identical &= not differs and one.logprobs == other.logprobs
    return MismatchReport(
        requests=len(requests),
        changed_requests=changed,
        tokens=compared,
        changed_tokens=changed,
        largest_logprob_difference=largest,
        identical=identical,
    )
