"""The discordance predictor and the control variate's regression: hand-computed steps, weights, exact round trips."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from forkgym.schedule import FEATURES, ControllerState, Discordance, RidgeRegression, decision_features
from tests.credit.traces import episode

N = len(FEATURES)


def test_the_nine_features_of_a_turn_in_order():
    one = episode(1, 1.0, ["a", "b"], tokens=3)  # three turns of three tokens, entropy 1
    assert decision_features(one, 0, 0.25) == [0.25, 0.0625, 1.0, 0.25, 1.0, 1.0, 0.0, 2.0, math.log(7)]
    assert decision_features(one, 2, 0.25) == [0.25, 0.0625, 1.0, 0.25, 1.0, 0.0, 2.0, 0.0, 0.0]


def test_one_step_is_the_hand_computed_one():
    # p = 1/2 at zero weights; the error is −1/2; one observation has its own weight as the mean: step 0.05·(½·x).
    model = Discordance()
    row = [1.0, 2.0, *[0.0] * (N - 2)]
    model.fold([row], [1.0], [7.0])
    assert model.weights == [pytest.approx(0.025), pytest.approx(0.05), *[0.0] * (N - 2), pytest.approx(0.025)]
    assert model.observations == 1


def test_steps_follow_one_another_and_count_by_inverse_probability():
    # Weights 3 and 1 of mean 2: the first step is 1.5 times, the second half as long.
    row = [0.0] * N
    model = Discordance(weight_decay=0.0)
    model.fold([row, row], [1.0, 0.0], [3.0, 1.0])
    after_first = 0.05 * 1.5 * 0.5
    second = 1 / (1 + math.exp(-after_first))
    assert model.weights[-1] == pytest.approx(after_first - 0.05 * 0.5 * second)


def test_weight_decay_pulls_towards_zero():
    model = Discordance(weights=[1.0] + [0.0] * N, weight_decay=0.1)
    model.fold([[0.0] * N], [0.5], [1.0])
    assert model.weights[0] == pytest.approx(1.0 - 0.05 * 0.1)


def test_nothing_realised_changes_nothing():
    model = Discordance()
    model.fold([], [], [])
    assert model == Discordance()


def test_a_separable_rule_is_learnt():
    rng = np.random.default_rng(1)
    model = Discordance()
    rows = rng.normal(0.0, 1.0, (2000, N))
    targets = (rows[:, 3] > 0).astype(float)
    model.fold(rows.tolist(), targets.tolist(), [1.0] * 2000)
    held_out = rng.normal(0.0, 1.0, (500, N))
    right = [(model.predict(row) > 0.5) == (row[3] > 0) for row in held_out.tolist()]
    assert sum(right) > 475


def test_rare_twins_count_for_those_that_were_not_run():
    # Half of the population has D ≠ 0; those are observed with q = 0.1, the others with q = 0.5. Unweighted, the share
    # would be learnt as 1/6; weighted by 1/q it is learnt as 1/2. SGD moves around its aim, so its predictions of 180
    # folds of 100 twins are averaged: over seeds that mean has a standard deviation of .006 (weighted) and .003.
    rng = np.random.default_rng(2)
    different = rng.random(20_000) < 1 / 6
    weighted, plain = Discordance(), Discordance()
    rows, learnt = [[0.0] * N] * 100, []
    for fold in np.split(different, 200):
        targets = fold.astype(float).tolist()
        weighted.fold(rows, targets, np.where(fold, 10.0, 2.0).tolist())
        plain.fold(rows, targets, [1.0] * 100)
        learnt.append([weighted.predict(rows[0]), plain.predict(rows[0])])
    assert np.mean(learnt[20:], axis=0) == pytest.approx([0.5, 1 / 6], abs=0.03)


def test_extreme_scores_do_not_overflow():
    model = Discordance(weights=[1000.0] + [0.0] * N)
    assert model.predict([10.0] + [0.0] * (N - 1)) == 1.0
    assert model.predict([-10.0] + [0.0] * (N - 1)) == 0.0


def test_the_regression_is_the_closed_form_of_weighted_ridge():
    rng = np.random.default_rng(3)
    rows, targets, weights = rng.normal(size=(30, 4)), rng.normal(size=30), rng.uniform(1, 5, 30)
    model = RidgeRegression(size=4)
    assert model.predict_many(rows.tolist()) == [0.0] * 30
    model.fold(rows.tolist(), targets.tolist(), weights.tolist())
    inputs = np.column_stack([rows, np.ones(30)])
    w = weights / weights.mean()
    solution = np.linalg.solve((inputs * w[:, None]).T @ inputs + 2.0 * np.eye(5), inputs.T @ (w * targets))
    assert model.predict_many(rows.tolist()) == pytest.approx((inputs @ solution).tolist())


def test_older_updates_fade():
    model = RidgeRegression(size=1, ridge=1e-9, forget=0.5)
    model.fold([[0.0]] * 10, [1.0] * 10, [1.0] * 10)
    model.fold([[0.0]] * 10, [-1.0] * 10, [1.0] * 10)
    assert model.predict_many([[0.0]]) == [pytest.approx((0.5 - 1.0) / 1.5)]
    assert model.total_weight == 15.0


def test_the_whole_state_survives_json_exactly():
    rng = np.random.default_rng(4)
    state = ControllerState(real_tokens=0.1 + 0.2, predicted_tokens=1 / 7, squared_credit=1 / 3, overspent=-7.3)
    rows = rng.normal(size=(50, N)).tolist()
    state.discordance.fold(rows, rng.integers(0, 2, 50).astype(float).tolist(), rng.uniform(1, 80, 50).tolist())
    state.residual.fold(rows, rng.random(50).tolist(), rng.uniform(1, 80, 50).tolist())
    double = [[*row, *row] for row in rows]
    state.advantage.fold(double, rng.normal(size=50).tolist(), rng.uniform(1, 80, 50).tolist())
    again = msgspec.json.decode(msgspec.json.encode(state), type=ControllerState)
    assert again == state
    assert again.advantage.predict_many(double) == state.advantage.predict_many(double)
    assert ControllerState() == msgspec.json.decode(msgspec.json.encode(ControllerState()), type=ControllerState)


def test_a_prediction_does_not_depend_on_what_is_predicted_beside_it():
    rng = np.random.default_rng(5)
    model = RidgeRegression(size=18)
    rows = rng.normal(size=(300, 18)).tolist()
    model.fold(rows, rng.normal(size=300).tolist(), [1.0] * 300)
    assert [model.predict_many([row])[0] for row in rows] == model.predict_many(rows)
