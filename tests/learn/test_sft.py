"""Supervised learning: only turns are learned, sequences are put together as episodes are, and runs repeat exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from forkgym.core.text import Demonstration
from forkgym.learn.sft import SupervisedBatch, SupervisedSequence, batches, render_demonstration, train_supervised
from forkgym.learn.warmstart import relabelling
from forkgym.policy.chat import TinyRenderer
from forkgym.policy.tiny import build_model, build_tokenizer, entity_groups
from tests.policy.models import PROMPT, VOCABULARY

RENDERER = TinyRenderer(build_tokenizer(VOCABULARY))
DEMONSTRATION = Demonstration(
    prompt=PROMPT,
    turns=[("so \n search capital France", "Paris is the capital of France ."), ("\n answer Paris", "")],
    utility=1.0,
)


def test_a_demonstration_is_put_together_as_an_episode_is():
    sequence = render_demonstration(DEMONSTRATION, RENDERER)
    first, second = (RENDERER.encode(text) + list(RENDERER.stop_tokens) for text, _ in DEMONSTRATION.turns)
    prompt = RENDERER.prompt(PROMPT)
    observation = RENDERER.observation("Paris is the capital of France .")
    assert sequence.tokens.tolist() == [*prompt, *first, *observation, *second]
    masked = [0] * len(prompt) + [1] * len(first) + [0] * len(observation) + [1] * len(second)
    assert sequence.written.tolist() == [bool(m) for m in masked]


def sequences(count=12):
    source = np.random.default_rng(0)
    return [
        SupervisedSequence(source.integers(5, 20, size=n), np.arange(n) >= 2)
        for n in source.integers(4, 12, size=count)
    ]


def test_batches_pad_to_the_right_and_never_learn_padding():
    for batch, _ in zip(batches(sequences(), 4, np.random.default_rng(1)), range(9), strict=False):
        assert batch.tokens.shape == batch.written.shape
        lengths = (batch.tokens != 0).sum(axis=1)
        assert all((row[n:] == 0).all() for row, n in zip(batch.tokens, lengths, strict=True))
        assert all(not row[n:].any() for row, n in zip(batch.written, lengths, strict=True))
        assert (batch.written.sum(axis=1) == lengths - 2).all()


def test_a_round_of_batches_uses_no_sequence_twice():
    source = batches(sequences(12), 4, np.random.default_rng(1), chunk=3)
    rows = [tuple(row[row != 0]) for _ in range(3) for row in next(source).tokens]
    assert len(set(rows)) == 12


def test_fewer_demonstrations_than_a_batch_are_refused():
    with pytest.raises(ValueError, match="fewer than one batch of 8"):
        next(batches(sequences(3), 8, np.random.default_rng(0)))


def test_relabelling_permutes_names_within_their_types_and_nothing_else():
    tokenizer = build_tokenizer(VOCABULARY)
    groups = entity_groups(tokenizer, VOCABULARY)
    draw = relabelling(len(tokenizer), groups)
    source = np.random.default_rng(0)
    tables = [draw(source) for _ in range(50)]
    named = {token for group in groups for token in group}
    others = [token for token in range(len(tokenizer)) if token not in named]
    for table in tables:
        assert (table[others] == others).all()
        assert all(sorted(table[group]) == sorted(group) for group in groups)
    assert len({tuple(table) for table in tables}) > 40, "every sequence tells of a world of its own"


def test_only_written_tokens_are_learned():
    """The gradient of a batch does not depend on which token stands where nothing is learned and nothing follows."""

    def weights(last):
        model = build_model(24, hidden_size=16, heads=2, max_positions=32, seed=1)
        tokens = np.array([[5, 6, 7, 8, last]])
        written = np.array([[False, False, True, True, False]])
        train_supervised(model, [SupervisedBatch(tokens, written)] * 2, steps=2)
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    assert torch.equal(weights(9), weights(10))


def test_training_lowers_the_loss_of_what_can_be_learned():
    model = build_model(24, hidden_size=32, heads=2, max_positions=32, seed=1)
    losses = train_supervised(model, batches(sequences(), 4, np.random.default_rng(2)), steps=60, learning_rate=5e-3)
    assert len(losses) == 60
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5])


def test_the_same_arguments_give_the_same_weights_bit_for_bit():
    def run():
        model = build_model(24, hidden_size=16, heads=2, max_positions=32, seed=1)
        losses = train_supervised(model, batches(sequences(), 4, np.random.default_rng(2)), steps=8)
        return losses, torch.cat([p.detach().flatten() for p in model.parameters()])

    (losses, weights), (others, same) = run(), run()
    assert losses == others
    assert torch.equal(weights, same)
