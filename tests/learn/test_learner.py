"""Updates: the gradient is the loss's, the order of arrival is nothing, ratios start at one, errors name sequences."""

from __future__ import annotations

import random

import msgspec
import pytest
import torch

from forkgym.learn import (
    Learner,
    LearnerConfig,
    LoraConfig,
    NonFiniteError,
    equal_weights,
    training_sequences,
    weights_digest,
)
from forkgym.learn.losses import nucleus_support
from forkgym.rollout.plan import ClippedSurrogate

LOSS = ClippedSurrogate(aggregate="token-mean")


def learner_of(model, loss=LOSS, temperature=1.0, top_p=1.0, **settings) -> Learner:
    options = {"learning_rate": 1e-3, "max_tokens_per_forward": 400, "row_tokens": 64} | settings
    return Learner(model, loss, LearnerConfig(**options), temperature=temperature, top_p=top_p)


def naive_gradient(model, sequences, temperature=1.0):
    """∇ of −Σ A log π / Σ n, one sequence at a time: what a first step of LOSS must equal."""
    total = sum(sequence.action_tokens for sequence in sequences)
    loss = torch.zeros(())
    for sequence in sequences:
        logs = torch.log_softmax(model(input_ids=torch.tensor([sequence.tokens])).logits[0] / temperature, -1)
        for i, flag in enumerate(sequence.action_mask):
            if flag:
                loss = loss - sequence.advantages[i] * logs[i - 1, sequence.tokens[i]] / total
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def applied_gradient(learner: Learner, sequences, monkeypatch) -> dict[str, torch.Tensor]:
    seen: dict[str, torch.Tensor] = {}

    def record(*_):
        seen.update({name: p.grad.clone() for name, p in learner.model.named_parameters()})

    monkeypatch.setattr(learner._optimiser, "step", record)
    learner.update(sequences, learner.counters.last_update + 1)
    return seen


@pytest.mark.parametrize("packing", ["packed", "padded"])
@pytest.mark.parametrize("max_tokens", [64, 4096])
def test_a_step_applies_the_policy_gradient(make_model, make_sequences, monkeypatch, packing, max_tokens):
    """However the batch is cut into forward passes: accumulation is exact up to float32 sums."""
    sequences = make_sequences(9, zero_every=3)
    learner = learner_of(
        make_model(), gradient_clip=0, packing=packing, max_tokens_per_forward=max_tokens, temperature=0.8
    )
    expected = naive_gradient(make_model(), sequences, temperature=0.8)
    applied = applied_gradient(learner, sequences, monkeypatch)
    for name, gradient in expected.items():
        torch.testing.assert_close(applied[name], gradient, atol=2e-6, rtol=1e-4)


def test_auto_lays_rows_out_the_cheaper_way(make_model, make_sequences):
    """Equal lengths leave nothing to pack; one long sequence beside many short ones does."""
    sequences = make_sequences(40)
    long, short = max(sequences, key=lambda s: len(s.tokens)), min(sequences, key=lambda s: len(s.tokens))

    def copies(sequence, count, first):
        return [msgspec.structs.replace(sequence, key=first + i, group=first + i) for i in range(count)]

    learner = learner_of(make_model(hidden=128), max_tokens_per_forward=4096, row_tokens=len(long.tokens))
    even = copies(short, 16, 0)
    assert not any(batch.packed for batch in learner._lay_out(even, range(16)))
    skewed = copies(long, 4, 0) + copies(short, 16, 100)
    assert any(batch.packed for batch in learner._lay_out(skewed, range(20)))


@pytest.mark.parametrize("aggregate", ["sum", "episode-mean", "token-mean"])
def test_skipping_sequences_without_credit_leaves_the_gradient_and_the_denominators(
    make_model, make_sequences, monkeypatch, aggregate
):
    sequences = make_sequences(12, zero_every=2)
    gradients = []
    for skip in (True, False):
        loss = ClippedSurrogate(aggregate=aggregate, scale=2.0)
        learner = learner_of(make_model(), loss, skip_zero_credit=skip, gradient_clip=0)
        gradients.append(applied_gradient(learner, sequences, monkeypatch))
    for name in gradients[0]:
        torch.testing.assert_close(gradients[0][name], gradients[1][name], atol=5e-6, rtol=1e-4)
    metrics = learner_of(make_model()).update(sequences, 0)
    assert metrics.skipped_sequences == 6
    assert metrics.trained_tokens == sum(len(s.tokens) for s in sequences if s.has_credit)
    assert metrics.action_tokens == sum(s.action_tokens for s in sequences)


