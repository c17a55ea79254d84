"""The policy loss as pure functions of tensors: behaviour log-probs, ratios, clipping, aggregation, KL.

Everything works on flat action tokens (``A`` of them); no model, optimiser or episode appears here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.utils.checkpoint import checkpoint

from forkgym.rollout.plan import ClippedSurrogate

__all__ = [
    "SurrogateTerms",
    "TokenScores",
    "aggregation_weights",
    "chunked_scores",
    "clipped_surrogate",
    "k3",
    "log_ratios",
    "nucleus_support",
    "token_scores",
]

Head = Callable[[torch.Tensor], torch.Tensor]
DEFAULT_CHUNK_ELEMENTS = 1 << 24
"""Most float32 logits held at once (64 MiB): tokens of a chunk × vocabulary."""


class TokenScores(NamedTuple):
    """Log-probability of each sampled token and entropy of its distribution, float32 ``[A]``, in nats."""

    logprobs: torch.Tensor
    entropies: torch.Tensor


def token_scores(
    logits: torch.Tensor, targets: torch.Tensor, *, temperature: float = 1.0, supports: torch.Tensor | None = None
) -> TokenScores:
    """Score tokens under the *behaviour distribution*: temperature, then the stored support, renormalised.

    The learner uses the distribution that sampled, so every ratio is 1 at the sampling weights.

    Args:
        logits: ``[A, V]``, any float type; computed in float32.
        targets: int64 ``[A]``.
        temperature: τ > 0.
        supports: int64 ``[A, S]`` token ids padded with −1 (nucleus or grammar mask), or ``None`` for all ``V``.

    Returns:
        Scores with gradients to the logits (the entropies carry none: they are for logging).

    Raises:
        ValueError: ``temperature`` is not positive.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}: greedy turns have no log-probabilities")
    scaled = logits.float() / temperature
    chosen = scaled.gather(1, targets[:, None])[:, 0]
    if supports is not None:
        inside = scaled.gather(1, supports.clamp(min=0))
        scaled = inside.masked_fill(supports < 0, float("-inf"))
    normaliser = torch.logsumexp(scaled, dim=1)
    with torch.no_grad():
        logs = scaled - normaliser[:, None]
        entropies = -(logs.exp() * logs.clamp(min=torch.finfo(logs.dtype).min)).sum(dim=1)
    return TokenScores(chosen - normaliser, entropies)


