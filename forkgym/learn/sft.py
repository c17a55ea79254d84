"""Supervised learning on written turns: sequences, batches and the training loop (cross-entropy on the turns alone).

Where demonstrations come from, and what the result is worth, is the caller's affair; see `warmstart.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import cross_entropy

from forkgym.core.text import Demonstration
from forkgym.policy.chat import Renderer

__all__ = ["SupervisedBatch", "SupervisedSequence", "batches", "render_demonstration", "train_supervised"]

IntArray = npt.NDArray[np.int64]
Relabel = Callable[[np.random.Generator], IntArray | None]


class SupervisedSequence(msgspec.Struct, frozen=True):
    """One demonstration as token ids.

    Attributes:
        tokens: ``int64[L]``: prompt, turns and observations.
        written: ``bool[L]``: true for tokens of turns; only they are learned.
    """

    tokens: IntArray
    written: npt.NDArray[np.bool_]


class SupervisedBatch(msgspec.Struct, frozen=True):
    """Right-padded sequences.

    Attributes:
        tokens: ``int64[B, L]``; 0 after a sequence's end.
        written: ``bool[B, L]``; false after a sequence's end.
    """

    tokens: IntArray
    written: npt.NDArray[np.bool_]


def render_demonstration(demonstration: Demonstration, renderer: Renderer) -> SupervisedSequence:
    """Token ids of a demonstration, put together exactly as an episode is (prompt, turn, observation, turn, …).

    Args:
        demonstration: Prompt, turns and observations as text.
        renderer: The policy's renderer.
    """
    tokens = renderer.prompt(demonstration.prompt)
    written = [False] * len(tokens)
    last = len(demonstration.turns) - 1
    for index, (text, observation) in enumerate(demonstration.turns):
        turn = renderer.written(text)
        answer = renderer.observation(observation) if index < last else []
        tokens += [*turn, *answer]
        written += [True] * len(turn) + [False] * len(answer)
    return SupervisedSequence(np.array(tokens, dtype=np.int64), np.array(written))


def batches(
    sequences: Sequence[SupervisedSequence],
    batch_size: int,
    generator: np.random.Generator,
    *,
    relabel: Relabel | None = None,
    chunk: int = 16,
) -> Iterator[SupervisedBatch]:
    """Endless batches; each round draws ``chunk`` batches without replacement and groups them by length.

    Args:
        sequences: What to draw from.
        batch_size: Sequences a batch.
        generator: Source of every draw.
        relabel: Draws a table ``int64[V]`` for one sequence; its tokens ``t`` become ``table[t]``. ``None`` (from the
            function, too) leaves them as they are.
        chunk: Batches a round.

    Raises:
        ValueError: There are no sequences, or fewer than a batch.
    """
    if len(sequences) < batch_size:
        raise ValueError(f"{len(sequences)} demonstrations are fewer than one batch of {batch_size}: make more")
    while True:
        drawn = generator.permutation(len(sequences))[: chunk * batch_size]
        drawn = np.array(sorted(drawn.tolist(), key=lambda index: len(sequences[index].tokens)))
        groups = [drawn[at : at + batch_size] for at in range(0, len(drawn) - batch_size + 1, batch_size)]
        for group in generator.permutation(len(groups)):
            members = [sequences[index] for index in groups[group]]
            length = max(len(member.tokens) for member in members)
            tokens = np.zeros((batch_size, length), dtype=np.int64)
            written = np.zeros((batch_size, length), dtype=np.bool_)
            for row, member in enumerate(members):
                table = relabel(generator) if relabel is not None else None
                size = len(member.tokens)
                tokens[row, :size] = member.tokens if table is None else table[member.tokens]
                written[row, :size] = member.written
            yield SupervisedBatch(tokens, written)


def train_supervised(
    model: Any,
    source: Iterable[SupervisedBatch],
    *,
    steps: int,
    learning_rate: float = 2e-3,
    warmup: int = 40,
    weight_decay: float = 0.01,
    clip: float = 1.0,
    progress: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Minimise the cross-entropy of written tokens with AdamW; the learning rate falls linearly over the second half.

    With one thread on a CPU the result is a function of the arguments, bit for bit on the same kind of CPU.

    Args:
        model: A Hugging Face causal language model; trained in place.
        source: Batches; ``steps`` of them are taken.
        steps: Optimiser steps.
        learning_rate: Largest learning rate.
        warmup: Steps over which it rises.
        weight_decay: AdamW's.
        clip: Largest gradient norm.
        progress: Called with (step, loss in nats a token) after each step.

    Returns:
        The loss of each step.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=learning_rate, betas=(0.9, 0.98), weight_decay=weight_decay)
    device = parameters[0].device
    model.train()
    losses: list[float] = []
    for step, batch in enumerate(source):
        if step == steps:
            break
        for group in optimiser.param_groups:
            group["lr"] = learning_rate * _schedule(step, steps, warmup)
        tokens = torch.from_numpy(batch.tokens).to(device)
        learned = torch.from_numpy(batch.written[:, 1:]).to(device)
        states = model.model(input_ids=tokens[:, :-1], use_cache=False).last_hidden_state
        loss = cross_entropy(model.lm_head(states[learned]), tokens[:, 1:][learned])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(parameters, clip)
        optimiser.step()
        losses.append(float(loss.detach()))
        if progress is not None:
            progress(step + 1, losses[-1])
    model.eval()
    return losses


def _schedule(step: int, steps: int, warmup: int) -> float:
    """Factor of the learning rate: linear warm-up, flat, then linear to 5 % over the second half."""
    rise = min(1.0, (step + 1) / max(1, warmup))
    fall = 1.0 if 2 * step < steps else max(0.05, 2.0 - 2.0 * step / steps)
    return rise * fall
