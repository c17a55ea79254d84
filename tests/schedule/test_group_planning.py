"""Planning by group: nothing of other groups is needed, and λ, moved once an update, still meets the budget."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from forkgym.credit import CoinSelector, ScoreSelector
from forkgym.schedule import ControllerState, make_decisions, plan_branches, plans_by_group, settle
from tests.schedule.streams import branching, groups_of, run_branches, simulate
from tests.schedule.test_controller import worst_window


def taught_state(setting) -> ControllerState:
    """The state after one update."""
    rng, state = np.random.default_rng(1), ControllerState()
    made = groups_of(rng, 0, groups=4, size=3)
    episodes = {one.key: one for group in made for one in group}
    decisions = make_decisions(made)
    plan_branches(decisions, episodes, setting, state, 0, planning="group")
    run_branches(rng, decisions, episodes)
    settle(decisions, setting, state, credited=False, episodes=episodes)
    return state


@pytest.mark.parametrize("rule", ["sqrt", "sqrt-score", "uniform", "mixed-outcome"])
def test_a_group_is_planned_alone_as_within_its_update(rule):
    setting = branching(CoinSelector(rule=rule, warmup_updates=1), control_variate="learned")
    state = taught_state(setting)
    made = groups_of(np.random.default_rng(2), 5, groups=4, size=3)
    episodes = {one.key: one for group in made for one in group}
    whole = make_decisions(made)
    multiplier = plan_branches(whole, episodes, setting, state, 5, planning="group")
    apart = []
    for group in reversed(made):
        own = make_decisions([group])
        mine = {one.key: one for one in group}
        assert plan_branches(own, mine, setting, state, 5, planning="group") == multiplier
        apart = own + apart
    assert apart == whole
    assert len({one.propensity for one in whole}) > 1 or rule == "uniform"


def test_lambda_is_moved_after_an_update_and_not_within_it():
    setting = branching(CoinSelector(warmup_updates=1))
    state = taught_state(setting)
    before = copy.deepcopy(state)
    made = groups_of(np.random.default_rng(3), 5, groups=4, size=3)
    episodes = {one.key: one for group in made for one in group}
    decisions = make_decisions(made)
    assert plan_branches(decisions, episodes, setting, state, 5, planning="group") == before.multiplier
    assert state == before
    run_branches(np.random.default_rng(0), decisions, episodes)
    settle(decisions, setting, state, credited=False, episodes=episodes)
    assert state.multiplier != before.multiplier


def test_what_can_be_planned_by_group():
    coins, scores = branching(CoinSelector(warmup_updates=3)), branching(ScoreSelector())
    assert [plans_by_group(coins, update, "batch") for update in (0, 2, 3)] == [True, True, False]
    assert plans_by_group(coins, 3, "group")
    assert plans_by_group(scores, 3, "batch")


def test_before_there_is_a_multiplier_branches_are_drawn_as_in_warm_up():
    made = groups_of(np.random.default_rng(3), 0, groups=2, size=3)
    episodes = {one.key: one for group in made for one in group}
    decisions = make_decisions(made)
    setting = branching(CoinSelector(warmup_updates=0, warmup_propensity=0.4))
    assert plan_branches(decisions, episodes, setting, ControllerState(), 0, planning="group") == 0.0
    assert {one.propensity for one in decisions} == {0.4}


@pytest.mark.slow
def test_the_realised_budget_is_met_over_any_ten_updates():
    # As for planning over the whole batch: 640 episodes an update, the promise is 3 %.
    setting = branching(CoinSelector(warmup_updates=3))
    factual, auxiliary, _ = simulate(18, setting, groups=128, size=5, planning="group")
    assert worst_window(factual, auxiliary, 0.7, skip=5) < 0.03


@pytest.mark.slow
@pytest.mark.parametrize("fraction", [0.3, 0.7])
def test_the_realised_budget_is_met_over_any_ten_updates_of_a_long_run(fraction):
    setting = branching(CoinSelector(warmup_updates=3, budget_fraction=fraction))
    factual, auxiliary, _ = simulate(30, setting, groups=128, size=5, seed=1, planning="group")
    assert worst_window(factual, auxiliary, fraction, skip=5) < 0.03


def test_a_small_batch_meets_its_budget_in_the_long_run():
    setting = branching(CoinSelector(warmup_updates=3, budget_fraction=0.5))
    factual, auxiliary, _ = simulate(63, setting, groups=4, size=5, planning="group")
    assert sum(auxiliary[3:]) / sum(factual[3:]) == pytest.approx(0.5, rel=0.03)
