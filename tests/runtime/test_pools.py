"""Pools give the same answers inline, in threads and in processes; lost workers come back, and none is orphaned."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from forkgym.core import ForkgymError
from forkgym.runtime import (
    ActorDead,
    ActorFailed,
    ActorStopped,
    Pool,
    RemoteError,
    Restarts,
    VirtualLoopError,
    WireError,
    WorkerDied,
    run,
)

from .workers import alive, gone

ROOT = Path(__file__).resolve().parent.parent.parent
SERVING = f"{__package__ or 'tests.runtime'}.workers:serving"
FAILING = SERVING.replace("serving", "failing")
QUICK = Restarts(limit=3, pause=0.01)
RUNNERS = ["inline", "thread", "process"]


def on(loop: str, main: Callable[..., Any], *args: Any) -> Any:
    return run(main, *args, loop=loop)  # type: ignore[arg-type]


@pytest.mark.parametrize("runner", RUNNERS)
def test_the_same_answers_and_errors_from_every_runner(runner: Any, tmp_path: Path) -> None:
    closed = tmp_path / "closed"

    async def main() -> None:
        config = {"factor": 3, "closed_file": str(closed)}
        async with Pool(SERVING, size=2, run=runner, config=config) as pool:
            assert await asyncio.gather(*[pool.call(["times", n]) for n in range(6)]) == [3 * n for n in range(6)]
            for name, kind in (("value", ValueError), ("key", KeyError)):
                with pytest.raises(kind, match="as asked"):
                    await pool.call(["raise", name])
            with pytest.raises(Exception, match="as asked") as caught:
                await pool.call(["raise", "own"])
            assert type(caught.value).__name__ == ("RemoteError" if runner == "process" else "OwnError")
            assert all(actor.failures == 0 for actor in pool.statistics()), "a function's error is an answer"
            pid, main_thread = await pool.call(["who", None])
            assert (pid == os.getpid()) == (runner != "process")
            assert main_thread == (runner != "thread")
            assert [health.alive for health in await pool.check()] == [True, True]

    on("asyncio", main)
    assert closed.read_text() == "closed\nclosed\n", "the function was closed in each worker"


def test_processes_work_on_uvloop_too_and_only_plain_data_travels() -> None:
    async def main() -> None:
        async with Pool(SERVING, run="process", restarts=QUICK) as pool:
            assert await pool.call(["times", 4]) == 8
            with pytest.raises(WireError, match="cannot be sent"):
                await pool.call(["times", object()])
            with pytest.raises(WireError, match="cannot be sent"):
                await pool.call(["unsendable", None])
            with pytest.raises(RemoteError) as caught:
                await pool.call(["raise", "own"])
            assert "in __call__" in caught.value.trace
            assert await pool.call(["times", 4]) == 8

    on("uvloop", main)


def test_a_killed_process_is_seen_and_replaced_and_the_caller_decides_about_the_call() -> None:
    async def main() -> None:
        async with Pool(SERVING, run="process", restarts=QUICK) as pool:
            worker = pool.workers[0]
            assert await pool.call(["remember", 1]) == 1
            generation = worker.generation
            (health,) = await pool.check()
            call = asyncio.ensure_future(pool.call(["sleep", 60]))
            await anyio.sleep(0.05)
            os.kill(health.pid, signal.SIGKILL)
            with pytest.raises(ActorFailed, match="SIGKILL"):
                await call
            assert await pool.call(["remember", 1]) == 1, "a new process, which remembers nothing"
            with pytest.raises(WorkerDied, match="restarted"):
                await worker.call(["remember", 1], generation=generation)
            (health,) = await pool.check()
            os.kill(health.pid, signal.SIGKILL)  # while it is idle
            with anyio.fail_after(10):
                while worker.generation < 3:
                    await anyio.sleep(0.01)
            assert await pool.call(["remember", 1]) == 1
            assert pool.statistics()[0].failures == 2

    on("asyncio", main)


@pytest.mark.slow
def test_a_busy_process_answers_health_checks_and_a_call_that_hangs_is_given_up() -> None:
    async def main() -> None:
        async with Pool(SERVING, run="process", restarts=QUICK, call_timeout=1) as pool:
            await pool.call(["times", 1])
            (health,) = await pool.check()
            call = asyncio.ensure_future(pool.call(["sleep", 60]))
            await anyio.sleep(0.3)
            (busy,) = await pool.check()
            assert busy.alive
            assert 0.1 < busy.busy < 1
            with pytest.raises(ActorFailed, match="given up"):
                await call
            assert await pool.call(["times", 1]) == 2
            assert gone([health.pid])

    on("asyncio", main)


@pytest.mark.slow
def test_a_stopped_process_is_not_healthy() -> None:
    async def main() -> None:
        async with Pool(SERVING, run="process") as pool:
            await pool.call(["times", 1])
            (health,) = await pool.check()
            os.kill(health.pid, signal.SIGSTOP)
            await anyio.sleep(0.1)
            try:
                assert [found.alive for found in await pool.check(timeout=0.2)] == [False]
            finally:
                os.kill(health.pid, signal.SIGCONT)

    on("asyncio", main)


@pytest.mark.slow
def test_a_thread_that_hangs_is_given_up_and_does_not_keep_the_program_alive() -> None:
    program = f"""
