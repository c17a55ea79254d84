"""Sequences hold the sampled ids; packing changes where tokens lie and nothing else."""

from __future__ import annotations

import random

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forkgym.learn.batch import attention_masks, pack, training_sequences
from forkgym.learn.forward import PolicyForward


def test_tokens_are_the_sampled_ids_and_the_mask_marks_exactly_them(make_episodes):
    for episode in make_episodes(20):
        credit = [float(turn.index + 1) for turn in episode.turns]
        (sequence,) = training_sequences([episode], [credit])
        whole = episode.tokens()
        assert sequence.tokens == whole[: len(sequence.tokens)]
        sampled = [token for turn in episode.turns for token in turn.tokens]
        logprobs = [value for turn in episode.turns for value in turn.logprobs]
        turns = [turn.index for turn in episode.turns for _ in turn.tokens]
        on = [i for i, flag in enumerate(sequence.action_mask) if flag]
        assert [sequence.tokens[i] for i in on] == sampled
        assert [sequence.behaviour_logprobs[i] for i in on] == logprobs
        assert [sequence.turns[i] for i in on] == turns
        assert [sequence.advantages[i] for i in on] == [turn + 1.0 for turn in turns]
        assert on[-1] == len(sequence.tokens) - 1, "nothing after the last sampled token is fed"
        assert len(whole) - len(sequence.tokens) == len(episode.turns[-1].observation_tokens)
        off = [i for i, flag in enumerate(sequence.action_mask) if not flag]
        assert all(sequence.advantages[i] == 0 and sequence.behaviour_logprobs[i] == 0 for i in off)


def test_a_trace_whose_text_was_tokenised_again_is_refused(make_episodes):
    (episode,) = make_episodes(1)
    episode.turns[0].context_length += 1
    with pytest.raises(ValueError, match="tokenised again"):
        training_sequences([episode], [[0.0] * len(episode.turns)])


@pytest.mark.parametrize("rows", [[], [[0.0] * 9]])
def test_advantages_that_do_not_fit_are_refused(make_episodes, rows):
    with pytest.raises(ValueError, match="give one"):
        training_sequences(make_episodes(1), rows)


def test_an_infinite_advantage_is_refused(make_episodes):
    (episode,) = make_episodes(1)
    with pytest.raises(ValueError, match="not finite"):
        training_sequences([episode], [[float("inf")] * len(episode.turns)])


def test_a_sampled_token_outside_its_support_is_refused(make_episodes):
    (episode,) = make_episodes(1)
    supports = [[[-5] for _ in turn.tokens] for turn in episode.turns]
    with pytest.raises(ValueError, match="support"):
        training_sequences([episode], [[0.0] * len(episode.turns)], {episode.key: supports})


def test_sequences_survive_json(make_sequences):
    for sequence in make_sequences(3):
        assert msgspec.json.decode(msgspec.json.encode(sequence), type=type(sequence)) == sequence


@pytest.mark.parametrize("arrangement", ["packed", "padded"])
@pytest.mark.parametrize("max_tokens", [1, 60, 200, 4096])
def test_every_action_token_is_placed_once_and_predicted_by_its_predecessor(make_sequences, arrangement, max_tokens):
    sequences = make_sequences(23)
    batches = pack(sequences, max_tokens, arrangement=arrangement, row_tokens=64)
    longest = max(len(sequence.tokens) for sequence in sequences)
    assert sorted(i for batch in batches for i in batch.members) == list(range(23))
    for batch in batches:
        assert batch.input_ids.numel() <= max(max_tokens, longest)
        flat = batch.input_ids.flatten()
        assert torch.equal(flat[batch.source + 1], batch.targets)
        offset = 0
        for place, (index, length) in enumerate(zip(batch.members, batch.lengths, strict=True)):
            sequence, part = sequences[index], slice(offset, offset + length)
            expected = [i for i, flag in enumerate(sequence.action_mask) if flag]
            assert (batch.position_ids.flatten()[batch.source[part]] + 1).tolist() == expected
            assert (batch.segments.flatten()[batch.source[part]] == place).all()
            assert batch.advantages[part].tolist() == pytest.approx([sequence.advantages[i] for i in expected])
            offset += length
        numbers = batch.turn_index.tolist()
        assert sorted(set(numbers)) == list(range(numbers[-1] + 1))


