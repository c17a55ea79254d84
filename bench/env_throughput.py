"""Steps per second through forkgym.make, against the bare code and CartPole; what resets, forks and snapshots cost.

``python -m bench env_throughput [--env ID] [--seconds 1] [--depth 10] [--json]``. The same actions are played in all
ways; the share of speed that recording and hashing leave is the figure to quote. The second table sets a restore
against re-running the same actions and against the engine's own way (TextWorld's copy, ALFWorld's replay).
"""

from __future__ import annotations

import argparse
import json
import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

import forkgym
from forkgym.core.portable import from_portable
from forkgym.report.tables import render_table

from ._engines import own_way
from ._environments import chosen, draw_action, example, interleaved, play_into

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


def costs(env_id: str, depth: int, repeats: int) -> dict[str, Any]:
    """Microseconds (medians) of reset, snapshot, restore and fork at a depth, and bytes of a snapshot."""
    env, fresh = example(env_id), example(env_id)
    seed, actions = play_into(env, depth)
    snapshot = env.snapshot()

    def rerun() -> None:
        fresh.reset(seed=seed)
        for action in actions:
            fresh.step(action)

    operations: dict[str, Callable[[], Any]] = {
        "reset": lambda: fresh.reset(seed=seed) and None,
        "snapshot": env.snapshot,
        "restore": lambda: env.restore(snapshot),
        "fork": env.fork,
    }
    rare: dict[str, Callable[[], Any]] = {"rerun": rerun}
    way = own_way(env)
    if way is not None:
        rare[way[0]] = way[1]
    try:
        interleaved(operations, 3)  # caches warm up
        seconds = interleaved(operations, repeats) | interleaved(rare, max(3, repeats // 10))
        size = snapshot_bytes(env, seed, actions)
    finally:
        snapshot.close()
        env.close()
        fresh.close()
    row: dict[str, Any] = {"env": env_id, "forks by": env.fork_support, "depth": len(actions)}
    row |= {f"{name} us": round(float(np.median(times)) * 1e6, 1) for name, times in seconds.items()}
    row["bytes a snapshot"] = size
    for name in rare:
        row[f"restore x faster than {name}"] = round(row[f"{name} us"] / row["restore us"], 1)
    return row


def snapshot_bytes(env: Any, seed: int, actions: list[Any], rounds: int = 3) -> int:
    """Python's memory a snapshot, averaged over snapshots after every step of some episodes that are kept alive."""
    kept: list[Any] = []
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(rounds):
            env.reset(seed=seed)
            kept.append(env.snapshot())
            for action in actions:
                env.step(action)
                kept.append(env.snapshot())
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    for snapshot in kept:
        snapshot.close()
    return round(used / len(kept))


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


def _tables(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Rows with equal columns together, so that no table has empty ones."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row), []).append(row)
    return list(groups.values())


def main(argv: Sequence[str]) -> int:
    """Run the bench; returns 0."""
    parser = argparse.ArgumentParser(prog="bench env_throughput", description=__doc__)
    parser.add_argument("--env", action="append", metavar="ID", help="only this environment; may be repeated")
    parser.add_argument("--seconds", type=float, default=1.0, help="time per environment and way (default 1)")
    parser.add_argument("--depth", type=int, default=10, help="actions before snapshots and forks (default 10)")
    parser.add_argument("--repeats", type=int, default=50, help="repetitions of each of them (default 50)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    options = parser.parse_args(argv)
    if not options.seconds > 0:
        parser.error("--seconds must be greater than 0")
    if options.depth < 0 or options.repeats < 1:
        parser.error("--depth must be at least 0 and --repeats at least 1")
    reference = baseline(options.seconds)
    chosen_ids = chosen(options.env)
    results = [measure(env_id, options.seconds) for env_id in chosen_ids]
    for result in results:
        result["relative_to_cartpole"] = round(result["steps_per_second"] / reference, 3)
    print(render_table(results, title=f"{BASELINE} through gymnasium.make: {reference:,.0f} steps/s"))
    table = [costs(env_id, options.depth, options.repeats) for env_id in chosen_ids]
    for columns in _tables(table):
        print(render_table(columns, title="what it costs (medians)"))
    if options.json:
        document = {
            "bench": "env_throughput",
            "cartpole_steps_per_second": round(reference),
            "results": results,
            "costs": table,
        }
        print(json.dumps(document))
    return 0
