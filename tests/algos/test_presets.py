"""Each preset from traces to advantages, against numbers worked out by hand; and its parameters against its paper."""

from __future__ import annotations

import math

import pytest

from forkgym.credit import Algorithm, CoinSelector, CreditBatch, ScoreSelector, list_algorithms, make_algorithm
from forkgym.rollout.trace import Decision, Episode
from forkgym.schedule import ControllerState, make_decisions, plan_branches, settle
from tests.credit.traces import branch, episode


def batch(groups: list[list[Episode]], decisions: list[Decision] | None = None, **fields: object) -> CreditBatch:
    by_episode: dict[int, list[Decision]] = {one.key: [] for group in groups for one in group}
    for one in decisions or []:
        by_episode[one.episode].append(one)
    return CreditBatch(groups=groups, decisions=by_episode, **fields)  # type: ignore[arg-type]


def branched(one: Decision, q: float, *branches: object, b: float = 0.0) -> None:
    one.branched, one.propensity, one.baseline = True, q, b
    one.branches = list(branches)  # type: ignore[arg-type]


def group(*utilities: float, evidence: tuple[str, ...] = ("a",)) -> list[Episode]:
    return [episode(10 + m, u, list(evidence), member=m) for m, u in enumerate(utilities)]


def test_the_presets_are_these() -> None:
    assert {"grpo", "rloo", "crr", "twice", "twice-dr", "merge-annealed"} <= set(list_algorithms())


def test_grpo_gives_each_episode_one_standardised_number() -> None:
    # U = (1, 0, 0, 1, 0): mean 2/5, standard deviation √(6/25).
    data = batch([group(1.0, 0.0, 0.0, 1.0, 0.0)])
    deviation = math.sqrt(6 / 25) + 1e-6
    up, down = 0.6 / deviation, -0.4 / deviation
    expected = [[up] * 2, [down] * 2, [down] * 2, [up] * 2, [down] * 2]
    for row, wanted in zip(make_algorithm("grpo").advantages(data), expected, strict=True):
        assert row == pytest.approx(wanted)
    assert make_algorithm("grpo", scale="none").advantages(data)[0] == pytest.approx([0.6, 0.6])


def test_rloo_compares_each_episode_with_the_others() -> None:
    # 1 − 1/4 and 0 − 2/4.
    data = batch([group(1.0, 0.0, 0.0, 1.0, 0.0), group(0.0, 0.0)])
    rows = make_algorithm("rloo").advantages(data)
    assert rows == [[0.75] * 2, [-0.5] * 2, [-0.5] * 2, [0.75] * 2, [-0.5] * 2, [0.0] * 2, [0.0] * 2]


def crr_episode() -> Episode:
    """Entropies 0.9 (search), 0.3 (too sure), 0.8 (edit), 0.5 (test), then the answer (entropy 2)."""
    one = episode(1, 1.0, ["a", "b", "c", "d"])
    seen = ((0.9, "search"), (0.3, "search"), (0.8, "edit"), (0.5, "test"), (2.0, "answer"))
    for turn, (entropy, kind) in zip(one.turns, seen, strict=True):
        turn.entropies, turn.action_kind = [entropy] * 3, kind
    return one


def test_crr_replaces_the_outcome_at_its_best_scored_turns() -> None:
    # Scores: 0.9; not eligible (0.3 ≤ 0.4); 0.8·1.6 = 1.28; 0.5·(1 + 0.6·0.25) = 0.575; the answer is terminal.
    first, second = crr_episode(), episode(2, 0.0, [], member=1)
    algorithm = make_algorithm("crr", k=2)
    assert algorithm.branching is not None
    decisions = make_decisions([[first, second]])
    plan_branches(decisions, {1: first, 2: second}, algorithm.branching, ControllerState(), 0)
    assert [one.turn for one in decisions if one.branched] == [0, 2]
    assert [one.score for one in decisions[:4]] == pytest.approx([0.9, 0.3, 1.28, 0.575])
    decisions[0].branches = [branch(0.0, 1.0)]
    decisions[2].branches = [branch(1.0, 1.0)]
    # The group's mean is ½: contrast 1 at turn 0, a tie at turn 2, R − mean elsewhere.
    assert algorithm.advantages(batch([[first, second]], decisions)) == [[1.0, 0.5, 0.0, 0.5, 0.5], [-0.5]]


