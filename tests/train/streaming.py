"""Updates of the world of lamps, collected by any collector; random delays and faults for the virtual loop."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec

from forkgym.credit import CreditBatch, make_algorithm
from forkgym.policy.engine import Engine
from forkgym.rollout.trace import Ledger
from forkgym.schedule import ControllerState
from forkgym.train.collect import Collection, Collector
from forkgym.train.stream import StreamCollector, StreamSettings
from tests.rollout.lamps import EOT, RENDERER, Lamps, table_engine

OPTIONS: dict[str, dict[str, Any]] = {
    "grpo": {"group_size": 4},
    "crr": {"group_size": 4, "k": 2, "temperature": 1.0},
    "twice": {"group_size": 4, "warmup_updates": 1},
    "twice-dr": {"group_size": 3, "warmup_updates": 1},
}
TASKS = [3, 0, 3, 5, 1]


def make_collector(
    kind: type[Collector],
    algorithm: str,
    *,
    engine: Engine | None = None,
    max_running: int = 64,
    planning: str = "batch",
) -> Any:
    return kind(
        engine or table_engine(),
        RENDERER,
        Lamps,
        make_algorithm(algorithm, **OPTIONS[algorithm]),
        seed=11,
        split="train",
        max_turn_tokens=6,
        max_context=96,
        max_running=max_running,
        ledger=Ledger(),
        planning=planning,
    )


def taught(algorithm: str, planning: str) -> ControllerState:
    """A controller's state that is no longer the first one's."""
    state = ControllerState(overspent=3.0, multiplier=1.3 if planning == "group" else None)
    state.discordance.weights[2] = 1.5
    return state


def collect(collector: Any, algorithm: str, update: int = 2, planning: str = "batch") -> Collection:
    return collector.collect(update, 0, TASKS, taught(algorithm, planning))


def fingerprint(collector: Any, collection: Collection) -> bytes:
    """Everything that reaches the learner: traces, decisions with their branches, advantages, and booked tokens."""
    batch = CreditBatch(groups=collection.groups, decisions=collection.decisions_by_episode(), progress=0.25)
    advantages = collector.algorithm.advantages(batch)
    ledger = collector.ledger
    tokens = [ledger.generated.get("on_policy", 0), ledger.generated.get("counterfactual", 0)]
    fed = [ledger.fed.get("on_policy", 0), ledger.fed.get("counterfactual", 0)]
    counts = [ledger.episodes, ledger.branches]
    return msgspec.json.encode(
        [collection.groups, collection.decisions, collection.multiplier, advantages, tokens, fed, counts]
    )


class Weather:
    """Random delays of engine and environments in virtual time, and random failures of either."""

    def __init__(self, seed: int, *, failures: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.failures = failures
        self.failed = 0

    async def perform(self, name: str, work: Any) -> Any:
        await asyncio.sleep(self.random.choice([0.0, self.random.expovariate(1.0), self.random.expovariate(0.05)]))
        if self.random.random() < self.failures * (0.2 if name == "engine" else 1.0):
            self.failed += 1
            raise OSError("the weather is bad")
        return work()


def settings(seed: int, **changes: Any) -> StreamSettings:
    return StreamSettings(loop="virtual", loop_seed=seed, **changes)


def assert_nothing_left(engine: Any, live: int) -> None:
    statistics = engine.statistics()
    assert (statistics.running, statistics.stored_caches) == (0, 0)
    assert Lamps.live == live


__all__ = ["EOT", "OPTIONS", "TASKS", "StreamCollector", "Weather"]
