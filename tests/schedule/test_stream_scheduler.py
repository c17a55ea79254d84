"""The scheduler with a crew that only sleeps: who runs next, how many at once, and what later updates wait for."""

from __future__ import annotations

import asyncio
import json
import random
from zlib import crc32

import pytest

from forkgym.runtime import run
from forkgym.schedule.stream import Limits, Scheduler, admissible
from forkgym.schedule.timeline import Timeline


class Sleepers:
    """Episodes and branches that take a given time; every episode of a group is branched once."""

    def __init__(self, duration=lambda *_: 1.0, whole_update: bool = False) -> None:
        self.duration = duration
        self.whole_update = whole_update
        self.began: list[tuple] = []
        self.running = 0
        self.most = 0
        self.retired: list[tuple] = []
        self.open_groups_of: dict[int, float] = {}

    async def _work(self, what: tuple) -> tuple:
        self.began.append(what)
        self.open_groups_of.setdefault(what[1], asyncio.get_running_loop().time())
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.duration(*what))
        finally:
            self.running -= 1
        return what

    async def episode(self, update, group, member, priority):
        return await self._work(("episode", update, group, member))

    def plan(self, update, group, played):
        return None if self.whole_update else [one[3] for one in played]

    def plan_update(self, update, groups):
        return {number: [one[3] for one in played] for number, played in groups.items()}

    async def branch(self, update, group, wanted, priority):
        return await self._work(("branch", update, group, wanted))

    def retire(self, played):
        self.retired.append(played)

    def blame(self, error):
        return "rollout"


def stream(crew, limits, updates, *, learn=0.0, timeline=None, seed=0):
    """Batches of some updates, each learnt from in ``learn`` seconds, and the time it all took."""

    async def main():
        batches = []
        async with Scheduler(crew, limits, last=updates - 1, timeline=timeline) as scheduler:
            for update in range(updates):
                batches.append(await scheduler.batch())
                await asyncio.sleep(learn)
                scheduler.publish(update + 1)
        return batches, asyncio.get_running_loop().time()

    return run(main, loop="virtual", seed=seed)


def test_branches_of_the_oldest_group_come_before_episodes_and_these_before_new_groups():
    crew = Sleepers()
    stream(crew, Limits(groups=3, group_size=2, max_running=1), 1)
    order = [(kind, group) for kind, _, group, _ in crew.began]
    assert order == [(kind, group) for group in range(3) for kind in ("episode", "episode", "branch", "branch")]


def test_no_more_run_at_once_than_there_are_slots():
    crew = Sleepers()
    stream(crew, Limits(groups=4, group_size=3, max_running=5, max_branches=2), 2)
    assert crew.most == 5
    assert len(crew.began) == 2 * 4 * 3 * 2
    assert sorted(set(crew.retired)) == sorted({one for one in crew.began if one[0] == "episode"})
    assert len(crew.retired) == 24


def test_a_straggler_delays_nobody_but_its_own_group():
    crew = Sleepers(lambda kind, update, group, member: 100.0 if (group, member) == (0, 0) else 1.0)
    timeline = Timeline()
    _, time = stream(crew, Limits(groups=4, group_size=2, max_running=2), 1, timeline=timeline)
    spans = {one["args"]["group"]: one for one in events(timeline) if one["cat"] == "counterfactual"}
    assert all(spans[group]["ts"] / 1e6 < 15.0 for group in (1, 2, 3))
    assert time < 205.0  # the straggler's episode and its branch, and hardly anything else


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_an_update_begins_when_its_policy_is_there_and_not_before(lag):
    crew = Sleepers()
    limits = Limits(groups=2, group_size=2, max_running=100, lag=lag)
    stream(crew, limits, 5, learn=10.0)
    began = crew.open_groups_of
    published = {version: began_of(lag, version) for version in range(5)}
    for update in range(5):
        assert began[update] == pytest.approx(published[max(0, update - lag)])


def began_of(lag: int, version: int) -> float:
    """When a version is there: updates take 2 s to play and 10 s to learn from."""
    ready, learnt = [0.0], 0.0
    for update in range(version):
        start = ready[max(0, update - lag)]
        learnt = max(learnt, start + 2.0) + 10.0
        ready.append(learnt)
    return ready[version]


