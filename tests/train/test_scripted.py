"""Scripted policies are judged like trained ones, without a model."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

import forkgym
from forkgym.core import TextEnv
from forkgym.train.config import ConfigError, EnvironmentConfig
from forkgym.train.evaluate import merge_results
from forkgym.train.judge import judge_scripted
from forkgym.train.scripted import evaluate_scripted


class Guess(TextEnv):
    """Say the task's number; a policy that knows it, one that never does, and chance."""

    tools: ClassVar[list[dict[str, Any]]] = [
        {
            "name": "say",
            "description": "",
            "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
        }
    ]
    max_turns = 2
    scripted_policies = ("gold", "wrong", "random")
    splits: ClassVar[dict[str, int]] = {"train": 4, "test": 4}
    _task = 0

    def _reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        _, self._task = self.pick_task(seed, options)
        return "say the number", {}

    def _step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        right = action["arguments"].get("number") == self._task
        info = {"action_kind": "answer", "evidence": None, "success": right}
        return "", float(right), True, False, info if right else info | {"failure": "wrong number"}

    def _get_state(self) -> Any:
        return self._task

    def _set_state(self, state: Any) -> None:
        self._task = state

    def sample_action(self, rng: np.random.Generator) -> Any:
        return {"tool": "say", "arguments": {"number": int(rng.integers(4))}}

    def scripted_action(self, name: str, rng: np.random.Generator) -> Any:
        if name in ("gold", "wrong"):
            return {"tool": "say", "arguments": {"number": self._task + (name == "wrong")}}
        return super().scripted_action(name, rng)


def test_gold_solves_all_wrong_nothing_and_failures_are_counted() -> None:
    gold = evaluate_scripted(Guess, "gold", split="test", tasks=range(4), samples=3)
    assert (gold.success, gold.successes, gold.failures, gold.turns) == (1.0, [3, 3, 3, 3], {}, 1.0)
    wrong = evaluate_scripted(Guess, "wrong", split="test", tasks=range(4), samples=3)
    assert (wrong.success, wrong.successes, wrong.failures) == (0.0, [0, 0, 0, 0], {"wrong number": 12})


def test_chance_succeeds_at_its_rate_and_is_the_same_twice() -> None:
    """1,000 episodes at 1/4: the bounds are 4.4 standard errors, an error rate of 1e-5."""
    first = evaluate_scripted(Guess, "random", split="test", tasks=range(4), samples=250, seed=1)
    assert 0.19 <= first.success <= 0.31
    assert evaluate_scripted(Guess, "random", split="test", tasks=range(4), samples=250, seed=1) == first
    assert evaluate_scripted(Guess, "random", split="test", tasks=range(4), samples=250, seed=2) != first


def test_every_text_environment_plays_at_random() -> None:
    env = EnvironmentConfig(id="toy/Chain-v0")
    result = judge_scripted(env, "random", tasks=3, samples=2)
    assert (result.mode, result.samples, len(result.per_task)) == ("random", 2, 3)


def test_all_splits_are_judged_together_each_task_counting_once() -> None:
    env = EnvironmentConfig(id="toy/Chain-v0")
    together = judge_scripted(env, "random", split="all", tasks=3, samples=4)
    splits = [name for name, count in forkgym.make("toy/Chain-v0").unwrapped.splits.items() if count]
    single = [judge_scripted(env, "random", split=name, tasks=3, samples=4) for name in splits]
    assert together.per_task == [share for one in single for share in one.per_task]
    assert together.success == pytest.approx(np.mean(together.per_task))
    assert together.turns == pytest.approx(
        sum(one.turns * len(one.per_task) for one in single) / len(together.per_task)
    )


def test_only_alike_results_can_be_merged() -> None:
    one = evaluate_scripted(Guess, "gold", split="test", tasks=range(4))
    other = evaluate_scripted(Guess, "wrong", split="test", tasks=range(4))
    for results in ([], [one, other]):
        with pytest.raises(ValueError, match="one mode"):
            merge_results(results)


def test_what_does_not_exist_is_named_with_what_does() -> None:
    env = EnvironmentConfig(id="toy/Chain-v0")
    with pytest.raises(ConfigError, match=r"no scripted policy 'gold'; there are random"):
        judge_scripted(env, "gold")
    with pytest.raises(ConfigError, match="no split 'tset'"):
        judge_scripted(env, "random", split="tset")
    with pytest.raises(ValueError, match="no scripted policy 'gold'"):
        forkgym.make("toy/Chain-v0").unwrapped.scripted_action("gold", np.random.default_rng(0))
    with pytest.raises(ValueError, match="at least one task"):
        evaluate_scripted(Guess, "gold", split="test", tasks=[])