def test_packing_does_not_depend_on_the_order_of_arrival(make_sequences):
    sequences = make_sequences(17)
    shuffled = list(sequences)
    random.Random(3).shuffle(shuffled)
    for first, second in zip(pack(sequences, 128), pack(shuffled, 128), strict=True):
        assert torch.equal(first.input_ids, second.input_ids)
        assert torch.equal(first.advantages, second.advantages)


def test_packed_rows_waste_less_than_padded_ones(make_sequences):
    sequences = make_sequences(40)
    sizes = {
        kind: sum(batch.input_ids.numel() for batch in pack(sequences, 256, arrangement=kind, row_tokens=128))
        for kind in ("packed", "padded")
    }
    assert sizes["packed"] < sizes["padded"]


def test_masks_are_block_diagonal_causal_and_windows_stop_at_borders():
    segments = torch.tensor([[0, 0, 0, 0, 1, 1, -1]])
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 0]])
    kinds = {"full_attention": None, "sliding_attention": 2, "chunked_attention": 2}
    masks = {kind: mask[0, 0].int().tolist() for kind, mask in attention_masks(segments, positions, kinds).items()}
    assert masks["full_attention"] == [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0],
        [0, 0, 0, 0, 1, 0, 0],
        [0, 0, 0, 0, 1, 1, 0],
        [0, 0, 0, 0, 0, 0, 1],
    ]
    assert masks["sliding_attention"][3] == [0, 0, 1, 1, 0, 0, 0]
    assert masks["sliding_attention"][4] == [0, 0, 0, 0, 1, 0, 0]
    assert masks["chunked_attention"][3] == [0, 0, 1, 1, 0, 0, 0]
    assert masks["chunked_attention"][2] == [0, 0, 1, 0, 0, 0, 0]
    with pytest.raises(ValueError, match="linear_attention"):
        attention_masks(segments, positions, {"linear_attention": None})


def _scores(forward, sequences, **options):
    by_sequence = {}
    for batch in pack(sequences, 512, **options):
        parts = forward.score(batch).logprobs.split(list(batch.lengths))
        by_sequence |= dict(zip(batch.members, parts, strict=True))
    return torch.cat([by_sequence[i] for i in range(len(sequences))])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packed_log_probs_equal_those_of_each_sequence_alone(make_model, make_sequences, attention):
    """Float32 sums in another order: 2e-5 nats is some twenty units in the last place of these log-probs."""
    model, sequences = make_model(attention=attention), make_sequences(12)
    forward = PolicyForward(model)
    assert forward.arrangement == "packed"
    assert forward.separate_head
    packed = _scores(forward, sequences, arrangement="packed", row_tokens=128)
    alone = []
    for sequence in sequences:
        logits = model(input_ids=torch.tensor([sequence.tokens])).logits[0]
        logs = torch.log_softmax(logits, dim=-1)
        alone += [logs[i - 1, sequence.tokens[i]] for i, flag in enumerate(sequence.action_mask) if flag]
    torch.testing.assert_close(packed, torch.stack(alone), atol=2e-5, rtol=0)
    padded = _scores(forward, sequences, arrangement="padded")
    torch.testing.assert_close(padded, torch.stack(alone), atol=2e-5, rtol=0)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), count=st.integers(1, 9), width=st.integers(1, 300), max_tokens=st.integers(1, 600))
def test_any_layout_gives_the_same_log_probs(make_model, make_sequences, seed, count, width, max_tokens):
    forward, sequences = PolicyForward(make_model(seed % 3)), make_sequences(count, seed=seed)
    scores = {}
    with torch.no_grad():
        for kind in ("packed", "padded"):
            parts = {}
            for batch in pack(sequences, max_tokens, arrangement=kind, row_tokens=width):
                split = forward.score(batch).logprobs.split(list(batch.lengths))
                parts |= dict(zip(batch.members, split, strict=True))
            scores[kind] = torch.cat([parts[i] for i in range(count)])
    torch.testing.assert_close(scores["packed"], scores["padded"], atol=2e-5, rtol=0)


