"""Judge an environment's scripted policies (gold, random, an expert …) like a trained one, without any model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from forkgym.core import TextEnv
from forkgym.noise import episode_id, generator
from forkgym.rollout.episode import environment_seed
from forkgym.train.evaluate import EvaluationResult, mean_and_error

__all__ = ["evaluate_scripted"]


def evaluate_scripted(
    make_env: Callable[[], TextEnv],
    policy: str,
    *,
    split: str,
    tasks: Sequence[int],
    samples: int = 1,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> EvaluationResult:
    """Success of a scripted policy on tasks of a split.

    Args:
        make_env: Makes a fresh environment.
        policy: One of its ``scripted_policies``.
        split: Task split.
        tasks: Task numbers, at least one.
        samples: Episodes a task.
        seed: Seed of the policy's draws; the same for every environment of the same task and sample.
        progress: Called with the number of episodes finished.

    Raises:
        ValueError: No tasks or samples, or no such policy.
    """
    if not tasks or samples < 1:
        raise ValueError(f"evaluation needs at least one task and one sample, got {len(tasks)} and {samples}")
    successes = [0] * len(tasks)
    failures: Counter[str] = Counter()
    utility, turns, finished = 0.0, 0, 0
    env = make_env()
    try:
        for place, task in enumerate(tasks):
            for member in range(samples):
                key = episode_id(seed, f"evaluation/{split}", 0, task, member)
                success, earned, length, failure = _play(env, policy, key, split, task)
                successes[place] += success
                utility, turns, finished = utility + earned, turns + length, finished + 1
                if not success and failure:
                    failures[failure] += 1
                if progress is not None:
                    progress(finished)
    finally:
        env.close()
    per_task = [count / samples for count in successes]
    mean, error = mean_and_error(per_task)
    return EvaluationResult(
        split=split,
        mode=policy,
        success=mean,
        standard_error=error,
        utility=utility / finished,
        turns=turns / finished,
        tokens=0.0,
        per_task=per_task,
        samples=samples,
        failures=dict(sorted(failures.items())),
    )


def _play(env: TextEnv, policy: str, key: int, split: str, task: int) -> tuple[bool, float, int, str]:
    """Success, utility, turns and the failure's name of one episode."""
    env.reset(seed=environment_seed(key), options={"split": split, "task": task})
    rng = generator(key)
    earned, length = 0.0, 0
    while True:
        _, reward, terminated, truncated, info = env.step(env.scripted_action(policy, rng))
        earned, length = earned + float(reward), length + 1
        if terminated or truncated:
            return bool(info.get("success", earned > 0.5)), earned, length, str(info.get("failure", ""))
