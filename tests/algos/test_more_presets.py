"""The turn-level baselines and ablations against numbers worked out from their equations, on one hand-made batch.

The batch holds a branch, an unbranched turn, a self-twin, same evidence seen and not seen, a terminal alternative and
episodes of unequal length.
"""

from __future__ import annotations

import math

import pytest

from forkgym.credit import CoinSelector, CreditBatch, make_algorithm
from forkgym.rollout.trace import Branch, Decision, Episode
from forkgym.schedule import ControllerState, make_decisions, plan_branches
from tests.credit.traces import branch, episode, turn

TINY = 1e-6


def members() -> list[Episode]:
    """U = 1, 0, 1 with 3, 2 and 1 turns; the reward comes with the last turn."""
    group = [
        episode(10, 1.0, ["a", "b"]),
        episode(11, 0.0, ["a"], member=1),
        episode(12, 1.0, [], member=2),
    ]
    for one in group:
        one.turns[-1].reward = one.utility
    return group


def put(decision: Decision, q: float, *branches: Branch) -> None:
    decision.branched, decision.propensity, decision.branches = True, q, list(branches)


def hand_made(*, twins: bool) -> CreditBatch:
    """The batch; ``twins`` adds what only Twice's shortcuts produce."""
    group = members()
    decisions = make_decisions([group])
    put(decisions[0], 0.5, branch(0.0, 1.0))  # D = 1
    if twins:
        same = {"same_evidence": True, "continuation_probability": 0.25}
        put(decisions[1], 0.5, branch(1.0, 1.0, self_twin=True))  # D = 0
        put(decisions[3], 0.5, branch(1.0, 0.0, **same))  # D = −1, seen with probability 1/8
        put(decisions[4], 0.5, branch(0.0, 0.0, continued=False, **same))  # the evidence coin said no
    else:
        put(decisions[3], 0.5, branch(1.0, 0.0))  # D = −1
    put(decisions[5], 0.25, branch(0.0, 1.0, turns=[turn(0, terminal=True)]))  # a terminal alternative, D = 1
    by_episode: dict[int, list[Decision]] = {one.key: [] for one in group}
    for one in decisions:
        by_episode[one.episode].append(one)
    return CreditBatch(groups=[group], decisions=by_episode)


def standardised(*values: float) -> list[float]:
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / len(values))
    return [(v - mean) / (deviation + TINY) for v in values]


OUTCOME = standardised(1.0, 0.0, 1.0)


def check(rows: list[list[float]], expected: list[list[float]]) -> None:
    assert [len(row) for row in rows] == [len(row) for row in expected]
    for row, wanted in zip(rows, expected, strict=True):
        assert row == pytest.approx(wanted)


def test_grpo_2x_is_grpo_with_ten_episodes() -> None:
    algorithm = make_algorithm("grpo-2x")
    assert algorithm.rollout.group_size == 10
    a, b, c = OUTCOME
    check(algorithm.advantages(hand_made(twins=True)), [[a] * 3, [b] * 2, [c]])


def test_crr_uniform_replaces_the_centred_return_where_a_coin_fell() -> None:
    algorithm = make_algorithm("crr-uniform")
    # Group mean 2/3: 1/3, −2/3, 1/3; D = 1 at (0, 0), −1 at (1, 0), 1 at (2, 0).
    check(algorithm.advantages(hand_made(twins=False)), [[1.0, 1 / 3, 1 / 3], [-1.0, -2 / 3], [1.0]])
    branching = algorithm.branching
    assert branching is not None
    assert isinstance(branching.selector, CoinSelector)
    assert (branching.selector.rule, branching.selector.budget_fraction) == ("uniform", 0.7)
    plan = branching.plan
    assert (plan.coupling, plan.proposal.exclude_factual, plan.self_twin_shortcut) == ("independent", False, False)
    assert plan.same_evidence_probability == 1.0


