"""A hundred episodes and their twins at once, in two worker processes, one of which is killed on the way.

    python examples/async_environments.py

Every verb is awaited. When a worker dies its environments are gone; an episode that was in it is made again from its
handle and goes on, so the kill changes the time, not the result.
"""

import os
import signal

import anyio
import numpy as np

import forkgym
from forkgym import aio
from forkgym.runtime import ActorFailed, Restarts, WorkerDied, run

EPISODES = 100
ENV = "toy/SlipperyChain-v0"


async def episode(environments, number):
    """Play one episode; returns the utilities of the episode and of its twin, forked after the first turn."""
    chooser = forkgym.make(ENV)  # says which actions there are; the episode itself is played in a worker
    chooser.reset(seed=number)
    rng = np.random.default_rng(number)
    actions = [chooser.sample_action(rng) for _ in range(20)]
    handle = None
    while True:
        try:
            env = await environments.make(handle or ENV)
            if handle is None:
                await env.reset(seed=number)
                handle = await env.handle()
            async with env, await env.fork(luck=forkgym.Luck.fresh(number + 1)) as twin:
                return await finish(env, actions), await finish(twin, actions)
        except (ActorFailed, WorkerDied):
            retried.append(number)


async def finish(env, actions):
    utility = 0.0
    for action in actions:
        _, reward, terminated, truncated, _ = await env.step(action)
        utility += reward
        if terminated or truncated:
            break
    return utility


async def main(kill):
    results = {}
    async with aio.Environments(run="process", size=2, restarts=Restarts(pause=0.01)) as environments:

        async def play(number):
            results[number] = await episode(environments, number)
            if kill and len(results) == EPISODES // 4:
                health = (await environments.check())[0]
                os.kill(health.pid, signal.SIGKILL)

        async with anyio.create_task_group() as group:
            for number in range(EPISODES):
                group.start_soon(play, number)
    return results


if __name__ == "__main__":
    retried = []
    calm = run(main, False, loop="uvloop")
    stormy = run(main, True, loop="uvloop")
    mean, twin = np.mean(list(calm.values()), axis=0)
    print(f"{EPISODES} episodes: mean utility {mean:.2f}, of their twins with other luck {twin:.2f}")
    print(f"a worker was killed: episodes that were begun again: {bool(retried)}; same results: {calm == stormy}")
