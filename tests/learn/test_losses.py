"""Every combination of ratio and aggregate against numbers worked out by hand, and gradients against a naive loss."""

from __future__ import annotations

import math

import pytest
import torch

from forkgym.learn.losses import (
    aggregation_weights,
    chunked_scores,
    clipped_surrogate,
    k3,
    nucleus_support,
    token_scores,
)
from forkgym.rollout.plan import ClippedSurrogate

# Two episodes. The first has two turns (tokens 0, 1 | 2), the second one turn (token 3).
OLD = torch.tensor([-1.0, -2.0, -0.5, -3.0])
RATIOS = [1.5, 0.5, 0.9, 1.1]
NEW = OLD + torch.tensor([math.log(ratio) for ratio in RATIOS])
ADVANTAGES = torch.tensor([1.0, 1.0, -2.0, 3.0])
SEQUENCES = torch.tensor([0, 0, 0, 1])
TURNS = torch.tensor([0, 0, 1, 2])
COUNTS = torch.tensor([3, 1])


def value(ratio: str, aggregate: str, **options) -> float:
    loss = ClippedSurrogate(ratio=ratio, aggregate=aggregate, scale=8.0, clip=0.2, **options)
    weights = aggregation_weights(loss, SEQUENCES, COUNTS)
    return float(clipped_surrogate(loss, NEW, OLD, ADVANTAGES, weights, TURNS, OLD).loss)


# Token terms: −min(1.5, 1.2)·1 = −1.2; −min(.5, .8) = −.5; −min(.9·−2, .9·−2) = 1.8; −1.1·3 = −3.3.
# Turn terms: the first turn's ratio is 1.5·.5 = .75 → −min(.75, .8) = −.75; then 1.8 and −3.3.
@pytest.mark.parametrize(
    ("ratio", "aggregate", "expected"),
    [
        ("token", "sum", (-1.2 - 0.5 + 1.8 - 3.3) / (2 * 8)),
        ("token", "episode-mean", ((-1.2 - 0.5 + 1.8) / 3 - 3.3 / 1) / 2),
        ("token", "token-mean", (-1.2 - 0.5 + 1.8 - 3.3) / 4),
        ("turn", "sum", (-0.75 + 1.8 - 3.3) / (2 * 8)),
        ("turn", "episode-mean", ((-0.75 + 1.8) / 3 - 3.3 / 1) / 2),
        ("turn", "token-mean", (-0.75 + 1.8 - 3.3) / 4),
    ],
)
def test_the_loss_equals_the_hand_computed_number(ratio, aggregate, expected):
    assert value(ratio, aggregate) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("ratio", ["token", "turn"])
@pytest.mark.parametrize(
    ("aggregate", "weights"),
    [("sum", [1 / 16] * 4), ("episode-mean", [1 / 6, 1 / 6, 1 / 6, 1 / 2]), ("token-mean", [1 / 4] * 4)],
)
def test_the_kl_term_is_per_token_and_aggregated_alike(ratio, aggregate, weights):
    # k3 at r = π_ref/π = 1/RATIO: r − 1 − log r.
    terms = [1 / r - 1 + math.log(r) for r in RATIOS]
    expected = 0.1 * sum(w * term for w, term in zip(weights, terms, strict=True))
    added = value(ratio, aggregate, kl_coefficient=0.1) - value(ratio, aggregate)
    assert added == pytest.approx(expected, abs=1e-6)


def test_k3_is_never_negative_and_its_mean_is_the_kl_divergence():
    """Exact: the expectation over all tokens, not a sample."""
    policy = torch.log_softmax(torch.randn(50, generator=torch.Generator().manual_seed(0)).double(), 0)
    other = torch.log_softmax(torch.randn(50, generator=torch.Generator().manual_seed(1)).double(), 0)
    terms = k3(policy, other)
    assert (terms >= 0).all()
    exact = (policy.exp() * (policy - other)).sum()
    torch.testing.assert_close((policy.exp() * terms).sum(), exact)


