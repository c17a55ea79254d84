"""Small vocabularies, models and requests for the policy tests; nothing here is a test."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from forkgym.core.text import Vocabulary
from forkgym.noise import KeyStream, Layout
from forkgym.policy.engine import GenerationRequest, Sampling
from forkgym.policy.tiny import build_model

VOCABULARY = Vocabulary(
    words=("search", "answer", "what", "is", "the", "capital", "of", "a", ".", "?", ":", "so"),
    entities={
        "country": ("Guinea", "Equatorial Guinea", "Guinea-Bissau", "France", "United Arab Emirates", "Papua"),
        "city": ("Paris", "Saint John's", "Port-au-Prince", "New York City", "A Coruña"),
        "code": ("+33", "+1 684", "420,000"),
    },
)

PROMPT = [{"role": "user", "content": "what is the capital of France ?"}]


def tiny_model(vocabulary_size: int = 97, *, seed: int = 0, **options: Any) -> Any:
    """An untrained tiny policy with sharp enough logits that its samples differ."""
    model = build_model(vocabulary_size, hidden_size=32, heads=4, max_positions=128, seed=seed, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.5)
    return model.eval()


def family_model(family: str) -> Any:
    """A random two-layer model with grouped-query attention, of a family the invariant pass claims to know."""
    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "vocab_size": 61,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "initializer_range": 0.15,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": 1,
        "tie_word_embeddings": False,
    }
    if family == "llama":
        model: Any = LlamaForCausalLM(LlamaConfig(**shape, attention_bias=True, mlp_bias=True))
    elif family == "llama3-rope":
        rope = {
            "rope_type": "llama3",
            "rope_theta": 10_000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        }
        model = LlamaForCausalLM(LlamaConfig(**shape, rope_parameters=rope))
    elif family == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**shape))
    else:
        return tiny_model(61)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bias" in name or "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.eval()


def make_request(
    context: list[int],
    *,
    episode: int = 1,
    turn: int = 0,
    stream: int = 0,
    vocabulary_size: int = 97,
    sampling: Sampling | None = None,
    **options: Any,
) -> GenerationRequest:
    """A request whose key stream stands at the beginning of its turn."""
    newlines = np.zeros(vocabulary_size, dtype=np.uint8)
    newlines[4:5] = 1
    keys = KeyStream(Layout.TURN_LINE, episode, newlines=newlines)
    keys.start_turn(turn, stream)
    return GenerationRequest(
        context=list(context), keys=keys, sampling=sampling or Sampling(max_tokens=8, stop_tokens=(1,)), **options
    )


def mixed_contexts(count: int, *, seed: int, vocabulary_size: int = 97, longest: int = 40) -> list[list[int]]:
    """Random contexts of mixed lengths."""
    source = np.random.default_rng(seed)
    return [source.integers(2, vocabulary_size, size=source.integers(1, longest + 1)).tolist() for _ in range(count)]
