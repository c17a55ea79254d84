"""A streamed update is the update collected phase by phase, bit for bit, whatever the schedule and whatever fails."""

from __future__ import annotations

import random

import pytest

from forkgym.runtime import Fault
from forkgym.schedule.desk import EngineLost
from forkgym.schedule.stream import TooManyQuarantined
from forkgym.train.collect import Collector
from forkgym.train.stream import StreamCollector, StreamSettings
from tests.rollout.lamps import Lamps, table_engine
from tests.train.streaming import (
    OPTIONS,
    Weather,
    assert_nothing_left,
    collect,
    fingerprint,
    make_collector,
    settings,
)

_references: dict[tuple[str, str], bytes] = {}


def reference(algorithm: str, planning: str = "batch") -> bytes:
    """What the phase-by-phase collector collects."""
    if (algorithm, planning) not in _references:
        collector = make_collector(Collector, algorithm, planning=planning)
        _references[algorithm, planning] = fingerprint(collector, collect(collector, algorithm, planning=planning))
    return _references[algorithm, planning]


@pytest.fixture(autouse=True)
def lamps():
    before = Lamps.live
    yield
    Lamps.fault_at = None
    assert Lamps.live == before


@pytest.mark.parametrize("planning", ["batch", "group"])
@pytest.mark.parametrize("algorithm", OPTIONS)
@pytest.mark.parametrize("loop", ["uvloop", "asyncio", "virtual"])
def test_a_streamed_update_is_the_one_collected_phase_by_phase(algorithm, planning, loop):
    collector = make_collector(StreamCollector, algorithm, planning=planning)
    collector.stream = StreamSettings(loop=loop)
    assert fingerprint(collector, collect(collector, algorithm, planning=planning)) == reference(algorithm, planning)
    assert_nothing_left(collector.engine, Lamps.live)
    assert "retried" not in collector.ledger.generated


def test_planning_by_group_and_by_batch_differ():
    assert reference("twice", "group") != reference("twice", "batch")
    assert reference("crr", "group") == reference("crr", "batch")  # a score selector needs no multiplier


@pytest.mark.parametrize("algorithm", ["crr", "twice-dr"])
def test_environments_may_run_in_threads(algorithm):
    collector = make_collector(StreamCollector, algorithm)
    collector.stream = StreamSettings(loop="asyncio", environments="thread", max_environments=5)
    assert fingerprint(collector, collect(collector, algorithm)) == reference(algorithm)
    assert_nothing_left(collector.engine, Lamps.live)


def one_random_schedule(seed: int) -> None:
    """A seed's schedule, workers, delays, kills and failures; the update must be the reference's."""
    source = random.Random(seed)
    algorithm = source.choice(["crr", "twice", "twice-dr"])
    planning = source.choice(["batch", "group"])
    weather = Weather(seed, failures=source.choice([0.0, 0.0, 0.02, 0.05]))
    faults = [
        Fault(source.choice(["engine", "rollout:episode *", "rollout:branch *", "rollout:*"]), source.randint(1, 60))
        for _ in range(source.choice([0, 1, 4]))
    ]
    engine = table_engine(max_running=source.choice([1, 3, 64]))
    collector = make_collector(
        StreamCollector, algorithm, engine=engine, max_running=source.choice([1, 2, 7, 64]), planning=planning
    )
    collector.stream = settings(
        seed,
        faults=tuple(faults),
        perform=weather.perform,
        max_environments=source.choice([1, 2, 5, 100]),
        attempts=1000,
    )
    collection = collect(collector, algorithm, planning=planning)
    assert fingerprint(collector, collection) == reference(algorithm, planning), f"seed {seed}"
    assert_nothing_left(engine, Lamps.live)


