"""Credit terms on a batch small enough to check by hand."""

from __future__ import annotations

import math

import pytest

from forkgym.credit import ContrastOrOutcome, CreditBatch, GroupRelative, MergedEvidence, TurnCredit
from forkgym.rollout.plan import BranchPlan
from tests.credit.traces import branch, decision, episode


def batch(**fields: object) -> CreditBatch:
    first, second = episode(1, 1.0, ["a"]), episode(2, 0.0, ["b"], member=1)
    return CreditBatch(groups=[[first, second]], decisions={}, **fields)  # type: ignore[arg-type]


def test_group_relative_broadcasts_one_number_to_every_turn() -> None:
    assert GroupRelative(scale="none")(batch()) == [[0.5, 0.5], [-0.5, -0.5]]
    assert GroupRelative(scale="leave-one-out")(batch()) == [[1.0, 1.0], [-1.0, -1.0]]
    assert GroupRelative(scale="std")(batch())[0][0] == pytest.approx(0.5 / (0.5 + 1e-6))


def test_twin_credit_is_scaled_by_the_root_mean_square_of_its_non_zero_values() -> None:
    data = batch()
    data.decisions = {
        1: [decision(1.0, [branch(0.0, 1.0)], propensity=0.5), decision(1.0, [], turn=1)],
        2: [decision(0.0, [branch(1.0, 0.0)], episode=2, propensity=0.25), decision(0.0, [], episode=2, turn=1)],
    }
    # Â = 2 and −4 and two zeros; σ̂ = √((4 + 16)/2).
    sigma = math.sqrt(10.0)
    assert TurnCredit(weight=0.5)(data) == [[pytest.approx(1.0 / sigma), 0.0], [pytest.approx(-2.0 / sigma), 0.0]]
    assert data.decisions[1][0].credit == 2.0
    assert TurnCredit(scale="none")(data) == [[2.0, 0.0], [-4.0, 0.0]]


def test_the_running_scale_is_that_of_earlier_updates() -> None:
    data = batch(running_scale=4.0)
    data.decisions = {1: [decision(1.0, [branch(0.0, 1.0)], propensity=0.5), decision(1.0, [], turn=1)]}
    assert TurnCredit(scale="running")(data)[0] == [0.5, 0.0]
    data.running_scale = None
    assert TurnCredit(scale="running")(data)[0] == [2.0 / math.sqrt(4.0 / 4), 0.0]


def test_a_batch_without_credit_stays_zero() -> None:
    data = batch()
    data.decisions = {1: [decision(1.0, []), decision(1.0, [], turn=1)]}
    assert TurnCredit()(data) == [[0.0, 0.0], [0.0, 0.0]]


def test_crr_replaces_the_outcome_where_a_branch_came_back() -> None:
    data = batch()
    data.decisions = {
        1: [decision(1.0, [branch(1.0, 1.0)]), decision(1.0, [], turn=1)],
        2: [decision(0.0, [branch(1.0, 0.0, skipped=True, continued=False)], episode=2), decision(0.0, [], turn=1)],
    }
    # A tie gives 0 at the branched turn; a skipped proposal falls back to the outcome.
    assert ContrastOrOutcome()(data) == [[0.0, 0.5], [-0.5, -0.5]]


def test_merging_is_annealed_by_the_share_of_the_budget_used() -> None:
    term = MergedEvidence(initial_mix=1.0, anneal_fraction=0.7)
    assert [term.mix(p) for p in (0.0, 0.35, 0.7, 1.0)] == pytest.approx([1.0, 0.5, 0.0, 0.0])
    assert MergedEvidence(initial_mix=0.4, anneal_fraction=0.0).mix(0.9) == 0.4
    assert term(batch(progress=1.0)) == GroupRelative(scale="leave-one-out")(batch())


def test_a_scale_that_does_not_exist_is_refused_instead_of_being_another() -> None:
    with pytest.raises(ValueError, match="scale must be one of batch, running, none, got 'runnning'"):
        TurnCredit(scale="runnning")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="coupling must be one of twin, independent"):
        BranchPlan(coupling="twins")  # type: ignore[arg-type]
