"""Judge a saved policy: load it, build an engine, play held-out tasks. What evaluation is lives in ``evaluate``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from forkgym.core import ForkgymError
from forkgym.store import RunStore
from forkgym.train.build import build_engine, check_room, environment_maker, load_policy
from forkgym.train.config import ConfigError, EnvironmentConfig, PolicyConfig, TrainConfig, config_from_json
from forkgym.train.evaluate import EvaluationResult, Evaluator, merge_results
from forkgym.train.scripted import evaluate_scripted

__all__ = ["judge", "judge_scripted", "run_config", "run_policy"]


def judge(
    environment: EnvironmentConfig,
    policy: PolicyConfig,
    *,
    split: str = "test",
    tasks: int = 200,
    samples: int = 1,
    seed: int = 0,
    temperature: float = 1.0,
    top_p: float = 1.0,
) -> list[EvaluationResult]:
    """Sampled and greedy success of a policy.

    Args:
        environment: Which environment (its ``split`` is not used).
        policy: Which checkpoint and how it is run.
        split: Split that tasks come from, or ``all``: every split, each task counting once.
        tasks: Number of tasks of a split, from task 0 on; at most all of them.
        samples: Sampled episodes a task.
        seed: Seed of the sampled episodes' noise.
        temperature: τ of sampled episodes.
        top_p: Nucleus mass of sampled episodes.

    Returns:
        The sampled result, then the greedy one.

    Raises:
        ConfigError: No such checkpoint or split, or no room for a turn.
    """
    try:
        make_env = environment_maker(environment)
        env = make_env()
        try:
            splits = env.splits
        finally:
            env.close()
        chosen, problems = _choose_splits(splits, split)
        if problems:
            raise ConfigError(environment.id, problems)
        model, _, renderer = load_policy(policy, make_env)
        engine = build_engine(policy, model, renderer, version=0)
        for name in chosen:
            check_room(make_env, renderer, name, policy, engine.context_limit)
    except (ValueError, TypeError, OSError) as error:
        # Up to here everything depends on what was asked for, later errors are defects.
        if isinstance(error, ForkgymError):
            raise
        raise ConfigError(policy.checkpoint, [f"{str(error).rstrip('.')}."]) from error
    evaluator = Evaluator(
        engine,
        renderer,
        make_env,
        seed=seed,
        temperature=temperature,
        top_p=top_p,
        max_turn_tokens=policy.max_turn_tokens,
        max_context=engine.context_limit,
        max_running=policy.max_running,
    )
    numbers = {name: range(min(tasks, splits[name])) for name in chosen}
    return [
        merge_results([evaluator.evaluate(name, numbers[name], version=0, samples=samples) for name in chosen]),
        merge_results([evaluator.evaluate(name, numbers[name], version=0, greedy=True) for name in chosen]),
    ]


def judge_scripted(
    environment: EnvironmentConfig,
    policy: str,
    *,
    split: str = "test",
    tasks: int = 200,
    samples: int = 1,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> EvaluationResult:
    """Success of one of an environment's scripted policies.

    Args:
        environment: Which environment (its ``split`` is not used).
        policy: One of its ``scripted_policies``.
        split: Split that tasks come from, or ``all``: every split, each task counting once.
        tasks: Number of tasks of a split, from task 0 on; at most all of them.
        samples: Episodes a task.
        seed: Seed of the policy's draws.
        progress: Called with the number of episodes finished.

    Raises:
        ConfigError: No such environment, split or policy.
    """
    try:
        make_env = environment_maker(environment)
        env = make_env()
    except (ValueError, TypeError, OSError) as error:
        if isinstance(error, ForkgymError):
            raise
        raise ConfigError(environment.id, [f"{str(error).rstrip('.')}."]) from error
    with closing(env):
        splits, known = env.splits, env.scripted_policies
    chosen, problems = _choose_splits(splits, split)
    if policy not in known:
        problems.append(f"there is no scripted policy {policy!r}; there are {', '.join(known)}.")
    if problems:
        raise ConfigError(environment.id, problems)
    finished = 0

    def finish(_: int) -> None:
        nonlocal finished
        finished += 1
        if progress is not None:
            progress(finished)

    return merge_results(
        [
            evaluate_scripted(
                make_env,
                policy,
                split=name,
                tasks=range(min(tasks, splits[name])),
                samples=samples,
                seed=seed,
                progress=finish,
            )
            for name in chosen
        ]
    )


def _choose_splits(splits: dict[str, int], split: str) -> tuple[list[str], list[str]]:
    """The splits meant by a name (``all``: every one that has tasks), and what is wrong with it."""
    if split == "all" and "all" not in splits:
        chosen = [name for name, count in splits.items() if count]
        return chosen, [] if chosen else ["it has no tasks in any split."]
    if split not in splits:
        return [], [f"there is no split {split!r}; there are {', '.join(splits)} (or all)."]
    return [split], [] if splits[split] else [f"split {split!r} has no tasks."]


def run_config(directory: Path) -> TrainConfig:
    """The configuration that a run was started with.

    Raises:
        StoreError: There is no run, or its record cannot be read.
        ConfigError: It was written by an incompatible version.
    """
    with RunStore.open(directory) as store:
        return config_from_json(store.config)


def run_policy(directory: Path) -> Path:
    """Where a finished run keeps its trained policy.

    Raises:
        ConfigError: The run is not finished.
    """
    policy = directory / "policy"
    if not policy.is_dir():
        raise ConfigError(
            str(directory), ["this run has no trained policy yet; finish it by calling `forkgym train` again."]
        )
    return policy
