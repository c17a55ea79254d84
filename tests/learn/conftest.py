"""A random tiny policy (two layers, the first with a window of three tokens) and random traces to train it on."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import transformers

from forkgym.learn.batch import TrainingSequence, training_sequences
from forkgym.rollout.trace import Episode, Turn

VOCABULARY = 300


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def build_model(seed: int = 0, hidden: int = 32, attention: str = "sdpa"):
    config = transformers.Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        tie_word_embeddings=True,
        max_position_embeddings=512,
        initializer_range=0.7 / hidden**0.5,
        use_sliding_window=True,
        sliding_window=3,
        max_window_layers=0,
        layer_types=["sliding_attention", "full_attention"],
        attn_implementation=attention,
    )
    torch.manual_seed(seed)
    return transformers.Qwen2ForCausalLM(config).eval()


@pytest.fixture
def make_model() -> Callable[..., object]:
    return build_model


def build_episodes(count: int, seed: int = 0, turns: int = 3, vocabulary: int = VOCABULARY) -> list[Episode]:
    rng = random.Random(seed)

    def ids(low: int, high: int) -> list[int]:
        return [rng.randrange(vocabulary) for _ in range(rng.randint(low, high))]

    episodes = []
    for number in range(count):
        prompt, played = ids(3, 9), []
        context = len(prompt)
        for index in range(rng.randint(1, turns)):
            tokens, observation = ids(1, 6), ids(0, 8)
            played.append(
                Turn(
                    index=index,
                    context_length=context,
                    tokens=tokens,
                    logprobs=[-rng.random() * 5 for _ in tokens],
                    entropies=[1.0] * len(tokens),
                    gini_impurities=[0.5] * len(tokens),
                    finish_reason="stop",
                    text="",
                    action=None,
                    action_kind="search",
                    observation="",
                    observation_tokens=observation,
                    evidence=None,
                    reward=0.0,
                    terminal=False,
                )
            )
            context += len(tokens) + len(observation)
        episodes.append(
            Episode(
                key=1000 + number,
                environment="test",
                split="train",
                task=number // 4,
                update=0,
                group=number // 4,
                member=number % 4,
                version=0,
                prompt_tokens=prompt,
                turns=played,
                utility=rng.random(),
                success=False,
            )
        )
    return episodes


def build_sequences(count: int, seed: int = 0, zero_every: int = 0) -> list[TrainingSequence]:
    episodes = build_episodes(count, seed)
    rng = random.Random(seed + 1)
    advantages = [[rng.gauss(0, 1) for _ in episode.turns] for episode in episodes]
    if zero_every:
        advantages[::zero_every] = [[0.0] * len(row) for row in advantages[::zero_every]]
    return training_sequences(episodes, advantages)


@pytest.fixture
def make_episodes() -> Callable[..., list[Episode]]:
    return build_episodes


@pytest.fixture
def make_sequences() -> Callable[..., list[TrainingSequence]]:
    return build_sequences
