"""The virtual loop does what CPython's loop does, in virtual time; permutes, kills, and reports deadlocks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings

from forkgym.core import ForkgymError
from forkgym.runtime.loop import DeadlockError, Fault, Killed, VirtualLoop, VirtualLoopError, run

from .programs import TICK, Program, Trace, both, task_lists, trace_of, written

# ---------------------------------------------------------------------- agreement with CPython


async def sleepers(trace: Trace) -> None:
    async def sleeper(name: str, ticks: list[int]) -> None:
        for tick in ticks:
            await asyncio.sleep(tick * TICK)
            trace(name, tick)

    await asyncio.gather(sleeper("a", [3, 1, 0, 2]), sleeper("b", [1, 2, 0, 0, 3]), sleeper("c", [0, 0, 4, 2]))


async def producer_and_consumers(trace: Trace) -> None:
    queue: asyncio.Queue[int] = asyncio.Queue(2)

    async def consumer(name: str) -> None:
        while True:
            item = await queue.get()
            trace(name, item)
            await asyncio.sleep(item % 3 * TICK)
            queue.task_done()

    consumers = [asyncio.create_task(consumer(f"c{i}")) for i in range(3)]
    for item in range(12):
        await queue.put(item)
        trace("p", item)
    await queue.join()
    for task in consumers:
        task.cancel()
    trace("p", await asyncio.gather(*consumers, return_exceptions=True))


async def timeouts_and_cancellation(trace: Trace) -> None:
    async def stubborn() -> str:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            trace("stubborn", "cancelled once")
            await asyncio.sleep(2 * TICK)
        return "done anyway"

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(TICK)
    task.cancel()
    trace("main", await task)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(3 * TICK):
            trace("main", await asyncio.wait_for(asyncio.sleep(TICK, "in time"), 2 * TICK))
            await asyncio.Event().wait()
    trace("main", "after the timeout")


async def conditions_and_barriers(trace: Trace) -> None:
    condition, barrier = asyncio.Condition(), asyncio.Barrier(3)

    async def waiter(name: str) -> None:
        async with condition:
            await condition.wait()
            trace(name, "notified")
        trace(name, f"barrier {await barrier.wait()}")

    async with asyncio.TaskGroup() as group:
        for name in "xyz":
            group.create_task(waiter(name))
        await asyncio.sleep(TICK)
        async with condition:
            condition.notify(2)
        await asyncio.sleep(TICK)
        async with condition:
            condition.notify_all()


async def callbacks_and_generators(trace: Trace) -> None:
    loop = asyncio.get_running_loop()

    async def numbers() -> Any:
        try:
            for number in range(3):
                await asyncio.sleep(TICK)
                yield number
        finally:
            trace("generator", "closed")

    cancelled = loop.call_later(TICK, trace, "callback", "must not run")
    cancelled.cancel()
    loop.call_at(loop.time() + 2 * TICK, trace, "callback", "at")
    for index in range(3):
        loop.call_soon(trace, "callback", index)
    async for number in numbers():
        trace("main", number)
    future = loop.create_future()
    future.add_done_callback(lambda done: trace("future", done.result()))
    loop.call_later(TICK, future.set_result, "set")
    trace("main", await future)


async def groups_that_fail(trace: Trace) -> None:
    async def failing(after: int) -> None:
        await asyncio.sleep(after * TICK)
        raise ValueError(after)

    async def patient(name: str) -> None:
        try:
            await asyncio.sleep(5)
        finally:
            trace(name, "stopped")

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(failing(2))
            group.create_task(failing(2))
            group.create_task(patient("p"))
    except* ValueError as errors:
        trace("main", [str(error) for error in errors.exceptions])


async def anyio_on_top(trace: Trace) -> None:
    send, receive = anyio.create_memory_object_stream[int](1)

    async def consume(name: str, mine: Any) -> None:
        async with mine:
            async for item in mine:
                trace(name, item)
                await anyio.sleep(TICK)

    async with anyio.create_task_group() as group:
        group.start_soon(consume, "a", receive.clone())
        group.start_soon(consume, "b", receive.clone())
        receive.close()
        async with send:
            for item in range(5):
                await send.send(item)
    with anyio.move_on_after(3 * TICK) as scope:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(5 * TICK)
            trace("main", "the shield held")
        await anyio.sleep(10)
    trace("main", scope.cancelled_caught)
    limiter = anyio.CapacityLimiter(1)

    async def limited(name: str) -> None:
        async with limiter:
            await anyio.sleep(TICK)
            trace(name, "left")

    async with anyio.create_task_group() as group:
        for name in "klm":
            group.start_soon(limited, name)


async def a_deadlock(trace: Trace) -> None:
    first, second = asyncio.Lock(), asyncio.Lock()

    async def both_locks(name: str, one: asyncio.Lock, other: asyncio.Lock) -> None:
        async with one:
            await asyncio.sleep(TICK)
            trace(name, "holds one")
            async with other:
                trace(name, "holds both")

    await asyncio.gather(both_locks("a", first, second), both_locks("b", second, first))


PROGRAMS = [
    sleepers,
    producer_and_consumers,
    timeouts_and_cancellation,
    conditions_and_barriers,
    callbacks_and_generators,
    groups_that_fail,
    anyio_on_top,
    a_deadlock,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_without_a_seed_every_event_comes_as_on_cpythons_loop(program: Program) -> None:
    cpython, virtual = both(program)
    assert virtual == cpython
    assert len(virtual) > 1


@pytest.mark.slow
@pytest.mark.parametrize("program", [sleepers, producer_and_consumers, anyio_on_top], ids=lambda p: p.__name__)
def test_the_real_clock_gives_the_same_order(program: Program) -> None:
    """The same on `asyncio.new_event_loop()` and real time: the oracle of the other tests is no special case."""
    real = trace_of(program, asyncio.new_event_loop())
    virtual = trace_of(program, VirtualLoop(seed=None))
    assert sorted((who, what) for _, who, what in real) == sorted((who, what) for _, who, what in virtual)
    start = real[0][0] - virtual[0][0]
    late = [(real_at - start) - at for (real_at, *_), (at, *_) in zip(real, virtual, strict=True)]
    assert min(late) > -TICK, "real time is never ahead of virtual time by a whole tick"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(task_lists)
def test_written_programs_leave_the_same_trace(lists: list[list[tuple[Any, ...]]]) -> None:
    cpython, virtual = both(written(lists))
    assert virtual == cpython


@pytest.mark.slow
@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(task_lists)
def test_many_written_programs_leave_the_same_trace(lists: list[list[tuple[Any, ...]]]) -> None:
    cpython, virtual = both(written(lists))
    assert virtual == cpython


# ---------------------------------------------------------------------- the clock


def test_a_virtual_day_takes_no_time() -> None:
    async def main() -> float:
        for _ in range(24):
            await anyio.sleep(3600)
        return anyio.current_time()

    began = time.monotonic()
    assert run(main, loop="virtual") == 86400
    assert time.monotonic() - began < 2


def test_the_clock_moves_under_a_program_that_polls() -> None:
    async def main() -> float:
        flag = asyncio.Event()
        asyncio.get_running_loop().call_later(5, flag.set)
        while not flag.is_set():
            await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(patience=1000)) as runner:
        assert runner.run(main()) == 5


def test_timers_of_almost_one_instant_fire_together_and_none_before_its_time() -> None:
    """As on CPython's loop, whose clock has a resolution of a nanosecond."""
    happened: list[tuple[str, bool]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def fire(name: str, when: float) -> None:
            happened.append((name, loop.time() >= when))
            loop.call_soon(happened.append, (f"after {name}", True))

        for name, when in (("a", 1.0), ("b", 1.0 + 1e-10), ("c", 1.0 + 1e-6)):
            loop.call_at(when, fire, name, when)
        await asyncio.sleep(2)

    run(main, loop="virtual", seed=None)
    assert happened == [(name, True) for name in ("a", "b", "after a", "after b", "c", "after c")]


def test_cancelled_timers_do_not_pile_up() -> None:
    loop = VirtualLoop()

    async def main() -> None:
        for _ in range(5000):
            loop.call_later(1000, print).cancel()
            await asyncio.sleep(0.001)
        assert len(loop._timers) < 300

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())