def test_gigpo_adds_steps_compared_at_equal_anchor_states() -> None:
    # Returns to go with γ = ½: ¼, ½, 1; 0, 0; 1. Turn 0 is one anchor for all three; "seen a" holds (0, 1) and (1, 1);
    # "seen b" holds (0, 2) alone, which gets nothing from the step term.
    first, second = standardised(0.25, 0.0, 1.0), standardised(0.5, 0.0)
    expected = [
        [OUTCOME[0] + 2 * first[0], OUTCOME[0] + 2 * second[0], OUTCOME[0]],
        [OUTCOME[1] + 2 * first[1], OUTCOME[1] + 2 * second[1]],
        [OUTCOME[2] + 2 * first[2]],
    ]
    check(make_algorithm("gigpo", omega=2.0, discount=0.5).advantages(hand_made(twins=True)), expected)


def test_gigpo_knows_a_state_by_its_last_observation_or_by_all_of_them() -> None:
    # Members reach "seen x" after different pasts; one of them sees it twice.
    group = [episode(10, 1.0, ["a", "x"]), episode(11, 0.0, ["b", "x", "x"], member=1)]
    for one in group:
        one.turns[-1].reward = one.utility
    data = CreditBatch(groups=[group], decisions={})
    options = {"scale": "none", "discount": 1.0}
    last = make_algorithm("gigpo", **options).advantages(data)
    # "seen x": (0, 2) with return 1, (1, 2) and (1, 3) with return 0: mean 1/3. Episode term ±½; turn 0: ±½.
    check(last, [[1.0, 0.5, 0.5 + 2 / 3], [-1.0, -0.5, -0.5 - 1 / 3, -0.5 - 1 / 3]])
    whole = make_algorithm("gigpo", anchor="history", **options).advantages(data)
    check(whole, [[1.0, 0.5, 0.5], [-1.0, -0.5, -0.5, -0.5]])


def test_vineppo_takes_differences_of_boundary_values() -> None:
    group = members()
    decisions = make_decisions([group])
    algorithm = make_algorithm("vineppo")
    assert algorithm.branching is not None
    plan_branches(decisions, {one.key: one for one in group}, algorithm.branching, ControllerState(), 0)
    assert all(one.branched and one.propensity == 1.0 for one in decisions)
    returns = [(1.0, 0.0), (0.0, 0.0), (1.0, 1.0), (0.0, 1.0), (0.0, 0.0), (1.0, 0.0)]
    for one, (first, second) in zip(decisions, returns, strict=True):
        one.branches = [branch(first, one.utility), branch(second, one.utility)]
    data = CreditBatch(groups=[group], decisions={10: decisions[:3], 11: decisions[3:5], 12: decisions[5:]})
    # V̂: ½, 0, 1 then U = 1; ½, 0 then U = 0; ½ then U = 1.
    check(algorithm.advantages(data), [[-0.5, 1.0, 0.0], [-0.5, 0.0], [0.5]])
    assert [one.credit for one in decisions] == [-0.5, 1.0, 0.0, -0.5, 0.0, 0.5]


def test_vineppo_refuses_a_turn_without_rollouts() -> None:
    with pytest.raises(ValueError, match="turn 1 has no fresh rollouts"):
        make_algorithm("vineppo").advantages(hand_made(twins=False))


def test_twin_model_uses_the_learned_credit_and_no_twin_of_its_own_update() -> None:
    data = hand_made(twins=True)
    values = {10: [0.3, 0.0, -0.1], 11: [-0.2, 0.0], 12: [0.0]}
    for key, row in values.items():
        for one, b in zip(data.decisions[key], row, strict=True):
            one.baseline = b
    sigma = math.sqrt((0.09 + 0.01 + 0.04) / 3)
    expected = [[o + 0.3 * b / sigma for b in row] for o, row in zip(OUTCOME, values.values(), strict=True)]
    check(make_algorithm("twin-model").advantages(data), expected)


def test_twin_model_is_grpo_before_it_has_learned_anything() -> None:
    data = hand_made(twins=True)
    check(make_algorithm("twin-model").advantages(data), make_algorithm("grpo").advantages(data))


