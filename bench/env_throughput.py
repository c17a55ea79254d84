"""Steps per second through forkgym.make, against the environment's bare code and against CartPole.

``python -m bench env_throughput [--env ID] [--seconds 1] [--json]``. The same actions are played in all ways; the
share of speed that recording and hashing leave is the figure to quote.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

import forkgym
from forkgym.core.portable import from_portable
from forkgym.report.tables import render_table

from ._environments import chosen, draw_action, example

BASELINE = "CartPole-v1"


def recorded_episodes(env: Any, count: int, longest: int = 200) -> list[tuple[int, list[Any]]]:
    """Seeds and actions of random episodes, in the form that the environment's own code gets them."""
    episodes = []
    for seed in range(count):
        rng = np.random.default_rng(seed)
        env.reset(seed=seed)
        for _ in range(longest):
            _, _, terminated, truncated, _ = env.step(draw_action(env, rng))
            if terminated or truncated:
                break
        actions = [from_portable(action) for action in env.handle().actions]
        if isinstance(env, forkgym.TextEnv):
            actions = [env.parse(action) if isinstance(action, str) else action for action in actions]
        episodes.append((seed, actions))
    return episodes


def steps_per_second(
    reset: Callable[[int], Any], step: Callable[[Any], Any], episodes: list[tuple[int, list[Any]]], seconds: float
) -> float:
    """Steps per second of stepping alone; resets are not timed."""
    steps, spent = 0, 0.0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        for seed, actions in episodes:
            reset(seed)
            started = time.perf_counter()
            for action in actions:
                step(action)
            spent += time.perf_counter() - started
            steps += len(actions)
    return steps / spent


def measure(env_id: str, seconds: float) -> dict[str, Any]:
    """Steps per second of one environment, recorded and bare."""
    env, bare = example(env_id), example(env_id)
    try:
        episodes = recorded_episodes(env, 8)
        recorded = steps_per_second(lambda seed: env.reset(seed=seed), env.step, episodes, seconds)
        # The author's own code without recording, hashing and checks: what any environment would have to do.
        own_step = bare._step if isinstance(bare, forkgym.Env) else bare.unwrapped.step
        own = steps_per_second(lambda seed: bare.reset(seed=seed), own_step, episodes, seconds)
    finally:
        env.close()
        bare.close()
    return {
        "env": env_id,
        "steps_per_second": round(recorded),
        "bare_steps_per_second": round(own),
        "share_of_bare": round(recorded / own, 3),
        "overhead_us": round((1 / recorded - 1 / own) * 1e6, 1),
    }


def baseline(seconds: float) -> float:
    """Steps per second of Gymnasium's CartPole as ``gymnasium.make`` returns it."""
    env = gymnasium.make(BASELINE)
    rng = np.random.default_rng(0)
    episodes = []
    for seed in range(8):
        env.reset(seed=seed)
        actions, ended = [], False
        while not ended:
            actions.append(int(rng.integers(2)))
            _, _, terminated, truncated, _ = env.step(actions[-1])
            ended = terminated or truncated
        episodes.append((seed, actions))
    rate = steps_per_second(lambda seed: env.reset(seed=seed), env.step, episodes, seconds)
    env.close()
    return rate


def main(argv: Sequence[str]) -> int:
    """Run the bench; returns 0."""
    parser = argparse.ArgumentParser(prog="bench env_throughput", description=__doc__)
    parser.add_argument("--env", action="append", metavar="ID", help="only this environment; may be repeated")
    parser.add_argument("--seconds", type=float, default=1.0, help="time per environment and way (default 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    options = parser.parse_args(argv)
    if not options.seconds > 0:
        parser.error("--seconds must be greater than 0")
    reference = baseline(options.seconds)
    results = [measure(env_id, options.seconds) for env_id in chosen(options.env)]
    for result in results:
        result["relative_to_cartpole"] = round(result["steps_per_second"] / reference, 3)
    print(render_table(results, title=f"{BASELINE} through gymnasium.make: {reference:,.0f} steps/s"))
    if options.json:
        document = {"bench": "env_throughput", "cartpole_steps_per_second": round(reference), "results": results}
        print(json.dumps(document))
    return 0
