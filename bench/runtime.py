"""What a message to a supervised actor costs against bare asyncio, and how fast the virtual loop is.

``python -m bench runtime [--messages 20000] [--actors 1000] [--repeats 5] [--json]``. The baseline does the same awaits
with an `asyncio.Queue` and a future for each answer; baseline and actor are timed in turns in one run, and the medians
of their ratios are the figures to quote.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import forkgym
from forkgym import aio
from forkgym.report.tables import render_table
from forkgym.runtime import Actor, Supervisor, VirtualLoop, run

Measured = Callable[[int, int], Awaitable[float]]


class _Echo(Actor):
    async def handle(self, message: int) -> int:
        await asyncio.sleep(0)
        return message


async def bare(messages: int, actors: int) -> float:
    """Microseconds per message of queues, futures and tasks without supervision."""
    loop = asyncio.get_running_loop()

    async def serve(queue: asyncio.Queue[tuple[int, asyncio.Future[int]]]) -> None:
        while True:
            message, reply = await queue.get()
            await asyncio.sleep(0)
            reply.set_result(message)

    async def client(queue: asyncio.Queue[tuple[int, asyncio.Future[int]]]) -> None:
        for message in range(messages // actors):
            reply: asyncio.Future[int] = loop.create_future()
            await queue.put((message, reply))
            await reply

    queues: list[asyncio.Queue[tuple[int, asyncio.Future[int]]]] = [asyncio.Queue(16) for _ in range(actors)]
    servers = [asyncio.create_task(serve(queue)) for queue in queues]
    began = time.perf_counter()
    await asyncio.gather(*[client(queue) for queue in queues])
    spent = time.perf_counter() - began
    for server in servers:
        server.cancel()
    return spent / messages * 1e6


async def supervised(messages: int, actors: int) -> float:
    """Microseconds per message of supervised actors."""
    async with Supervisor() as supervisor:
        references = [supervisor.spawn(_Echo, name=f"echo-{index}") for index in range(actors)]

        async def client(reference: Any) -> None:
            for message in range(messages // actors):
                await reference.ask(message)

        began = time.perf_counter()
        await asyncio.gather(*[client(reference) for reference in references])
        return (time.perf_counter() - began) / messages * 1e6


async def timers(events: int, tasks: int) -> float:
    """Microseconds per timer of tasks that only sleep; on a real loop for no time, so that nothing is waited for."""

    async def sleeper(delay: float) -> None:
        for _ in range(events // tasks):
            await asyncio.sleep(delay)

    virtual = isinstance(asyncio.get_running_loop(), VirtualLoop)
    began = time.perf_counter()
    await asyncio.gather(*[sleeper(0.001 * (1 + index % 7) if virtual else 1e-9) for index in range(tasks)])
    return (time.perf_counter() - began) / events * 1e6


async def memory(actors: int) -> int:
    """Bytes per supervised actor that waits for a message."""
    async with Supervisor() as supervisor:
        tracemalloc.start()
        for index in range(actors):
            supervisor.spawn(_Echo, name=f"echo-{index}")
        await asyncio.sleep(0.05)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return held // actors


async def environment_steps(runner: Any, steps: int) -> tuple[float, float]:
    """Microseconds of a reset of an environment here, and of one in a worker."""
    env = forkgym.make("toy/Chain-v0")
    began = time.perf_counter()
    for seed in range(steps):
        env.reset(seed=seed)
    here = (time.perf_counter() - began) / steps * 1e6
    async with aio.make("toy/Chain-v0", run=runner) as remote:
        await remote.reset(seed=0)
        began = time.perf_counter()
        for seed in range(steps):
            await remote.reset(seed=seed)
        return here, (time.perf_counter() - began) / steps * 1e6


def compared(loop: Any, messages: int, actors: int, repeats: int) -> dict[str, Any]:
    """Bare against supervised on one loop, in turns."""
    pairs = [
        (run(bare, messages, actors, loop=loop), run(supervised, messages, actors, loop=loop)) for _ in range(repeats)
    ]
    return {
        "loop": loop,
        "actors": actors,
        "bare_us": round(statistics.median(pair[0] for pair in pairs), 2),
        "supervised_us": round(statistics.median(pair[1] for pair in pairs), 2),
        "ratio": round(statistics.median(pair[1] / pair[0] for pair in pairs), 2),
    }


def main(argv: Sequence[str]) -> int:
    """Run the bench; returns 0."""
    parser = argparse.ArgumentParser(prog="bench runtime", description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000, help="messages of each measurement (default 20000)")
    parser.add_argument("--actors", type=int, default=1000, help="actors that live at once (default 1000)")
    parser.add_argument("--repeats", type=int, default=5, help="repetitions (default 5)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    options = parser.parse_args(argv)
    if options.repeats < 1 or not 1 <= options.actors <= options.messages:
        parser.error("--repeats must be at least 1, and --actors between 1 and --messages")
    messages, actors, repeats = options.messages, options.actors, options.repeats
    awaits = [
        compared(loop, messages, count, repeats)
        for loop in ("asyncio", "uvloop", "virtual")
        for count in sorted({1, actors})
    ]
    print(render_table(awaits, title="an answered message, microseconds"))
    sleeps: dict[str, float] = {}
    for loop in ("asyncio", "uvloop", "virtual"):
        found = [run(timers, messages, actors, loop=loop) for _ in range(repeats)]
        sleeps[loop] = round(1e6 / statistics.median(found))
    print(render_table([{"loop": loop, "timers per second": rate} for loop, rate in sleeps.items()], title="timers"))
    verbs = []
    for runner in ("inline", "thread", "process"):
        pairs = [run(environment_steps, runner, max(1, messages // 20), loop="asyncio") for _ in range(repeats)]
        here, there = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
        verbs.append({"runner": runner, "here_us": round(here, 1), "awaited_us": round(there, 1)})
    print(render_table(verbs, title="a reset of toy/Chain-v0, microseconds"))
    held = run(memory, actors, loop="asyncio")
    print(f"memory of an actor that waits: {held} bytes")
    if options.json:
        print(
            json.dumps(
                {"bench": "runtime", "awaits": awaits, "timers_per_s": sleeps, "verbs": verbs, "actor_bytes": held}
            )
        )
    return 0
