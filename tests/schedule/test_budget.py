"""The square-root budget: met where it can be, clipped where it cannot, and the cheapest way to that variance."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkgym.schedule import propensities, solve_multiplier, spend

WEIGHT = st.floats(0.0, 10.0)
COST = st.floats(0.5, 500.0)
DECISIONS = st.lists(st.tuples(WEIGHT, COST), min_size=1, max_size=40)


def plan(weights, costs, budget, minimum):
    multiplier = solve_multiplier(weights, costs, budget, minimum)
    return propensities(weights, multiplier, minimum), spend(weights, costs, multiplier, minimum)


@given(
    st.lists(st.tuples(st.floats(0.01, 10.0), COST), min_size=1, max_size=40),
    st.floats(0.02, 0.98),
    st.floats(0.0, 0.5),
)
@settings(max_examples=200, deadline=None)
def test_a_feasible_budget_is_met_to_one_part_in_a_million(decisions, share, minimum):
    weights, costs = zip(*decisions, strict=True)
    least, most = minimum * sum(costs), sum(costs)
    budget = least + share * (most - least)
    chosen, spent = plan(weights, costs, budget, minimum)
    assert spent == pytest.approx(budget, rel=1e-6)
    assert all(minimum <= q <= 1.0 for q in chosen)


@given(DECISIONS, st.floats(0.0, 1e5), st.floats(0.0, 1e5), st.floats(0.0, 1.0))
@settings(max_examples=200, deadline=None)
def test_more_budget_never_lowers_a_propensity(decisions, budget, more, minimum):
    weights, costs = zip(*decisions, strict=True)
    low, _ = plan(weights, costs, budget, minimum)
    high, _ = plan(weights, costs, budget + more, minimum)
    assert all(a <= b + 1e-9 for a, b in zip(low, high, strict=True))


@given(DECISIONS, st.floats(0.0, 1e5), st.floats(0.0, 1.0))
@settings(max_examples=200, deadline=None)
def test_the_budget_is_overspent_only_where_the_lowest_propensity_costs_more(decisions, budget, minimum):
    weights, costs = zip(*decisions, strict=True)
    _, spent = plan(weights, costs, budget, minimum)
    assert spent <= max(budget, minimum * sum(costs)) * (1 + 1e-6) + 1e-3  # λ is 0 or at least 1e-9


def test_without_budget_every_propensity_is_the_lowest():
    assert plan([1.0, 2.0], [10.0, 10.0], 0.0, 0.05)[0] == [0.05, 0.05]


def test_a_budget_for_everything_runs_everything():
    assert plan([1.0, 2.0, 0.01], [10.0, 10.0, 5.0], 25.0, 0.05)[0] == [1.0, 1.0, 1.0]
    assert plan([1.0, 2.0, 0.01], [10.0, 10.0, 5.0], 1e9, 0.05)[0] == [1.0, 1.0, 1.0]


def test_decisions_without_weight_get_the_lowest_propensity_whatever_the_budget():
    assert plan([0.0, 0.0], [10.0, 10.0], 15.0, 0.05)[0] == [0.05, 0.05]
    chosen, spent = plan([0.0, 1.0], [10.0, 10.0], 6.0, 0.05)
    assert chosen == [0.05, pytest.approx(0.55)]
    assert spent == pytest.approx(6.0)


def test_no_decisions_need_no_multiplier():
    assert solve_multiplier([], [], 10.0, 0.05) == 0.0


def test_a_hand_computed_plan():
    # w = (2, 1), c = (1, 3), no clip: λ(2·1 + 1·3) = 1, so λ = 0.2 and q = (0.4, 0.2).
    assert plan([2.0, 1.0], [1.0, 3.0], 1.0, 0.0)[0] == [pytest.approx(0.4), pytest.approx(0.2)]


@pytest.mark.parametrize(
    ("weights", "costs", "budget", "named"),
    [([-1.0], [1.0], 1.0, "weight"), ([1.0], [math.nan], 1.0, "cost"), ([1.0], [1.0], math.inf, "budget")],
)
def test_numbers_that_cannot_be_allocated_are_refused(weights, costs, budget, named):
    with pytest.raises(ValueError, match=f"a {named} of .* cannot be allocated"):
        solve_multiplier(weights, costs, budget, 0.05)


def test_the_square_root_rule_has_the_least_variance_for_its_tokens():
    # P4: Σ m/q at the rule's q is no larger than at any other q with the same cost (1,000 random rivals).
    rng = np.random.default_rng(0)
    m, c = rng.uniform(0.05, 1.0, 12), rng.uniform(5.0, 50.0, 12)
    weights = np.sqrt(m / c)
    budget = 0.25 * c.sum()
    q = np.array(plan(list(weights), list(c), budget, 0.0)[0])
    best = (m / q).sum()
    assert (q < 1.0).all()
    for _ in range(1000):
        rival = q * np.exp(rng.normal(0.0, 0.3, 12))
        rival = np.minimum(1.0, rival * budget / (rival * c).sum())
        assert (m / rival).sum() >= best * (1 - 1e-9)
