"""``forkgym train``, ``eval`` and ``warmstart`` hand over to the library and show what it returns."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forkgym.cli.command import UsageError
from forkgym.cli.training import parse_arguments, without_nan
from forkgym.console import Console, LiveProgress, PlainProgress, make_progress
from forkgym.rollout.trace import Ledger
from forkgym.store import RunStore
from forkgym.train.config import TrainConfig, config_digest, config_to_json
from forkgym.train.evaluate import EvaluationResult
from forkgym.train.progress import Progress, Silent, TrainResult, UpdateRow
from tests.cli.conftest import Caller


class Terminal(io.StringIO):
    """Looks like a terminal."""

    def isatty(self) -> bool:
        return True


def evaluation(mode: str, success: float) -> EvaluationResult:
    return EvaluationResult(
        split="test",
        mode=mode,
        success=success,
        standard_error=0.05 if mode == "sampled" else math.nan,
        utility=success,
        turns=2.0,
        tokens=20.5,
        per_task=[0.0, 1.0],
    )


def row(update: int, twins: int = 4) -> UpdateRow:
    return UpdateRow(
        update=update,
        utility=0.5,
        success=0.25 + update / 10,
        mixed_groups=0.5,
        turns=2.0,
        entropy=0.3,
        twins=twins,
        self_twins=0.1,
        same_evidence=0.1,
        ties=0.75,
        multiplier=1.0,
        auxiliary=0.6,
        training_tokens=1_000 * (update + 1),
        progress=(update + 1) / 2,
        learner={"loss": 0.1},
        seconds={"on_policy": 1.0},
    )


def result(directory: Path) -> TrainResult:
    return TrainResult(
        directory=str(directory),
        algorithm="rloo",
        updates=2,
        training_tokens=2_000,
        on_policy_tokens=1_500,
        counterfactual_tokens=500,
        branches=8,
        self_twins=math.nan,
        ties=0.75,
        before={"sampled": evaluation("sampled", 0.25), "greedy": evaluation("greedy", 0.5)},
        after={"sampled": evaluation("sampled", 0.75), "greedy": evaluation("greedy", 1.0)},
        weights_digest="00",
        seconds={"on_policy": 2.0},
    )


class FakeTrainer:
    """Records a run of two updates without a model."""

    interrupt_at: int | None = None
    closed = 0

    def __init__(self, config: TrainConfig, *, progress: Progress) -> None:
        self.config, self.progress = config, progress
        self.store = RunStore.create(
            config.run_directory, config=config_to_json(config), digest=config_digest(config), versions={}
        )

    def run(self) -> TrainResult:
        self.progress.started(self.config, self.config.run_directory, None)
        for update in range(2):
            if self.interrupt_at == update:
                raise KeyboardInterrupt
            for mode in ("sampled", "greedy"):
                judged = evaluation(mode, 0.25 * (update + 1))
                metrics = {"split": "test", "success": judged.success, "standard_error": judged.standard_error}
                self.store.add_evaluation(update, mode, metrics | {"training_tokens": 1_000 * update})
                self.progress.evaluated(update, judged)
            metrics = {"success": 0.5, "training_tokens": 1_000 * (update + 1)}
            self.store.commit_update(update, episodes=[], decisions=[], metrics=metrics, ledger=Ledger())
            self.progress.updated(row(update))
        done = result(self.config.run_directory)
        self.progress.finished(done)
        return done

    def close(self) -> None:
        type(self).closed += 1
        self.store.close()


@pytest.fixture
def fake_trainer(monkeypatch: pytest.MonkeyPatch) -> type[FakeTrainer]:
    pytest.importorskip("torch")
    monkeypatch.setattr("forkgym.train.trainer.Trainer", FakeTrainer)
    monkeypatch.setattr(FakeTrainer, "interrupt_at", None)
    monkeypatch.setattr(FakeTrainer, "closed", 0)
    return FakeTrainer


def test_training_prints_a_line_per_update_a_summary_and_a_picture(
    fake_trainer: type[FakeTrainer], forkgym_command: Caller, config_file: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    outcome = forkgym_command("train", config_file, "--set", "run.name=mine", "--json")
    assert outcome.code == 0, outcome.err
    assert "start runs/mine  rloo on toy/Chain-v0, 2 updates" in outcome.out
    assert "update 1  success 0.350" in outcome.out
    assert "after 0 updates, test sampled: success 0.250 ± 0.050 on 2 tasks" in outcome.out
    assert re.search(r"test sampled +0\.250 +0\.750 +0\.050 +2,000 +500", outcome.out)
    assert (tmp_path / "runs/mine/learning_curve.png").read_bytes().startswith(b"\x89PNG")
    document = outcome.last_json
    assert (document["updates"], document["self_twins"]) == (2, None)
    assert document["plot"] == "runs/mine/learning_curve.png"
    assert fake_trainer.closed == 1


def test_without_matplotlib_the_run_ends_well_and_names_the_extra(
    fake_trainer: type[FakeTrainer], forkgym_command: Caller, config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    outcome = forkgym_command("train", config_file)
    assert outcome.code == 0
    assert "pip install 'forkgym[report]'" in outcome.err
    assert "plot:" not in outcome.out


def test_ctrl_c_closes_the_run_and_says_how_to_go_on(
    fake_trainer: type[FakeTrainer], forkgym_command: Caller, config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_trainer, "interrupt_at", 1)
    outcome = forkgym_command("train", config_file)
    assert outcome.code == 130
    assert "the same command resumes there" in outcome.err
    assert fake_trainer.closed == 1
    with RunStore.open("runs/small", write=True) as store:
        assert store.last_update() == 0


def test_an_error_while_training_is_a_defect_and_shows_itself(
    fake_trainer: type[FakeTrainer], forkgym_command: Caller, config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: FakeTrainer) -> TrainResult:
        raise ValueError("a bug")

    monkeypatch.setattr(fake_trainer, "run", fail)
    with pytest.raises(ValueError, match="a bug"):
        forkgym_command("train", config_file)
    assert fake_trainer.closed == 1


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        ("OSError(28, 'No space left on device')", "the disk is full"),
        ("SafetensorError('I/O error: No space left on device (os error 28)')", "the disk is full"),
        ("NonFiniteError('the gradient is not finite')", "optimiser.learning_rate=0.0001"),
        ("BrokenLogitsError('row 0 of the logits holds 3 NaN')", "optimiser.learning_rate=0.0001"),
    ],
)
def test_a_full_disk_and_a_policy_that_diverged_are_told_in_one_paragraph(
    failure: str,
    said: str,
    fake_trainer: type[FakeTrainer],
    forkgym_command: Caller,
    config_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from safetensors import SafetensorError

    from forkgym.learn import NonFiniteError
    from forkgym.noise.distribution import BrokenLogitsError

    kinds = {kind.__name__: kind for kind in (OSError, SafetensorError, NonFiniteError, BrokenLogitsError)}

    def fail(self: FakeTrainer) -> TrainResult:
        raise eval(failure, kinds)

    monkeypatch.setattr(fake_trainer, "run", fail)
    outcome = forkgym_command("train", config_file)
    assert outcome.code == 2
    assert said in outcome.err
    assert "runs/small" in outcome.err
    assert fake_trainer.closed == 1


def test_another_error_of_the_disk_shows_itself(
    fake_trainer: type[FakeTrainer], forkgym_command: Caller, config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: FakeTrainer) -> TrainResult:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(fake_trainer, "run", fail)
    with pytest.raises(OSError, match="Input/output"):
        forkgym_command("train", config_file)


def test_an_unfinished_run_cannot_be_judged(
    fake_trainer: type[FakeTrainer], forkgym_command: Caller, config_file: Path
) -> None:
    forkgym_command("train", config_file, "--no-plot")
    outcome = forkgym_command("eval", "runs/small")
    assert outcome.code == 2
    assert "no trained policy yet" in outcome.err


def test_evaluation_passes_the_runs_own_settings_and_the_options_on(
    fake_trainer: type[FakeTrainer], forkgym_command: Caller, config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forkgym_command("train", config_file, "--no-plot", "--set", "evaluation.tasks=3", "--set", "evaluation.seed=5")
    Path("runs/small/policy").mkdir()
    asked: dict[str, Any] = {}

    def judge(environment: Any, policy: Any, **options: Any) -> list[EvaluationResult]:
        asked.update(options, environment=environment, policy=policy)
        return [evaluation("sampled", 0.5), evaluation("greedy", 1.0)]

    monkeypatch.setattr("forkgym.train.judge.judge", judge)
    outcome = forkgym_command("eval", "runs/small", "--samples", "2", "--max-turn-tokens", "9", "--json")
    assert outcome.code == 0
    assert (asked["tasks"], asked["seed"], asked["samples"], asked["split"]) == (3, 5, 2, "test")
    assert asked["environment"].id == "toy/Chain-v0"
    assert (asked["policy"].checkpoint, asked["policy"].max_turn_tokens) == ("runs/small/policy", 9)
    assert [r["mode"] for r in outcome.last_json["results"]] == ["sampled", "greedy"]


def test_a_runs_policy_can_be_judged_elsewhere(
    fake_trainer: type[FakeTrainer], forkgym_command: Caller, config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ["--set", "evaluation.split=train", "--set", "env.kwargs.a=1"]
    monkeypatch.setattr("forkgym.train.preflight.preflight", lambda config, source: None)
    assert forkgym_command("train", config_file, "--no-plot", *settings).code == 0
    Path("runs/small/policy").mkdir()
    asked: dict[str, Any] = {}

    def judge(environment: Any, policy: Any, **options: Any) -> list[EvaluationResult]:
        asked.update(options, environment=environment)
        return [evaluation("sampled", 0.5)]

    monkeypatch.setattr("forkgym.train.judge.judge", judge)
    assert forkgym_command("eval", "runs/small", "--env-arg", "b=2").code == 0
    assert (asked["environment"].id, asked["environment"].kwargs) == ("toy/Chain-v0", {"a": 1, "b": 2})
    assert asked["split"] == "train"
    assert forkgym_command("eval", "runs/small", "--env", "toy/Coupled-v0", "--env-arg", "c=3").code == 0
    assert (asked["environment"].id, asked["environment"].kwargs) == ("toy/Coupled-v0", {"c": 3})
    assert asked["split"] == "test", "splits of another environment are its own"


def test_a_seed_below_zero_is_no_seed(forkgym_command: Caller, capsys: pytest.CaptureFixture[str]) -> None:
    assert forkgym_command("eval", "runs/small", "--seed", "-1").code == 2
    assert "'-1' is not an integer from 0" in capsys.readouterr().err


def test_constructor_arguments_are_toml_or_text() -> None:
    assert parse_arguments(["hops=2", "name=some text", "many=[1, 2]"]) == {
        "hops": 2,
        "name": "some text",
        "many": [1, 2],
    }
    with pytest.raises(UsageError, match="NAME=VALUE"):
        parse_arguments(["no value"])


def test_json_has_null_where_there_is_no_number() -> None:
    assert without_nan({"a": [1.0, math.nan], "b": {"c": math.nan}}) == {"a": [1.0, None], "b": {"c": None}}


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()


def test_the_live_view_shows_the_last_updates_and_restores_the_terminal(terminal: Terminal, tmp_path: Path) -> None:
    pytest.importorskip("rich")
    progress = make_progress(Console(terminal, io.StringIO()))
    assert isinstance(progress, LiveProgress)
    config = small_config()
    with progress:
        progress.started(config, tmp_path, 3)
        for update in range(20):
            progress.updated(row(update))
        progress.evaluated(20, evaluation("greedy", 0.5))
        progress.finished(result(tmp_path))
    text = terminal.getvalue()
    assert "resumed after update 2" in text
    assert "after 20 updates, test greedy: success 0.500 on 2 tasks" in text
    assert text.count("\x1b[?25h") == 1, "the cursor is shown again"


def test_lines_are_plain_where_nobody_watches(tmp_path: Path) -> None:
    output = io.StringIO()
    progress = make_progress(Console(output, io.StringIO()))
    assert isinstance(progress, PlainProgress)
    with progress:
        progress.started(small_config(), tmp_path, 3)
        progress.updated(row(0, twins=0))
    assert "\x1b" not in output.getvalue()
    assert "resume after update 2" in output.getvalue()
    assert "twins" not in output.getvalue(), "a method without twins shows no column of them"


def test_a_silent_run_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    silent: Progress = Silent()
    silent.started(small_config(), tmp_path, None)
    silent.updated(row(0))
    silent.evaluated(0, evaluation("greedy", 0.5))
    silent.finished(result(tmp_path))
    assert capsys.readouterr() == ("", "")


def test_quiet_suppresses_messages_but_not_errors() -> None:
    errors = io.StringIO()
    console = Console(io.StringIO(), errors, quiet=True)
    console.message("by the way")
    console.error("wrong")
    assert errors.getvalue() == "forkgym: wrong\n"


def small_config() -> TrainConfig:
    from forkgym.train.config import parse_config

    return parse_config(
        {
            "env": {"id": "toy/Chain-v0"},
            "policy": {"checkpoint": "x"},
            "algorithm": {"name": "rloo"},
            "budget": {"updates": 2},
        }
    )


class FakeReport(msgspec.Struct):
    environment: str
    by_hops: dict[int, int]

    def lines(self) -> list[str]:
        return [f"report on {self.environment}"]


@pytest.fixture
def fake_warm_start(monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, Any]]:
    pytest.importorskip("torch")
    from forkgym.learn import warmstart

    asked: dict[str, Any] = {}

    def warm_start(env_id: str, env_kwargs: Any, output: Path, **options: Any) -> Any:
        asked.update(options, env_id=env_id, env_kwargs=env_kwargs)
        Path(output).mkdir(exist_ok=True)
        (Path(output) / "model.safetensors").write_bytes(b"weights")
        if options.get("steps") == 13:
            raise RuntimeError("the machine caught fire")
        options["progress"]("half way")
        return FakeReport(environment=env_id, by_hops={1: 2})

    monkeypatch.setattr(warmstart, "warm_start", warm_start)
    monkeypatch.setattr("forkgym.cli.warmstarting.check_teachable", lambda env_id, kwargs, split=None: None)
    return lambda: asked


def test_a_warm_start_leaves_a_whole_checkpoint(
    fake_warm_start: Callable[[], dict[str, Any]], forkgym_command: Caller, tmp_path: Path
) -> None:
    outcome = forkgym_command("warmstart", "toy/Chain-v0", "out", "--steps", "5", "--env-arg", "hops=2", "--json")
    assert outcome.code == 0, outcome.err
    asked = fake_warm_start()
    assert (asked["steps"], asked["env_kwargs"], "seed" in asked) == (5, {"hops": 2}, False)
    assert "half way" in outcome.err
    assert "report on toy/Chain-v0" in outcome.out
    assert outcome.last_json == {"environment": "toy/Chain-v0", "by_hops": {"1": 2}, "output": "out"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert forkgym_command("warmstart", "toy/Chain-v0", "out").code == 2
    assert forkgym_command("warmstart", "toy/Chain-v0", "out", "--overwrite").code == 0


def test_a_warm_start_that_fails_leaves_nothing(
    fake_warm_start: Callable[[], dict[str, Any]], forkgym_command: Caller, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError, match="caught fire"):
        forkgym_command("warmstart", "toy/Chain-v0", "out", "--steps", "13")
    assert list(tmp_path.iterdir()) == []


def test_a_warm_start_into_a_place_that_cannot_be_written_is_refused_before_anything_is_taught(
    fake_warm_start: Callable[[], dict[str, Any]], forkgym_command: Caller, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("a file is no directory")
    outcome = forkgym_command("warmstart", "toy/Chain-v0", "file/out")
    assert outcome.code == 2
    assert "file/out cannot be made (Not a directory)" in outcome.err
    assert fake_warm_start() == {}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["policy.max_turn_tokens=5000"], "a turn of 5000 tokens does not fit behind the"),
        (["optimiser.lora.target_modules=['nope']"], "nope"),
        (["env.id=toy/Chain-v0"], "toy/Chain-v0 has no vocabulary"),
        (["policy.checkpoint=damaged"], "the weights are damaged"),
    ],
)
def test_a_configuration_that_fails_in_set_up_leaves_no_run_behind(
    settings: list[str], said: str, forkgym_command: Caller, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    import forkgym
    from forkgym.policy.tiny import build_model, build_tokenizer, save_checkpoint

    env = forkgym.make("retrieval/Atlas-v0")
    tokenizer = build_tokenizer(env.vocabulary())
    for name in ("checkpoint", "damaged"):
        save_checkpoint(
            tmp_path / name, build_model(len(tokenizer), hidden_size=32, heads=2), tokenizer, env.vocabulary()
        )
    (tmp_path / "damaged" / "model.safetensors").write_bytes(b"torn")
    file = tmp_path / "run.toml"
    file.write_text(
        '[run]\nname = "real"\n[env]\nid = "retrieval/Atlas-v0"\n[policy]\ncheckpoint = "checkpoint"\n'
        '[algorithm]\nname = "rloo"\n[budget]\nupdates = 1\n'
    )
    outcome = forkgym_command("train", file, *(part for setting in settings for part in ("--set", setting)))
    assert outcome.code == 2
    assert said in outcome.err
    assert not (tmp_path / "runs").exists()


def test_a_policy_is_saved_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    from forkgym.train import build

    def save(path: Path, *rest: object) -> None:
        path.mkdir()
        (path / "config.json").write_text("{}")
        if fails:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(build, "_save", save)
    fails = True
    with pytest.raises(OSError, match="No space"):
        build.save_policy(tmp_path / "policy", None, None, lambda: None)  # type: ignore[arg-type,return-value]
    assert list(tmp_path.iterdir()) == []
    fails = False
    for _ in range(2):
        build.save_policy(tmp_path / "policy", None, None, lambda: None)  # type: ignore[arg-type,return-value]
        assert [path.name for path in tmp_path.iterdir()] == ["policy"]


def test_a_real_run_trains_resumes_and_is_judged_through_the_command(forkgym_command: Caller, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    import forkgym
    from forkgym.policy.tiny import build_model, build_tokenizer, save_checkpoint

    env = forkgym.make("retrieval/Atlas-v0")
    tokenizer = build_tokenizer(env.vocabulary())
    model = build_model(len(tokenizer), hidden_size=32, heads=2)
    save_checkpoint(tmp_path / "checkpoint", model, tokenizer, env.vocabulary())
    file = tmp_path / "run.toml"
    file.write_text(
        '[run]\nname = "real"\n[env]\nid = "retrieval/Atlas-v0"\n[policy]\ncheckpoint = "checkpoint"\n'
        '[algorithm]\nname = "twice"\n[collection]\ngroups_per_update = 2\n[budget]\nupdates = 2\n'
        "[evaluation]\ntasks = 4\n"
    )
    first = forkgym_command("train", file, "--json")
    assert first.code == 0, first.err
    again = forkgym_command("train", file, "--json")
    assert again.code == 0, again.err
    assert again.last_json["weights_digest"] == first.last_json["weights_digest"], "a finished run is not changed"
    judged = forkgym_command("eval", "runs/real", "--json")
    assert [r["mode"] for r in judged.last_json["results"]] == ["sampled", "greedy"]
    with RunStore.open("runs/real") as store:
        key = store.episodes(1)[0].key
        assert json.loads(store.config)["algorithm"]["name"] == "twice"
    assert "every turn verified" in forkgym_command("replay", f"runs/real:{key}").out


def test_scripted_policies_are_judged_without_a_model(forkgym_command: Caller) -> None:
    arguments = ("--env", "toy/Chain-v0", "--tasks", "4", "--samples", "8", "--json")
    outcome = forkgym_command("eval", "scripted:random", *arguments)
    assert outcome.code == 0
    result = outcome.last_json["results"][0]
    assert (result["mode"], result["samples"]) == ("random", 8)
    rates = [(rate["name"], rate["low"] <= rate["rate"] <= rate["high"]) for rate in result["rates"]]
    assert rates == [(name, True) for name in ("pass@1", "pass@2", "pass@4", "pass@8", "all-8")]
    assert "pass@8" in outcome.out
    assert forkgym_command("eval", "scripted:random", *arguments).last_json == outcome.last_json


def test_a_scripted_policy_needs_an_environment_that_has_it(forkgym_command: Caller) -> None:
    outcome = forkgym_command("eval", "scripted:random")
    assert outcome.code == 2
    assert "--env" in outcome.err
    outcome = forkgym_command("eval", "scripted:gold", "--env", "toy/Chain-v0")
    assert outcome.code == 2
    assert "there are random" in outcome.err
