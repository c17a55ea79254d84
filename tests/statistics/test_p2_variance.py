"""Twice, Proposition 2: Var(D) = (1 − ρ)·Var(D_ind), with ρ = 2·Cov(U, U′)/Var(D_ind); and shared luck."""

import numpy as np
import pytest
from forkgym_toy import WORLDS, Simulator, Solver

from .support import keys, limit

PAIRS = 20_000


def squares(values):
    """Squared deviations: their mean is the variance, and their spread its standard error."""
    return (values - values.mean()) ** 2


def variance_z(twin, alone, rho: float) -> float:
    """Standardised distance of Var(D) from (1 − ρ)·Var(D_ind), for separately drawn samples and a known ρ."""
    left, right = squares(twin), (1 - rho) * squares(alone)
    return (left.mean() - right.mean()) / np.sqrt(left.var() / left.size + right.var() / right.size)


def identity_z(pairs, mask, alone) -> float:
    """The same with ρ estimated from the pairs: Var(D) + 2·Cov(U, U′) against Var(D_ind)."""
    u, v = pairs.utility[mask], pairs.twin_utility[mask]
    left = squares(u) + squares(v)  # = squares(D) + 2·(cross products), pair by pair
    right = squares(alone)
    return (left.mean() - right.mean()) / np.sqrt(left.var() / left.size + right.var() / right.size)


def check(world: str, turns, *, count: int, task: int = 0, least: int = 400, layout: str = "turn-line") -> None:
    """Every decision (s, y) with enough pairs; error rate over seeds 0.27 % for each of the two identities."""
    solver = Solver(WORLDS[world]())
    simulator, lone = Simulator(solver, layout), Simulator(solver, "independent")
    episodes = simulator.play(keys(count, seed=20, task=task), task)
    others = lone.play(keys(count, seed=21, task=task), task)  # Var(D_ind) from episodes of its own
    known, estimated = [], []
    for turn in turns:
        pairs, separate = simulator.branch(episodes, turn), lone.branch(others, turn, kind="independent")
        for node in np.unique(pairs.decision).tolist():
            here, there = pairs.decision == node, separate.decision == node
            law = solver.pair(node, layout)
            if min(here.sum(), there.sum()) < least or law.discordance * here.sum() < 50:
                continue
            alone = separate.difference[there]
            known.append(variance_z(pairs.difference[here], alone, law.rho))
            estimated.append(identity_z(pairs, here, alone))
    assert len(known) >= 2
    for scores in (known, estimated):
        assert max(map(abs, scores)) < limit(len(scores))


def test_coupling_scales_the_variance_by_one_minus_rho():
    check("toy/Coupled-v0", [0, 1], count=PAIRS)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["turn-line", "turn"])
def test_coupling_scales_the_variance_by_one_minus_rho_in_the_chain(layout):
    check("toy/Chain-v0", range(5), count=60_000, task=1, layout=layout)


def test_the_coupled_world_is_strongly_coupled():
    """ρ of both first decisions is above .8, computed; an independent branch has none."""
    solver = Solver(WORLDS["toy/Coupled-v0"]())
    for node in solver.graph.turn_nodes(int(solver.graph.roots[0])):
        assert solver.pair(node).rho > 0.8
        assert solver.pair(node, "independent").rho == pytest.approx(0.0, abs=1e-12)


def test_line_keys_couple_turns_of_different_lengths_better_than_turn_keys():
    solver = Solver(WORLDS["toy/Chain-v0"]())
    for node in solver.graph.turn_nodes(int(solver.graph.roots[0])):
        assert solver.pair(node, "turn-line").rho > solver.pair(node, "turn").rho + 0.01


def test_shared_luck_lowers_the_variance():
    """Exact for every first decision; and in a sample, where fresh luck is noisier by more than 10 σ."""
    solver = Solver(WORLDS["toy/SlipperyChain-v0"]())
    for node in solver.graph.turn_nodes(int(solver.graph.roots[0])):
        shared, fresh = solver.pair(node), solver.pair(node, shared_luck=False)
        assert shared.mean == pytest.approx(fresh.mean, abs=1e-9)
        assert shared.variance < 0.2 * fresh.variance
    simulator = Simulator(solver)
    episodes = simulator.play(keys(PAIRS // 4, seed=22))
    shared = squares(simulator.branch(episodes, 0).difference)
    fresh = squares(simulator.branch(episodes, 0, shared_luck=False).difference)
    assert (fresh.mean() - shared.mean()) / np.sqrt((fresh.var() + shared.var()) / fresh.size) > 10


def test_a_star_of_alternatives_has_a_floor_that_pairs_do_not_have():
    """Appendix B.6: Var(U − mean U′) over K alternatives on one noise falls slower than J pairs at equal cost."""
    solver = Solver(WORLDS["toy/Coupled-v0"]())
    simulator = Simulator(solver)
    episodes = simulator.play(keys(PAIRS // 4, seed=23))
    cost, turn = 3, 1  # K = 3 alternatives against J = 2 pairs
    star = np.mean([simulator.branch(episodes, turn, index=k).difference for k in range(cost)], axis=0)
    first, second = simulator.branch(episodes, turn), simulator.branch(episodes, turn, kind="pair", index=1)
    pairs = (first.difference + second.difference) / 2
    truth = solver.advantage[first.decision]
    a, b = (star - truth) ** 2, (pairs - truth) ** 2
    assert (a.mean() - b.mean()) / np.sqrt((a.var() + b.var()) / a.size) > limit()
