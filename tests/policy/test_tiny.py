"""The tiny policy: its tokenizer's ids, its checkpoint directory, and the proof that a vocabulary fits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from forkgym.core.text import Vocabulary
from forkgym.policy.tiny import (
    build_model,
    build_tokenizer,
    entity_groups,
    load_checkpoint,
    save_checkpoint,
    vocabulary_digest,
)
from tests.policy.models import VOCABULARY, tiny_model


def test_each_entity_is_one_token_and_a_longer_name_wins():
    tokenizer = build_tokenizer(VOCABULARY)
    for names in VOCABULARY.entities.values():
        for name in names:
            assert len(tokenizer(name, add_special_tokens=False)["input_ids"]) == 1
    text = "Equatorial Guinea Guinea Guinea-Bissau"
    assert len(tokenizer(text, add_special_tokens=False)["input_ids"]) == 3


def test_unknown_words_become_unk():
    tokenizer = build_tokenizer(VOCABULARY)
    assert tokenizer.convert_ids_to_tokens(tokenizer("the zebra", add_special_tokens=False)["input_ids"]) == [
        "the",
        "<unk>",
    ]


def test_entity_groups_are_the_ids_of_each_type():
    tokenizer = build_tokenizer(VOCABULARY)
    groups = entity_groups(tokenizer, VOCABULARY)
    assert [tokenizer.convert_ids_to_tokens(group) for group in groups] == [
        list(names) for names in VOCABULARY.entities.values()
    ]


@pytest.mark.parametrize(
    ("words", "entities", "message"),
    [
        (("a",), {"x": ("b", "b")}, "'b' occurs twice"),
        (("a",), {"x": ("a",)}, "'a' occurs twice"),
        (("two words",), {}, "must not contain spaces"),
        (("a",), {"x": (" b",)}, "no spaces at their ends"),
    ],
)
def test_a_vocabulary_without_unique_names_is_refused(words, entities, message):
    with pytest.raises(ValueError, match=message):
        build_tokenizer(Vocabulary(words=words, entities=entities))


def test_the_model_is_a_stock_one_of_about_half_a_million_parameters():
    model = build_model(1836)
    assert model.config.layer_types == ["sliding_attention", "full_attention"]
    assert 0.5e6 < sum(parameter.numel() for parameter in model.parameters()) < 3e6
    assert torch.equal(build_model(50, seed=3).lm_head.weight, build_model(50, seed=3).lm_head.weight)
    assert not torch.equal(build_model(50, seed=3).lm_head.weight, build_model(50, seed=4).lm_head.weight)


def test_making_a_model_leaves_torchs_own_generator_alone():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    build_model(50)
    assert torch.equal(torch.rand(3), expected)


def test_a_checkpoint_is_a_plain_hugging_face_directory(tmp_path):
    tokenizer = build_tokenizer(VOCABULARY)
    model = tiny_model(len(tokenizer))
    save_checkpoint(tmp_path, model, tokenizer, VOCABULARY)
    loaded, loaded_tokenizer = load_checkpoint(tmp_path, VOCABULARY)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    plain_tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    text = "what is the capital of Equatorial Guinea ? \n search capital Saint John's"
    for other in (loaded_tokenizer, plain_tokenizer):
        assert other(text)["input_ids"] == tokenizer(text)["input_ids"]
    for name, parameter in model.named_parameters():
        assert torch.equal(dict(loaded.named_parameters())[name], parameter)
        assert torch.equal(dict(plain.named_parameters())[name], parameter)


def test_saving_twice_gives_identical_bytes(tmp_path):
    tokenizer = build_tokenizer(VOCABULARY)
    for name in ("a", "b"):
        save_checkpoint(tmp_path / name, tiny_model(len(tokenizer)), tokenizer, VOCABULARY)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert "model.safetensors" in files
    assert all((tmp_path / "a" / f).read_bytes() == (tmp_path / "b" / f).read_bytes() for f in files)


def test_a_checkpoint_for_another_vocabulary_is_refused_with_the_way_out(tmp_path):
    tokenizer = build_tokenizer(VOCABULARY)
    save_checkpoint(tmp_path, tiny_model(len(tokenizer)), tokenizer, VOCABULARY)
    names = {kind: tuple(reversed(names)) for kind, names in VOCABULARY.entities.items()}
    other = Vocabulary(words=VOCABULARY.words, entities=names)
    assert vocabulary_digest(other) != vocabulary_digest(VOCABULARY), "the order of names decides their ids"
    with pytest.raises(ValueError, match="forkgym warmstart"):
        load_checkpoint(tmp_path, other)
    with pytest.raises(FileNotFoundError, match="not a tiny-policy checkpoint"):
        load_checkpoint(tmp_path / "elsewhere")


def test_the_first_layer_sees_three_tokens_only():
    """Changing a token changes the first layer's output up to two places later and no further."""
    model = tiny_model(40)
    states = {}
    model.model.layers[0].register_forward_hook(
        lambda module, inputs, output: states.update(last=output[0] if isinstance(output, tuple) else output)
    )
    tokens = torch.arange(2, 14)[None]
    with torch.no_grad():
        model(tokens)
        before = states["last"].clone()
        tokens[0, 4] = 30
        model(tokens)
    changed = np.flatnonzero((states["last"] != before).reshape(12, -1).any(dim=1).numpy())
    assert changed.tolist() == [4, 5, 6]
