"""Every factual and twin trajectory is an exact sample of the policy (Twice, appendix B.1)."""

import numpy as np
import pytest
from forkgym_toy import WORLDS, Simulator, Solver
from scipy.stats import chi2

from .support import ERROR_RATE, keys, limit, mean_z

SOLVERS = {name: Solver(world()) for name, world in WORLDS.items()}


def continuation_law(solver: Solver, root: int) -> dict[tuple[int, ...], float]:
    """Probability of every sequence of turns from ``root`` to the end."""
    graph, law = solver.graph, {}
    stack = [((), root, 1.0)]
    while stack:
        turns, node, weight = stack.pop()
        for turn in graph.turn_nodes(node):
            for child, chance in zip(graph.outcome[turn].tolist(), graph.chance[turn].tolist(), strict=True):
                path, mass = (*turns, turn), weight * solver.turn_probability(turn) * chance
                if child < 0:
                    continue
                if graph.is_end(child):
                    law[path] = law.get(path, 0.0) + mass
                else:
                    stack.append((path, child, mass))
    return law


def first_turn_law(solver: Solver, root: int) -> dict[tuple[int, ...], float]:
    return {(node,): solver.turn_probability(node) for node in solver.graph.turn_nodes(root)}


def chi_square(law: dict[tuple[int, ...], float], seen) -> tuple[float, float]:
    """χ² of trajectories (rows of turn nodes, −1 padded) and its threshold at `ERROR_RATE`; rare ones are pooled."""
    rows, counts = np.unique(seen, axis=0, return_counts=True)
    count = {tuple(row[row >= 0].tolist()): int(number) for row, number in zip(rows, counts, strict=True)}
    assert set(count) <= set(law), "a trajectory that the policy cannot produce"
    total = len(seen)
    common = [path for path, mass in law.items() if mass * total >= 10]
    expected = [law[path] * total for path in common]
    observed = [count.get(path, 0) for path in common]
    rest = total - sum(expected)
    if rest >= 10:
        expected.append(rest)
        observed.append(total - sum(observed))
    statistic = float(((np.array(observed) - expected) ** 2 / expected).sum())
    return statistic, float(chi2.ppf(1 - ERROR_RATE, len(expected) - 1))


@pytest.mark.parametrize("layout", ["turn-line", "turn", "episode", "independent"])
@pytest.mark.parametrize("world", ["toy/Coupled-v0", "toy/Shortcut-v0"])
def test_whole_trajectories_have_the_policys_law_factual_or_twin(world, layout):
    """χ² over all trajectories from the start; error rate 0.27 % for each of the two."""
    solver = SOLVERS[world]
    simulator = Simulator(solver, layout)
    episodes = simulator.play(keys(10_000, seed=50))
    law = continuation_law(solver, int(solver.graph.roots[0]))
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-6)
    kind = "independent" if layout == "independent" else "twin"
    for seen in (episodes.turns, simulator.branch(episodes, 0, kind=kind).after.turns):
        statistic, threshold = chi_square(law, seen)
        assert statistic < threshold


@pytest.mark.parametrize("layout", ["turn-line", "turn"])
def test_twins_of_one_decision_have_the_policys_law_too(layout):
    """Given y the twin is still an exact sample: so D is unbiased. Error rate 0.27 % for each decision."""
    assert worst_given_the_decision(layout) < 1


def test_under_episode_keys_twins_of_one_decision_do_not():
    """Each trajectory is exact, and yet not given the decision it is compared with."""
    assert worst_given_the_decision("episode") > 100


def worst_given_the_decision(layout: str) -> float:
    """Largest χ² over its threshold among the first decisions of the shortcut world."""
    solver = SOLVERS["toy/Shortcut-v0"]
    simulator = Simulator(solver, layout)
    pairs = simulator.branch(simulator.play(keys(20_000, seed=51)), 0)
    law = continuation_law(solver, int(solver.graph.roots[0]))
    ratios = []
    for node in np.unique(pairs.decision):
        statistic, threshold = chi_square(law, pairs.after.turns[pairs.decision == node])
        ratios.append(statistic / threshold)
    assert len(ratios) == 3
    return max(ratios)


