"""Horvitz-Thompson and control-variate credit is unbiased for any q, b and q_same (Twice, Proposition 1).

Shown exactly, by summing over every alternative, outcome and coin, and with the keyed coins of a run.
"""

import itertools

import numpy as np
import pytest
from forkgym_toy import WORLDS, Simulator, Solver
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.credit_toy import decisions
from forkgym.credit.estimators import horvitz_thompson
from forkgym.rollout.trace import Branch, Decision

from .support import keys, limit, mean_z

SOLVERS = {name: Solver(world()) for name, world in WORLDS.items() if name != "toy/SlipperyChain-v0"}


def decision_with(branch: Branch | None, *, q: float, b: float, utility: float, branched: bool) -> Decision:
    return Decision(
        episode=1,
        update=0,
        group=0,
        member=0,
        turn=0,
        terminal=False,
        utility=utility,
        features=[],
        baseline=b,
        propensity=q,
        branched=branched,
        branches=[branch] if branch else [],
    )


def expected_credit(solver: Solver, node: int, layout: str, q, b, q_same: float) -> float:
    """E[Â | s, y]: the sum over y′, (U, U′), the branch coin and the evidence coin. q and b may depend on U."""
    graph = solver.graph
    alternatives = graph.turn_nodes(int(graph.root[node]))
    total = 0.0
    tables = solver.outcomes(node, alternatives, layout)
    for alternative, table in zip(alternatives, tables, strict=True):
        chance = solver.turn_probability(alternative)
        shown = int(graph.shown[alternative, 0])
        same = alternative != node and shown >= 0 and shown == graph.shown[node, 0]
        for u, v in itertools.product((0, 1), repeat=2):
            branch = Branch(
                parent=1,
                turn=0,
                index=0,
                kind="twin",
                layout=layout,
                stream=1,
                self_twin=alternative == node,
                same_evidence=same,
                continuation_probability=q_same if same else 1.0,
                utility=float(u if alternative == node else v),
                factual_utility=float(u),
            )
            stopped = Branch(**{**_fields(branch), "continued": False, "utility": 0.0})
            go_on = branch.continuation_probability
            credit = (
                (1 - q[u]) * horvitz_thompson(decision_with(None, q=q[u], b=b[u], utility=u, branched=False))
                + q[u] * go_on * horvitz_thompson(decision_with(branch, q=q[u], b=b[u], utility=u, branched=True))
                + q[u]
                * (1 - go_on)
                * horvitz_thompson(decision_with(stopped, q=q[u], b=b[u], utility=u, branched=True))
            )
            total += chance * table[u, v] * credit
    return total


def _fields(branch: Branch) -> dict:
    return {name: getattr(branch, name) for name in branch.__struct_fields__}


propensity = st.tuples(st.floats(0.01, 1.0), st.floats(0.01, 1.0))
baseline = st.tuples(st.floats(-2.0, 2.0), st.floats(-2.0, 2.0))