from forkgym.runtime import ActorFailed, Pool, Restarts, run
async def main():
    async with Pool({SERVING!r}, run="thread", call_timeout=0.1, restarts=Restarts(pause=0.01)) as pool:
        try:
            await pool.call(["sleep", 60])
        except ActorFailed as error:
            print(error)
        print(await pool.call(["times", 21]))
run(main, loop="asyncio")
"""
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert "given up" in done.stdout, done.stderr
    assert "42" in done.stdout
    assert time.monotonic() - began < 30


@pytest.mark.slow
def test_a_worker_that_cannot_start_is_dead_with_its_reason() -> None:
    async def main() -> None:
        async with Pool(FAILING, run="process", restarts=Restarts(limit=1, pause=0.01)) as pool:
            with pytest.raises(ActorDead, match="this worker cannot start"):
                await pool.call(["times", 1])

    on("asyncio", main)


def test_calls_avoid_a_dead_worker() -> None:
    async def main() -> None:
        async with Pool(SERVING, size=2, run="process", restarts=Restarts(limit=0)) as pool:
            assert await asyncio.gather(*[pool.call(["times", n]) for n in range(4)]) == [0, 2, 4, 6]
            with pytest.raises(ActorFailed, match="status 3"):
                await pool.workers[0].call(["exit", 3])
            with pytest.raises(ActorDead):
                await pool.workers[0].call(["times", 1])
            assert await asyncio.gather(*[pool.call(["times", n]) for n in range(4)]) == [0, 2, 4, 6]

    on("asyncio", main)


def test_misuse_is_named() -> None:
    with pytest.raises(ForkgymError, match="Did you mean 'thread'"):
        Pool(SERVING, run="thred")  # type: ignore[arg-type]
    with pytest.raises(ForkgymError, match="module:function"):
        Pool("__main__:serving", run="process")
    with pytest.raises(ValueError, match="at least 1"):
        Pool(SERVING, size=0)

    async def main() -> None:
        pool = Pool(SERVING)
        with pytest.raises(ForkgymError, match="async with"):
            await pool.call(1)

    on("asyncio", main)


@pytest.mark.parametrize("runner", ["thread", "process"])
def test_the_virtual_loop_runs_inline_workers_only(runner: Any) -> None:
    async def main(runner: Any) -> int:
        async with Pool(SERVING, run=runner, restarts=Restarts(limit=0)) as pool:
            result: int = await pool.call(["times", 1])
            return result

    assert on("virtual", main, "inline") == 2
    with pytest.raises(ActorDead, match="inline"):
        on("virtual", main, runner)
    assert issubclass(VirtualLoopError, ForkgymError)


# ---------------------------------------------------------------------- ends


def test_leaving_by_an_error_ends_processes_at_once_with_their_children() -> None:
    pids: list[int] = []

    async def main() -> None:
        async with Pool(SERVING, run="process", close_within=30) as pool:
            pids.append(await pool.call(["spawn", None]))
            pids.extend(health.pid for health in await pool.check())
            call = asyncio.ensure_future(pool.call(["sleep", 60]))
            await anyio.sleep(0.05)
            try:
                raise LookupError("something else went wrong")
            finally:
                ends.append(call)

    ends: list[Any] = []

    async def outer() -> None:
        try:
            await main()
        finally:
            with pytest.raises(ActorStopped):
                await ends[0]

    began = time.monotonic()
    with pytest.raises(LookupError):
        on("asyncio", outer)
    assert time.monotonic() - began < 10
    assert len(pids) == 2
    assert gone(pids)


_OWNER = f"""
import asyncio, sys
from forkgym.runtime import Pool, run
async def main():
    async with Pool({SERVING!r}, size=2, run="process", close_within=30) as pool:
        pids = [await worker.call(["spawn", None]) for worker in pool.workers]
        pids += [health.pid for health in await pool.check()]
        busy = asyncio.ensure_future(pool.call([sys.argv[2], 60]))
        await asyncio.sleep(0.1)
        print(*pids, flush=True)
        await busy
run(main, loop=sys.argv[1])
"""


@pytest.mark.parametrize(
    ("sent", "loop", "verb", "code"),
    [
        (signal.SIGINT, "asyncio", "sleep", None),
        pytest.param(signal.SIGINT, "uvloop", "sleep", None, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, "asyncio", "sleep", 143, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, "uvloop", "hang", 143, marks=pytest.mark.slow),
        (signal.SIGKILL, "asyncio", "hang", -9),
        pytest.param(signal.SIGKILL, "uvloop", "sleep", -9, marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_no_process_outlives_its_owner(sent: signal.Signals, loop: str, verb: str, code: int | None) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, loop, verb], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    try:
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        assert len(pids) == 4, owner.stderr.read() if owner.stderr else ""
        assert all(alive(pid) for pid in pids)
        owner.send_signal(sent)
        _, errors = owner.communicate(timeout=15)
        if code is None:
            assert "KeyboardInterrupt" in errors
            assert owner.returncode != 0
        else:
            assert owner.returncode == code, errors
        assert gone(pids), f"of {pids} these live: {[pid for pid in pids if alive(pid)]}"
    finally:
        owner.kill()
        owner.wait()