def test_crr_averages_continuations_and_falls_back_where_no_proposal_was_accepted() -> None:
    one, other = episode(1, 1.0, ["a"]), episode(2, 0.0, ["a"], member=1)
    algorithm = make_algorithm("crr", continuations=2)
    decisions = make_decisions([[one, other]])
    branched(decisions[0], 1.0, branch(0.0, 1.0), branch(1.0, 1.0))
    branched(decisions[2], 1.0, branch(0.0, 0.0, skipped=True, continued=False))
    assert algorithm.advantages(batch([[one, other]], decisions)) == [[0.5, 0.5], [-0.5, -0.5]]


def twice_batch(algorithm: Algorithm, **fields: object) -> CreditBatch:
    """Three episodes (U = 1, 0, 1) of a search and an answer, with one branch of each sort."""
    members = group(1.0, 0.0, 1.0)
    decisions = make_decisions([members])
    same = {"same_evidence": True, "continuation_probability": 0.25}
    branched(decisions[0], 0.5, branch(0.0, 1.0))  # D = 1
    branched(decisions[1], 0.5, branch(1.0, 1.0, self_twin=True))  # D = 0 without a continuation
    branched(decisions[2], 0.5, branch(1.0, 0.0, **same))  # D = −1, seen with probability 1/8
    branched(decisions[4], 0.2, branch(0.0, 1.0, continued=False, **same))  # the evidence coin said no
    return batch([members], decisions, **fields)


def test_twice_adds_inverse_probability_credit_in_units_of_its_size() -> None:
    # Â = 1/0.5 = 2; 0; −1/(0.5·0.25) = −8; 0 where nothing was branched or continued. σ̂ = √((4 + 64)/2).
    algorithm = make_algorithm("twice")
    data = twice_batch(algorithm)
    sigma, deviation = math.sqrt(34.0), math.sqrt(2 / 9) + 1e-6
    up, down = (1 / 3) / deviation, -(2 / 3) / deviation
    expected = [[up + 2 / sigma, up], [down - 8 / sigma, down], [up, up]]
    for row, wanted in zip(algorithm.advantages(data), expected, strict=True):
        assert row == pytest.approx(wanted)
    credit = [one.credit for row in data.decisions.values() for one in row]
    assert credit == [2.0, 0.0, -8.0, 0.0, 0.0, 0.0]


def test_twice_averages_its_pairs() -> None:
    one = episode(1, 1.0, [])
    decisions = make_decisions([[one]])
    # A twin with D = 1, a pair whose own factual arm failed (D = 0 − 1) and a self-twin: Â = (1 − 1 + 0)/(3·0.5)…
    branched(decisions[0], 0.5, branch(0.0, 1.0), branch(1.0, 0.0, kind="pair"), branch(1.0, 1.0, self_twin=True))
    algorithm = make_algorithm("twice", pairs=3)
    assert algorithm.advantages(batch([[one]], decisions)) == [[0.0]]
    # … and (1 + 1 + 0)/(3·0.5) = 4/3 where the pair's alternative failed instead; alone it is its own σ̂.
    decisions[0].branches[1] = branch(0.0, 1.0, kind="pair")
    assert algorithm.advantages(batch([[one]], decisions)) == [[pytest.approx(1.0)]]
    assert decisions[0].credit == pytest.approx(4 / 3)


def test_twice_dr_spends_its_control_variate_everywhere_and_scales_by_earlier_updates() -> None:
    # b = 0.2: Â = 0.2 + 0.8/0.4 = 2.2 for D = 1; 0.2 − 0.2/0.4 = −0.3 for a self-twin; 0.2 unbranched. σ̂ = 2.
    members = group(1.0, 1.0)
    decisions = make_decisions([members])
    branched(decisions[0], 0.4, branch(0.0, 1.0), b=0.2)
    branched(decisions[1], 0.4, branch(1.0, 1.0, self_twin=True), b=0.2)
    decisions[2].baseline = decisions[3].baseline = 0.2
    algorithm = make_algorithm("twice-dr", omega=0.3)
    rows = algorithm.advantages(batch([members], decisions, running_scale=2.0))
    assert rows[0] == pytest.approx([0.3 * 2.2 / 2, 0.3 * -0.3 / 2])
    assert rows[1] == pytest.approx([0.3 * 0.2 / 2] * 2)
    state = ControllerState()
    assert algorithm.branching is not None
    settle(decisions, algorithm.branching, state, credited=True)
    assert state.running_scale == pytest.approx(math.sqrt((2.2**2 + 0.3**2 + 2 * 0.2**2) / 4))


