"""Twice, Lemma 1 (twins stay together where laws are close) and Proposition 3 (how many pairs show a sign)."""

import itertools
import math

import numpy as np
import pytest
from forkgym_toy import WORLDS, Simulator, Solver
from forkgym_toy.coupling import gumbel_coupling
from hypothesis import given, settings
from hypothesis import strategies as st

from .support import keys, limit, mean_z

weights = st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6)


@given(weights, st.data())
@settings(max_examples=60, deadline=None)
def test_shared_noise_makes_two_choices_agree_at_least_as_often_as_the_lemma_says(first, data):
    second = data.draw(st.lists(st.floats(0.01, 1.0), min_size=len(first), max_size=len(first)))
    p, q = np.array(first) / sum(first), np.array(second) / sum(second)
    distance = np.abs(p - q).sum() / 2
    agreement = np.trace(gumbel_coupling(p, q))
    assert agreement >= (1 - distance) / (1 + distance) - 1e-12
    assert agreement <= 1 - distance + 1e-12  # no coupling does better


@pytest.mark.parametrize("world", ["toy/Coupled-v0", "toy/Shortcut-v0"])
def test_whole_continuations_agree_as_often_as_the_lemma_says(world):
    check_lemma(world)


@pytest.mark.slow
def test_whole_continuations_agree_as_often_as_the_lemma_says_in_the_chain():
    check_lemma("toy/Chain-v0")


def check_lemma(world: str) -> None:
    solver = Solver(WORLDS[world]())
    graph = solver.graph
    for root in {int(graph.root[node]) for node in solver.visits(0) if graph.is_turn(node)}:
        turns = [node for node in graph.turn_nodes(root) if graph.shown[node, 0] >= 0]
        for left, right in itertools.combinations(turns[-6:], 2):
            together = solver.agreement(left, right)
            assert together.probability >= together.bound - 1e-12
            assert 1 - together.probability <= 2 * together.positions * together.distance + 1e-12
            if graph.turn[root] == 0:  # a first turn alone decides nothing here, so identical texts end alike
                different = 1 - np.trace(solver.outcomes(left, [right])[0])
                assert different <= 1 - together.probability + 1e-12


def test_the_computed_probability_of_agreement_is_what_twins_show():
    """Twins of the first turn of the coupled world that chose the other route. Error rate 0.27 %."""
    solver = Solver(WORLDS["toy/Coupled-v0"]())
    simulator = Simulator(solver)
    episodes = simulator.play(keys(20_000, seed=30))
    pairs = simulator.branch(episodes, 0)
    other = ~pairs.self_twin
    said = np.array([solver.graph.text(node) for node in range(solver.graph.size)])
    same = (said[episodes.turns[pairs.rows, 1:]] == said[pairs.after.turns[:, 1:]]).all(axis=1)[other]
    north, south = solver.graph.turn_nodes(int(solver.graph.roots[0]))
    expected = solver.agreement(north, south)
    assert expected.positions == 3
    assert abs(mean_z(same, expected.probability)) < limit()
    assert same.mean() > expected.bound


# ------------------------------------------------------------------------------------------ Proposition 3


def sign_error(p_plus: float, p_minus: float, pairs: int) -> float:
    """P(Σ D ≤ 0) of independent D in {−1, 0, 1}, exactly."""
    law = np.array([1.0])
    for _ in range(pairs):
        law = np.convolve(law, [p_minus, 1 - p_plus - p_minus, p_plus])
    return float(law[: pairs + 1].sum())


def rate(p_plus: float, p_minus: float) -> float:
    return -math.log(1 - (math.sqrt(p_plus) - math.sqrt(p_minus)) ** 2)


def positive_decisions(world: str, layout: str):
    solver = Solver(WORLDS[world]())
    for node in solver.visits(0):
        if solver.graph.is_turn(node):
            law = solver.pair(node, layout)
            if law.advantage > 1e-3:
                yield law


@pytest.mark.parametrize("layout", ["turn-line", "independent"])
@pytest.mark.parametrize("world", ["toy/Coupled-v0", "toy/Chain-v0"])
def test_the_sign_error_falls_exponentially_at_least_as_fast_as_the_bound(world, layout):
    seen = {(round(law.p_plus, 9), round(law.p_minus, 9)) for law in positive_decisions(world, layout)}
    assert len(seen) >= 3
    for p_plus, p_minus in seen:
        r, gap = rate(p_plus, p_minus), p_plus - p_minus
        assert r >= gap**2 / (2 * gap + 4 * p_minus) - 1e-12
        for pairs in (1, 2, 5, 20, 60):
            assert sign_error(p_plus, p_minus, pairs) <= math.exp(-pairs * r) + 1e-12


def test_six_log_over_delta_pairs_show_the_sign_where_reversals_are_rare():
    tested = 0
    for law in positive_decisions("toy/Coupled-v0", "turn-line"):
        if law.p_minus > law.advantage:
            continue
        for error in (0.2, 0.05):
            pairs = math.ceil(6 * math.log(1 / error) / law.advantage)
            if pairs <= 400:
                assert sign_error(law.p_plus, law.p_minus, pairs) <= error
                tested += 1
    assert tested >= 4


def test_twins_show_a_sign_with_fewer_pairs_than_independent_branches():
    solver = Solver(WORLDS["toy/Coupled-v0"]())
    north = solver.graph.turn_nodes(int(solver.graph.roots[0]))[0]
    twin, alone = solver.pair(north), solver.pair(north, "independent")
    assert twin.advantage == pytest.approx(alone.advantage)
    assert rate(twin.p_plus, twin.p_minus) > 8 * rate(alone.p_plus, alone.p_minus)


def test_sampled_pairs_make_as_many_sign_errors_as_computed():
    """J = 12 pairs of the first turn, each under a stream of its own. Error rate 0.27 %; below the bound by design."""
    solver = Solver(WORLDS["toy/Coupled-v0"]())
    simulator = Simulator(solver)
    episodes = simulator.play(keys(4_000, seed=31))
    total = simulator.branch(episodes, 0).difference.copy()
    for index in range(1, 12):
        total += simulator.branch(episodes, 0, kind="pair", index=index).difference
    north = solver.graph.turn_nodes(int(solver.graph.roots[0]))[0]
    law = solver.pair(north)
    wrong = (total <= 0)[episodes.turns[:, 0] == north]
    expected = sign_error(law.p_plus, law.p_minus, 12)
    assert abs(mean_z(wrong, expected, expected * (1 - expected))) < limit()
    assert expected <= math.exp(-12 * rate(law.p_plus, law.p_minus)) + 1e-12
