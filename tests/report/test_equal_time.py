"""Methods compared at equal tokens and at equal seconds: hand-computed curves and ledgers."""

from __future__ import annotations

import pytest

from bench.equal_time import Curve, charged_seconds, compare, split
from forkgym.rollout.trace import Ledger


def ledger(scale: float = 1.0) -> Ledger:
    return Ledger(
        seconds={
            "on_policy": 10.0 * scale,
            "counterfactual": 6.0 * scale,
            "learner": 4.0 * scale,
            "scoring": 99.0,
        },
        parts={
            "on_policy": {
                "environment": 2.0 * scale,
                "verifier": 1.0 * scale,
                "fork": 0.5 * scale,
                "charged": 3.0 * scale,
                "charged_verifier": 2.0 * scale,
            },
            "counterfactual": {"environment": 1.0 * scale, "verifier": 1.0 * scale, "fork": 2.0 * scale},
            "scoring": {"charged": 50.0},
        },
    )


def test_charged_seconds_leave_scoring_out_and_add_what_a_memo_saved() -> None:
    assert charged_seconds(ledger()) == pytest.approx(10 + 6 + 4 + 3 + 2)
    assert charged_seconds(Ledger()) == 0.0


def test_the_split_is_mutually_exclusive_and_complete() -> None:
    parts = split(ledger())
    assert parts == pytest.approx(
        {"rollout": 10 - 1 - 0.5 + 3, "counterfactual": 6 - 1 - 2, "verifier": 1 + 2 + 1, "fork": 2.5, "learner": 4.0}
    )
    assert sum(parts.values()) == pytest.approx(charged_seconds(ledger()))


def curve(tokens: list[float], seconds: list[float], success: list[float], scale: float = 1.0) -> Curve:
    return Curve(tokens=tokens, seconds=seconds, success=success, ledger=ledger(scale))


def test_success_is_read_at_the_smallest_budget_all_runs_reached() -> None:
    curves = {
        "grpo": [
            curve([0, 100, 200], [0, 10, 20], [0.2, 0.4, 0.6]),
            curve([0, 100, 200], [0, 10, 20], [0.2, 0.5, 0.8]),
        ],
        "twice": [curve([0, 100, 180], [0, 20, 40], [0.2, 0.6, 0.9], 2), curve([0, 180], [0, 40], [0.2, 0.8], 2)],
    }
    rows, costs = compare(curves)
    grpo, twice = rows
    assert (grpo["before"], twice["before"]) == (0.2, 0.2)
    assert grpo["equal tokens"] == pytest.approx((0.56 + 0.74) / 2)
    assert twice["equal tokens"] == pytest.approx((0.9 + 0.8) / 2)
    assert grpo["equal seconds"] == pytest.approx((0.6 + 0.8) / 2)
    assert twice["equal seconds"] == pytest.approx((0.6 + 0.5) / 2), "at 20 seconds, between its evaluations"
    assert twice["difference (seconds)"] == pytest.approx(((0.6 - 0.6) + (0.5 - 0.8)) / 2)
    assert twice["s.e. (seconds)"] == pytest.approx(0.15)
    assert "difference (tokens)" not in grpo
    assert [row["seconds"] for row in costs] == pytest.approx([25.0, 50.0])
    assert sum(
        costs[0][name] for name in ("rollout", "counterfactual", "verifier", "fork", "learner")
    ) == pytest.approx(1)