def test_with_a_lag_the_learner_need_not_wait():
    _, idle = stream(Sleepers(), Limits(groups=2, group_size=2, max_running=100), 6, learn=2.0)
    _, busy = stream(Sleepers(), Limits(groups=2, group_size=2, max_running=100, lag=1), 6, learn=2.0)
    assert (idle, busy) == (24.0, 14.0)


def test_a_plan_for_the_whole_update_waits_for_its_last_group():
    crew = Sleepers(lambda kind, update, group, member: 1.0 + group, whole_update=True)
    timeline = Timeline()
    stream(crew, Limits(groups=3, group_size=2, max_running=100), 1, timeline=timeline)
    assert {one["ts"] for one in events(timeline) if one["cat"] == "counterfactual"} == {3e6}
    assert timeline.overlap("counterfactual", "on_policy") == 0.0


@pytest.mark.parametrize("seed", range(30))
def test_updates_are_handed_over_whole_and_in_canonical_order(seed):
    crew = Sleepers(
        lambda kind, update, group, member: (crc32(repr((seed, kind, update, group, member)).encode()) % 97) / 10
    )
    batches, _ = stream(crew, Limits(groups=3, group_size=2, max_running=1 + seed % 7, lag=seed % 3), 4, seed=seed)
    for update, batch in enumerate(batches):
        assert batch.update == update
        assert batch.played == {g: [("episode", update, g, m) for m in range(2)] for g in range(3)}
        assert batch.branched == {g: [("branch", update, g, m) for m in range(2)] for g in range(3)}
        assert batch.quarantined == []


def test_admission_follows_slots_and_lag():
    limits = Limits(groups=4, group_size=8, max_running=50, lag=1)
    assert admissible(limits, version=0, running=0, started=0) == 50
    assert admissible(limits, version=0, running=10, started=60) == 4
    assert admissible(limits, version=0, running=0, started=64) == 0
    assert admissible(limits, version=1, running=45, started=64) == 5


@pytest.mark.parametrize("wrong", [{"groups": 0}, {"max_running": 0}, {"lag": -1}, {"max_branches": 0}])
def test_impossible_limits_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Limits(**{"groups": 1, "group_size": 1, **wrong})


def events(timeline: Timeline) -> list[dict]:
    return [one for one in json.loads(timeline.to_json())["traceEvents"] if one["ph"] == "X"]


def test_a_timeline_gives_overlapping_spans_lanes_of_their_own_and_measures_them():
    timeline = Timeline(most=4)
    for start, end in ((0.0, 2.0), (1.0, 3.0), (2.0, 4.0)):
        timeline.span("engine", "step", start, end, turns=3)
    timeline.span("learner", "update", 3.0, 6.0)
    timeline.span("learner", "update", 7.0, 8.0)
    assert [one["tid"] for one in events(timeline)] == [1, 2, 1, 1]
    assert (timeline.busy("engine"), timeline.busy("learner"), timeline.dropped) == (4.0, 3.0, 1)
    assert timeline.overlap("learner", "engine") == pytest.approx(1 / 3)
    assert timeline.overlap("nobody", "engine") == 0.0


def heavy(*what: object) -> float:
    """Lognormal seconds (σ = 1.5), and one of a hundred twenty times as long."""
    source = random.Random(repr(what))
    seconds = source.lognormvariate(0.0, 1.5)
    return seconds * (20.0 if source.random() < 0.01 else 1.0)


def test_under_heavy_tails_a_group_waits_for_its_own_stragglers_only():
    latest = {}
    for whole_update in (False, True):
        timeline = Timeline()
        limits = Limits(groups=32, group_size=8, max_running=256)
        stream(Sleepers(heavy, whole_update=whole_update), limits, 5, timeline=timeline)
        latencies = sorted(one["dur"] / 1e6 for one in events(timeline) if one["cat"] == "groups")
        latest[whole_update] = latencies[int(0.99 * len(latencies))], latencies[len(latencies) // 2]
    print(f"p99 and median group latency: {latest[False]} streamed, {latest[True]} with a barrier between the phases")
    assert latest[False][0] < latest[True][0]
    assert latest[False][1] < 0.25 * latest[True][1]
