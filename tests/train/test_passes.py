"""pass@k and all-k: unbiased, and their intervals cover."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from forkgym.train.passes import all_of_k, pass_at_k, pass_rates


@pytest.mark.parametrize("samples", [1, 2, 5, 8])
def test_both_are_means_over_all_choices_of_k_samples(samples: int) -> None:
    for successes in range(samples + 1):
        outcomes = [True] * successes + [False] * (samples - successes)
        for k in range(1, samples + 1):
            chosen = list(combinations(outcomes, k))
            assert pass_at_k(successes, samples, k) == pytest.approx(sum(map(any, chosen)) / len(chosen))
            assert all_of_k(successes, samples, k) == pytest.approx(sum(map(all, chosen)) / len(chosen))


def test_the_table_goes_as_far_as_the_samples_go() -> None:
    assert [row.name for row in pass_rates([1, 0], 1)] == ["pass@1"]
    assert [row.name for row in pass_rates([3, 0], 5)] == ["pass@1", "pass@2", "pass@4", "all-4"]
    names = [row.name for row in pass_rates([8, 0, 4], 8)]
    assert names == ["pass@1", "pass@2", "pass@4", "pass@8", "all-8"]


def test_hand_computed_rates_and_intervals_that_hold_them() -> None:
    rows = {row.name: row for row in pass_rates([2, 0, 1, 2], 2)}
    assert rows["pass@1"].rate == pytest.approx((1 + 0 + 0.5 + 1) / 4)
    assert rows["pass@2"].rate == pytest.approx((1 + 0 + 1 + 1) / 4)
    assert rows["all-2"].rate == pytest.approx((1 + 0 + 0 + 1) / 4)
    for row in rows.values():
        assert 0 <= row.low <= row.rate <= row.high <= 1
    assert pass_rates([2, 0, 1, 2], 2) == pass_rates([2, 0, 1, 2], 2), "the interval is no draw of luck"
    assert pass_rates([2, 2], 2)[0].low == 1.0


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    """200 sets of 60 tasks; coverage of a 95 % interval below .88 has probability under 1e-4 if it is .95."""
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        chances = rng.beta(1, 1, 60)
        counts = rng.binomial(4, chances).tolist()
        row = pass_rates(counts, 4)[0]
        covered += row.low <= 0.5 <= row.high
    assert covered >= 176


@pytest.mark.parametrize(("successes", "samples", "k"), [(-1, 2, 1), (3, 2, 1), (1, 2, 0), (1, 2, 3)])
def test_counts_out_of_range_are_refused(successes: int, samples: int, k: int) -> None:
    for function in (pass_at_k, all_of_k):
        with pytest.raises(ValueError, match="pass@k needs"):
            function(successes, samples, k)
    with pytest.raises(ValueError, match="at least one task"):
        pass_rates([], 1)
