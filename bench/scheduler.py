"""What the streaming scheduler costs per environment step, against a bare asyncio loop that does the same awaits.

``python -m bench scheduler [--episodes 1000] [--steps 40] [--repeats 5] [--json]``. The engine answers every turn in
its next step and the environment does nothing, so all time is the scheduler's and its desk's (a rollout's own work
comes on top). Baseline and scheduler are timed in turns in one run; the median of their ratios is the figure to quote.
"""

# ruff: noqa: ARG002
from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np

from forkgym.noise import KeyStream, Layout
from forkgym.policy.engine import Completion, EngineStatistics, GenerationRequest, Sampling
from forkgym.report.tables import render_table
from forkgym.runtime import run
from forkgym.schedule.desk import EngineDesk, perform_inline
from forkgym.schedule.stream import Limits, Scheduler

ANSWER = Completion(tokens=[1], logprobs=[0.0], entropies=[0.0], gini_impurities=[0.0], finish_reason="stop")


class _InstantEngine:
    """Ends every open turn in its next step."""

    batch_invariant = True

    def __init__(self) -> None:
        self.open: list[int] = []
        self.tickets = 0

    def submit(self, request: GenerationRequest) -> int:
        self.tickets += 1
        self.open.append(self.tickets)
        return self.tickets

    def step(self) -> list[tuple[int, Completion]]:
        done, self.open = self.open, []
        return [(ticket, ANSWER) for ticket in done]

    def cancel(self, ticket: int) -> None:
        self.open.remove(ticket)

    def release(self, cache: int) -> None: ...

    def publish(self, version: int, weights: object) -> None: ...

    def retire(self, version: int) -> None: ...

    def statistics(self) -> EngineStatistics:
        return EngineStatistics()


def _request() -> GenerationRequest:
    return GenerationRequest(
        context=[1], keys=KeyStream(Layout.TURN_LINE, 1, newlines=np.zeros(2, dtype=np.uint8)), sampling=Sampling()
    )


class _Walkers:
    """A crew whose episodes are turns at the desk and nothing else."""

    def __init__(self, desk: EngineDesk, steps: int) -> None:
        self.desk = desk
        self.steps = steps
        self.request = _request()

    async def episode(self, update: int, group: int, member: int, priority: tuple[int, ...]) -> int:
        for _ in range(self.steps):
            await self.desk.generate(self.request, priority=priority, role="on_policy")
            await perform_inline("environment", int)
        return member

    def plan(self, update: int, group: int, played: Sequence[int]) -> list[int]:
        return []

    def plan_update(self, update: int, groups: dict[int, list[int]]) -> dict[int, list[int]]:
        return {}

    async def branch(self, update: int, group: int, wanted: int, priority: tuple[int, ...]) -> int:
        return wanted

    def retire(self, played: int) -> None: ...

    def blame(self, error: BaseException) -> Any:
        return "run"


async def scheduled(episodes: int, steps: int) -> float:
    """CPU microseconds per step of the scheduler."""
    desk = EngineDesk(_InstantEngine(), slots=episodes)
    serving = asyncio.create_task(desk.serve())
    limits = Limits(groups=episodes // 10, group_size=10, max_running=episodes)
    began = time.process_time()
    async with Scheduler(_Walkers(desk, steps), limits, last=0) as scheduler:
        await scheduler.batch()
    spent = time.process_time() - began
    serving.cancel()
    await asyncio.wait([serving])
    return spent / (episodes * steps) * 1e6


async def bare(episodes: int, steps: int) -> float:
    """CPU microseconds per step of tasks, futures and a loop that batches them, without anything else."""
    loop, engine, waiting = asyncio.get_running_loop(), _InstantEngine(), []
    one = _request()

    async def walk() -> None:
        for _ in range(steps):
            future: asyncio.Future[Completion] = loop.create_future()
            waiting.append(future)
            await future
            await perform_inline("environment", int)

    async def serve() -> None:
        while True:
            futures = {engine.submit(one): future for future in waiting}
            waiting.clear()
            for ticket, completion in engine.step():
                futures[ticket].set_result(completion)
            await asyncio.sleep(0)

    began = time.process_time()
    serving = asyncio.create_task(serve())
    await asyncio.gather(*[asyncio.create_task(walk()) for _ in range(episodes)])
    spent = time.process_time() - began
    serving.cancel()
    await asyncio.wait([serving])
    return spent / (episodes * steps) * 1e6


async def memory(episodes: int) -> float:
    """Bytes per episode that waits for its turn."""

    class _Silent(_InstantEngine):
        def step(self) -> list[tuple[int, Completion]]:
            return []

    async def never(_name: str, _work: Any) -> Any:
        await asyncio.Event().wait()

    desk = EngineDesk(_Silent(), slots=episodes, perform=never)
    serving = asyncio.create_task(desk.serve())
    limits = Limits(groups=episodes // 10, group_size=10, max_running=episodes)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    async with Scheduler(_Walkers(desk, 1), limits, last=0):
        await asyncio.sleep(0.2)
        used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    serving.cancel()
    await asyncio.wait([serving])
    return used / episodes


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print.

    Args:
        argv: Options.
    """
    parser = argparse.ArgumentParser(prog="python -m bench scheduler", description=__doc__)
    parser.add_argument("--episodes", type=int, default=1000, help="at once; a multiple of 10 (default: 1000)")
    parser.add_argument("--steps", type=int, default=40, help="turns an episode (default: 40)")
    parser.add_argument("--repeats", type=int, default=5, help="timings of each (default: 5)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    if options.episodes < 10 or options.episodes % 10 or options.steps < 1 or options.repeats < 1:
        parser.error("--episodes must be a multiple of 10, --steps and --repeats at least 1")
    rows = []
    for loop in ("asyncio", "uvloop", "virtual"):
        times = [
            (
                run(bare, options.episodes, options.steps, loop=loop),
                run(scheduled, options.episodes, options.steps, loop=loop),
            )
            for _ in range(options.repeats)
        ]
        rows.append(
            {
                "loop": loop,
                "bare µs": round(statistics.median(one for one, _ in times), 1),
                "scheduler µs": round(statistics.median(two for _, two in times), 1),
                "ratio": round(statistics.median(two / one for one, two in times), 2),
            }
        )
    waiting = run(memory, options.episodes, loop="asyncio")
    if options.json:
        print(json.dumps({"rows": rows, "bytes_per_waiting_episode": round(waiting)}))
        return 0
    print(render_table(rows, title=f"CPU a step, {options.episodes} episodes at once"))
    print(f"memory of a waiting episode: {waiting / 1024:.1f} KB")
    return 0
