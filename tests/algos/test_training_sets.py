"""What reaches the learner where more than the factual episodes is trained: sequences and numbers worked out by hand.

One group: U = 1 with three turns and U = 0 with two. The first has a branch at turn 0 that lost after two turns and a
terminal alternative at turn 1 that won; the second a self-twin, and same evidence whose coin said no.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from forkgym.credit import CreditBatch, make_algorithm
from forkgym.rollout.trace import Branch, Decision, Episode
from forkgym.schedule import make_decisions
from tests.credit.traces import branch, episode, turn


def fork(parent: Episode, at: int, utility: float, turns: int, **fields: Any) -> Branch:
    written = [turn(at + i, tokens=4, terminal=i == turns - 1) for i in range(turns)]
    for index, one in enumerate(written):
        one.context_length = len(parent.context(at)) + 4 * index
    return branch(utility, parent.utility, parent=parent.key, turn=at, turns=written, **fields)


def hand_made(q: tuple[float, float, float, float] = (0.5, 0.25, 0.5, 0.5), *, shortcuts: bool = True) -> CreditBatch:
    first, second = episode(10, 1.0, ["a", "b"]), episode(11, 0.0, ["a"], member=1)
    decisions = make_decisions([[first, second]])
    for one in decisions:
        one.propensity = q[0]
    branches = {0: fork(first, 0, 0.0, 2), 1: fork(first, 1, 1.0, 1)}
    if shortcuts:
        same = {"same_evidence": True, "continuation_probability": 0.25, "continued": False}
        branches |= {3: branch(0.0, 0.0, self_twin=True), 4: fork(second, 1, 0.0, 1, **same)}
    for (place, one), chance in zip(branches.items(), q, strict=False):
        decisions[place].branched, decisions[place].branches, decisions[place].propensity = True, [one], chance
    by_episode: dict[int, list[Decision]] = {10: decisions[:3], 11: decisions[3:]}
    return CreditBatch(groups=[[first, second]], decisions=by_episode)


def check(rows: list[list[float]], expected: list[list[float]]) -> None:
    assert [len(row) for row in rows] == [len(row) for row in expected]
    for row, wanted in zip(rows, expected, strict=True):
        assert row == pytest.approx(wanted, abs=1e-5)


def test_without_a_training_set_the_factual_episodes_are_trained() -> None:
    data = hand_made()
    episodes, rows = make_algorithm("grpo").examples(data)
    assert episodes == data.episodes
    check(rows, [[1.0] * 3, [-1.0] * 2])


def test_twice_alt_trains_alternatives_with_the_opposite_credit() -> None:
    # Â = 1/½ = 2 at turn 0; (1 − 1)/¼ = 0 at turn 1; 0 for the self-twin and the unseen. σ̂ = 2; group term ±1.
    data = hand_made()
    episodes, rows = make_algorithm("twice-alt", omega=0.5).examples(data)
    check(rows, [[1.5, 1.0, 1.0], [-1.0, -1.0], [-0.5], [0.0]])
    parent = data.groups[0][0]
    assert [len(one.turns) for one in episodes] == [3, 2, 1, 1]
    assert [one.prompt_tokens for one in episodes[2:]] == [parent.context(0), parent.context(1)]
    assert len({one.key for one in episodes}) == 4


def test_twice_alt_weights_same_evidence_as_its_factual_turn_is_weighted() -> None:
    data = hand_made()
    one = data.decisions[11][1].branches[0]
    one.continued, one.utility = True, 1.0  # D = −1, seen with probability 1/8: Â = −8, the alternative's 8
    _, rows = make_algorithm("twice-alt").examples(data)
    sigma = math.sqrt((4 + 64) / 2)
    check(rows, [[1 + 2 / sigma, 1, 1], [-1, -1 - 8 / sigma], [-2 / sigma], [0.0], [8 / sigma]])


def test_tree_all_weights_every_turn_by_the_expected_number_of_trajectories_at_its_depth() -> None:
    # q = ½: weights 1/1.5, 1/2, 1/2.5 at depths 0, 1, 2. Baselines: the other member's factual return, 0 and 1.
    data = hand_made((0.5, 0.5, 0.5, 0.5), shortcuts=False)
    episodes, rows = make_algorithm("tree-all").examples(data)
    expected = [[1 / 1.5, 1 / 2, 1 / 2.5], [-1 / 1.5, -1 / 2], [0.0, 0.0], [1 / 2]]
    check(rows, expected)
    assert [[t.index for t in one.turns] for one in episodes[2:]] == [[0, 1], [1]]


def test_tree_all_refuses_chances_that_differ() -> None:
    with pytest.raises(ValueError, match="one constant branch probability"):
        make_algorithm("tree-all").examples(hand_made())


def test_tree_grpo_compares_a_leaf_with_its_tree_and_with_all_trees() -> None:
    # Leaves 1, 0, 1 in the first tree, 0 in the second. Within: mean 2/3, s.d. √2/3: 1/√2, −√2, 1/√2; alone: 0.
    # Among all four: mean ½, s.d. ½: 1, −1, 1, −1.
    data = hand_made((1.0, 1.0, 1.0, 1.0), shortcuts=False)
    factual, lost, won, other = 1 / math.sqrt(2) + 1, -math.sqrt(2) - 1, 1 / math.sqrt(2) + 1, -1.0
    _, rows = make_algorithm("tree-grpo").examples(data)
    # Nobody shares turn 0 of the chain but what forks later: the fork at turn 1.
    check(rows, [[(factual + won) / 2, factual, factual], [other, other], [lost, lost], [won]])


def test_tree_grpo_trains_a_shared_prefix_with_the_mean_of_its_leaves() -> None:
    data = hand_made((1.0, 1.0, 1.0, 1.0), shortcuts=False)
    data.decisions[10][1].branches[0].utility = 0.0
    # Leaves 1, 0, 0 | 0. Within: mean 1/3: √2, −1/√2, −1/√2. Among: mean ¼, s.d. √3/4: √3, −1/√3 three times.
    up, down = math.sqrt(2) + math.sqrt(3), -1 / math.sqrt(2) - 1 / math.sqrt(3)
    _, rows = make_algorithm("tree-grpo").examples(data)
    check(rows, [[(up + down) / 2, up, up], [-1 / math.sqrt(3)] * 2, [down, down], [down]])


def test_search_select_takes_the_best_fork_only_if_it_is_strictly_better() -> None:
    data = hand_made()
    won = fork(data.groups[0][1], 1, 1.0, 1)
    data.decisions[11][1].branches = [won]
    episodes, rows = make_algorithm("search-select").examples(data)
    # The winner keeps its own turns though a fork tied; the loser takes the fork's last turn. Nothing is left to tell.
    assert episodes[0] == data.groups[0][0]
    assert episodes[1].turns == [data.groups[0][1].turns[0], *won.turns]
    check(rows, [[0.0] * 3, [0.0] * 2])
    data = hand_made()
    _, rows = make_algorithm("search-select").examples(data)
    check(rows, [[0.5] * 3, [-0.5] * 2])


def test_trees_are_uncoupled_unless_asked_for() -> None:
    for name, options, coupling in (
        ("tree-all", {}, "independent"),
        ("tree-grpo", {}, "independent"),
        ("tree-grpo", {"coupled": True}, "twin"),
    ):
        branching = make_algorithm(name, **options).branching
        assert branching is not None
        assert branching.plan.coupling == coupling
        assert not branching.plan.self_twin_shortcut
        assert branching.plan.same_evidence_probability == 1.0
