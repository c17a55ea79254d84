"""Judge a saved policy: load it, build an engine, play held-out tasks. What evaluation is lives in ``evaluate``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from forkgym.core import ForkgymError
from forkgym.store import RunStore
from forkgym.train.build import build_engine, check_room, environment_maker, load_policy
from forkgym.train.config import ConfigError, EnvironmentConfig, PolicyConfig, TrainConfig, config_from_json
from forkgym.train.evaluate import EvaluationResult, Evaluator
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
        split: Split that tasks come from.
        tasks: Number of tasks, from task 0 on; at most those of the split.
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
        if split not in splits:
            raise ConfigError(environment.id, [f"there is no split {split!r}; there are {', '.join(splits)}."])
        model, _, renderer = load_policy(policy, make_env)
        engine = build_engine(policy, model, renderer, version=0)
        check_room(make_env, renderer, split, policy, engine.context_limit)
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
    numbers = range(min(tasks, splits[split]))
    return [
        evaluator.evaluate(split, numbers, version=0, samples=samples),
        evaluator.evaluate(split, numbers, version=0, greedy=True),
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
        split: Split that tasks come from.
        tasks: Number of tasks, from task 0 on; at most those of the split.
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
    problems = []
    if split not in splits:
        problems.append(f"there is no split {split!r}; there are {', '.join(splits)}.")
    elif not splits[split]:
        problems.append(f"split {split!r} has no tasks.")
    if policy not in known:
        problems.append(f"there is no scripted policy {policy!r}; there are {', '.join(known)}.")
    if problems:
        raise ConfigError(environment.id, problems)
    return evaluate_scripted(
        make_env,
        policy,
        split=split,
        tasks=range(min(tasks, splits[split])),
        samples=samples,
        seed=seed,
        progress=progress,
    )


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
