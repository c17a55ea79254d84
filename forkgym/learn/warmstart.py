"""The tiny policy's warm start: imitate a scripted expert in false worlds, so that words are learned and facts are not.

Besides the checkpoint it measures what was learned: success by hops, and that answers are copied from what was read
(closed book, after one search, in a relabelled world). The training loop itself is in `sft.py`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from forkgym.core import TextEnv, UnknownArgumentError, make
from forkgym.learn.sft import Relabel, batches, render_demonstration, train_supervised
from forkgym.noise import KeyStream, Layout, episode_id, generator, stream_id
from forkgym.policy.chat import TinyRenderer
from forkgym.policy.engine import GenerationRequest, Sampling
from forkgym.policy.tiny import build_model, build_tokenizer, entity_groups, save_checkpoint
from forkgym.policy.torch_engine import TorchEngine
from forkgym.rollout.episode import EpisodeSpec, Rollout, drive, environment_seed, play_episode

__all__ = [
    "REPORT_FILE",
    "PolicyFigures",
    "SuccessRate",
    "WarmStartReport",
    "evaluate_policy",
    "read_report",
    "relabelling",
    "warm_start",
]

REPORT_FILE = "warmstart.json"
_MAX_TURN_TOKENS = 24
BATCH_SIZE = 32
"""Sequences of one step, unless told otherwise."""
_MAX_CONTEXT = 512
_SHOWN_LOSSES = 50


class SuccessRate(msgspec.Struct, frozen=True):
    """Successes by number of hops.

    Attributes:
        successes: Hops to successful episodes.
        episodes: Hops to episodes.
    """

    successes: dict[int, int]
    episodes: dict[int, int]

    @property
    def overall(self) -> float:
        """Share of successful episodes."""
        return sum(self.successes.values()) / sum(self.episodes.values())

    @property
    def multi_hop(self) -> float:
        """Share among questions of two and more hops (``nan`` when there are none)."""
        total = sum(count for hops, count in self.episodes.items() if hops > 1)
        return sum(count for hops, count in self.successes.items() if hops > 1) / total if total else float("nan")

    @property
    def one_hop_share(self) -> float:
        """Share of questions of at most one hop."""
        return sum(count for hops, count in self.episodes.items() if hops <= 1) / sum(self.episodes.values())

    def describe(self) -> str:
        """One line: overall, then by hops."""
        parts = [f"{hops} hops {self.successes[hops] / n:.2f} ({n})" for hops, n in sorted(self.episodes.items())]
        return f"{self.overall:.3f}  [" + ", ".join(parts) + "]"


class PolicyFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a tiny policy can do on held-out questions, and that it reads its answers rather than remembers them.

    Attributes:
        sampled: Success of sampled episodes (τ = 1).
        greedy: Success of greedy episodes.
        relabelled: Sampled success in a world whose names are permuted, or ``None`` where there is none.
        closed_book: Greedy success when the answer is forced in the first turn, before any search.
        one_search: Greedy success when the answer is forced in the second turn.
    """

    sampled: SuccessRate
    greedy: SuccessRate
    relabelled: SuccessRate | None
    closed_book: SuccessRate
    one_search: SuccessRate


class WarmStartReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a checkpoint was made and what it can do (written beside it; holds no times, so a rebuild is identical).

    Attributes:
        environment: Environment id.
        env_kwargs: Its keyword arguments.
        seed: Seed of demonstrations, initial weights and batches.
        steps: Optimiser steps.
        demonstrations: Number of expert episodes.
        error_rate: Probability of an expert's error in each turn.
        expert_utility: Mean utility of the demonstrations.
        batch_size: Sequences a step.
        learning_rate: Largest learning rate.
        parameters: Number of the model's parameters.
        vocabulary: V.
        loss: Mean cross-entropy of the last 50 steps, nats a token.
        split: Held-out split of the figures.
        figures: What the policy can do.
        weights: BLAKE2b-128 of the weights file.
        made_with: Versions of the libraries and the CPU capability that the weights' last bits depend on.
    """

    environment: str
    env_kwargs: dict[str, Any]
    seed: int
    steps: int
    demonstrations: int
    error_rate: float
    expert_utility: float
    batch_size: int
    learning_rate: float
    parameters: int
    vocabulary: int
    loss: float
    split: str
    figures: PolicyFigures
    weights: str
    made_with: dict[str, str]

    def lines(self) -> list[str]:
        """The report for a terminal."""
        figures = self.figures
        relabelled = "not available" if figures.relabelled is None else figures.relabelled.describe()
        share = figures.one_search.one_hop_share
        return [
            f"{self.environment} {self.env_kwargs}: {self.steps} steps on {self.demonstrations} demonstrations "
            f"(error rate {self.error_rate}, utility {self.expert_utility:.2f}), {self.parameters:,} parameters",
            f"loss                 {self.loss:.3f} nats a token",
            f"sampled              {figures.sampled.describe()}  multi-hop {figures.sampled.multi_hop:.3f}",
            f"greedy               {figures.greedy.describe()}  multi-hop {figures.greedy.multi_hop:.3f}",
            f"relabelled, sampled  {relabelled}",
            f"closed book          {figures.closed_book.describe()}  (at most 0.05 is wanted)",
            f"after one search     {figures.one_search.describe()}  (at most {share + 0.05:.3f} is wanted)",
        ]


def warm_start(
    env_id: str,
    env_kwargs: Mapping[str, Any],
    output: str | Path,
    *,
    seed: int = 0,
    steps: int = 800,
    demonstrations: int = 8_000,
    error_rate: float = 0.25,
    batch_size: int = BATCH_SIZE,
    learning_rate: float = 2e-3,
    evaluation_split: str = "test",
    evaluation_tasks: int = 400,
    relabelled_kwargs: Mapping[str, Any] | None = None,
    answer_word: str = "answer",
    progress: Callable[[str], None] | None = None,
) -> WarmStartReport:
    """Train a tiny policy on an environment's scripted expert, measure it, and write checkpoint and report.

    Every time a demonstration is used, its names are permuted within their types: each sequence tells of a false world
    of its own. One thread, so that the same arguments give the same bytes on the same kind of CPU.

    Args:
        env_id: Environment with ``vocabulary()`` and ``demonstrations()``.
        env_kwargs: Its keyword arguments.
        output: Directory of the checkpoint; files in it are overwritten.
        seed: Seed of everything.
        steps: Optimiser steps.
        demonstrations: Expert episodes to draw from.
        error_rate: Probability of an expert's error in each turn: what is left for reinforcement learning.
        batch_size: Sequences a step.
        learning_rate: Largest learning rate.
        evaluation_split: Held-out split of the report.
        evaluation_tasks: Most tasks a figure is measured on.
        relabelled_kwargs: Keyword arguments that make the same environment with permuted names; by default
            ``{"relabel": 1}`` where the environment takes it.
        answer_word: How the line begins that answers, for the closed-book figures.
        progress: Called with a line of text now and then.

    Returns:
        The report that was written.

    Raises:
        NotImplementedError: The environment offers no vocabulary or no demonstrations.
    """
    say = progress if progress is not None else _silent
    torch.set_num_threads(1)
    started = time.perf_counter()
    with closing(_text_env(env_id, env_kwargs)) as env:
        vocabulary = env.vocabulary()
        shown = env.demonstrations(demonstrations, seed=seed, error_rate=error_rate)
    tokenizer = build_tokenizer(vocabulary)
    renderer = TinyRenderer(tokenizer)
    sequences = [render_demonstration(demonstration, renderer) for demonstration in shown]
    utility = float(np.mean([demonstration.utility for demonstration in shown]))
    say(f"{demonstrations} demonstrations, mean utility {utility:.2f}, {time.perf_counter() - started:.0f} s")

    model = build_model(len(tokenizer), max_positions=_MAX_CONTEXT, seed=seed)
    table = relabelling(len(tokenizer), entity_groups(tokenizer, vocabulary))
    draws = generator(stream_id(0, 0, "warm start", seed))
    losses: list[float] = []

    def report_step(step: int, loss: float) -> None:
        losses.append(loss)
        if step % 100 == 0 or step == steps:
            mean = float(np.mean(losses[-_SHOWN_LOSSES:]))
            say(f"step {step} of {steps}, loss {mean:.3f}, {time.perf_counter() - started:.0f} s")

    source = batches(sequences, batch_size, draws, relabel=table)
    train_supervised(model, source, steps=steps, learning_rate=learning_rate, progress=report_step)
    save_checkpoint(output, model, tokenizer, vocabulary)

    figures = evaluate_policy(
        model,
        renderer,
        env_id,
        env_kwargs,
        split=evaluation_split,
        tasks=evaluation_tasks,
        seed=seed,
        relabelled_kwargs=_relabelled(env_id, env_kwargs) if relabelled_kwargs is None else relabelled_kwargs,
        answer_word=answer_word,
    )
    report = WarmStartReport(
        environment=env_id,
        env_kwargs=dict(env_kwargs),
        seed=seed,
        steps=steps,
        demonstrations=demonstrations,
        error_rate=error_rate,
        expert_utility=round(utility, 4),
        batch_size=batch_size,
        learning_rate=learning_rate,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        vocabulary=len(tokenizer),
        loss=round(float(np.mean(losses[-_SHOWN_LOSSES:])), 4),
        split=evaluation_split,
        weights=hashlib.blake2b((Path(output) / "model.safetensors").read_bytes(), digest_size=16).hexdigest(),
        made_with=_versions(),
        figures=figures,
    )
    (Path(output) / REPORT_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    say(f"{time.perf_counter() - started:.0f} s in all; checkpoint in {output}")
    return report


def read_report(checkpoint: str | Path) -> WarmStartReport:
    """The report beside a checkpoint."""
    return msgspec.json.decode((Path(checkpoint) / REPORT_FILE).read_bytes(), type=WarmStartReport)


def relabelling(vocabulary_size: int, groups: Sequence[Sequence[int]]) -> Relabel:
    """A function that draws a table ``int64[V]`` in which the ids of each group are permuted among themselves."""
    members = [np.array(group, dtype=np.int64) for group in groups]

    def draw(source: np.random.Generator) -> np.ndarray[Any, np.dtype[np.int64]]:
        table = np.arange(vocabulary_size, dtype=np.int64)
        for group in members:
            table[group] = source.permutation(group)
        return table

    return draw


def evaluate_policy(
    model: Any,
    renderer: TinyRenderer,
    env_id: str,
    env_kwargs: Mapping[str, Any],
    *,
    split: str,
    tasks: int,
    seed: int,
    relabelled_kwargs: Mapping[str, Any] | None,
    answer_word: str,
) -> PolicyFigures:
    """Measure a tiny policy.

    Args:
        model: The policy.
        renderer: Its renderer.
        env_id: Environment id.
        env_kwargs: Its keyword arguments.
        split: Split to measure on.
        tasks: Most tasks.
        seed: Seed of the choice of tasks and of the noise.
        relabelled_kwargs: See `warm_start`; ``None`` leaves the figure out.
        answer_word: How the line begins that answers.
    """
    engine = TorchEngine(model, renderer, device="cpu", max_context=_MAX_CONTEXT)
    with closing(_text_env(env_id, env_kwargs)) as probe:
        available = probe.splits[split]
    chosen = generator(stream_id(0, 0, "warm start tasks", seed)).permutation(available)[:tasks].tolist()
    sampled = Sampling(max_tokens=_MAX_TURN_TOKENS, stop_tokens=renderer.stop_tokens)
    greedy = msgspec.structs.replace(sampled, greedy=True)

    def played(kwargs: Mapping[str, Any], sampling: Sampling) -> SuccessRate:
        rollouts = (
            play_episode(
                _text_env(env_id, kwargs),
                EpisodeSpec(key=episode_id(seed, split, 0, task, 0), split=split, task=task),
                renderer=renderer,
                sampling=sampling,
                layout=Layout.TURN_LINE,
                release=engine.release,
                max_context=_MAX_CONTEXT,
                branchable=False,
            )
            for task in chosen
        )
        results = drive(engine, rollouts, max_running=engine.max_running)
        for result in results:
            result.close(engine)
        with closing(_text_env(env_id, kwargs)) as env:
            return _rate(_hops(env, split, chosen), [result.episode.success for result in results])

    def forced(free_turns: int) -> SuccessRate:
        rollouts = (
            _forced_answer(_text_env(env_id, env_kwargs), renderer, greedy, split, task, seed, free_turns, answer_word)
            for task in chosen
        )
        results = drive(engine, rollouts, max_running=engine.max_running)
        with closing(_text_env(env_id, env_kwargs)) as env:
            return _rate(_hops(env, split, chosen), results)

    return PolicyFigures(
        sampled=played(env_kwargs, sampled),
        greedy=played(env_kwargs, greedy),
        relabelled=None if relabelled_kwargs is None else played({**env_kwargs, **relabelled_kwargs}, sampled),
        closed_book=forced(0),
        one_search=forced(1),
    )


def _forced_answer(
    env: TextEnv,
    renderer: TinyRenderer,
    sampling: Sampling,
    split: str,
    task: int,
    seed: int,
    free_turns: int,
    answer_word: str,
) -> Rollout[bool]:
    """Play some turns freely; in the next, let it think up to the newline and force an answer: true when right."""
    key = episode_id(seed, split, 0, task, 0)
    env.reset(seed=environment_seed(key), options={"split": split, "task": task})
    context = renderer.prompt(env.messages())
    keys = KeyStream(Layout.TURN_LINE, key, newlines=renderer.newlines)
    newline = renderer.encode("\n")[0]
    for turn in range(free_turns + 1):
        keys.start_turn(turn, 0)
        begun: list[int] = []
        if turn == free_turns:
            until_newline = msgspec.structs.replace(sampling, stop_tokens=(*sampling.stop_tokens, newline))
            thought = yield GenerationRequest(context=context, keys=keys, sampling=until_newline, keep_cache=False)
            begun = [token for token in thought.tokens if token not in until_newline.stop_tokens]
            begun += [newline, *renderer.encode(answer_word)]
        completion = yield GenerationRequest(context=context + begun, keys=keys, sampling=sampling, keep_cache=False)
        text = renderer.decode(begun + completion.tokens)
        observation, _, terminated, truncated, info = env.step(text)
        if terminated or truncated:
            return bool(info.get("success"))
        closed = completion.tokens[-1] in renderer.stop_tokens
        context = context + completion.tokens + renderer.observation(observation, closed=closed)
    return False


def _hops(env: TextEnv, split: str, tasks: Sequence[int]) -> list[int]:
    """Number of hops of each task as the environment tells at reset (0 where it does not)."""
    return [int(env.reset(seed=0, options={"split": split, "task": task})[1].get("hops", 0)) for task in tasks]


def _rate(hops: Sequence[int], results: Sequence[bool]) -> SuccessRate:
    pairs = list(zip(hops, results, strict=True))
    kinds = sorted(set(hops))
    return SuccessRate(
        successes={kind: sum(bool(result) for h, result in pairs if h == kind) for kind in kinds},
        episodes={kind: sum(h == kind for h in hops) for kind in kinds},
    )


def _text_env(env_id: str, env_kwargs: Mapping[str, Any]) -> TextEnv:
    env = make(env_id, **env_kwargs)
    if not isinstance(env, TextEnv):
        raise TypeError(f"{env_id} is no TextEnv: the tiny policy speaks in words")
    return env


def _relabelled(env_id: str, env_kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
    try:
        _text_env(env_id, {**env_kwargs, "relabel": 1})
    except UnknownArgumentError:
        return None  # the environment has no relabelled twin; the report says so
    return {"relabel": 1}


def _versions() -> dict[str, str]:
    import transformers

    return {
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
        "numpy": np.__version__,
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


def _silent(line: str) -> None:
    del line