# ---------------------------------------------------------------------- the seed


def order_of_steps(seed: int | None) -> list[str]:
    order: list[str] = []

    async def walker(name: str) -> None:
        for step in range(3):
            order.append(f"{name}{step}")
            await asyncio.sleep(0)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for name in "abcd":
                group.create_task(walker(name))

    run(main, loop="virtual", seed=seed)
    return order


def test_a_seed_names_one_order_and_other_seeds_name_others() -> None:
    assert order_of_steps(None) == [f"{name}{step}" for step in range(3) for name in "abcd"]
    assert order_of_steps(7) == order_of_steps(7)
    orders = {tuple(order_of_steps(seed)) for seed in range(50)}
    assert len(orders) > 40  # 12!/(3!)^4 = 369,600 orders
    for order in orders:
        for name in "abcd":
            assert [step for step in order if step[0] == name] == [f"{name}{step}" for step in range(3)]


async def many_sets(trace: Trace) -> None:
    """Groups, scopes and streams keep what they cancel and wake in sets, whose order is that of addresses."""
    send, receive = anyio.create_memory_object_stream[int]()

    async def waits(name: str) -> None:
        try:
            with anyio.fail_after(100):
                async with receive.clone() as mine, anyio.create_task_group() as group:
                    group.start_soon(mine.receive)
                    group.start_soon(anyio.sleep, 50)
        except BaseException as error:
            trace(name, type(error).__name__)
            raise
        finally:
            trace(name, "left")

    for end in ("cancelled", "closed"):
        with contextlib.suppress(BaseExceptionGroup):
            async with anyio.create_task_group() as group:
                for index in range(20):
                    group.start_soon(waits, f"{end} {index}")
                await anyio.sleep(TICK)
                if end == "cancelled":
                    group.cancel_scope.cancel()
                else:
                    send.close()
    receive.close()