def test_clipping_and_divergence_are_counted_by_unit():
    loss = ClippedSurrogate(ratio="token")
    weights = aggregation_weights(loss, SEQUENCES, COUNTS)
    terms = clipped_surrogate(loss, NEW, OLD, ADVANTAGES, weights, TURNS)
    assert (terms.clipped, terms.units) == (1, 4)  # only 1.5 with A > 0 binds; .5 with A > 0 does not
    assert terms.approximate_kl_sum == pytest.approx(sum(r - 1 - math.log(r) for r in RATIOS), abs=1e-6)
    assert terms.largest_log_ratio == pytest.approx(math.log(2), abs=1e-6)
    turn = clipped_surrogate(ClippedSurrogate(ratio="turn"), NEW, OLD, -ADVANTAGES, weights, TURNS)
    assert (turn.clipped, turn.units) == (1, 3)  # .75 with A < 0 binds


def test_a_kl_term_without_a_reference_is_refused():
    loss = ClippedSurrogate(kl_coefficient=0.1)
    with pytest.raises(ValueError, match="reference"):
        clipped_surrogate(loss, NEW, OLD, ADVANTAGES, torch.ones(4), TURNS)


def naive_loss(logits, targets, temperature, old, reference, loss):
    """The same loss, written as loops over episodes, turns and tokens."""
    logs = torch.log_softmax(logits / temperature, dim=-1)
    logprobs = [logs[i, target] for i, target in enumerate(targets.tolist())]
    episodes, total = 2, 4
    denominators = {
        "sum": [episodes * loss.scale] * 2,
        "episode-mean": [episodes * 3, episodes * 1],
        "token-mean": [total] * 2,
    }[loss.aggregate]
    result = torch.zeros((), dtype=logits.dtype)
    turns = {0: [0, 1], 1: [2], 2: [3]}
    for tokens in turns.values():
        units = [tokens] if loss.ratio == "turn" else [[token] for token in tokens]
        for unit in units:
            ratio = torch.stack([logprobs[i] - old[i] for i in unit]).sum().exp()
            advantage = ADVANTAGES[unit[0]]
            clipped = torch.minimum(ratio * advantage, ratio.clamp(1 - loss.clip, 1 + loss.clip) * advantage)
            result = result - clipped / denominators[int(SEQUENCES[unit[0]])]
        for i in tokens:
            r = (reference[i] - logprobs[i]).exp()
            result = result + loss.kl_coefficient * (r - 1 - r.log()) / denominators[int(SEQUENCES[i])]
    return result


