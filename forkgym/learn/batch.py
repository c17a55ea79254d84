"""From episodes to tensors: training sequences, their canonical order, and packed or padded micro-batches.

No model and no loss here. Token ids are taken from the trace as they were sampled; text is never tokenised again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Literal

import msgspec
import torch

from forkgym.rollout.trace import Episode

__all__ = [
    "MicroBatch",
    "TrainingSequence",
    "attention_masks",
    "canonical_order",
    "pack",
    "training_sequences",
]

Arrangement = Literal["packed", "padded"]
Supports = list[list[list[int]]]
"""Nucleus token ids of one episode: by turn, by token."""

_UNUSED = -1


class TrainingSequence(msgspec.Struct, kw_only=True, frozen=True):
    """One factual episode as the learner sees it. All per-token lists have the length of ``tokens``.

    Attributes:
        key: Episode key.
        group: Group number within the update.
        member: Member number within the group.
        tokens: Token ids: prompt, then turns and observations; cut after the last sampled token, because nothing
            is predicted from what follows it.
        action_mask: True where the token was sampled by the policy.
        advantages: Advantage of the token's turn; 0 off the mask.
        behaviour_logprobs: The engine's log-probability of the token in nats; 0 off the mask.
        turns: Turn number of the token; −1 off the mask.
        supports: For nucleus sampling: the token ids of the behaviour support at each *sampled* token, in order
            (as many lists as true entries of ``action_mask``); ``None`` for the whole vocabulary.
    """

    key: int
    group: int
    member: int
    tokens: list[int]
    action_mask: list[bool]
    advantages: list[float]
    behaviour_logprobs: list[float]
    turns: list[int]
    supports: list[list[int]] | None = None

    @property
    def action_tokens(self) -> int:
        """Number of tokens the policy sampled."""
        return sum(self.action_mask)

    @property
    def has_credit(self) -> bool:
        """Whether any token has a non-zero advantage."""
        return any(self.advantages)

    def describe(self) -> str:
        """How errors name this sequence."""
        return f"episode {self.key:#018x} (group {self.group}, member {self.member})"


def training_sequences(
    episodes: Sequence[Episode],
    advantages: Sequence[Sequence[float]],
    supports: Mapping[int, Supports] | None = None,
) -> list[TrainingSequence]:
    """Lay episodes out as token sequences with masks and per-token advantages.

    Args:
        episodes: Factual episodes in batch order.
        advantages: One advantage per turn, same order (``Algorithm.advantages``).
        supports: Behaviour supports by episode key, for policies sampled with ``top_p < 1``.

    Returns:
        One sequence per episode, in the same order, also where every advantage is 0 (it still counts in the
        loss's denominators).

    Raises:
        ValueError: Lengths do not match, an advantage or log-probability is not finite, a turn's context length
            is not the number of tokens before it, or a sampled token lies outside its support.
    """
    if len(episodes) != len(advantages):
        raise ValueError(f"{len(episodes)} episodes but {len(advantages)} rows of advantages: give one row an episode")
    return [
        _sequence(episode, row, None if supports is None else supports.get(episode.key))
        for episode, row in zip(episodes, advantages, strict=True)
    ]


def _sequence(episode: Episode, advantages: Sequence[float], supports: Supports | None) -> TrainingSequence:
    name = f"episode {episode.key:#018x} (group {episode.group}, member {episode.member})"
    if len(advantages) != len(episode.turns):
        raise ValueError(f"{name} has {len(episode.turns)} turns but {len(advantages)} advantages: give one a turn")
    tokens = list(episode.prompt_tokens)
    mask = [False] * len(tokens)
    credit = [0.0] * len(tokens)
    logprobs = [0.0] * len(tokens)
    turns = [_UNUSED] * len(tokens)
    length = len(tokens)
    for turn, advantage in zip(episode.turns, advantages, strict=True):
        if not isfinite(advantage) or not all(map(isfinite, turn.logprobs)):
            raise ValueError(f"{name}, turn {turn.index}: the advantage or a log-probability is not finite")
        if turn.context_length != len(tokens) or len(turn.logprobs) != len(turn.tokens):
            raise ValueError(
                f"{name}, turn {turn.index}: recorded after {turn.context_length} tokens with {len(turn.logprobs)} "
                f"log-probabilities, but {len(tokens)} tokens precede its {len(turn.tokens)} tokens: the trace is "
                "inconsistent (was text tokenised again?)"
            )
        if turn.tokens and not tokens:
            raise ValueError(f"{name}: the first token was sampled from an empty context; the prompt needs a token")
        sampled, observed = len(turn.tokens), len(turn.observation_tokens)
        tokens += turn.tokens + turn.observation_tokens
        mask += [True] * sampled + [False] * observed
        credit += [float(advantage)] * sampled + [0.0] * observed
        logprobs += turn.logprobs + [0.0] * observed
        turns += [turn.index] * sampled + [_UNUSED] * observed
        length = len(tokens) - observed if sampled else length
    return TrainingSequence(
        key=episode.key,
        group=episode.group,
        member=episode.member,
        tokens=tokens[:length],
        action_mask=mask[:length],
        advantages=credit[:length],
        behaviour_logprobs=logprobs[:length],
        turns=turns[:length],
        supports=None if supports is None else _flat_supports(name, episode, supports),
    )


def _flat_supports(name: str, episode: Episode, supports: Supports) -> list[list[int]]:
    flat: list[list[int]] = []
    for turn, lists in zip(episode.turns, supports, strict=True):
        for token, support in zip(turn.tokens, lists, strict=True):
            if token not in support:
                raise ValueError(f"{name}, turn {turn.index}: sampled token {token} is not in its behaviour support")
            flat.append(list(support))
    return flat


def canonical_order(sequences: Sequence[TrainingSequence]) -> list[TrainingSequence]:
    """Sequences by (group, member, key): the order that makes an update independent of completion order."""
    return sorted(sequences, key=lambda sequence: (sequence.group, sequence.member, sequence.key))


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """What one forward pass takes. ``R`` rows of ``L`` tokens hold ``A`` action tokens of ``E`` sequences.

    Attributes:
        members: Indices (into the list given to :func:`pack`) of the sequences inside, in action-token order.
        lengths: Number of action tokens of each member.
        packed: Whether rows hold several sequences and need block-diagonal masks.
        input_ids: int64 ``[R, L]``, padded with 0.
        position_ids: int64 ``[R, L]``, restarting at each sequence.
        segments: int64 ``[R, L]``: place of the token's sequence in ``members``; −1 is padding.
        source: int64 ``[A]``: flat index into ``R·L`` of the position whose logits predict the token.
        targets: int64 ``[A]``: the sampled tokens.
        advantages: float32 ``[A]``.
        behaviour_logprobs: float32 ``[A]``, the engine's.
        sequence_index: int64 ``[A]``: place of the token's sequence in ``members``.
        turn_index: int64 ``[A]``: dense number of the token's turn within the micro-batch.
        supports: int64 ``[A, S]`` token ids of the behaviour support padded with −1, or ``None``.
    """

    members: tuple[int, ...]
    lengths: tuple[int, ...]
    packed: bool
    input_ids: torch.Tensor
    position_ids: torch.Tensor
    segments: torch.Tensor
    source: torch.Tensor
    targets: torch.Tensor
    advantages: torch.Tensor
    behaviour_logprobs: torch.Tensor
    sequence_index: torch.Tensor
    turn_index: torch.Tensor
    supports: torch.Tensor | None = None

    @property
    def tokens(self) -> int:
        """Real (unpadded) tokens of the forward pass."""
        return int((self.segments >= 0).sum())

    def to(self, device: torch.device) -> MicroBatch:
        """The same micro-batch with its tensors on ``device``."""
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, torch.Tensor)
        }
        return replace(self, **moved)


def pack(
    sequences: Sequence[TrainingSequence],
    max_tokens: int,
    *,
    arrangement: Arrangement = "packed",
    row_tokens: int = 256,
    members: Sequence[int] | None = None,
) -> list[MicroBatch]:
    """Arrange sequences in rows and rows in micro-batches, deterministically.

    Sequences are placed longest first (ties by group, member, key), so the result does not depend on their order.
    ``packed`` fills rows of ``row_tokens`` first-fit, several sequences to a row; attention costs rows × width²,
    so rows stay short. ``padded`` gives each sequence a row of its own, next to others of similar length.

    Args:
        sequences: All sequences that ``members`` index.
        max_tokens: Most tokens of a micro-batch, padding included. A longer sequence gets a micro-batch of its own.
        arrangement: ``packed`` (needs a model that takes block-diagonal masks) or ``padded``.
        row_tokens: Width of a packed row; a longer sequence gets a row of its own. Capped at ``max_tokens``.
        members: Indices of the sequences to arrange; all of them by default. Sequences without action tokens are
            left out: nothing is predicted in them.

    Returns:
        Micro-batches on the CPU. Together they hold every action token of ``members`` exactly once.

    Raises:
        ValueError: ``max_tokens`` or ``row_tokens`` is not positive.
    """
    if max_tokens < 1 or row_tokens < 1:
        raise ValueError(f"max_tokens and row_tokens must be positive, got {max_tokens} and {row_tokens}")
    chosen = [i for i in (range(len(sequences)) if members is None else members) if any(sequences[i].action_mask)]
    chosen.sort(key=lambda i: (-len(sequences[i].tokens), sequences[i].group, sequences[i].member, sequences[i].key))
    capacity = min(row_tokens, max_tokens) if arrangement == "packed" else 0
    rows = _fill_rows([len(sequences[i].tokens) for i in chosen], capacity)
    batches: list[MicroBatch] = []
    open_rows: list[list[int]] = []
    width = 0
    for places in rows:
        row = [chosen[place] for place in places]
        used = sum(len(sequences[i].tokens) for i in row)
        if open_rows and (len(open_rows) + 1) * max(width, used) > max_tokens:
            batches.append(_micro_batch(sequences, open_rows, width))
            open_rows, width = [], 0
        open_rows.append(row)
        width = max(width, used)
    if open_rows:
        batches.append(_micro_batch(sequences, open_rows, width))
    return batches


def _fill_rows(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """First-fit of descending ``lengths`` into rows of ``capacity`` tokens; returns places row by row."""
    rows: list[list[int]] = []
    free: list[int] = []
    for place, length in enumerate(lengths):
        row = next((number for number, room in enumerate(free) if room >= length), None)
        if row is None:
            rows.append([place])
            free.append(capacity - length)
        else:
            rows[row].append(place)
            free[row] -= length
    return rows


def _micro_batch(sequences: Sequence[TrainingSequence], rows: Sequence[Sequence[int]], width: int) -> MicroBatch:
    shape = (len(rows), width)
    input_ids = torch.zeros(shape, dtype=torch.int64)
    position_ids = torch.zeros(shape, dtype=torch.int64)
    segments = torch.full(shape, _UNUSED, dtype=torch.int64)
    members: list[int] = []
    source: list[int] = []
    targets: list[int] = []
    advantages: list[float] = []
    behaviour: list[float] = []
    sequence_index: list[int] = []
    turn_index: list[int] = []
    supports: list[list[int]] = []
    turn_count = 0
    for row, indices in enumerate(rows):
        start = 0
        for index in indices:
            sequence, place, stop = sequences[index], len(members), start + len(sequences[index].tokens)
            input_ids[row, start:stop] = torch.tensor(sequence.tokens)
            position_ids[row, start:stop] = torch.arange(stop - start)
            segments[row, start:stop] = place
            members.append(index)
            previous = _UNUSED
            for offset in (i for i, sampled in enumerate(sequence.action_mask) if sampled):
                turn_count += sequence.turns[offset] != previous
                previous = sequence.turns[offset]
                source.append(row * width + start + offset - 1)
                targets.append(sequence.tokens[offset])
                advantages.append(sequence.advantages[offset])
                behaviour.append(sequence.behaviour_logprobs[offset])
                sequence_index.append(place)
                turn_index.append(turn_count - 1)
            supports += sequence.supports or []
            start = stop
    return MicroBatch(
        members=tuple(members),
        lengths=tuple(sequences[index].action_tokens for index in members),
        packed=any(len(indices) > 1 for indices in rows),
        input_ids=input_ids,
        position_ids=position_ids,
        segments=segments,
        source=torch.tensor(source, dtype=torch.int64),
        targets=torch.tensor(targets, dtype=torch.int64),
        advantages=torch.tensor(advantages, dtype=torch.float32),
        behaviour_logprobs=torch.tensor(behaviour, dtype=torch.float32),
        sequence_index=torch.tensor(sequence_index, dtype=torch.int64),
        turn_index=torch.tensor(turn_index, dtype=torch.int64),
        supports=_support_table(supports, len(targets)),
    )


def _support_table(supports: Sequence[Sequence[int]], tokens: int) -> torch.Tensor | None:
    if not supports:
        return None
    if len(supports) != tokens:
        raise ValueError(f"{len(supports)} behaviour supports for {tokens} sampled tokens: give all sequences theirs")
    width = max(map(len, supports))
    return torch.tensor([[*support, *[_UNUSED] * (width - len(support))] for support in supports], dtype=torch.int64)


def attention_masks(
    segments: torch.Tensor, position_ids: torch.Tensor, kinds: Mapping[str, int | None]
) -> dict[str, torch.Tensor]:
    """Block-diagonal causal masks, one per kind of attention layer.

    A token sees earlier tokens of its own sequence only; a window or chunk is counted in the sequence's own
    positions. Padding sees itself, so that no softmax is empty.

    Args:
        segments: int64 ``[R, L]``, −1 is padding.
        position_ids: int64 ``[R, L]``, restarting at each sequence.
        kinds: Layer type (``full_attention``, ``sliding_attention``, ``chunked_attention``) → window or chunk.

    Returns:
        Boolean masks ``[R, 1, L, L]`` (true: query may attend to key) by layer type.

    Raises:
        ValueError: A layer type has no known mask.
    """
    length = segments.shape[1]
    index = torch.arange(length, device=segments.device)
    same = (segments[:, :, None] == segments[:, None, :]) & (segments >= 0)[:, :, None]
    causal = same & (index[None, :] <= index[:, None])
    itself = torch.eye(length, dtype=torch.bool, device=segments.device)
    query, key = position_ids[:, :, None], position_ids[:, None, :]
    allowed: dict[str, Callable[[int | None], torch.Tensor]] = {
        "full_attention": lambda _: causal,
        "sliding_attention": lambda window: causal if window is None else causal & (key > query - window),
        "chunked_attention": lambda chunk: causal if chunk is None else causal & (key // chunk == query // chunk),
    }
    unknown = sorted(set(kinds) - set(allowed))
    if unknown:
        raise ValueError(f"no block-diagonal mask is known for layers of type {', '.join(unknown)}: use padding")
    return {kind: (allowed[kind](size) | itself)[:, None] for kind, size in kinds.items()}
