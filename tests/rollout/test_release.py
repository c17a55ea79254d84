"""Whatever happens in the middle of a rollout, caches, requests, snapshots and environments are given back."""

from __future__ import annotations

import pytest

from forkgym.core import Snapshot
from forkgym.policy.scripted import TableEngine
from forkgym.rollout.episode import drive
from forkgym.rollout.plan import BranchPlan, Proposal
from tests.rollout.lamps import RENDERER, Lamps, Table, spec, table

FAULTS = [0, 1, 2, 5, 11, 20, 28]
PLANS = {
    "twin": BranchPlan(same_evidence_probability=1.0),
    "crr": BranchPlan(coupling="independent", proposal=Proposal(exclude_factual=True), star=True),
    "pairs": BranchPlan(pairs=2, self_twin_shortcut=False),
}


class Faulty(TableEngine):
    """Fails, or is interrupted, at the n-th step."""

    def __init__(self, error: BaseException | None = None, at: int | None = None):
        super().__init__(table, decode=RENDERER.decode, max_running=16)
        self.error, self.at = error, at

    def step(self):
        if self.at is not None:
            self.at -= 1
            if self.at < 0:
                self.at = None
                raise self.error
        return super().step()


@pytest.fixture
def snapshots(monkeypatch):
    """Open snapshots: each is counted when it is taken and when it is closed."""
    taken: list[Snapshot] = []
    plain = Lamps.snapshot

    def snapshot(self):
        taken.append(plain(self))
        return taken[-1]

    monkeypatch.setattr(Lamps, "snapshot", snapshot)
    return taken


@pytest.fixture(autouse=True)
def no_fault_stays():
    yield
    Lamps.fault_at = None


def assert_nothing_left(at: Table, snapshots: list[Snapshot]) -> None:
    statistics = at.engine.statistics()
    assert statistics.stored_caches == 0
    assert statistics.running == 0
    assert all(snapshot.closed for snapshot in snapshots)
    assert Lamps.live == 0


@pytest.mark.parametrize("error", [RuntimeError("no memory"), KeyboardInterrupt()])
@pytest.mark.parametrize("at", FAULTS)
def test_an_engine_fault_among_episodes_frees_everything(error, at, snapshots):
    table_ = Table(Faulty(error, at))
    with pytest.raises(type(error)):
        table_.episodes([spec(member) for member in range(40)], max_running=16)
    assert_nothing_left(table_, snapshots)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_an_environment_among_episodes_frees_everything(fault, snapshots):
    at = Table()
    Lamps.fault_at = fault
    with pytest.raises(OSError, match="fell down"):
        at.episodes([spec(member) for member in range(48)], max_running=16)
    assert_nothing_left(at, snapshots)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("error", [RuntimeError("no memory"), KeyboardInterrupt()])
@pytest.mark.parametrize("at", [0, 3, 9, 14])
def test_an_engine_fault_among_branches_leaves_the_factual_episodes_usable(plan, error, at, snapshots):
    table_ = Table(Faulty())
    many = table_.episodes([spec(member) for member in range(12)])
    wanted = [(one, turn, place) for one, turn, _ in table_.every_decision(many) for place in range(PLANS[plan].pairs)]
    table_.engine.error, table_.engine.at = error, at
    with pytest.raises(type(error)):
        table_.branches(wanted, PLANS[plan])
    assert table_.engine.statistics().stored_caches == len(many)
    assert table_.engine.statistics().running == 0
    assert Lamps.live == len(many)
    assert len(table_.branches(wanted, PLANS[plan])) == len(wanted)
    table_.close(many)
    assert_nothing_left(table_, snapshots)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("fault", [0, 1, 7, 30])
def test_a_fault_of_an_environment_among_branches_leaves_the_factual_episodes_usable(plan, fault, snapshots):
    at = Table()
    many = at.episodes([spec(member) for member in range(16)])
    Lamps.fault_at = fault
    with pytest.raises(OSError, match="fell down"):
        at.branches(at.every_decision(many), PLANS[plan])
    Lamps.fault_at = None
    assert at.engine.statistics().stored_caches == len(many)
    assert Lamps.live == len(many)
    at.close(many)
    assert_nothing_left(at, snapshots)


@pytest.mark.parametrize("method", ["parse", "restore"])
def test_a_branch_frees_its_fork_whatever_its_environment_refuses(method, monkeypatch, snapshots):
    at = Table()
    many = at.episodes([spec(member) for member in range(4)])

    def refuse(*_, **__):
        raise OSError("the lamp fell down")

    with monkeypatch.context() as broken:
        broken.setattr(Lamps, method, refuse)
        with pytest.raises(OSError, match="fell down"):
            at.branches(at.every_decision(many), PLANS["crr"])
    assert at.engine.statistics().stored_caches == len(many)
    at.close(many)
    assert_nothing_left(at, snapshots)


def test_a_refused_request_ends_its_rollout_and_the_others(snapshots):
    at = Table(TableEngine(table, decode=RENDERER.decode, max_context=12))
    with pytest.raises(ValueError, match="raise max_context or end the episode earlier"):
        at.episodes([spec(member) for member in range(16)])
    assert_nothing_left(at, snapshots)


def test_a_failing_reset_closes_the_environment(monkeypatch, snapshots):
    def refuse(self, **_):
        raise OSError("no lamp")

    monkeypatch.setattr(Lamps, "_reset", refuse)
    at = Table()
    with pytest.raises(OSError, match="no lamp"):
        at.episodes([spec(0), spec(1)])
    assert_nothing_left(at, snapshots)


def test_a_rollout_that_is_closed_half_way_frees_what_it_holds(snapshots):
    at = Table()
    rollout = at.rollout(spec(0))
    next(rollout)
    rollout.close()
    assert_nothing_left(at, snapshots)


def test_finished_results_are_discarded_when_a_later_rollout_fails():
    def finished(value):
        return value
        yield

    def failing():
        raise RuntimeError("broken")
        yield

    thrown: list[int] = []
    with pytest.raises(RuntimeError, match="broken"):
        drive(Faulty(), [finished(1), finished(2), failing(), finished(3)], max_running=4, discard=thrown.append)
    assert thrown == [1, 2]
