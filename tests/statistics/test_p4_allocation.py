"""Twice, Proposition 4: q = min(1, λ·√(m/c)) minimises Σ m/q under Σ q·c ≤ C."""

import numpy as np
import pytest
from forkgym_toy import WORLDS, Solver
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from forkgym.schedule.budget import propensities, solve_multiplier, spend


def square_root_rule(m, c, budget):
    weights = np.sqrt(m / c).tolist()
    return np.array(propensities(weights, solve_multiplier(weights, c.tolist(), budget, 0.0), 0.0))


def problem(seed: int, size: int):
    draw = np.random.default_rng(seed)
    m, c = draw.uniform(0.01, 1.0, size), draw.integers(2, 60, size).astype(float)
    return m, c, draw.uniform(0.1, 0.9) * c.sum(), draw


@given(st.integers(0, 10**6), st.integers(2, 12))
@settings(max_examples=40, deadline=None)
def test_no_affordable_propensities_have_less_variance(seed, size):
    m, c, budget, draw = problem(seed, size)
    best = square_root_rule(m, c, budget)
    assert best @ c <= budget * (1 + 1e-6)
    for _ in range(50):
        q = draw.uniform(0.01, 1.0, size)
        q = np.minimum(1.0, q * budget / (q @ c)) if q @ c > budget else q
        assert (m / best).sum() <= (m / q).sum() * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_a_numerical_optimiser_finds_the_same_propensities(seed):
    m, c, budget, _ = problem(seed, 6)
    best = square_root_rule(m, c, budget)
    scale = (m * c.sum() / budget).sum()
    found = minimize(
        lambda q: (m / q).sum() / scale,
        np.full(6, budget / c.sum()),
        jac=lambda q: -m / q**2 / scale,
        bounds=[(1e-3, 1.0)] * 6,
        constraints=[{"type": "ineq", "fun": lambda q: (budget - q @ c) / budget, "jac": lambda _: -c / budget}],
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-10},
    )
    assert found.success
    assert (m / best).sum() == pytest.approx(found.fun * scale, rel=1e-5)
    np.testing.assert_allclose(best, found.x, rtol=5e-3)


def test_on_the_chain_the_rule_beats_one_propensity_for_all_at_equal_cost():
    """Exact second moments and expected costs of the chain's six turns, 30 % of the full cost to spend."""
    solver = Solver(WORLDS["toy/Chain-v0"]())
    graph = solver.graph
    reach = {node: weight for node, weight in solver.visits(0).items() if graph.is_turn(node)}
    moment, visits, length = np.zeros(6), np.zeros(6), np.zeros(6)
    for node, weight in reach.items():
        turn = int(graph.turn[node])
        moment[turn] += weight * solver.pair(node).discordance
        visits[turn] += weight
        length[turn] += weight * len(graph.written[node])
    m = np.maximum(moment, 1e-9)  # per episode: decisions of a turn, weighted by how often there is one
    c = np.cumsum(length[::-1])[::-1]
    budget = 0.3 * c.sum()
    best = square_root_rule(m, c, budget)
    assert spend(np.sqrt(m / c).tolist(), c.tolist(), 1e9, 0.0) > budget
    assert (m / best).sum() < 0.7 * (m / (budget / c.sum())).sum()
