"""The invariant forward pass: right (against the model's own code) and bit-identical however rows are arranged."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forkgym.policy import invariant_forward
from forkgym.policy.invariant_forward import InvariantForward, choose_product_mode, supports
from tests.policy.models import family_model, tiny_model

torch.set_num_threads(1)

V, T = 97, 48
MODEL = tiny_model(V)


@pytest.fixture(scope="module")
def forward():
    made = InvariantForward(MODEL, max_context=T, max_rows=64)
    made.product_mode = choose_product_mode(made, rows=64)
    return made


@pytest.fixture(scope="module")
def trajectories():
    """64 trajectories of mixed lengths and, for each of their positions, the logits of feeding them one by one."""
    source = np.random.default_rng(0)
    return [source.integers(2, V, size=source.integers(3, T)) for _ in range(64)]


def alone(forward, tokens):
    """Logits ``[L, V]`` of one trajectory fed one token a step."""
    cache = forward.new_cache()
    slot = np.array([cache.take()])
    return np.concatenate(
        [forward.rows(cache, tokens[t : t + 1], slot, np.array([t]), np.array([0])) for t in range(len(tokens))]
    )


@pytest.mark.parametrize("family", ["llama", "llama3-rope", "qwen2", "qwen3 with a sliding layer"])
def test_logits_are_the_models_own_up_to_rounding(family):
    model = family_model(family)
    assert supports(model) is None
    made = InvariantForward(model, max_context=32, max_rows=16)
    tokens = np.random.default_rng(1).integers(2, 61, size=32)
    with torch.no_grad():
        own = model(torch.from_numpy(tokens)[None]).logits[0].numpy()
    assert np.abs(own).max() > 1, "logits of nearly equal size would prove nothing"
    np.testing.assert_allclose(alone(made, tokens), own, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("batch", [1, 3, 16, 64])
def test_logits_are_bit_equal_at_any_batch_size_and_mixed_lengths(forward, trajectories, batch):
    reference = [alone(forward, tokens) for tokens in trajectories[:batch]]
    cache = forward.new_cache()
    slots = np.array([cache.take() for _ in range(batch)])[::-1].copy()
    members = trajectories[:batch]
    for step in range(2 * T):
        # Trajectory b starts b mod 7 steps late, so positions are mixed; those that ended leave the batch.
        live = [b for b in range(batch) if 0 <= step - b % 7 < len(members[b])]
        if not live:
            continue
        positions = np.array([step - b % 7 for b in live])
        tokens = np.array([members[b][p] for b, p in zip(live, positions, strict=True)])
        logits = forward.rows(cache, tokens, slots[live], positions, np.arange(len(live)))
        for row, (b, p) in enumerate(zip(live, positions, strict=True)):
            assert np.array_equal(logits[row], reference[b][p])


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_logits_are_bit_equal_for_any_cut_into_blocks_any_slots_and_any_companions(forward, seed, count):
    check_random_schedule(forward, seed, count)


@pytest.mark.slow
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 16))
@settings(max_examples=500, deadline=None)
def test_logits_are_bit_equal_in_many_random_schedules(forward, seed, count):
    check_random_schedule(forward, seed, count)


def check_random_schedule(forward, seed, count):
    """Blocks of any length, several trajectories a step, in any order of slots."""
    source = np.random.default_rng(seed)
    members = [source.integers(2, V, size=source.integers(1, 20)) for _ in range(count)]
    reference = [alone(forward, tokens) for tokens in members]
    cache = forward.new_cache()
    slots = source.permutation([cache.take() for _ in range(count + 3)])[:count]
    done = [0] * count
    while any(done[b] < len(members[b]) for b in range(count)):
        rows = []
        for b in source.permutation(count):
            block = int(source.integers(0, min(64 // count, 9, len(members[b]) - done[b]) + 1))
            rows += [(b, done[b] + i) for i in range(block)]
            done[b] += block
        if not rows:
            continue
        wanted = np.flatnonzero(source.random(len(rows)) < 0.7)
        logits = forward.rows(
            cache,
            np.array([members[b][p] for b, p in rows]),
            np.array([slots[b] for b, _ in rows]),
            np.array([p for _, p in rows]),
            wanted,
        )
        for row, index in enumerate(wanted):
            b, p = rows[index]
            assert np.array_equal(logits[row], reference[b][p])


def test_a_prefix_decoded_copied_or_rebuilt_gives_the_same_bits(forward, trajectories):
    tokens = max(trajectories, key=len)
    reference = alone(forward, tokens)
    cache = forward.new_cache()
    first = cache.take()
    for t in range(30):
        forward.rows(cache, tokens[t : t + 1], np.array([first]), np.array([t]), np.array([0]))
    stored = cache.store(first, 30)
    assert stored.keys.base is None, "a stored prefix must be a copy: the slot goes on"
    for length in (1, 17, 30):
        copy = cache.take()
        cache.load(copy, stored, length)
        positions = np.arange(length, len(tokens))
        logits = forward.rows(
            cache, tokens[length:], np.full(len(positions), copy), positions, np.arange(len(positions))
        )
        assert np.array_equal(logits, reference[length:])


def test_what_a_slot_held_before_does_not_matter(forward, trajectories):
    tokens = trajectories[5]
    cache = forward.new_cache()
    slot = cache.take()
    cache.keys[:, slot] = 1e30
    cache.values[:, slot] = np.nan
    logits = forward.rows(
        cache, tokens, np.full(len(tokens), slot), np.arange(len(tokens)), np.array([len(tokens) - 1])
    )
    assert np.array_equal(logits[0], alone(forward, tokens)[-1])


def test_the_models_later_changes_do_not_reach_a_version():
    model = tiny_model(V, seed=5)
    made = InvariantForward(model, max_context=T, max_rows=16)
    tokens = np.arange(2, 12)
    before = alone(made, tokens)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert np.array_equal(alone(made, tokens), before)


@pytest.mark.parametrize("mode", ["tiled", "single"])
def test_the_slower_ways_of_multiplying_agree_and_are_invariant_too(mode, trajectories):
    made = InvariantForward(MODEL, max_context=T, max_rows=64, product_mode=mode)
    tokens = [t[:6] for t in trajectories[:20] if len(t) >= 6]
    cache = made.new_cache()
    slots = np.repeat([cache.take() for _ in tokens], 6)
    # At most 64 rows a call: two calls of ten trajectories.
    for start in range(0, len(tokens), 10):
        part = tokens[start : start + 10]
        rows = slice(6 * start, 6 * (start + len(part)))
        logits = made.rows(
            cache, np.concatenate(part), slots[rows], np.tile(np.arange(6), len(part)), np.arange(6 * len(part))
        )
        for row, member in enumerate(part):
            assert np.array_equal(logits[6 * row : 6 * row + 6], alone(made, member))


class CompanionDependent(InvariantForward):
    """A forward pass whose last bits depend on the number of rows, as those of some libraries do."""

    def _product(self, x, count, matrix, out):
        result = super()._product(x, count, matrix, out)
        if self.product_mode in self.broken:
            result *= np.float32(1 + 1e-6 * (count % 5))
        return result


@pytest.mark.parametrize(
    ("broken", "expected"),
    [((), "stacked"), (("stacked",), "tiled"), (("stacked", "tiled"), "single")],
)
def test_the_start_up_check_falls_back_where_rows_depend_on_their_companions(broken, expected):
    made = CompanionDependent(MODEL, max_context=T, max_rows=64)
    made.broken = broken
    assert choose_product_mode(made, rows=64) == made.product_mode == expected


def test_models_that_cannot_be_run_are_refused_with_the_reason():
    half = tiny_model(V).to(torch.bfloat16)
    with pytest.raises(ValueError, match=r"dtype=torch\.float32"):
        InvariantForward(half, max_context=T, max_rows=16)
    other = tiny_model(V)
    other.config.model_type = "gpt2"
    assert "'gpt2', not one of llama, qwen2, qwen3" in str(supports(other))


@pytest.mark.parametrize("change", ["missing", "shape", "unknown"])
def test_weights_that_do_not_fit_are_refused(change):
    state = dict(MODEL.state_dict())
    if change == "missing":
        del state["model.norm.weight"]
    elif change == "shape":
        state["model.norm.weight"] = torch.ones(3)
    else:
        state["base_model.lora_A"] = torch.ones(3)
    with pytest.raises(ValueError, match=r"publish model.state_dict\(\) \(merge adapters first\)"):
        InvariantForward(MODEL, max_context=T, max_rows=16, state=state)


def test_the_tile_is_what_the_documentation_says():
    assert invariant_forward.TILE == 16
