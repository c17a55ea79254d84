"""How many tokens a second the torch engine decodes on one core, against a plain Hugging Face loop in the same run.

Run it as ``python -m bench engine_throughput [--json]``. The model is an untrained tiny policy of the size that ships
with Atlas, or ``--model DIRECTORY``. The engine samples by keyed noise and records log-probabilities, entropies and
Gini impurities; the plain loop samples by ``torch.multinomial`` and records nothing. Mismatches are counted too: how
many tokens change when requests are served together rather than one at a time.
"""

from __future__ import annotations

import argparse
import inspect
import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from forkgym.noise import KeyStream, Layout
from forkgym.policy.engine import GenerationRequest, Sampling

BATCHES = (1, 4, 16, 64)
PROMPT = 8
VOCABULARY = 1836


def requests_of(batch: int, tokens: int, vocabulary: int, *, mixed: bool = False) -> list[GenerationRequest]:
    """Turns of random prompts; with ``mixed`` the prompts' lengths differ."""
    rng = np.random.default_rng(0)
    newlines = np.zeros(vocabulary, dtype=np.uint8)
    made = []
    for number in range(batch):
        keys = KeyStream(Layout.TURN_LINE, number, newlines=newlines)
        keys.start_turn(0, 0)
        length = int(rng.integers(1, 48)) if mixed else PROMPT
        context = rng.integers(2, vocabulary, size=length).tolist()
        sampling = Sampling(max_tokens=tokens)
        made.append(GenerationRequest(context=context, keys=keys, sampling=sampling, keep_cache=False))
    return made


def engine_seconds(engine: Any, batch: int, tokens: int, vocabulary: int) -> float:
    """Seconds to decode ``tokens`` tokens for each of ``batch`` turns."""
    from forkgym.policy.serving import generate

    requests = requests_of(batch, tokens, vocabulary)
    start = time.perf_counter()
    generate(engine, requests)
    return time.perf_counter() - start


def plain_seconds(model: Any, batch: int, tokens: int, vocabulary: int) -> float:
    """The same by the model's own forward pass, a growing cache and ``torch.multinomial``."""
    import torch
    from transformers import DynamicCache

    name = "cache" if "cache" in inspect.signature(type(model).forward).parameters else "past_key_values"
    ids = torch.randint(2, vocabulary, (batch, PROMPT))
    cache = DynamicCache()
    start = time.perf_counter()
    with torch.no_grad():
        for _ in range(tokens):
            logits = model(input_ids=ids, use_cache=True, **{name: cache}).logits[:, -1]
            ids = torch.multinomial(torch.softmax(logits, dim=-1), 1)
    return time.perf_counter() - start


def measure(model: Any, *, tokens: int, repeats: int, batches: Sequence[int] = BATCHES) -> dict[str, Any]:
    """Throughput at each batch size (best of ``repeats``, taking turns) and mismatch counts."""
    from forkgym.policy.serving import measure_mismatch
    from forkgym.policy.torch_engine import TorchEngine

    vocabulary = int(model.config.vocab_size)
    context = PROMPT + tokens + 64
    engines = {batch: TorchEngine(model, max_running=batch, max_context=context, device="cpu") for batch in batches}
    best = {(kind, batch): float("inf") for kind in ("engine", "plain") for batch in batches}
    for _ in range(repeats):
        for batch in batches:
            ours = engine_seconds(engines[batch], batch, tokens, vocabulary)
            plain = plain_seconds(model, batch, tokens, vocabulary)
            best["engine", batch] = min(best["engine", batch], ours)
            best["plain", batch] = min(best["plain", batch], plain)
    speed = {kind: {str(b): round(b * tokens / best[kind, b], 1) for b in batches} for kind in ("engine", "plain")}
    mismatches = {}
    for forward in dict.fromkeys([engines[batches[-1]].forward, "huggingface"]):
        engine = TorchEngine(model, max_context=context, forward=forward, device="cpu")
        report = measure_mismatch(engine, requests_of(16, min(tokens, 32), vocabulary, mixed=True))
        mismatches[forward] = {
            "tokens": report.tokens,
            "changed_tokens": report.changed_tokens,
            "identical": report.identical,
        }
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "forward": engines[batches[-1]].forward,
        "product_mode": engines[batches[-1]].product_mode,
        "batch_invariant": engines[batches[-1]].batch_invariant,
        "tokens_per_second": speed,
        "ratio_to_plain": {str(b): round(best["plain", b] / best["engine", b], 2) for b in batches},
        "ratio_to_batch_1": {str(b): round(b * best["engine", batches[0]] / best["engine", b], 2) for b in batches},
        "mismatches": mismatches,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; with ``--json`` the last line is one JSON object."""
    parser = argparse.ArgumentParser(prog="bench engine_throughput", description=__doc__)
    parser.add_argument("--model", help="directory of a Hugging Face checkpoint (float32 on the CPU)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens decoded for each turn")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each; the best counts")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    arguments = parser.parse_args(argv)

    import torch

    torch.set_num_threads(1)
    if arguments.model:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    else:
        from forkgym.policy.tiny import build_model

        model = build_model(VOCABULARY).eval()
    result = measure(model, tokens=arguments.tokens, repeats=arguments.repeats)
    print(f"{result['parameters']:,} parameters, {result['forward']} forward, products {result['product_mode']}")
    print(f"{'batch':>6} {'engine tok/s':>13} {'plain tok/s':>12} {'engine/plain':>13} {'vs batch 1':>11}")
    for batch in result["ratio_to_plain"]:
        print(
            f"{batch:>6} {result['tokens_per_second']['engine'][batch]:>13,.0f} "
            f"{result['tokens_per_second']['plain'][batch]:>12,.0f} {result['ratio_to_plain'][batch]:>12.2f}× "
            f"{result['ratio_to_batch_1'][batch]:>10.1f}×"
        )
    for forward, counts in result["mismatches"].items():
        same = "all log-probabilities equal" if counts["identical"] else "log-probabilities differ in the last bits"
        print(f"{forward}: {counts['changed_tokens']} of {counts['tokens']} tokens changed by companions, {same}")
    if arguments.json:
        print(json.dumps({"bench": "engine_throughput", **result}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