def test_no_sequence_sees_its_neighbour_in_the_row(make_model, make_sequences):
    model, sequences = make_model(), make_sequences(6)
    forward = PolicyForward(model)
    (batch,) = pack(sequences, 512, row_tokens=512)
    assert batch.packed
    assert batch.input_ids.shape[0] == 1
    hidden = model.get_input_embeddings()(batch.input_ids).detach().requires_grad_()
    masks = attention_masks(batch.segments, batch.position_ids, {"full_attention": None, "sliding_attention": 3})
    out = model.model(inputs_embeds=hidden, attention_mask=masks, position_ids=batch.position_ids)
    for place in range(len(batch.members)):
        inside = batch.segments[0] == place
        (gradient,) = torch.autograd.grad(out.last_hidden_state[0, inside].sum(), hidden, retain_graph=True)
        assert not gradient[0, ~inside].any(), "a gradient crossed a border"
        assert gradient[0, inside].any()
    baseline = forward.score(batch).logprobs.split(list(batch.lengths))
    changed = batch.input_ids.clone()
    changed[batch.segments == 0] = (changed[batch.segments == 0] + 1) % 300
    altered = forward.score(type(batch)(**{**vars(batch), "input_ids": changed})).logprobs.split(list(batch.lengths))
    assert not torch.equal(baseline[0], altered[0])
    assert all(torch.equal(a, b) for a, b in zip(baseline[1:], altered[1:], strict=True))


def test_a_model_that_ignores_masks_is_run_padded(make_model, make_sequences):
    model, sequences = make_model(), make_sequences(5)
    inner = model.model.forward
    model.model.forward = lambda attention_mask=None, position_ids=None, **inputs: inner(**inputs)
    forward = PolicyForward(model)
    assert forward.arrangement == "padded"
    scores = _scores(forward, sequences, arrangement=forward.arrangement)
    model.model.forward = inner
    torch.testing.assert_close(scores, _scores(PolicyForward(model), sequences), atol=2e-5, rtol=0)


def test_a_model_that_changes_its_logits_after_the_head_is_scored_by_its_own_logits(make_model, make_sequences):
    model, sequences = make_model(), make_sequences(5)
    own = type(model).forward

    class SoftCapped(type(model)):
        def forward(self, *arguments, **inputs):
            outputs = own(self, *arguments, **inputs)
            outputs.logits = 2.0 * torch.tanh(outputs.logits / 2.0)
            return outputs

    model.__class__ = SoftCapped
    forward = PolicyForward(model)
    assert not forward.separate_head
    logits = model(input_ids=torch.tensor([sequences[0].tokens])).logits[0]
    expected = [
        torch.log_softmax(logits[i - 1], -1)[sequences[0].tokens[i]]
        for i, flag in enumerate(sequences[0].action_mask)
        if flag
    ]
    torch.testing.assert_close(
        _scores(forward, sequences[:1], arrangement="padded"), torch.stack(expected), atol=2e-5, rtol=0
    )


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "qwen3"])
def test_other_families_score_like_their_own_forward_pass(make_sequences, family):
    import transformers

    configs = {
        "llama": transformers.LlamaConfig,
        "mistral": transformers.MistralConfig,
        "gemma2": transformers.Gemma2Config,
        "qwen3": transformers.Qwen3Config,
    }
    extra = {"sliding_window": 4} if family in ("mistral", "gemma2") else {}
    config = configs[family](
        vocab_size=300,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        initializer_range=0.2,
        pad_token_id=0,
        **extra,
    )
    torch.manual_seed(0)
    model, sequences = transformers.AutoModelForCausalLM.from_config(config).eval(), make_sequences(6)
    forward = PolicyForward(model)
    assert forward.arrangement == "packed"
    assert forward.separate_head == (family != "gemma2"), "Gemma 2 caps its logits after the head"
    alone = []
    for sequence in sequences:
        logs = torch.log_softmax(model(input_ids=torch.tensor([sequence.tokens])).logits[0].float(), dim=-1)
        alone += [logs[i - 1, sequence.tokens[i]] for i, flag in enumerate(sequence.action_mask) if flag]
    packed = _scores(forward, sequences, arrangement=forward.arrangement, row_tokens=128)
    torch.testing.assert_close(packed, torch.stack(alone), atol=5e-5, rtol=0)