async def one_group(trace: Trace) -> None:
    async def waits(name: str) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            trace(name, "stopped")

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(TICK), asyncio.TaskGroup() as group:
            for index in range(30):
                group.create_task(waits(f"grouped {index}"))


def test_a_seed_gives_the_same_order_in_another_process() -> None:
    program = (
        "from tests.runtime.test_virtual_loop import *\n"
        "rubbish = [bytes(n % 400) for n in range(int(sys.argv[1]))]  # moves what is allocated next\n"
        "print([trace_of(many_sets, VirtualLoop(seed=seed)) for seed in range(3)])\n"
        "print(trace_of(one_group, VirtualLoop(seed=None)))\n"
    )
    traces = set()
    for salt in ("0", "1234"):
        environment = {**os.environ, "PYTHONHASHSEED": salt}
        done = subprocess.run(
            [sys.executable, "-c", "import sys\n" + program, salt],
            cwd=Path(__file__).parents[2], capture_output=True, text=True, env=environment, timeout=60,
        )  # fmt: skip
        assert "cancelled 7" in done.stdout, done.stderr
        assert "grouped 7" in done.stdout
        traces.add(done.stdout)
    assert len(traces) == 1


def test_every_order_of_three_steps_is_met() -> None:
    def first_steps(seed: int) -> str:
        order: list[str] = []

        async def step(name: str) -> None:
            order.append(name)

        async def main() -> None:
            await asyncio.gather(step("a"), step("b"), step("c"))

        run(main, loop="virtual", seed=seed)
        return "".join(order)

    # 60 uniform draws of 6 orders miss a given one with probability (5/6)^60; any of the six: below 1.1e-4.
    assert len({first_steps(seed) for seed in range(60)}) == 6


@pytest.mark.parametrize("seed", range(20))
def test_plain_callbacks_keep_their_order_and_are_not_overtaken(seed: int) -> None:
    called: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        noise = [asyncio.create_task(asyncio.sleep(0)) for _ in range(5)]
        for index in range(10):
            loop.call_soon(called.append, index)
            loop.call_later(1, called.append, 10 + index)
        await asyncio.sleep(0)
        assert called == list(range(10))
        await asyncio.gather(*noise)
        await asyncio.sleep(1)
        assert called == list(range(20))

    run(main, loop="virtual", seed=seed)


def test_an_unguarded_update_is_found_by_some_seed() -> None:
    """The point of it all: a race that CPython's order never shows."""

    def total(seed: int | None) -> int:
        account = {"money": 0}

        async def deposit() -> None:
            seen = account["money"]
            if random.Random(seen).random() >= 0:  # something between the read and the write
                await asyncio.sleep(0)
            account["money"] = seen + 1

        async def main() -> None:
            first = asyncio.create_task(deposit())
            for _ in range(2):
                await asyncio.sleep(0)
            await asyncio.gather(first, deposit())

        run(main, loop="virtual", seed=seed)
        return account["money"]

    assert total(None) == 2
    assert {total(seed) for seed in range(20)} == {1, 2}


# ---------------------------------------------------------------------- deadlocks and faults


