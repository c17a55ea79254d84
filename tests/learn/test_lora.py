"""Adapters: only they train, merging them equals running them, they are saved without the base."""

from __future__ import annotations

import pytest
import torch

from forkgym.learn import Learner, LearnerConfig, LoraConfig, adapter_weights, add_lora, equal_weights, snapshot_weights
from forkgym.rollout.plan import ClippedSurrogate

CONFIG = LearnerConfig(learning_rate=1e-2, lora=LoraConfig(rank=4, alpha=8), row_tokens=64)


@pytest.fixture
def trained(make_model, make_sequences) -> Learner:
    learner = Learner(make_model(), ClippedSurrogate(), CONFIG)
    for update in range(3):
        learner.update(make_sequences(6), update)
    return learner


def test_only_adapters_train(make_model, trained):
    names = [name for name, parameter in trained.model.named_parameters() if parameter.requires_grad]
    assert names
    assert all(".lora_" in name for name in names)
    original = make_model().state_dict()
    for name, tensor in trained.model.get_base_model().state_dict().items():
        if ".lora_" not in name:
            assert torch.equal(tensor, original[name.replace(".base_layer.", ".")]), name
    tensors, _ = trained.state()
    assert all(".lora_" in name for name in tensors)


def test_all_linear_layers_but_the_head_carry_adapters(trained):
    adapted = {name for name, module in trained.model.get_base_model().named_modules() if hasattr(module, "base_layer")}
    layers = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    layers += ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    assert adapted == {f"model.layers.{i}.{layer}" for i in range(2) for layer in layers}


def test_fresh_adapters_leave_the_policy_unchanged_and_are_a_function_of_the_seed(make_model):
    ids = torch.arange(12)[None]
    first, second = (add_lora(make_model(), LoraConfig(), seed=3) for _ in range(2))
    torch.testing.assert_close(first(ids).logits, make_model()(ids).logits, atol=0, rtol=0)
    assert equal_weights(adapter_weights(first), adapter_weights(second))
    assert not equal_weights(adapter_weights(first), adapter_weights(add_lora(make_model(), LoraConfig(), seed=4)))


def test_adding_adapters_leaves_the_global_generator_alone(make_model):
    model = make_model()
    before = torch.random.get_rng_state()
    add_lora(model, LoraConfig(), seed=3)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_merged_weights_in_the_plain_model_equal_the_adapter_forward_pass(make_model, trained):
    """Float32: (W + BA)x against Wx + BAx, two layers, logits of order one: 2e-5."""
    ids = torch.randint(300, (3, 25), generator=torch.Generator().manual_seed(0))
    merged = snapshot_weights(trained.model)
    plain = make_model(seed=9)
    assert merged.keys() == plain.state_dict().keys()
    plain.load_state_dict(merged)
    adapted = trained.model(ids).logits
    torch.testing.assert_close(plain(ids).logits, adapted, atol=2e-5, rtol=1e-4)
    assert not torch.allclose(make_model()(ids).logits, adapted, atol=1e-2), "training moved the policy"


def test_reading_merged_weights_does_not_touch_the_model(trained):
    before = {name: tensor.clone() for name, tensor in trained.model.state_dict().items()}
    snapshot_weights(trained.model)
    assert equal_weights(before, trained.model.state_dict())


def test_the_reference_is_the_model_with_its_adapters_off(make_model, make_sequences):
    learner = Learner(make_model(), ClippedSurrogate(kl_coefficient=0.1), CONFIG)
    sequences = make_sequences(6)
    assert learner.update(sequences, 0).kl == 0.0
    laid_out = [learner._lay_out(sequences, range(6))]
    moved = learner.update(sequences, 1)
    assert moved.kl > 0
    reference = learner._reference
    assert reference is learner._forward, "no second copy of the base model"
    plain = Learner(make_model(), ClippedSurrogate())
    with torch.no_grad(), learner.model.disable_adapter():
        for batch in laid_out[0]:
            assert torch.equal(reference.score(batch).logprobs, plain._forward.score(batch).logprobs)


def test_adapters_pack_like_the_plain_model(trained):
    assert trained.can_pack


@pytest.mark.parametrize("settings", [{"rank": 0}, {"alpha": 0.0}])
def test_settings_that_cannot_be_meant_are_refused(settings):
    with pytest.raises(ValueError, match="positive"):
        LoraConfig(**settings)


def test_targets_that_match_nothing_are_refused(make_model):
    with pytest.raises(ValueError, match="no_such_layer"):
        add_lora(make_model(), LoraConfig(target_modules=("no_such_layer",)))
