"""Actors answer in order, never hold more than their bound, and survive every kill with the same results."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any

import anyio
import msgspec
import pytest

from forkgym.core import ForkgymError
from forkgym.runtime import (
    Actor,
    ActorDead,
    ActorFailed,
    ActorStopped,
    Fault,
    Killed,
    Refusal,
    Restarts,
    Supervisor,
    run,
)

PATIENT = Restarts(limit=10_000, pause=0.01)


class Add(msgspec.Struct, frozen=True):
    number: int


class Summing(Actor):
    """Adds up; fails on 13 and refuses negative numbers."""

    def __init__(self) -> None:
        self.total = 0

    async def handle(self, message: Add) -> int:
        if message.number < 0:
            raise Refusal(ValueError("negative"))
        if message.number == 13:
            raise RuntimeError("unlucky")
        await anyio.sleep(0.01)
        self.total += message.number
        return self.total


def on_virtual(main: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return run(main, *args, loop="virtual", **options)


@pytest.mark.parametrize("loop", ["virtual", "uvloop"])
def test_an_actor_answers_in_order_refuses_and_restarts_alone(loop: Any) -> None:
    async def main() -> None:
        async with Supervisor(PATIENT) as supervisor:
            first, second = (supervisor.spawn(Summing, name=name) for name in ("first", "second"))
            assert [await first.ask(Add(n)) for n in (1, 2, 3)] == [1, 3, 6]
            await second.tell(Add(5))
            with pytest.raises(ValueError, match="negative"):
                await first.ask(Add(-1))
            assert await first.ask(Add(1)) == 7, "a refusal changes nothing"
            with pytest.raises(ActorFailed, match="unlucky") as failed:
                await first.ask(Add(13))
            assert isinstance(failed.value.cause, RuntimeError)
            assert await first.ask(Add(1)) == 1, "a new object took over"
            assert await second.ask(Add(1)) == 6, "its neighbour was left alone"
            statistics = {actor.name: actor for actor in supervisor.statistics()}
            assert (statistics["first"].failures, statistics["first"].refused) == (1, 1)
            assert "unlucky" in statistics["first"].last_failure
            assert statistics["second"].failures == 0

    run(main, loop=loop)


def test_restarts_pause_longer_each_time_and_end_at_the_limit() -> None:
    limits = Restarts(limit=3, within=100, pause=1, factor=2, longest=3)

    async def main() -> list[float]:
        times = []
        async with Supervisor(limits) as supervisor:
            actor = supervisor.spawn(Summing, name="a")
            for _ in range(4):
                with pytest.raises(ActorFailed):
                    await actor.ask(Add(13))
                times.append(anyio.current_time())
            queued = asyncio.ensure_future(actor.ask(Add(1)))
            with pytest.raises(ActorDead, match=r"4 times within 100 s.*unlucky"):
                await queued
            with pytest.raises(ActorDead):
                await actor.tell(Add(1))
            assert actor.statistics().state == "dead"
        return times

    # Pauses of 1, 2 and min(4, 3) seconds lie between the four failures.
    assert on_virtual(main) == [0, 1, 3, 6]


def test_old_failures_are_forgiven() -> None:
    async def main() -> int:
        async with Supervisor(Restarts(limit=1, within=10, pause=0)) as supervisor:
            actor = supervisor.spawn(Summing, name="a")
            for _ in range(20):
                with pytest.raises(ActorFailed):
                    await actor.ask(Add(13))
                await anyio.sleep(11)
            return actor.statistics().failures

    assert on_virtual(main) == 20


@pytest.mark.parametrize("seed", range(20))
def test_a_mailbox_never_holds_more_than_its_bound_and_keeps_its_order(seed: int) -> None:
    seen: list[int] = []

    class Slow(Actor):
        async def handle(self, message: int) -> None:
            seen.append(message)
            await anyio.sleep(0.1)

    async def main() -> None:
        async with Supervisor() as supervisor:
            actor = supervisor.spawn(Slow, name="slow", mailbox=4)

            async def sender(numbers: range) -> None:
                for number in numbers:
                    await actor.tell(number)
                    assert actor.statistics().mailbox.used <= 4

            async with anyio.create_task_group() as group:
                for start in range(0, 60, 10):
                    group.start_soon(sender, range(start, start + 10))
                await anyio.sleep(0.55)
                full = actor.statistics().mailbox
                assert (full.used, full.waiting) == (4, 6), "back-pressure: all senders wait"
            assert actor.statistics().mailbox.highest == 4
            await supervisor.stop(actor)
            assert sorted(seen) == list(range(60))
            for start in range(0, 60, 10):
                assert [n for n in seen if start <= n < start + 10] == list(range(start, start + 10))

    on_virtual(main, seed=seed)


def test_senders_who_give_up_lose_no_room() -> None:
    class Stuck(Actor):
        async def handle(self, message: Any) -> None:
            await gate.wait()

    gate = anyio.Event()

    async def main() -> None:
        async with Supervisor() as supervisor:
            actor = supervisor.spawn(Stuck, name="stuck", mailbox=2)
            for _ in range(3):
                await actor.tell(0)
            for _ in range(20):
                with pytest.raises(TimeoutError):
                    await actor.ask(0, timeout=0.1)
            assert actor.statistics().mailbox.waiting == 0
            gate.set()
            await actor.ask(0, timeout=1)
            assert actor.statistics().mailbox.used == 0

    on_virtual(main)


@pytest.mark.parametrize("seed", range(30))
def test_senders_who_are_killed_lose_no_room(seed: int) -> None:
    async def main() -> None:
        async with Supervisor() as supervisor:
            actor = supervisor.spawn(Squaring, name="squaring", mailbox=1)

            async def sender() -> None:
                with contextlib.suppress(Killed):
                    for number in range(3):
                        await actor.tell(number)

            async with anyio.create_task_group() as group:
                for index in range(6):
                    group.start_soon(sender, name=f"sender:{index}")
            for number in range(10):
                assert await actor.ask(number, timeout=1) == number * number
            assert actor.statistics().mailbox.waiting == 0

    source = random.Random(seed)
    on_virtual(main, seed=seed, faults=[Fault(f"sender:{index}", source.randint(1, 3)) for index in range(5)])


def test_a_message_whose_asker_has_gone_is_not_worked_on() -> None:
    handled: list[str] = []

    class Slow(Actor):
        async def handle(self, message: str) -> None:
            handled.append(message)
            await anyio.sleep(1)

    async def main() -> None:
        async with Supervisor() as supervisor:
            actor = supervisor.spawn(Slow, name="slow")
            await actor.tell("a")
            with pytest.raises(TimeoutError):
                await actor.ask("b", timeout=0.5)
            await actor.ask("c")

    on_virtual(main)
    assert handled == ["a", "c"]


# ---------------------------------------------------------------------- ends


def test_leaving_the_block_finishes_the_mailboxes_and_an_error_does_not() -> None:
    handled: list[int] = []

    class Slow(Actor):
        async def handle(self, message: int) -> None:
            await anyio.sleep(1)
            handled.append(message)

        async def stop(self) -> None:
            handled.append(-1)

    async def main(fail: bool) -> None:
        async with Supervisor() as supervisor:
            actor = supervisor.spawn(Slow, name="slow")
            for number in range(3):
                await actor.tell(number)
            await anyio.sleep(0.5)
            if fail:
                raise LookupError("the block's own error, not a group")

    on_virtual(main, False)
    assert handled == [0, 1, 2, -1]
    handled.clear()
    with pytest.raises(LookupError):
        on_virtual(main, True)
    assert handled == [-1]


def test_a_graceful_stop_that_takes_too_long_becomes_an_immediate_one() -> None:
    class Endless(Actor):
        async def handle(self, message: Any) -> None:
            await anyio.sleep(1000)

    async def main() -> float:
        async with Supervisor(grace=5) as supervisor:
            actor = supervisor.spawn(Endless, name="endless")
            waiting = [asyncio.ensure_future(actor.ask(n)) for n in range(2)]
            await anyio.sleep(1)
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(end) for end in ends] == [ActorStopped, ActorStopped]
        with pytest.raises(ActorStopped):
            await actor.ask(3)
        return anyio.current_time()

    assert on_virtual(main) == 6


def test_stopping_one_actor_answers_those_who_wait_for_room() -> None:
    class Endless(Actor):
        async def handle(self, message: Any) -> None:
            await anyio.sleep_forever()

    async def main() -> None:
        async with Supervisor() as supervisor:
            actor = supervisor.spawn(Endless, name="endless", mailbox=1)
            waiting = [asyncio.ensure_future(actor.ask(n)) for n in range(5)]
            await anyio.sleep(1)
            await supervisor.stop(actor, graceful=False)
            ends = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(end) for end in ends] == [ActorStopped] * 5
            supervisor.spawn(Summing, name="endless")  # the name is free again

    on_virtual(main)


def test_an_actor_that_waits_for_a_cancelled_future_has_failed() -> None:
    class Careless(Actor):
        async def handle(self, message: Any) -> None:
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future

    async def main() -> None:
        async with Supervisor(PATIENT) as supervisor:
            actor = supervisor.spawn(Careless, name="careless")
            with pytest.raises(ActorFailed):
                await actor.ask(1)
            assert actor.statistics().failures == 1

    on_virtual(main)


def test_an_actor_watches_what_it_depends_on() -> None:
    lost = anyio.Event()

    class Dependent(Actor):
        async def handle(self, message: Any) -> str:
            await anyio.sleep(1)
            return "answer"

        async def watch(self) -> None:
            await lost.wait()
            raise ConnectionError("the database went away")

    async def main() -> None:
        async with Supervisor(Restarts(limit=1)) as supervisor:
            actor = supervisor.spawn(Dependent, name="dependent")
            assert await actor.ask(0) == "answer"
            asyncio.get_running_loop().call_later(0.5, lost.set)
            with pytest.raises(ActorFailed, match="database went away"):
                await actor.ask(0)

    on_virtual(main)


def test_an_actor_that_fails_while_it_stops_is_not_brought_back() -> None:
    objects: list[Actor] = []

    class Clumsy(Actor):
        async def start(self) -> None:
            objects.append(self)

        async def handle(self, message: Any) -> None:
            pass

        async def stop(self) -> None:
            raise OSError("cannot clean up")

    async def main() -> None:
        async with Supervisor(PATIENT) as supervisor:
            actor = supervisor.spawn(Clumsy, name="clumsy")
            await actor.ask(1)
        assert "cannot clean up" in actor.statistics().last_failure
        assert len(objects) == 1

    on_virtual(main)


def test_misuse_is_named() -> None:
    async def main() -> None:
        supervisor = Supervisor()
        with pytest.raises(ForkgymError, match="async with"):
            supervisor.spawn(Summing, name="a")
        async with supervisor:
            supervisor.spawn(Summing, name="a")
            with pytest.raises(ForkgymError, match="already"):
                supervisor.spawn(Summing, name="a")
            with pytest.raises(ValueError, match="at least 1"):
                supervisor.spawn(Summing, name="b", mailbox=0)
            plain = supervisor.spawn(Actor, name="c", restarts=Restarts(limit=0))
            with pytest.raises(ActorFailed, match="must define handle"):
                await plain.ask(1)

    on_virtual(main)
    with pytest.raises(ValueError, match="factor"):
        Restarts(factor=0.5)


# ---------------------------------------------------------------------- kills


class Squaring(Actor):
    """Stateless, in three steps of odd lengths."""

    async def start(self) -> None:
        await anyio.sleep(0.003)

    async def handle(self, message: int) -> int:
        await anyio.sleep(0.001 * (message % 3))
        await asyncio.sleep(0)
        return message * message


async def supervised_work() -> tuple[list[int], int]:
    """20 questions of 4 clients to 3 actors; a client asks again where an actor failed."""
    failures = 0
    results: dict[int, int] = {}
    async with Supervisor(PATIENT) as supervisor:
        actors = [supervisor.spawn(Squaring, name=f"s{i}", mailbox=2) for i in range(3)]

        async def client(first: int) -> None:
            for question in range(first, first + 5):
                while True:
                    try:
                        results[question] = await actors[question % 3].ask(question)
                        break
                    except ActorFailed:
                        continue

        async with anyio.create_task_group() as group:
            for first in range(0, 20, 5):
                group.start_soon(client, first)
        for statistics in supervisor.statistics():
            assert statistics.mailbox.highest <= 2
            assert statistics.mailbox.used == 0
            failures += statistics.failures
    return [results[question] for question in range(20)], failures


def kills(seed: int) -> list[Fault]:
    source = random.Random(seed)
    return [Fault(f"actor:s{source.randrange(3)}", source.randint(1, 40)) for _ in range(source.randint(1, 12))]


def failures_under(seeds: range) -> int:
    """Run the work under each seed with its kills; every result must be right. Returns how often an actor died."""
    failures = 0
    for seed in seeds:
        results, died = run(supervised_work, loop="virtual", seed=seed, faults=kills(seed))
        assert results == [n * n for n in range(20)], f"seed {seed}"
        failures += died
    return failures


def test_killed_actors_give_the_same_results_under_300_schedules() -> None:
    assert failures_under(range(300)) > 300


@pytest.mark.slow
def test_killed_actors_give_the_same_results_under_3000_schedules() -> None:
    assert failures_under(range(300, 3300)) > 3000


def test_kills_do_strike() -> None:
    """The test above would pass without faults too: here they are counted."""

    async def main() -> int:
        async with Supervisor(PATIENT) as supervisor:
            actor = supervisor.spawn(Squaring, name="s0")
            failed = 0
            for _ in range(40):
                try:
                    await actor.ask(2)
                except ActorFailed:
                    failed += 1
            assert actor.statistics().failures == 30
            return failed

    # Kills strike in start, in take and in the pause as well; those lose no message.
    assert 0 < run(main, loop="virtual", faults=[Fault("actor:s0", 3 * n + 1) for n in range(30)]) < 30


def test_a_message_handed_to_a_dying_actor_is_not_lost() -> None:
    """Killed at the very await at which a message arrives: the successor takes it, and nobody asks twice."""
    for at in range(1, 6):

        async def main() -> int:
            async with Supervisor(PATIENT) as supervisor:
                actor = supervisor.spawn(Immediate, name="i")
                await anyio.sleep(1)
                answers = 0
                for _ in range(5):
                    answers += await actor.ask(1)
                assert actor.statistics().failures == 1
                return answers

        assert run(main, loop="virtual", faults=[Fault("actor:i", at)]) == 5


class Immediate(Actor):
    """Awaits nothing of its own, so every kill strikes in the mailbox."""

    async def handle(self, message: int) -> int:
        return message