def test_with_a_kl_term_nothing_is_skipped(make_model, make_sequences):
    sequences = make_sequences(6, zero_every=2)
    metrics = learner_of(make_model(), ClippedSurrogate(kl_coefficient=0.1)).update(sequences, 0)
    assert metrics.skipped_sequences == 0
    assert metrics.trained_tokens == sum(len(s.tokens) for s in sequences)


@pytest.mark.parametrize("ratio", ["token", "turn"])
@pytest.mark.parametrize("settings", [{}, {"dtype": "bfloat16"}, {"lora": LoraConfig(rank=4)}, {"packing": "padded"}])
@pytest.mark.parametrize("max_elements", [1 << 24, 3000])
def test_every_ratio_is_exactly_one_at_the_sampling_weights(
    make_model, make_sequences, monkeypatch, ratio, settings, max_elements
):
    """Bit for bit, in all minibatches of the first epoch, as long as no step has moved the weights."""
    learner = learner_of(make_model(), ClippedSurrogate(ratio=ratio), minibatch=4, temperature=0.7, **settings)
    learner._forward.max_elements = max_elements
    monkeypatch.setattr(learner._optimiser, "step", lambda: None)
    metrics = learner.update(make_sequences(14), 0)
    assert metrics.optimiser_steps == 4
    assert metrics.largest_log_ratio == 0.0
    assert metrics.approximate_kl == 0.0
    assert metrics.clip_fraction == 0.0


def test_ratios_leave_one_after_the_first_step(make_model, make_sequences):
    metrics = learner_of(make_model(), learning_rate=1e-2, minibatch=4, epochs=2).update(make_sequences(8), 0)
    assert metrics.largest_log_ratio > 0.01
    assert metrics.approximate_kl > 0


def test_one_step_on_the_whole_batch_needs_no_second_forward_pass(make_model, make_sequences):
    assert learner_of(make_model()).update(make_sequences(8), 0).scored_tokens == 0
    two_epochs = learner_of(make_model(), epochs=2).update(make_sequences(8), 0)
    assert two_epochs.scored_tokens * 2 == two_epochs.trained_tokens


def test_the_order_of_arrival_does_not_change_a_bit(make_model, make_sequences):
    sequences = make_sequences(16)
    digests = set()
    for seed in range(3):
        random.Random(seed).shuffle(sequences)
        learner = learner_of(make_model(), minibatch=5, epochs=2)
        learner.update(sequences, 0)
        learner.update(sequences, 1)
        digests.add(weights_digest(learner.weights()))
    assert len(digests) == 1


def test_minibatch_order_is_keyed_by_seed_update_and_epoch(make_model, make_sequences):
    sequences = make_sequences(16)
    learner = learner_of(make_model(), minibatch=4, epochs=2)
    plans = [learner._plan(sequences, update) for update in (0, 1)]
    assert plans[0] == learner._plan(sequences, 0)
    assert plans[0] != plans[1]
    assert plans[0][0] != plans[0][1]
    assert learner_of(make_model(), minibatch=4, epochs=2, seed=1)._plan(sequences, 0) != plans[0]
    for epoch in plans[0]:
        assert sorted(i for minibatch in epoch for i in minibatch) == list(range(16))


def test_collections_updates_and_optimiser_steps_are_counted_apart(make_model, make_sequences):
    learner = learner_of(make_model(), minibatch=4, epochs=3)
    learner.update(make_sequences(8), 0, collection=0)
    learner.update(make_sequences(8, seed=9), 1, collection=0)
    learner.update(make_sequences(8), 2, collection=1)
    counters = learner.counters
    assert (counters.collections, counters.updates, counters.optimiser_steps) == (2, 3, 18)


def test_the_learning_rate_warms_up_over_updates_not_steps(make_model, make_sequences):
    learner = learner_of(make_model(), warmup_updates=4, minibatch=2, learning_rate=0.1)
    assert [learner.learning_rate(update) for update in (0, 1, 3, 4, 50)] == pytest.approx([0.025, 0.05, 0.1, 0.1, 0.1])
    learner = learner_of(make_model(), warmup_updates=4, minibatch=2)
    assert learner.update(make_sequences(8), 1).learning_rate == pytest.approx(0.5e-3)


def test_training_raises_the_probability_of_what_has_credit(make_model, make_sequences):
    sequences = [
        msgspec.structs.replace(s, advantages=[1.0 if flag else 0.0 for flag in s.action_mask])
        for s in make_sequences(6)
    ]
    learner = learner_of(make_model(), learning_rate=1e-2)
    for update in range(12):
        learner.update(sequences, update)
    assert naive_logprob(learner.model, sequences) > naive_logprob(make_model(), sequences) + 1.0