def chunked_scores(
    hidden: torch.Tensor,
    head: Head,
    targets: torch.Tensor,
    *,
    vocabulary: int,
    temperature: float = 1.0,
    supports: torch.Tensor | None = None,
    max_elements: int = DEFAULT_CHUNK_ELEMENTS,
) -> TokenScores:
    """:func:`token_scores` of ``head(hidden)`` without ever holding all logits.

    With more than one chunk the logits of a chunk are computed again in the backward pass.

    Args:
        hidden: ``[A, d]`` hidden states that predict the targets.
        head: Maps ``[n, d]`` to logits ``[n, V]``.
        targets: int64 ``[A]``.
        vocabulary: V.
        temperature: τ.
        supports: As in :func:`token_scores`.
        max_elements: Most float32 logits at once.
    """

    def score(states: torch.Tensor, ids: torch.Tensor, support: torch.Tensor | None) -> TokenScores:
        return token_scores(head(states), ids, temperature=temperature, supports=support)

    step = max(1, max_elements // vocabulary)
    if len(targets) <= step:
        return score(hidden, targets, supports)
    parts: list[TokenScores] = []
    for start in range(0, len(targets), step):
        chunk = slice(start, start + step)
        arguments = (hidden[chunk], targets[chunk], None if supports is None else supports[chunk])
        if torch.is_grad_enabled():
            parts.append(TokenScores(*checkpoint(score, *arguments, use_reentrant=False)))
        else:
            parts.append(score(*arguments))
    return TokenScores(torch.cat([part.logprobs for part in parts]), torch.cat([part.entropies for part in parts]))


def nucleus_support(logits: torch.Tensor, *, temperature: float, top_p: float) -> list[list[int]]:
    """Token ids of the nucleus at each row of ``logits`` ``[A, V]``, by the sampler's rule.

    Probability descending, id ascending, of the float64 softmax; the shortest prefix with sum ≥ ``top_p``, never
    empty (ALGORITHMS, keyed noise). The result belongs into ``TrainingSequence.supports``.
    """
    probabilities = torch.softmax(logits.double() / temperature, dim=1)
    order = torch.argsort(probabilities, dim=1, descending=True, stable=True)
    mass = probabilities.gather(1, order).cumsum(dim=1)
    counts = ((mass < top_p).sum(dim=1) + 1).clamp(max=logits.shape[1])
    return [row[:count].tolist() for row, count in zip(order, counts.tolist(), strict=True)]


def aggregation_weights(
    loss: ClippedSurrogate, sequence_index: torch.Tensor, action_tokens: torch.Tensor
) -> torch.Tensor:
    """Weight of each action token in the loss, so that aggregation is one weighted sum.

    With E sequences of n_e action tokens in the optimiser step: ``sum`` 1/(E·scale); ``episode-mean`` 1/(E·n_e);
    ``token-mean`` 1/Σ n_e. Sequences without credit or without action tokens count in E and Σ n_e as well, so a
    forward pass that skips them has the same gradient.

    Args:
        loss: The loss's conventions.
        sequence_index: int64 ``[A]``: the token's sequence, into ``action_tokens``.
        action_tokens: ``[E]``: n_e of every sequence of the optimiser step.

    Returns:
        float32 ``[A]``.
    """
    counts = action_tokens.to(torch.float64)
    episodes = len(counts)
    if loss.aggregate == "sum":
        by_sequence = torch.full_like(counts, 1.0 / (episodes * loss.scale))
    elif loss.aggregate == "episode-mean":
        by_sequence = 1.0 / (episodes * counts.clamp(min=1))
    else:
        by_sequence = torch.full_like(counts, 1.0 / max(1.0, float(counts.sum())))
    return by_sequence.to(torch.float32)[sequence_index]


def log_ratios(
    loss: ClippedSurrogate, logprobs: torch.Tensor, old_logprobs: torch.Tensor, turn_index: torch.Tensor
) -> torch.Tensor:
    """``log π_θ/π_old`` of each unit: of every token ``[A]``, or of every turn ``[T]`` (sum over its tokens)."""
    difference = logprobs - old_logprobs
    if loss.ratio == "token":
        return difference
    turns = int(turn_index[-1]) + 1 if len(turn_index) else 0
    return difference.new_zeros(turns).index_add(0, turn_index, difference)


def k3(logprobs: torch.Tensor, reference_logprobs: torch.Tensor) -> torch.Tensor:
    """Schulman's k3 estimate of ``KL(π ‖ π_reference)`` at tokens sampled from π: ``r − 1 − log r``, r = π_ref/π.

    Non-negative and unbiased (Schulman 2020, "Approximating KL divergence"; GRPO, Shao et al. 2024, eq. 4).
    """
    log_ratio = reference_logprobs - logprobs
    return torch.expm1(log_ratio) - log_ratio


class SurrogateTerms(NamedTuple):
    """The loss of one micro-batch (sums with their weights, so micro-batches add up) and what is logged.

    Attributes:
        loss: ``policy + kl_coefficient · kl``, scalar with gradient.
        per_token: float32 ``[A]``: contribution of each token (of each turn, at its first token), detached.
        kl_sum: Unweighted sum of k3 to the reference over tokens, detached.
        clipped: Number of units whose clip binds.
        units: Number of units (tokens or turns).
        approximate_kl_sum: Sum over units of ``r − 1 − log r``, r = π_θ/π_old: k3 of KL(π_old ‖ π_θ).
        largest_log_ratio: max |log r|.
    """

    loss: torch.Tensor
    per_token: torch.Tensor
    kl_sum: float
    clipped: int
    units: int
    approximate_kl_sum: float
    largest_log_ratio: float


def clipped_surrogate(
    loss: ClippedSurrogate,
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    weights: torch.Tensor,
    turn_index: torch.Tensor,
    reference_logprobs: torch.Tensor | None = None,
) -> SurrogateTerms:
    """``Σ w · −min(r A, clip(r, 1−ε, 1+ε) A) + β Σ w · k3`` (PPO, Schulman et al. 2017, eq. 7; CRR eq. 4).

    With ``ratio="turn"`` each turn is one summand with one ratio, weighted like one of its tokens. So at θ = θ_old
    both ratios have the same gradient, ``−Σ w A ∇ log π``; they differ in where the clip binds. The KL term is
    always per token.

    Args:
        loss: Conventions.
        logprobs: ``[A]``, with gradient.
        old_logprobs: ``[A]`` at θ_old.
        advantages: ``[A]``, constant within a turn.
        weights: ``[A]`` from :func:`aggregation_weights`, constant within a turn.
        turn_index: int64 ``[A]``, dense and non-decreasing.
        reference_logprobs: ``[A]``, needed when ``kl_coefficient > 0``.

    Raises:
        ValueError: ``kl_coefficient > 0`` without reference log-probabilities.
    """
    if loss.kl_coefficient > 0 and reference_logprobs is None:
        raise ValueError("kl_coefficient > 0 needs reference_logprobs: score the tokens under the reference model")
    log_ratio = log_ratios(loss, logprobs, old_logprobs, turn_index)
    if loss.ratio == "turn":
        first = torch.ones_like(turn_index, dtype=torch.bool)
        first[1:] = turn_index[1:] != turn_index[:-1]
        heads = first.nonzero()[:, 0]
    else:
        heads = torch.arange(len(logprobs), device=logprobs.device)
    advantage, weight = advantages[heads], weights[heads]
    ratio = log_ratio.exp()
    plain = ratio * advantage
    bounded = ratio.clamp(1.0 - loss.clip, 1.0 + loss.clip) * advantage
    terms = -weight * torch.minimum(plain, bounded)
    per_token = torch.zeros_like(logprobs).index_add(0, heads, terms)
    kl_sum = 0.0
    if loss.kl_coefficient > 0 and reference_logprobs is not None:
        divergence = k3(logprobs, reference_logprobs)
        per_token = per_token + loss.kl_coefficient * weights * divergence
        kl_sum = float(divergence.detach().sum())
    with torch.no_grad():
        binds = bounded < plain
        approximate = (torch.expm1(log_ratio) - log_ratio).sum()
        largest = float(log_ratio.abs().max()) if len(log_ratio) else 0.0
    return SurrogateTerms(
        loss=per_token.sum(),
        per_token=per_token.detach(),
        kl_sum=kl_sum,
        clipped=int(binds.sum()),
        units=len(heads),
        approximate_kl_sum=float(approximate),
        largest_log_ratio=largest,
    )
