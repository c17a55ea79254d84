"""Judging a policy: repeatable, task by task, booked apart from training; and how strongly twins are coupled."""

from __future__ import annotations

import math

import pytest

from forkgym.noise import Layout
from forkgym.policy.scripted import ScriptedEngine
from forkgym.rollout.trace import Ledger
from forkgym.train.evaluate import Evaluator, _coupling, mean_and_error
from tests.rollout.lamps import RENDERER, TOKENS, Lamps, table_engine


def evaluator(engine=None, **options):
    return Evaluator(engine or table_engine(), RENDERER, Lamps, seed=3, max_turn_tokens=6, max_context=256, **options)


@pytest.fixture(autouse=True)
def nothing_stays_open():
    before = Lamps.live
    yield
    assert Lamps.live == before


def test_an_evaluation_is_a_function_of_its_seed_and_its_tasks():
    first = evaluator().evaluate("train", range(6), version=0, samples=5)
    assert evaluator(max_running=2).evaluate("train", range(6), version=0, samples=5) == first
    part = evaluator().evaluate("train", [4, 1], version=0, samples=5)
    assert part.per_task == [first.per_task[4], first.per_task[1]]
    other = Evaluator(table_engine(), RENDERER, Lamps, seed=4, max_turn_tokens=6, max_context=256)
    assert other.evaluate("train", range(6), version=0, samples=5).per_task != first.per_task


def test_tasks_are_the_units_of_the_standard_error():
    result = evaluator().evaluate("train", range(6), version=0, samples=4)
    assert len(result.per_task) == 6
    assert {value * 4 for value in result.per_task} <= {0.0, 1.0, 2.0, 3.0, 4.0}
    mean = sum(result.per_task) / 6
    assert result.success == pytest.approx(mean)
    expected = math.sqrt(sum((value - mean) ** 2 for value in result.per_task) / 5 / 6)
    assert result.standard_error == pytest.approx(expected)
    assert (result.mode, result.split) == ("sampled", "train")


def test_greedy_episodes_depend_on_the_seed_by_the_environments_luck_alone(monkeypatch):
    monkeypatch.setattr("forkgym.core.luck.KeyedLuck.random", lambda self, name: 0.9)  # no fog
    results = [
        Evaluator(table_engine(), RENDERER, Lamps, seed=seed, max_turn_tokens=6, max_context=256).evaluate(
            "test", [0], version=0, greedy=True
        )
        for seed in (1, 2)
    ]
    assert results[0].tokens == results[1].tokens
    assert results[0].mode == "greedy"


def test_a_policy_that_names_the_first_colour_wins_every_third_task():
    engine = ScriptedEngine(lambda context: RENDERER.written("red"), len(TOKENS), decode=RENDERER.decode)
    result = evaluator(engine).evaluate("train", range(6), version=0)
    assert result.per_task == [1.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    assert (result.success, result.utility, result.turns, result.tokens) == (1 / 3, 1 / 3, 1.0, 2.0)


def test_evaluation_is_booked_as_scoring_and_leaves_no_cache():
    engine, ledger = table_engine(), Ledger()
    result = evaluator(engine, ledger=ledger).evaluate("train", range(6), version=0, samples=2)
    assert set(ledger.generated) == {"scoring"}
    assert ledger.generated["scoring"] == result.tokens * 12 == engine.statistics().generated_tokens
    assert ledger.training_tokens == 0
    assert engine.statistics().stored_caches == 0


@pytest.mark.parametrize(("tasks", "samples"), [([], 1), ([0], 0)])
def test_nothing_to_judge_is_refused(tasks, samples):
    with pytest.raises(ValueError, match="at least one task and one sample"):
        evaluator().evaluate("train", tasks, version=0, samples=samples)


def test_mean_and_error_of_one_value_and_of_three():
    assert mean_and_error([0.5])[0] == 0.5
    assert math.isnan(mean_and_error([0.5])[1])
    assert mean_and_error([0.0, 1.0, 1.0]) == (pytest.approx(2 / 3), pytest.approx(1 / 3))


def test_coupling_counts_decisions_that_are_not_terminal_and_frees_everything():
    engine = table_engine()
    result = evaluator(engine).coupling("train", list(range(6)) * 2, version=0, layout=Layout.TURN_LINE)
    assert result.decisions > 6
    assert result.standard_error > 0.0
    assert engine.statistics().stored_caches == 0


@pytest.mark.slow
def test_twins_are_coupled():
    # 6 tasks × 120 seeds: ρ is positive by 4 standard errors; uncoupled branches would pass for 3 seeds in 100,000.
    twin = many_seeds(Layout.TURN_LINE)
    assert twin.correlation - 4 * twin.standard_error > 0.0


def many_seeds(layout):
    parts = [
        Evaluator(table_engine(), RENDERER, Lamps, seed=seed, max_turn_tokens=6, max_context=256).coupling(
            "train", range(6), version=0, layout=layout
        )
        for seed in range(120)
    ]
    known = [part.correlation for part in parts if not math.isnan(part.correlation)]
    mean, error = mean_and_error(known)
    return type(parts[0])(correlation=mean, standard_error=error, decisions=sum(part.decisions for part in parts))


def test_the_coupling_and_its_jackknife_by_hand():
    # Two episodes: sums (twin, independent) = (1, 2) and (0, 2). ρ = 1 − 1/4; left out: 1 − 0/2 and 1 − 1/2.
    result = _coupling([7, 7, 8], [1.0, 0.0, 0.0], [1.0, 1.0, 2.0])
    assert result.correlation == pytest.approx(0.75)
    assert result.standard_error == pytest.approx(math.sqrt((0.25**2 + 0.25**2) * 1 / 2))
    assert result.decisions == 3


def test_without_any_difference_there_is_no_correlation():
    result = _coupling([7, 8], [0.0, 0.0], [0.0, 0.0])
    assert math.isnan(result.correlation)
    assert math.isnan(result.standard_error)
