"""An environment in a worker answers as it does in this process, under every runner."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
from collections.abc import Callable
from typing import Any

import anyio
import numpy as np
import pytest

import forkgym
from forkgym import aio
from forkgym.core import (
    ClosedEnvironmentError,
    EpisodeEndedError,
    Luck,
    MisuseError,
    ResetNeededError,
    SnapshotError,
    StateError,
    UnknownEnvironmentError,
)
from forkgym.runtime import ActorFailed, Fault, Restarts, WorkerDied, run

from . import workers  # registers tests/Computing-v0

RUNNERS: list[Any] = ["inline", "thread", "process"]
TOYS = ["toy/Chain-v0", "toy/Coupled-v0", "toy/Shortcut-v0", "toy/SlipperyChain-v0"]
QUICK = Restarts(limit=3, pause=0.01)


async def outcome(verb: Callable[[], Any]) -> Any:
    """What a verb answers, or the error that it raises, as something to compare."""
    try:
        answer = verb()
        return await answer if inspect.isawaitable(answer) else answer
    except Exception as error:
        return type(error), str(error)


async def lost(verb: Callable[[], Any], *errors: type[Exception]) -> str:
    """Call a verb until it raises one of these errors."""
    while True:
        found = await outcome(verb)
        if isinstance(found, tuple) and found[0] in errors:
            return str(found[1])
        await anyio.sleep(0.01)


async def compare(environments: aio.Environments, id: str, seed: int, length: int = 25) -> int:
    """Random verbs on an environment here and one in a worker: equal answers. Returns how many were compared."""
    rng = np.random.default_rng(seed)
    pairs: list[tuple[Any, aio.AsyncEnv]] = [(forkgym.make(id), await environments.make(id))]
    snapshots: list[tuple[Any, aio.AsyncSnapshot]] = []
    compared = 0

    async def same(here: Any, there: Any) -> None:
        nonlocal compared
        assert await outcome(there) == await outcome(here)
        compared += 1

    env, remote = pairs[0]
    await same(lambda: env.state_hash(), lambda: remote.state_hash())  # before the first reset: the same error
    await same(
        lambda: env.reset(seed=seed, options={"split": "test"}),
        lambda: remote.reset(seed=seed, options={"split": "test"}),
    )
    for _ in range(length):
        env, remote = pairs[rng.integers(len(pairs))]
        verb = rng.choice(["step", "step", "step", "fork", "fresh", "many", "snapshot", "restore", "handle", "reset"])
        if verb == "step":
            action = env.sample_action(rng)
            await same(lambda env=env, action=action: env.step(action), lambda r=remote, action=action: r.step(action))
        elif verb in ("fork", "fresh"):
            luck = forkgym.SAME if verb == "fork" else Luck.fresh(int(rng.integers(1, 2**63)) * 2 + 1)
            pairs.append((env.fork(luck=luck), await remote.fork(luck=luck)))
        elif verb == "many":
            luck = Luck.fresh(int(rng.integers(1, 2**63)))
            pairs += list(zip(env.fork_many(2, luck=luck), await remote.fork_many(2, luck=luck), strict=True))
        elif verb == "snapshot":
            snapshots.append((env.snapshot(), await remote.snapshot()))
            assert snapshots[-1][0].state_hash == snapshots[-1][1].state_hash
            assert snapshots[-1][0].turn == snapshots[-1][1].turn
        elif verb == "restore" and snapshots:
            snapshot, remote_snapshot = snapshots[rng.integers(len(snapshots))]
            if remote_snapshot._place is remote._place:
                env.restore(snapshot)
                await remote.restore(remote_snapshot)
            else:
                with pytest.raises(SnapshotError, match="worker"):
                    await remote.restore(remote_snapshot)
        elif verb == "handle":
            handle = await remote.handle()
            assert handle == env.handle()
            pairs.append((forkgym.make(handle), await environments.make(handle)))
        else:
            await same(lambda env=env: env.reset(seed=seed + 1), lambda remote=remote: remote.reset(seed=seed + 1))
        env, remote = pairs[-1]
        await same(env.state_hash, remote.state_hash)
        await same(env.messages, remote.messages)
    for env, remote in pairs:
        assert env.state_hash() == await remote.state_hash()
        env.close()
        await remote.close()
    return compared


@pytest.mark.parametrize("runner", RUNNERS)
def test_toy_worlds_answer_as_they_do_here(runner: Any) -> None:
    async def main() -> int:
        async with aio.Environments(run=runner, size=2) as environments:
            return sum([await compare(environments, id, seed) for seed, id in enumerate(TOYS)])

    assert run(main, loop="asyncio") > 200


@pytest.mark.slow
@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_many_environments_at_once_answer_as_they_do_here(runner: Any, loop: Any) -> None:
    async def main() -> int:
        async with aio.Environments(run=runner, size=2) as environments:
            counts = await asyncio.gather(*[compare(environments, TOYS[n % 4], n, 40) for n in range(40)])
            return sum(counts)

    assert run(main, loop=loop) > 3000


@pytest.mark.parametrize("seed", range(10))
def test_inline_environments_run_on_the_virtual_loop_under_any_order(seed: int) -> None:
    async def main() -> None:
        async with aio.Environments(size=3) as environments, anyio.create_task_group() as group:
            for number in range(6):
                group.start_soon(compare, environments, TOYS[number % 4], number, 10)

    run(main, loop="virtual", seed=seed)


async def episode(environments: aio.Environments, number: int, again: list[int]) -> list[Any]:
    """An episode with a fork on the way; begun again from its handle where its worker was lost."""
    rng = np.random.default_rng(number)
    chooser = forkgym.make(TOYS[number % 4])
    chooser.reset(seed=number)
    actions = [chooser.sample_action(rng) for _ in range(6)]
    handle: forkgym.Handle | None = None
    while True:
        try:
            env = await environments.make(handle or TOYS[number % 4])
            if handle is None:
                await env.reset(seed=number)
                handle = await env.handle()
            twin = await env.fork(luck=Luck.fresh(number + 1))
            return [await play(env, actions), await play(twin, actions)]
        except (ActorFailed, WorkerDied):
            again.append(number)


async def play(env: aio.AsyncEnv, actions: list[Any]) -> list[Any]:
    steps = []
    for action in actions:
        steps.append(await env.step(action))
        if steps[-1][2] or steps[-1][3]:
            break
    return [steps, await env.state_hash()]


async def episodes(count: int, again: list[int]) -> list[Any]:
    patient = Restarts(limit=1000, pause=0.01)
    async with aio.Environments(size=3, restarts=patient, mailbox=2) as environments:
        return list(await asyncio.gather(*[episode(environments, number, again) for number in range(count)]))


def test_episodes_are_the_same_whatever_the_schedule_and_whoever_is_killed() -> None:
    calm = run(episodes, 12, [], loop="virtual", seed=None)
    again: list[int] = []
    for seed in range(30):
        source = np.random.default_rng(seed)
        kills = [Fault(f"actor:environments-{source.integers(3)}", int(source.integers(1, 60))) for _ in range(4)]
        assert run(episodes, 12, again, loop="virtual", seed=seed, faults=kills) == calm, f"seed {seed}"
    assert len(again) > 50


@pytest.mark.slow
def test_episodes_are_the_same_though_processes_are_killed_for_real() -> None:
    """20 runs on uvloop; each goes on until a worker was killed with SIGKILL in the middle of an episode."""
    calm = run(episodes, 12, [], loop="virtual", seed=None)

    async def stormy(seed: int) -> int:
        rng = np.random.default_rng(seed)
        again: list[int] = []
        killed = 0
        patient = Restarts(limit=1000, pause=0.01)
        async with aio.Environments(run="process", size=2, restarts=patient) as environments:

            async def kill() -> None:
                nonlocal killed
                while True:
                    await anyio.sleep(rng.exponential(0.15))
                    pids = [health.pid for health in await environments.check() if health.alive]
                    if pids:
                        os.kill(rng.choice(pids), signal.SIGKILL)
                        killed += 1

            async with anyio.create_task_group() as group:
                group.start_soon(kill)
                while not again:
                    found = await asyncio.gather(*[episode(environments, number, again) for number in range(12)])
                    assert list(found) == calm, f"seed {seed}"
                group.cancel_scope.cancel()
        return killed

    for seed in range(20):
        assert run(stormy, seed, loop="uvloop") >= 1


def test_the_package_offers_both_by_name() -> None:
    assert forkgym.aio is aio
    assert forkgym.run is run


@pytest.mark.parametrize("runner", ["inline", "thread", pytest.param("process", marks=pytest.mark.slow)])
def test_misuse_is_the_same_error_as_here(runner: Any) -> None:
    async def main() -> None:
        async with aio.make("toy/Chain-v0", run=runner) as env:
            with pytest.raises(ResetNeededError, match=r"env\.reset"):
                await env.step("x")
            await env.reset(seed=0)
            snapshot = await env.snapshot()
            while True:
                _, _, terminated, truncated, _ = await env.step("nonsense")
                if terminated or truncated:
                    break
            with pytest.raises(EpisodeEndedError, match="has ended"):
                await env.step("nonsense")
            async with snapshot:
                await env.restore(snapshot)
            with pytest.raises(SnapshotError, match="closed"):
                await env.restore(snapshot)
            with pytest.raises(SnapshotError, match="not a str"):
                await env.restore("a string")  # type: ignore[arg-type]
            fork = await env.fork()
            await env.close()
            await env.close()
            with pytest.raises(ClosedEnvironmentError, match="closed"):
                await env.step("x")
            assert await fork.get("turn") == 0, "a fork outlives its parent"
            assert await fork.call("parse", "nonsense") == forkgym.make("toy/Chain-v0").parse("nonsense")
            assert await fork.get("splits") == forkgym.make("toy/Chain-v0").splits
            for attempt in (fork.get("_luck"), fork.call("__init__"), fork.call("step", "x")):
                with pytest.raises(MisuseError):
                    await attempt
        with pytest.raises(MisuseError, match="max_episode_steps"):
            async with aio.make("toy/Chain-v0", run=runner, max_episode_steps=0):
                pass

    run(main, loop="asyncio")
    with pytest.raises(UnknownEnvironmentError, match="toy/Chain-v0"):
        aio.make("toy/Chian-v0")


def test_a_state_moves_to_another_worker_by_its_handle_and_a_snapshot_does_not() -> None:
    async def main() -> None:
        async with aio.Environments(run="process", size=2) as environments:
            env = await environments.make("toy/Chain-v0", worker=0)
            await env.reset(seed=3)
            await env.step("nonsense")
            moved = await environments.make(await env.handle(), worker=1)
            assert moved.worker != env.worker
            assert await moved.state_hash() == await env.state_hash()
            snapshot = await env.snapshot()
            with pytest.raises(SnapshotError, match="handle"):
                await moved.restore(snapshot)

    run(main, loop="asyncio")


def test_a_lost_worker_is_told_and_handles_bring_everything_back() -> None:
    async def main() -> None:
        async with aio.Environments(run="process", restarts=QUICK) as environments:
            env = await environments.make("toy/Chain-v0")
            await env.reset(seed=3)
            handle, state = await env.handle(), await env.state_hash()
            snapshot = await env.snapshot()
            (health,) = await environments.check()
            os.kill(health.pid, signal.SIGKILL)
            with anyio.fail_after(20):
                await lost(env.state_hash, ActorFailed, WorkerDied)
                assert "restarted" in await lost(env.state_hash, WorkerDied)
            again = await environments.make(handle)
            assert await again.state_hash() == state
            with pytest.raises(SnapshotError, match="restarted"):
                await again.restore(snapshot)
            await env.close()  # nothing is left to close, and that is no error
            await snapshot.close()

    run(main, loop="asyncio")


def test_what_nobody_refers_to_is_freed_with_the_next_verb() -> None:
    async def main() -> None:
        async with aio.Environments() as environments:
            env = await environments.make("toy/Chain-v0")
            await env.reset(seed=0)
            runner: Any = environments._pool.workers[0].runner
            held = runner._serve._held
            forks = await env.fork_many(5)
            snapshot = await env.snapshot()
            assert len(held) == 7
            del forks, snapshot
            gc.collect()
            await env.state_hash()
            assert len(held) == 1

    run(main, loop="asyncio")


@pytest.mark.parametrize("runner", ["inline", "thread", pytest.param("process", marks=pytest.mark.slow)])
def test_make_can_be_awaited_and_its_worker_ends_with_the_last_environment(runner: Any) -> None:
    async def main() -> None:
        env = await aio.make("toy/Chain-v0", run=runner)
        await env.reset(seed=0)
        fork = await env.fork()
        await env.close()
        assert len(await fork.state_hash()) == 64
        hosts = [task for task in asyncio.all_tasks() if task.get_name() == "forkgym.aio.make"]
        assert len(hosts) == 1
        await fork.close()
        with anyio.fail_after(10):
            await asyncio.wait(hosts)
        with pytest.raises(MisuseError, match="max_episode_steps"):
            await aio.make("toy/Chain-v0", run=runner, max_episode_steps=0)
        forgotten = await aio.make("toy/Chain-v0", run=runner)  # the end of the loop ends its worker
        assert forgotten.worker == "environments-0"

    run(main, loop="asyncio")


def test_the_class_says_where_it_runs_and_arrays_travel() -> None:
    async def main() -> None:
        async with aio.make("tests/Computing-v0") as env:
            _, info = await env.reset(seed=1)
            assert "forkgym.aio:serve" in info["thread"]
            await env.step(1)  # nothing is encoded for a thread
        async with aio.make(f"{workers.__name__}:tests/Computing-v0", run="process") as env:
            observation, info = await env.reset(seed=1)
            assert (observation, info["tuple"], info["thread"]) == (1, (1, 2), "MainThread")
            assert info["array"].tolist() == [0, 1, 2]
            with pytest.raises(StateError, match="the answer of step"):
                await env.step(1)

    run(main, loop="asyncio")