def naive_logprob(model, sequences) -> float:
    with torch.no_grad():
        values = []
        for sequence in sequences:
            logs = torch.log_softmax(model(input_ids=torch.tensor([sequence.tokens])).logits[0], -1)
            values += [float(logs[i - 1, sequence.tokens[i]]) for i, flag in enumerate(sequence.action_mask) if flag]
    return sum(values) / len(values)


def test_the_mismatch_is_the_gap_to_the_engines_log_probs(make_model, make_sequences):
    model, sequences = make_model(), make_sequences(5)
    exact = []
    with torch.no_grad():
        for s in sequences:
            logs = torch.log_softmax(model(input_ids=torch.tensor([s.tokens])).logits[0], -1)
            values = [float(logs[i - 1, s.tokens[i]]) if flag else 0.0 for i, flag in enumerate(s.action_mask)]
            exact.append(msgspec.structs.replace(s, behaviour_logprobs=values))
    first = next(i for i, flag in enumerate(exact[0].action_mask) if flag)
    shifted = list(exact[0].behaviour_logprobs)
    shifted[first] += 0.5
    exact[0] = msgspec.structs.replace(exact[0], behaviour_logprobs=shifted)
    metrics = learner_of(model).update(exact, 0)
    assert metrics.largest_mismatch == pytest.approx(0.5, abs=1e-4)
    assert metrics.mismatch == pytest.approx(0.5 / sum(s.action_tokens for s in exact), abs=1e-4)


def test_the_reference_stays_where_training_began(make_model, make_sequences):
    sequences = make_sequences(8)
    loss = ClippedSurrogate(kl_coefficient=0.05)
    learner = learner_of(make_model(), loss, learning_rate=1e-2)
    assert learner.update(sequences, 0).kl == 0.0
    assert learner.update(sequences, 1).kl > 1e-4
    assert learner_of(make_model())._reference is None


def test_a_large_kl_coefficient_holds_the_policy_back(make_model, make_sequences):
    sequences = make_sequences(8)
    moved = []
    for coefficient in (1e-9, 100.0):
        loss = ClippedSurrogate(kl_coefficient=coefficient, aggregate="token-mean")
        learner = learner_of(make_model(), loss, learning_rate=3e-3)
        for update in range(8):
            metrics = learner.update(sequences, update)
        moved.append(metrics.kl)
    assert moved[1] < 0.5 * moved[0]


def test_nucleus_sampling_needs_supports_and_uses_them(make_model, make_episodes):
    episodes, model = make_episodes(4), make_model()
    credit = [[1.0] * len(episode.turns) for episode in episodes]
    bare = training_sequences(episodes, credit)
    with pytest.raises(ValueError, match=r"top_p = 0\.9"):
        learner_of(model, top_p=0.9).update(bare, 0)
    supports = {}
    for episode in episodes:
        rows = model(input_ids=torch.tensor([episode.tokens()])).logits[0].detach()
        lists = []
        for turn in episode.turns:
            at = slice(turn.context_length - 1, turn.context_length - 1 + len(turn.tokens))
            nuclei = nucleus_support(rows[at], temperature=1.0, top_p=0.9)
            # The traces are random, so the sampled token may lie outside: put it in.
            lists.append([sorted({*nucleus, token}) for nucleus, token in zip(nuclei, turn.tokens, strict=True)])
        supports[episode.key] = lists
    sequences = training_sequences(episodes, credit, supports)
    learner = learner_of(model, top_p=0.9, minibatch=2)
    seen = []
    for batch in learner._lay_out(sequences, range(4)):
        with torch.no_grad():
            seen += list(zip(batch.members, learner._forward.score(batch).logprobs.split(batch.lengths), strict=True))
    for index, logprobs in seen:
        sequence = sequences[index]
        logits = model(input_ids=torch.tensor([sequence.tokens])).logits[0].detach()
        on = [i for i, flag in enumerate(sequence.action_mask) if flag]
        for value, i, support in zip(logprobs, on, sequence.supports, strict=True):
            inside = torch.log_softmax(logits[i - 1][support], 0)
            assert float(value) == pytest.approx(float(inside[support.index(sequence.tokens[i])]), abs=2e-5)
    assert learner.update(sequences, 0).optimiser_steps == 2