@pytest.mark.parametrize("ratio", ["token", "turn"])
@pytest.mark.parametrize("aggregate", ["sum", "episode-mean", "token-mean"])
@pytest.mark.parametrize("max_elements", [1 << 20, 14])
def test_gradients_equal_those_of_a_naive_implementation(ratio, aggregate, max_elements):
    """Through the head and in chunks of two tokens as well as in one."""
    generator = torch.Generator().manual_seed(5)
    hidden = torch.randn(4, 3, generator=generator).requires_grad_()
    head = torch.nn.Linear(3, 7)
    with torch.no_grad():
        head.weight.copy_(torch.randn(7, 3, generator=generator))
        head.bias.zero_()
    targets = torch.tensor([2, 6, 0, 3])
    loss = ClippedSurrogate(ratio=ratio, aggregate=aggregate, kl_coefficient=0.3, scale=5.0)
    logs = torch.log_softmax(head(hidden).detach() / 0.7, -1)[range(4), targets]
    old = logs + torch.tensor([0.1, -0.4, 0.05, 0.3])
    reference = logs + torch.tensor([-0.2, 0.1, 0.3, 0.0])
    scores = chunked_scores(hidden, head, targets, vocabulary=7, temperature=0.7, max_elements=max_elements)
    weights = aggregation_weights(loss, SEQUENCES, COUNTS)
    ours = clipped_surrogate(loss, scores.logprobs, old, ADVANTAGES, weights, TURNS, reference).loss
    naive = naive_loss(head(hidden), targets, 0.7, old, reference, loss)
    torch.testing.assert_close(ours, naive)
    parameters = [hidden, head.weight, head.bias]
    for a, b in zip(torch.autograd.grad(ours, parameters), torch.autograd.grad(naive, parameters), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("aggregate", ["sum", "episode-mean", "token-mean"])
def test_at_the_sampling_weights_both_ratios_point_the_same_way(aggregate):
    gradients = []
    for ratio in ("token", "turn"):
        logprobs = OLD.clone().requires_grad_()
        loss = ClippedSurrogate(ratio=ratio, aggregate=aggregate)
        weights = aggregation_weights(loss, SEQUENCES, COUNTS)
        clipped_surrogate(loss, logprobs, OLD, ADVANTAGES, weights, TURNS).loss.backward()
        gradients.append(logprobs.grad)
        torch.testing.assert_close(logprobs.grad, -weights * ADVANTAGES)
    assert torch.equal(*gradients)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_scores_are_log_softmax_and_entropy_at_the_temperature(temperature):
    logits = torch.randn(6, 11, generator=torch.Generator().manual_seed(2))
    targets = torch.tensor([0, 10, 3, 3, 7, 1])
    scores = token_scores(logits, targets, temperature=temperature)
    distribution = torch.distributions.Categorical(logits=logits / temperature)
    torch.testing.assert_close(scores.logprobs, distribution.log_prob(targets))
    torch.testing.assert_close(scores.entropies, distribution.entropy())


def test_scores_are_renormalised_over_the_nucleus():
    logits = torch.tensor([[0.5, 0.25, 0.15, 0.1], [0.4, 0.4, 0.1, 0.1]]).log()
    supports = nucleus_support(logits, temperature=1.0, top_p=0.7)
    assert supports == [[0, 1], [0, 1]]  # .5 + .25 ≥ .7; the tie of .4 goes to the lowest id first
    padded = torch.tensor([[0, 1, -1], [0, 1, -1]])
    scores = token_scores(logits, torch.tensor([1, 0]), supports=padded)
    torch.testing.assert_close(scores.logprobs.exp(), torch.tensor([0.25 / 0.75, 0.5]))
    torch.testing.assert_close(scores.entropies[1], torch.tensor(math.log(2)))


@pytest.mark.parametrize(("top_p", "sizes"), [(1e-9, [1, 1]), (1.0, [4, 4])])
def test_a_nucleus_is_never_empty_and_all_of_it_at_one(top_p, sizes):
    logits = torch.tensor([[0.5, 0.25, 0.15, 0.1], [0.4, 0.4, 0.1, 0.1]]).log()
    assert [len(row) for row in nucleus_support(logits, temperature=1.0, top_p=top_p)] == sizes


def test_greedy_has_no_log_probabilities():
    with pytest.raises(ValueError, match="positive"):
        token_scores(torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64), temperature=0.0)


def test_chunks_bound_the_logits_and_change_no_score():
    largest = 0
    head = torch.nn.Linear(3, 50)

    def spy(states: torch.Tensor) -> torch.Tensor:
        nonlocal largest
        largest = max(largest, states.shape[0] * 50)
        return head(states)

    hidden, targets = torch.randn(33, 3), torch.arange(33)
    with torch.no_grad():
        whole = chunked_scores(hidden, head, targets, vocabulary=50)
        chunked = chunked_scores(hidden, spy, targets, vocabulary=50, max_elements=400)
    assert largest == 400
    torch.testing.assert_close(chunked.logprobs, whole.logprobs)
    torch.testing.assert_close(chunked.entropies, whole.entropies)