@pytest.mark.parametrize("layout", ["turn-line", "turn", "independent"])
@given(q=propensity, b=baseline, q_same=st.floats(0.05, 1.0), pick=st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_the_expected_credit_is_the_advantage_whatever_the_coins_and_the_baseline(layout, q, b, q_same, pick):
    """q and b may even look at U; exact to rounding."""
    for name in ("toy/Coupled-v0", "toy/Shortcut-v0"):
        solver = SOLVERS[name]
        nodes = [node for node in solver.visits(0) if solver.graph.is_turn(node)]
        node = nodes[pick % len(nodes)]
        credit = expected_credit(solver, node, layout, q, b, q_same)
        assert credit == pytest.approx(solver.advantage[node], abs=1e-9)


def test_the_expected_credit_is_the_advantage_in_the_chain():
    solver = SOLVERS["toy/Chain-v0"]
    nodes = [node for node in solver.visits(2) if solver.graph.is_turn(node)]
    for node in nodes[:: len(nodes) // 12]:
        credit = expected_credit(solver, node, "turn-line", (0.1, 0.7), (-0.3, 0.6), 0.25)
        assert credit == pytest.approx(solver.advantage[node], abs=1e-9)


def test_under_episode_keys_the_expected_credit_is_wrong_by_the_bias_of_d():
    solver = SOLVERS["toy/Shortcut-v0"]
    wrong = {}
    for node in solver.graph.turn_nodes(int(solver.graph.roots[0])):
        wrong[solver.graph.text(node)] = expected_credit(solver, node, "episode", (0.5, 0.5), (0.0, 0.0), 0.25)
    assert wrong == pytest.approx({"pass": 0.0, "think hard heads": -0.25, "think hard tails": 0.25}, abs=1e-6)


# ------------------------------------------------------------------------------------------ with keyed coins


@pytest.mark.parametrize(("b", "pairs"), [("zero", 1), ("arbitrary", 3)])
def test_credit_from_keyed_coins_averages_to_the_advantage(b, pairs):
    """20,000 decisions of the coupled world's second turn, q between .2 and 1 by episode and outcome, q_same .25.

    Error rate 0.27 % for all decisions together and 0.27 % for the single (s, y) (Bonferroni).
    """
    solver = SOLVERS["toy/Coupled-v0"]
    simulator = Simulator(solver)
    episodes = simulator.play(keys(20_000, seed=40))
    assert check_average(solver, simulator, episodes, 1, b, pairs) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("world", ["toy/Chain-v0", "toy/SlipperyChain-v0"])
@pytest.mark.parametrize(("b", "pairs"), [("zero", 1), ("arbitrary", 2)])
def test_credit_from_keyed_coins_averages_to_the_advantage_in_the_chains(world, b, pairs):
    """As above, at each of six turns: error rate 0.27 % for each turn's mean and for each turn's decisions."""
    solver = Solver(WORLDS[world]())
    simulator = Simulator(solver)
    episodes = simulator.play(keys(20_000, seed=41, task=3), 3)
    assert sum(check_average(solver, simulator, episodes, turn, b, pairs) for turn in range(6)) >= 6


def check_average(solver, simulator, episodes, turn, b, pairs):
    branches = [simulator.branch(episodes, turn)]
    branches += [simulator.branch(episodes, turn, kind="pair", index=index) for index in range(1, pairs)]
    rows, decision = branches[0].rows, branches[0].decision
    outcome = episodes.utility[rows]
    q = 0.2 + 0.6 * ((rows % 7) / 6) * (0.5 + 0.5 * outcome) + 0.2 * (decision % 2)
    baselines = {
        "zero": np.zeros(rows.size),
        "sign": 0.3 * (2.0 * outcome - 1),
        "arbitrary": 0.8 * np.sin(rows.astype(float)) + 0.5 * outcome,
    }
    listed = decisions(
        simulator, episodes, branches, propensity=q, baseline=baselines[b], same_evidence_probability=0.25
    )
    credit = np.array([horvitz_thompson(one) for one in listed])
    error = credit - solver.advantage[decision]
    # A mean of rare large weights is normal only where enough of them were drawn.
    weighty = np.array([any(branch.difference for branch in one.realised()) for one in listed])
    assert weighty.sum() < 100 or abs(mean_z(error, 0.0)) < limit()
    tested = [error[decision == node] for node in np.unique(decision) if weighty[decision == node].sum() >= 100]
    assert all(abs(mean_z(one, 0.0)) < limit(len(tested)) for one in tested)
    return len(tested)


def test_forgetting_the_weights_is_biased():
    """The test above can fail: without 1/q and 1/q_same the same data miss A by more than 10 σ."""
    solver = SOLVERS["toy/Coupled-v0"]
    simulator = Simulator(solver)
    pairs = simulator.branch(simulator.play(keys(10_000, seed=42)), 1)
    coins = np.random.default_rng(0).random(pairs.rows.size) < 0.3
    error = (coins * pairs.difference - solver.advantage[pairs.decision])[pairs.decision == pairs.decision[0]]
    assert abs(mean_z(error, 0.0)) > 10


def test_a_baseline_near_d_lowers_the_variance():
    """b = η̂(2U − 1) against b = 0 at the last turn of the coupled world, q = .3: by more than 5 σ."""
    solver = SOLVERS["toy/Coupled-v0"]
    simulator = Simulator(solver)
    episodes = simulator.play(keys(6_000, seed=43))
    pairs = simulator.branch(episodes, 1)
    truth = solver.advantage[pairs.decision]
    sign = 0.25 * (2.0 * episodes.utility[pairs.rows] - 1)
    errors = []
    for b in (0.0, sign):
        listed = decisions(simulator, episodes, [pairs], propensity=0.3, baseline=b)
        errors.append((np.array([horvitz_thompson(one) for one in listed]) - truth) ** 2)
    gain = errors[0] - errors[1]
    assert gain.mean() / np.sqrt(gain.var() / gain.size) > 5