def test_merge_annealed_shares_returns_at_equal_evidence_and_ends_as_rloo() -> None:
    # Members 0 and 1 saw the same, member 2 something else. U = (1, 0, 0).
    members = [episode(10, 1.0, ["a"]), episode(11, 0.0, ["a"], member=1), episode(12, 0.0, ["b"], member=2)]
    algorithm = make_algorithm("merge-annealed")
    # m = 1: before turn 0 all stand together; after it 0 and 1 do. Q̂ = (½, ½, 0), baselines the others' means.
    # At the answer: 0 and 1 stand together, so each is compared with the other; 2 is alone and compared with all.
    assert algorithm.advantages(batch([members], progress=0.0)) == [[0.5, 1.0], [0.0, -1.0], [-0.5, -0.5]]
    # m = ½ after half of the anneal: Q̂ = (¾, ¼, 0).
    assert algorithm.advantages(batch([members], progress=0.35)) == [
        pytest.approx([0.75, 1.0]),
        pytest.approx([-0.25, -1.0]),
        pytest.approx([-0.5, -0.5]),
    ]
    for progress in (0.7, 1.0):
        plain = make_algorithm("rloo").advantages(batch([members]))
        assert algorithm.advantages(batch([members], progress=progress)) == plain


def test_crr_is_set_up_as_its_paper_says() -> None:
    algorithm = make_algorithm("crr")
    assert (algorithm.rollout.group_size, algorithm.rollout.temperature) == (8, 0.6)
    branching = algorithm.branching
    assert branching is not None
    assert branching.selector == ScoreSelector(score="entropy-type", k=4, entropy_threshold=0.4, type_weight=0.6)
    plan = branching.plan
    assert (plan.coupling, plan.pairs, plan.same_evidence_probability) == ("independent", 1, 1.0)
    assert (plan.proposal.temperature_scale, plan.proposal.exclude_factual) == (0.7, True)
    assert not plan.self_twin_shortcut
    assert (algorithm.loss.clip, algorithm.loss.kl_coefficient, algorithm.loss.ratio) == (0.2, 0.04, "turn")


def test_twice_is_set_up_as_its_paper_says() -> None:
    algorithm = make_algorithm("twice")
    assert (algorithm.rollout.group_size, algorithm.rollout.temperature, algorithm.rollout.top_p) == (5, 1.0, 1.0)
    assert algorithm.rollout.layout == "turn-line"
    branching = algorithm.branching
    assert branching is not None
    assert branching.control_variate == "zero"
    assert not branching.adaptive_same_evidence
    selector = branching.selector
    assert isinstance(selector, CoinSelector)
    assert (selector.rule, selector.budget_fraction, selector.minimum_propensity) == ("sqrt", 0.7, 0.05)
    assert (selector.warmup_updates, selector.warmup_propensity) == (10, 0.3)
    plan = branching.plan
    assert (plan.coupling, plan.pairs, plan.star) == ("twin", 1, False)
    assert plan.self_twin_shortcut
    assert plan.same_evidence_probability == 0.25
    assert not plan.proposal.exclude_factual
    assert plan.proposal.temperature_scale == 1.0
    assert (algorithm.loss.clip, algorithm.loss.kl_coefficient, algorithm.loss.aggregate) == (0.2, 0.001, "sum")


def test_twice_without_coupling_takes_no_twin_shortcut() -> None:
    branching = make_algorithm("twice", layout="independent").branching
    assert branching is not None
    assert branching.plan.coupling == "independent"
    assert not branching.plan.self_twin_shortcut


@pytest.mark.parametrize("name", ["grpo", "rloo", "merge-annealed"])
def test_these_presets_run_no_branches(name: str) -> None:
    assert make_algorithm(name).branching is None


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("grpo", "group_size", 0),
        ("rloo", "group_size", 1),
        ("merge-annealed", "group_size", 1),
        ("merge-annealed", "initial_mix", 1.5),
        ("merge-annealed", "anneal_fraction", -0.1),
        ("grpo", "temperature", 0.0),
        ("grpo", "top_p", 1.1),
        ("grpo", "clip", 0.0),
        ("grpo", "kl_coefficient", -0.1),
        ("twice", "minimum_propensity", 0.0),
        ("twice", "budget_fraction", -0.1),
        ("twice", "same_evidence_probability", 1.2),
        ("twice", "layout", "line"),
        ("twice", "pairs", 0),
        ("crr", "k", 0),
        ("crr", "continuations", 0),
        ("crr", "counterfactual_temperature", 0.0),
        ("crr", "max_attempts", 0),
        ("grpo", "scale", "sdt"),
        ("grpo", "ratio", "episode"),
        ("rloo", "aggregate", "mean"),
        ("twice", "rule", "square-root"),
        ("twice-dr", "control_variate", "signed"),
        ("crr", "selector", "entropie"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_before_anything_runs(name: str, option: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"must be .*, got {value!r}"):
        make_algorithm(name, **{option: value})