def test_a_deadlock_names_every_task_and_where_it_waits() -> None:
    async def inner(event: anyio.Event) -> None:
        await event.wait()

    async def outer(event: anyio.Event) -> None:
        await inner(event)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(outer, anyio.Event(), name="the waiter")
            group.start_soon(anyio.sleep_forever, name="the sleeper")

    with pytest.raises(DeadlockError, match="the waiter") as caught:
        run(main, loop="virtual")
    found = {task.name: task for task in caught.value.waiting}
    assert len(found) == 3
    chain = "\n".join(found["the waiter"].stack)
    assert "outer: await inner(event)" in chain
    assert "inner: await event.wait()" in chain
    assert "test_virtual_loop.py" in chain
    assert "the sleeper" in str(caught.value)


def test_a_fault_kills_a_task_at_its_nth_await_and_counts_on_in_its_successor() -> None:
    alive: list[int] = []

    async def worker() -> None:
        for step in range(5):
            try:
                await asyncio.sleep(1)
            except Exception:  # a kill is not an error that a task may catch by accident
                alive.append(-1)
            alive.append(step)

    async def main() -> list[str]:
        ends = []
        for _ in range(3):
            try:
                await asyncio.create_task(worker(), name="worker")
                ends.append("finished")
            except Killed as killed:
                ends.append(str(killed))
        return ends

    ends = run(main, loop="virtual", faults=[Fault("worker", 3), Fault("work*", 4)])
    assert "await 3" in ends[0]
    assert "await 4" in ends[1]
    assert ends[2] == "finished"
    assert alive == [0, 1, 0, 1, 2, 3, 4]


def test_a_task_that_is_watched_can_still_be_cancelled_and_inspected() -> None:
    async def main() -> str:
        task = asyncio.create_task(asyncio.sleep(10), name="watched")
        await asyncio.sleep(1)
        assert task.get_stack()
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 10, name="watched")
            await anyio.sleep(1)
            group.cancel_scope.cancel()
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return "cancelled"
        return "not cancelled"

    assert run(main, loop="virtual", faults=[Fault("watched", 9)]) == "cancelled"


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "attempt",
    [
        lambda: asyncio.to_thread(print),
        lambda: asyncio.open_connection("localhost", 1),
        lambda: asyncio.create_subprocess_exec("true"),
        lambda: asyncio.get_running_loop().getaddrinfo("localhost", 1),
        lambda: asyncio.get_running_loop().sock_accept(socket.socket()),
        lambda: asyncio.get_running_loop().add_signal_handler(2, print),
    ],
    ids=["thread", "connection", "subprocess", "name", "socket", "signal"],
)
def test_the_outside_world_is_refused_with_a_remedy(attempt: Any) -> None:
    async def main() -> None:
        await attempt()

    with pytest.raises(VirtualLoopError, match="loop='asyncio'"):
        run(main, loop="virtual")


def test_a_thread_that_anyio_started_is_named_in_the_deadlock() -> None:
    async def main() -> None:
        await anyio.to_thread.run_sync(threading.Event().wait, 0.2)

    with pytest.raises(DeadlockError, match="waits for a thread"):
        run(main, loop="virtual")


def test_a_callback_from_another_thread_is_refused() -> None:
    refusals: list[Exception] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def intrude() -> None:
            try:
                loop.call_soon_threadsafe(print)
            except VirtualLoopError as error:
                refusals.append(error)

        intruder = threading.Thread(target=intrude)
        intruder.start()
        intruder.join()

    run(main, loop="virtual")
    assert "another thread" in str(refusals[0])


# ---------------------------------------------------------------------- run


@pytest.mark.parametrize("loop", ["uvloop", "asyncio", "virtual"])
def test_run_gives_arguments_and_returns_the_result(loop: Any) -> None:
    async def main(one: int, two: int) -> tuple[int, str]:
        await anyio.sleep(0.001)
        return one + two, type(asyncio.get_running_loop()).__module__.split(".")[0]

    total, module = run(main, 3, 4, loop=loop)
    assert total == 7
    assert module == {"uvloop": "uvloop", "asyncio": "asyncio", "virtual": "forkgym"}[loop]


def test_run_names_the_loop_that_was_meant_and_refuses_faults_on_a_real_one() -> None:
    with pytest.raises(ForkgymError, match="Did you mean 'virtual'"):
        run(anyio.sleep, 0, loop="virtul")  # type: ignore[arg-type]
    with pytest.raises(ForkgymError, match="virtual loop only"):
        run(anyio.sleep, 0, loop="asyncio", faults=[Fault("x", 1)])
    with pytest.raises(ValueError, match="1st await"):
        Fault("x", 0)