def test_sft_imitates_successes_only() -> None:
    check(make_algorithm("sft").advantages(hand_made(twins=True)), [[1.0] * 3, [0.0] * 2, [1.0]])


def test_prm_adds_centred_turn_rewards_to_the_outcome() -> None:
    data = hand_made(twins=False)
    data.groups[0][0].turns[1].action_kind = "invalid"
    # The rubric: ½ for "a", −1 for what did not parse, 0 for the answer; ½, 0; 0. The mean of the six is 0.
    rewards = [[0.5, -1.0, 0.0], [0.5, 0.0], [0.0]]
    expected = [[o + 0.1 * r for r in row] for o, row in zip(OUTCOME, rewards, strict=True)]
    check(make_algorithm("prm").advantages(data), expected)
    contrast = [[1.0, 1 / 3, 1 / 3], [-1.0, -2 / 3], [1.0]]
    expected = [[c + 0.1 * r for c, r in zip(a, b, strict=True)] for a, b in zip(contrast, rewards, strict=True)]
    check(make_algorithm("crr+prm").advantages(data), expected)


def test_the_rubric_marks_down_what_is_repeated_without_a_new_answer() -> None:
    from forkgym_algos.prm import rubric

    one = episode(1, 0.0, ["a", "a", "b"])
    assert [rubric(one, index) for index in range(4)] == [0.5, -0.5, 0.5, 0.0]


def shortest(one: Episode, index: int) -> float:
    return 1.0 if len(one.turns) == 1 and index == 0 else 0.0


def test_a_process_reward_of_your_own_is_named_by_module_and_function() -> None:
    rows = make_algorithm("prm", score=f"{__name__}:shortest", process_weight=6.0).advantages(hand_made(twins=False))
    a, b, c = OUTCOME
    check(rows, [[a - 1.0] * 3, [b - 1.0] * 2, [c + 5.0]])  # 6·(0 − 1/6) and 6·(1 − 1/6)
    with pytest.raises(ValueError, match="module:function"):
        make_algorithm("prm", score="rubric")
    with pytest.raises(ValueError, match="cannot be loaded"):
        make_algorithm("prm", score="forkgym_algos.prm:missing").advantages(hand_made(twins=False))


def test_twice_without_the_episode_term_and_without_inverse_weights() -> None:
    # Weighted: 1/½ = 2; 0; −1/(½·¼) = −8; 0; 1/¼ = 4. Plain: 1, 0, −1, 0, 1.
    sigma = math.sqrt((4 + 64 + 16) / 3)
    rows = make_algorithm("twice", twin_only=True).advantages(hand_made(twins=True))
    check(rows, [[2 / sigma, 0.0, 0.0], [-8 / sigma, 0.0], [4 / sigma]])
    rows = make_algorithm("twice", twin_only=True, inverse_weights=False).advantages(hand_made(twins=True))
    check(rows, [[1.0, 0.0, 0.0], [-1.0, 0.0], [1.0]])


def test_the_switches_of_twice_reach_its_pieces() -> None:
    algorithm = make_algorithm(
        "twice", skip_same_evidence=True, warmup_propensity=0.6, loss_scale=7.0, top_p=0.9, rule="sqrt-score"
    )
    branching = algorithm.branching
    assert branching is not None
    assert isinstance(branching.selector, CoinSelector)
    assert branching.plan.same_evidence_probability == 0.0
    assert (branching.selector.warmup_propensity, branching.selector.rule) == (0.6, "sqrt-score")
    assert (algorithm.loss.scale, algorithm.rollout.top_p) == (7.0, 0.9)
    robust = make_algorithm("twice-dr", warmup_propensity=0.6, loss_scale=7.0)
    assert robust.branching is not None
    assert isinstance(robust.branching.selector, CoinSelector)
    assert (robust.branching.selector.warmup_propensity, robust.loss.scale) == (0.6, 7.0)