@pytest.mark.parametrize("seed", range(12))
def test_any_schedule_worker_count_and_fault_gives_the_same_update(seed):
    one_random_schedule(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_three_hundred_schedules_worker_counts_and_faults_give_the_same_update(block):
    for seed in range(1000 + 30 * block, 1030 + 30 * block):
        one_random_schedule(seed)


def test_faults_of_environments_are_retried_and_their_tokens_kept_apart(monkeypatch):
    collector = make_collector(StreamCollector, "twice")
    told = []
    collector.stream = StreamSettings(loop="asyncio", tell=lambda name, detail: told.append((name, detail)))
    Lamps.fault_at = 40
    monkeypatch.setattr(Lamps, "_step", step_that_fails_once)
    assert fingerprint(collector, collect(collector, "twice")) == reference("twice")
    assert [name for name, _ in told] == ["retried"]
    assert "the lamp fell down" in told[0][1]["reason"]
    assert collector.ledger.generated["retried"] > 0
    assert_nothing_left(collector.engine, Lamps.live)


plain_step = Lamps._step


def step_that_fails_once(self, action):
    """Lamps that have failed go on afterwards."""
    try:
        return plain_step(self, action)
    except OSError:
        Lamps.fault_at = None
        raise


def step_of_a_cursed_task(self, action):
    """One task never works."""
    if self._task == 0:
        raise RuntimeError("task 0 is cursed")
    return plain_step(self, action)


@pytest.mark.parametrize("planning", ["batch", "group"])
@pytest.mark.parametrize("seed", range(3))
def test_a_task_that_keeps_failing_is_quarantined_with_its_reason_and_the_others_are_as_they_would_be(
    seed, planning, monkeypatch
):
    told = []
    whole = collect(make_collector(Collector, "twice", planning=planning), "twice", planning=planning)
    monkeypatch.setattr(Lamps, "_step", step_of_a_cursed_task)
    collector = make_collector(StreamCollector, "twice", planning=planning)
    collector.stream = settings(
        seed, perform=Weather(seed).perform, attempts=3, tell=lambda name, detail: told.append((name, detail))
    )
    collection = collect(collector, "twice", planning=planning)
    [lost] = [detail for name, detail in told if name == "quarantined"]
    assert (lost["group"], lost["attempts"], lost["reason"]) == (1, 3, "RuntimeError: task 0 is cursed")
    assert [group[0].group for group in collection.groups] == [0, 2, 3, 4]
    assert_nothing_left(collector.engine, Lamps.live)
    assert collection.groups == [group for group in whole.groups if group[0].group != 1]
    if planning == "group":
        assert collection.decisions == [one for one in whole.decisions if one.group != 1]


def test_where_most_tasks_fail_the_run_ends_with_the_reason():
    class Broken(Lamps):
        def _reset(self, *, seed, options):
            raise RuntimeError("no world today")

    collector = make_collector(StreamCollector, "grpo")
    collector.make_env = Broken
    collector.stream = settings(0, attempts=2)
    with pytest.raises(TooManyQuarantined, match="no world today"):
        collect(collector, "grpo")
    assert_nothing_left(collector.engine, Lamps.live)


def test_an_engine_that_keeps_failing_ends_the_run():
    engine = table_engine()

    def broken():
        raise OSError("the device is gone")

    engine.step = broken
    collector = make_collector(StreamCollector, "grpo", engine=engine)
    collector.stream = settings(0)
    with pytest.raises(EngineLost, match="the device is gone"):
        collect(collector, "grpo")
    assert_nothing_left(engine, Lamps.live)


def test_an_engine_without_memory_serves_fewer_turns_at_once_and_the_update_is_the_same(monkeypatch):
    engine = table_engine()
    step = engine.step

    def small():
        if engine.statistics().running > 5:
            raise MemoryError("out of memory")
        return step()

    monkeypatch.setattr(engine, "step", small)
    collector = make_collector(StreamCollector, "twice", engine=engine)
    collector.stream = settings(0)
    assert fingerprint(collector, collect(collector, "twice")) == reference("twice")


def test_what_is_interrupted_leaves_nothing_behind():
    class Stubborn(Lamps):
        def _step(self, action):
            if len(stepped) == 30:
                raise KeyboardInterrupt
            stepped.append(action)
            return super()._step(action)

    for loop in ("asyncio", "virtual"):
        stepped: list = []
        collector = make_collector(StreamCollector, "crr")
        collector.make_env = Stubborn
        collector.stream = StreamSettings(loop=loop)
        with pytest.raises(KeyboardInterrupt):
            collect(collector, "crr")
        assert_nothing_left(collector.engine, Lamps.live)


def test_the_weather_of_these_tests_does_fail_things():
    collector = make_collector(StreamCollector, "twice")
    weather = Weather(3, failures=0.05)
    collector.stream = settings(3, perform=weather.perform, attempts=1000, faults=(Fault("rollout:*", 5),))
    collect(collector, "twice")
    assert weather.failed > 5
    assert collector.ledger.generated["retried"] > 0
