"""How fast does the learner train? Packed rows against padded rows against one sequence at a time, in one run.

The model is the tiny policy's configuration with random weights; sequences have the shape of tool-use episodes.
``naive`` is what a plain loop does: one forward and backward pass per sequence with the logits of every token.
Seconds are CPU seconds of this process (other work on the machine does not count), medians of rounds in turn.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from forkgym.learn import Learner, LearnerConfig, TrainingSequence
from forkgym.rollout.plan import ClippedSurrogate

VOCABULARY = 1500


def build_model(hidden: int = 128) -> torch.nn.Module:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        tie_word_embeddings=True,
        max_position_embeddings=2048,
        initializer_range=0.7 / hidden**0.5,
        use_sliding_window=True,
        sliding_window=3,
        max_window_layers=0,
        layer_types=["sliding_attention", "full_attention"],
    )
    model: torch.nn.Module = Qwen2ForCausalLM(config)
    return model.eval()


def build_sequences(count: int, spread: str) -> list[TrainingSequence]:
    """``even``: 87 to 125 tokens, about 26 of them sampled; ``skewed``: 40 to 640, most of them short."""
    rng = random.Random(0)
    sequences = []
    for number in range(count):
        length = rng.randint(87, 125) if spread == "even" else min(640, int(40 * rng.paretovariate(1.1)))
        mask, turns, turn = [False] * 12, [-1] * 12, 0
        while len(mask) < length:
            sampled, observed = rng.randint(5, 9), rng.randint(18, 26)
            mask += [True] * sampled + [False] * observed
            turns += [turn] * sampled + [-1] * observed
            turn += 1
        last = max(i for i, flag in enumerate(mask[:length]) if flag) + 1
        mask, turns = mask[:last], turns[:last]
        sequences.append(
            TrainingSequence(
                key=number,
                group=number // 5,
                member=number % 5,
                tokens=[rng.randrange(VOCABULARY) for _ in mask],
                action_mask=mask,
                advantages=[rng.gauss(0, 1) if flag else 0.0 for flag in mask],
                behaviour_logprobs=[-7.0 if flag else 0.0 for flag in mask],
                turns=turns,
            )
        )
    return sequences


def naive_update(model: torch.nn.Module, optimiser: torch.optim.Optimizer, batch: Sequence[TrainingSequence]) -> None:
    """The same gradient, one sequence at a time."""
    optimiser.zero_grad()
    for sequence in batch:
        ids = torch.tensor([sequence.tokens])
        logs = torch.log_softmax(model(input_ids=ids).logits[0, :-1].float(), dim=-1)
        chosen = logs.gather(1, ids[0, 1:, None])[:, 0]
        advantages = torch.tensor(sequence.advantages[1:])
        ratio = (chosen - chosen.detach()).exp()
        clipped = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        (-clipped.sum() / (len(batch) * 32.0)).backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()


def measure(runs: dict[str, Callable[[], Any]], tokens: int, repeats: int) -> dict[str, float]:
    """Median tokens per CPU second of each, taking turns so that other load hits all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats + 1):
        for name, run in runs.items():
            start = time.process_time()
            run()
            seconds[name].append(time.process_time() - start)
    return {name: tokens / statistics.median(values[1:]) for name, values in seconds.items()}


def run_case(spread: str, count: int, repeats: int, widths: Sequence[int], threads: int) -> dict[str, Any]:
    sequences = build_sequences(count, spread)
    tokens = sum(len(sequence.tokens) for sequence in sequences)
    runs: dict[str, Callable[[], Any]] = {}
    padding: dict[str, float] = {}

    def learn(learner: Learner, name: str) -> None:
        metrics = learner.update(sequences, learner.counters.last_update + 1)
        padding[name] = metrics.padding

    variants: dict[str, dict[str, Any]] = {
        "auto": {},
        **{f"packed-{width}": {"packing": "packed", "row_tokens": width} for width in widths},
        "padded": {"packing": "padded"},
    }
    for name, settings in variants.items():
        config = LearnerConfig(device="cpu", threads=threads, **settings)
        learner = Learner(build_model(), ClippedSurrogate(), config)
        runs[name] = lambda learner=learner, name=name: learn(learner, name)  # type: ignore[misc]
    naive = build_model()
    optimiser = torch.optim.AdamW(naive.parameters(), lr=3e-4)
    runs["naive"] = lambda: naive_update(naive, optimiser, sequences)
    rates = measure(runs, tokens, repeats)
    best = max((name for name in rates if name.startswith("packed")), key=rates.__getitem__)
    return {
        "sequences": count,
        "tokens": tokens,
        "tokens_per_cpu_second": {name: round(rate) for name, rate in rates.items()},
        "padding": {name: round(share, 3) for name, share in padding.items()},
        "best_packed": best,
        "auto_over_naive": round(rates["auto"] / rates["naive"], 2),
        "packed_over_padded": round(rates[best] / rates["padded"], 2),
        "packed_over_naive": round(rates[best] / rates["naive"], 2),
        "padded_over_naive": round(rates["padded"] / rates["naive"], 2),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench learner", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--sequences", type=int, default=160)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 256, 512])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    result: dict[str, Any] = {"bench": "learner", "torch": torch.__version__, "threads": options.threads, "cases": {}}
    for spread in ("even", "skewed"):
        case = run_case(spread, options.sequences, options.repeats, options.widths, options.threads)
        result["cases"][spread] = case
        print(f"{spread}: {case['sequences']} sequences, {case['tokens']} tokens; forward, backward and AdamW")
        rates = case["tokens_per_cpu_second"]
        for name, rate in rates.items():
            share = f", {case['padding'][name]:.0%} padding" if name in case["padding"] else ""
            print(f"  {name:<12} {rate:>8,} tokens/CPU-s  {rate / rates['naive']:.2f}× naive{share}")
    if options.json:
        print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
