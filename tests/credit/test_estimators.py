"""Each estimator against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from forkgym.credit import (
    centred,
    contrast,
    horvitz_thompson,
    leave_one_out,
    merged_returns,
    root_mean_square,
    standardised,
)
from tests.credit.traces import branch, decision, episode


def test_group_advantages_of_one_success_in_four() -> None:
    utilities = [1.0, 0.0, 0.0, 0.0]
    assert centred(utilities) == [0.75, -0.25, -0.25, -0.25]
    assert leave_one_out(utilities) == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3])
    deviation = math.sqrt((0.75**2 + 3 * 0.25**2) / 4)
    assert standardised(utilities) == pytest.approx([v / (deviation + 1e-6) for v in (0.75, -0.25, -0.25, -0.25)])


def test_a_group_without_spread_gives_no_credit() -> None:
    assert standardised([1.0, 1.0, 1.0]) == [0.0, 0.0, 0.0]


def test_leave_one_out_needs_company() -> None:
    with pytest.raises(ValueError, match="at least two episodes"):
        leave_one_out([1.0])


def test_an_unbranched_decision_gets_its_baseline() -> None:
    assert horvitz_thompson(decision(1.0, [], baseline=0.3)) == 0.3


def test_a_twin_that_failed_is_worth_the_difference_over_its_propensity() -> None:
    assert horvitz_thompson(decision(1.0, [branch(0.0, 1.0)], propensity=0.25)) == pytest.approx(4.0)


def test_a_self_twin_takes_the_baseline_back() -> None:
    self_twin = branch(1.0, 1.0, self_twin=True)
    assert horvitz_thompson(decision(1.0, [self_twin], baseline=0.2, propensity=0.5)) == pytest.approx(0.2 - 0.2 / 0.5)


def test_same_evidence_is_weighted_by_its_own_coin() -> None:
    followed = branch(0.0, 1.0, same_evidence=True, continuation_probability=0.25)
    assert horvitz_thompson(decision(1.0, [followed], baseline=0.5, propensity=0.5)) == pytest.approx(
        0.5 + (1.0 - 0.5) / (0.5 * 0.25)
    )
    skipped = branch(0.0, 1.0, same_evidence=True, continuation_probability=0.25, continued=False)
    assert horvitz_thompson(decision(1.0, [skipped], baseline=0.5, propensity=0.5)) == 0.5


def test_pairs_are_averaged_over_all_that_were_planned() -> None:
    first = branch(0.0, 1.0)
    second = branch(1.0, 0.0, kind="pair", index=1)
    third = branch(1.0, 1.0, index=2, same_evidence=True, continuation_probability=0.5, continued=False)
    credit = horvitz_thompson(decision(1.0, [first, second, third], baseline=0.1, propensity=0.5))
    assert credit == pytest.approx(0.1 + ((1.0 - 0.1) + (-1.0 - 0.1)) / (3 * 0.5))


def test_horvitz_thompson_refuses_what_it_is_not_defined_for() -> None:
    with pytest.raises(ValueError, match="propensity"):
        horvitz_thompson(decision(1.0, [branch(0.0, 1.0)], propensity=0.0))
    with pytest.raises(ValueError, match="rejected"):
        horvitz_thompson(decision(1.0, [branch(0.0, 1.0, skipped=True, continued=False)]))
    with pytest.raises(ValueError, match="holds no branch"):
        horvitz_thompson(decision(1.0, [], branched=True))


def test_contrast_averages_realised_alternatives_only() -> None:
    branches = [branch(0.0, 1.0), branch(1.0, 1.0), branch(0.0, 1.0, skipped=True, continued=False)]
    assert contrast(decision(1.0, branches)) == 0.5
    assert contrast(decision(1.0, branches[2:])) is None


def test_merging_shares_returns_between_members_at_the_same_state() -> None:
    # Members 0 and 1 found the same evidence first; member 2 found other evidence. U = 1, 0, 0.
    group = [episode(1, 1.0, ["a"]), episode(2, 0.0, ["a"], member=1), episode(3, 0.0, ["b"], member=2)]
    merged = merged_returns(group, 1.0)
    # Turn 0: Q = mean of {0, 1} at the shared next state = .5; baseline = mean of the two others at the root.
    assert merged[0][0] == pytest.approx(0.5 - 0.0)
    assert merged[1][0] == pytest.approx(0.5 - 0.5)
    assert merged[2][0] == pytest.approx(0.0 - 0.5)
    # Turn 1 (last): own return; baseline = the other member at the same state, else all others.
    assert merged[0][1] == pytest.approx(1.0 - 0.0)
    assert merged[1][1] == pytest.approx(0.0 - 1.0)
    assert merged[2][1] == pytest.approx(0.0 - 0.5)


def test_merging_mixes_linearly_and_ends_as_leave_one_out() -> None:
    group = [episode(1, 1.0, ["a"]), episode(2, 0.0, ["a"], member=1), episode(3, 0.0, ["b"], member=2)]
    assert merged_returns(group, 0.0) == [[1.0, 1.0], [-0.5, -0.5], [-0.5, -0.5]]
    # m = 1/2 at turn 0 of member 0: Q = .5·1 + .5·.5 = .75, baseline 0.
    assert merged_returns(group, 0.5)[0][0] == pytest.approx(0.75)


def test_the_order_of_evidence_does_not_matter_to_merging() -> None:
    group = [episode(1, 1.0, ["a", "b"]), episode(2, 0.0, ["b", "a"], member=1)]
    assert merged_returns(group, 1.0)[0][1] == pytest.approx(0.5 - 0.0)


@pytest.mark.parametrize("mix", [-0.1, 1.1, math.nan])
def test_merging_refuses_a_mix_outside_the_unit_interval(mix: float) -> None:
    with pytest.raises(ValueError, match="mix"):
        merged_returns([episode(1, 1.0, ["a"]), episode(2, 0.0, ["a"])], mix)


def test_root_mean_square() -> None:
    assert root_mean_square([3.0, 4.0]) == pytest.approx(math.sqrt(12.5))
    assert root_mean_square([]) == 0.0