def test_a_loss_that_is_not_finite_names_its_sequence(make_model, make_sequences):
    sequences = make_sequences(6)
    bad = msgspec.structs.replace(
        sequences[3], advantages=[float("nan") if flag else 0.0 for flag in sequences[3].action_mask]
    )
    learner = learner_of(make_model())
    before = learner.weights()
    with pytest.raises(NonFiniteError, match=r"0x00000000000003eb \(group 0, member 3\)"):
        learner.update([*sequences[:3], bad, *sequences[4:]], 0)
    assert equal_weights(before, learner.weights())


def test_a_gradient_that_is_not_finite_names_its_sequence(make_model, make_sequences):
    sequences = make_sequences(6)
    huge = [1e38 if flag else 0.0 for flag in sequences[2].action_mask]
    learner = learner_of(make_model(), ClippedSurrogate(scale=1.0))
    before = learner.weights()
    with pytest.raises(NonFiniteError, match=r"gradient.*member 2"):
        learner.update([*sequences[:2], msgspec.structs.replace(sequences[2], advantages=huge)], 0)
    assert equal_weights(before, learner.weights())


def test_gradient_clipping_bounds_the_applied_norm_and_reports_the_true_one(make_model, make_sequences, monkeypatch):
    sequences = make_sequences(6)
    applied = applied_gradient(learner_of(make_model(), gradient_clip=0.01), sequences, monkeypatch)
    norm = torch.stack([g.norm() for g in applied.values()]).norm()
    assert float(norm) == pytest.approx(0.01, rel=1e-3)
    assert learner_of(make_model(), gradient_clip=0.01).update(sequences, 0).gradient_norm > 0.02


def test_a_batch_without_any_credit_is_still_a_step(make_model, make_sequences):
    zero = [msgspec.structs.replace(s, advantages=[0.0] * len(s.tokens)) for s in make_sequences(4)]
    learner = learner_of(make_model())
    before = learner.weights()
    metrics = learner.update(zero, 0)
    assert metrics.optimiser_steps == 1
    assert metrics.trained_tokens == 0
    assert equal_weights(before, learner.weights())
    learner.update(make_sequences(4), 1)
    moved = learner.weights()
    learner.update(zero, 2)
    assert not equal_weights(moved, learner.weights()), "AdamW's momentum moves on"


def test_published_weights_do_not_change_when_training_goes_on(make_model, make_sequences):
    learner = learner_of(make_model())
    published = learner.weights()
    digest = weights_digest(published)
    learner.update(make_sequences(4), 0)
    assert weights_digest(published) == digest
    assert weights_digest(learner.weights()) != digest
    fresh = make_model(seed=5)
    fresh.load_state_dict(learner.weights())
    assert equal_weights(fresh.state_dict(), learner.model.state_dict())
    assert published["lm_head.weight"].data_ptr() == published["model.embed_tokens.weight"].data_ptr()


def test_bfloat16_computes_near_float32_and_keeps_float32_weights(make_model, make_sequences):
    sequences = make_sequences(6)
    exact = learner_of(make_model()).update(sequences, 0)
    learner = learner_of(make_model(), dtype="bfloat16")
    metrics = learner.update(sequences, 0)
    assert {p.dtype for p in learner.model.parameters()} == {torch.float32}
    assert metrics.loss == pytest.approx(exact.loss, abs=0.05)
    assert metrics.gradient_norm == pytest.approx(exact.gradient_norm, rel=0.1)


def test_metrics_are_json_able(make_model, make_sequences):
    metrics = learner_of(make_model()).update(make_sequences(4), 0)
    assert msgspec.json.decode(msgspec.json.encode(metrics), type=type(metrics)) == metrics


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "epochs"),
        ({"minibatch": -1}, "minibatch"),
        ({"betas": (1.0, 0.9)}, "betas"),
        ({"learning_rate": float("nan")}, "learning_rate"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        LearnerConfig(**settings)


def test_misuse_says_what_to_do(make_model, make_sequences):
    sequences, learner = make_sequences(4), learner_of(make_model())
    with pytest.raises(ValueError, match="skip the update"):
        learner.update([], 0)
    with pytest.raises(ValueError, match="occurs twice"):
        learner.update([*sequences, sequences[0]], 0)
    learner.update(sequences, 3)
    with pytest.raises(ValueError, match="not after update 3"):
        learner.update(sequences, 3)
    with pytest.raises(ValueError, match="top_p"):
        learner_of(make_model(), top_p=0.0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_is_refused_where_there_is_none(make_model):
    with pytest.raises(ValueError, match="use auto or cpu"):
        learner_of(make_model(), device="cuda")


def test_the_callers_thread_count_is_restored(make_model, make_sequences):
    torch.set_num_threads(2)
    learner_of(make_model(), threads=1).update(make_sequences(2), 0)
    assert torch.get_num_threads() == 2