@pytest.mark.parametrize("layout", ["turn-line", "turn", "episode"])
def test_turns_of_many_lengths_are_exact(layout):
    """χ² over the fourteen first turns of the chain; error rate 0.27 %."""
    solver = SOLVERS["toy/Chain-v0"]
    episodes = Simulator(solver, layout).play(keys(10_000, seed=52))
    statistic, threshold = chi_square(first_turn_law(solver, int(solver.graph.roots[0])), episodes.turns[:, :1])
    assert statistic < threshold


def test_n_gram_keys_are_not_exact():
    """Four mumbles make a fifth repeat for ever: the same context reads the same noise."""
    solver = SOLVERS["toy/Chain-v0"]
    episodes = Simulator(solver, "ngram").play(keys(10_000, seed=52))
    statistic, threshold = chi_square(first_turn_law(solver, int(solver.graph.roots[0])), episodes.turns[:, :1])
    assert statistic > 10 * threshold
    said = [solver.graph.text(int(node)).count("um") for node in episodes.turns[:, 0]]
    assert 5 not in said
    assert 6 in said


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["turn-line", "turn", "episode"])
@pytest.mark.parametrize("world", ["toy/Chain-v0", "toy/SlipperyChain-v0"])
def test_every_turn_of_factual_and_twin_chains_is_exact(world, layout):
    """χ² of (s, y) at each of six turns, factual and twin. Error rate 0.27 % each, 3 % for the test."""
    solver = SOLVERS[world]
    simulator = Simulator(solver, layout)
    episodes = simulator.play(keys(50_000, seed=53, task=1), 1)
    reach = solver.visits(1)
    for trajectories in (episodes, simulator.branch(episodes, 0).after):
        for turn in range(6):
            law = {(node,): mass for node, mass in reach.items() if solver.graph.is_turn(node)}
            law = {path: mass for path, mass in law.items() if solver.graph.turn[path[0]] == turn}
            here = trajectories.turns[:, turn][trajectories.turns[:, turn] >= 0]
            alive = sum(law.values())
            assert abs(mean_z(trajectories.turns[:, turn] >= 0, alive, alive * (1 - alive))) < limit()
            statistic, threshold = chi_square({p: m / alive for p, m in law.items()}, here[:, None])
            assert statistic < threshold


@pytest.mark.parametrize("world", sorted(WORLDS))
def test_self_twins_come_as_often_as_computed_and_have_no_difference(world):
    """P(y′ = y) = Σ π(y)² (appendix B.1), error rate 0.27 %; continued all the same, D is 0 in every one."""
    solver = SOLVERS[world]
    simulator = Simulator(solver)
    pairs = simulator.branch(simulator.play(keys(5_000, seed=54)), 0)
    assert abs(mean_z(pairs.self_twin, solver.self_twin(int(solver.graph.roots[0])))) < limit()
    assert pairs.self_twin.any()
    assert not pairs.difference[pairs.self_twin].any()


@pytest.mark.parametrize("world", ["toy/Coupled-v0", "toy/Chain-v0"])
def test_outcomes_of_pairs_have_the_computed_joint_law(world):
    """All four (U, U′) at the first turn against the exact coupling, layouts turn-line, turn and independent."""
    solver = SOLVERS[world]
    root = int(solver.graph.roots[0])
    for layout in ("turn-line", "turn", "independent"):
        simulator = Simulator(solver, layout)
        kind = "independent" if layout == "independent" else "twin"
        pairs = simulator.branch(simulator.play(keys(5_000, seed=55)), 0, kind=kind)
        nodes = solver.graph.turn_nodes(root)
        law = np.zeros((2, 2))
        for node in nodes:
            for alternative, table in zip(nodes, solver.outcomes(node, nodes, layout), strict=True):
                law += solver.turn_probability(node) * solver.turn_probability(alternative) * table
        assert law.sum() == pytest.approx(1.0)
        seen = np.zeros((2, 2))
        np.add.at(seen, (pairs.utility, pairs.twin_utility), 1)
        for u in (0, 1):
            for v in (0, 1):
                hit = (pairs.utility == u) & (pairs.twin_utility == v)
                assert abs(mean_z(hit, law[u, v], law[u, v] * (1 - law[u, v]))) < limit(12)
