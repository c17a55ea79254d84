"""Shared by the environment benchmarks: making environments, playing into an episode, timing, printing."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs import registration

import forkgym


def example(env_id: str) -> Any:
    """An environment by id, with the example arguments its class offers where it needs some."""
    return forkgym.make(env_id, **_example_kwargs(env_id))


def _example_kwargs(env_id: str) -> dict[str, Any]:
    spec = registration.registry.get(env_id)
    place = None if spec is None else spec.entry_point
    kind = registration.load_env_creator(place) if isinstance(place, str) else place
    return kind.example_kwargs() if hasattr(kind, "example_kwargs") else {}


def chosen(names: list[str] | None) -> list[str]:
    """The environments asked for, or all that are registered with forkgym and that this machine can make."""
    if names:
        return names
    found = []
    for env_id in forkgym.list_envs():
        try:
            _example_kwargs(env_id)
        except LookupError as lacking:
            print(f"left out: {env_id} ({str(lacking).splitlines()[0]})", file=sys.stderr)
        else:
            found.append(env_id)
    return found


def draw_action(env: Any, rng: np.random.Generator) -> Any:
    """A plausible random action; Gymnasium's own environments sample their action space."""
    if hasattr(env, "sample_action"):
        return env.sample_action(rng)
    space: gymnasium.Space[Any] = env.action_space
    space.seed(int(rng.integers(2**31)))
    return space.sample()


def play_into(env: Any, depth: int, *, attempts: int = 50) -> tuple[int, list[Any]]:
    """Reset and take up to ``depth`` random actions without ending the episode.

    Returns:
        The reset's seed and the actions of the deepest attempt; the environment stands there.
    """
    best: tuple[int, list[Any]] = (0, [])
    for seed in range(attempts):
        actions = _walk(env, seed, depth)
        if len(actions) > len(best[1]):
            best = (seed, actions)
        if len(best[1]) == depth:
            break
    seed, actions = best
    env.reset(seed=seed)
    for action in actions:
        env.step(action)
    return best


def _walk(env: Any, seed: int, depth: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    actions: list[Any] = []
    while len(actions) < depth:
        action = draw_action(env, rng)
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            break
        actions.append(action)
    return actions


def interleaved(operations: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Seconds of every operation, ``repeats`` times each, in turns so that noise on the machine hits all alike.

    The garbage collector waits meanwhile (as in ``timeit``): else one operation pays for another's garbage.
    """
    seconds: dict[str, list[float]] = {name: [] for name in operations}
    gc.collect()
    gc.disable()
    try:
        for _ in range(repeats):
            for name, operation in operations.items():
                started = time.perf_counter()
                left = operation()
                seconds[name].append(time.perf_counter() - started)
                if left is not None:
                    left.close()
    finally:
        gc.enable()
    return seconds
