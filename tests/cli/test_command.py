"""The forkgym command finds commands, prints results to standard output and says in one paragraph what is wrong."""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import forkgym
import forkgym.cli as cli
from forkgym.cli.command import OK, Command, UsageError, bad_input
from forkgym.cli.extras import extra_of, extras, missing_by_extra
from forkgym.console import Console
from forkgym.core import ForkgymError
from forkgym.rollout.trace import Episode, Ledger
from forkgym.store import RunStore
from tests.cli.conftest import Caller


def command(run: Callable[[argparse.Namespace, Console], int]) -> Command:
    return Command("A command for tests.", lambda parser: None, run)


def install(monkeypatch: pytest.MonkeyPatch, run: Callable[[argparse.Namespace, Console], int]) -> None:
    monkeypatch.setitem(cli.COMMANDS, "tested", (lambda: command(run), "for tests"))


def raising(error: BaseException) -> Callable[[argparse.Namespace, Console], int]:
    def run(arguments: argparse.Namespace, console: Console) -> int:
        raise error

    return run


def test_help_lists_every_command(forkgym_command: Caller) -> None:
    for arguments in ([], ["--help"]):
        code, text = forkgym_command(*arguments).code, forkgym_command.outcomes[-1].out
        assert code == OK
        if not arguments:
            assert all(f"  {name} " in text for name in cli.COMMANDS)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_explains_itself(name: str, forkgym_command: Caller, capsys: pytest.CaptureFixture[str]) -> None:
    assert forkgym_command(name, "--help").code == OK
    text = capsys.readouterr().out
    assert f"usage: forkgym {name}" in text
    assert "--debug" in text


def test_an_unknown_command_is_answered_with_the_nearest(forkgym_command: Caller) -> None:
    outcome = forkgym_command("trian")
    assert outcome.code == 2
    assert "Did you mean 'train'?" in outcome.err


def test_an_unknown_option_is_bad_input(forkgym_command: Caller) -> None:
    assert forkgym_command("envs", "--colour").code == 2
    assert forkgym_command("--colour").code == 2


@pytest.mark.parametrize("error", [ForkgymError("wrong\n\nand why"), UsageError("wrong\n\nand why")])
def test_errors_of_the_user_are_one_paragraph_and_code_2(
    error: Exception, forkgym_command: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, raising(error))
    outcome = forkgym_command("tested")
    assert (outcome.code, outcome.out, outcome.err) == (2, "", "forkgym: wrong\nand why\n")


def test_debug_shows_the_traceback(forkgym_command: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, raising(ForkgymError("wrong")))
    assert "Traceback" in forkgym_command("tested", "--debug").err
    assert "Traceback" in forkgym_command("--debug", "tested").err
    assert "Traceback" not in forkgym_command("tested").err


def test_a_defect_is_not_hidden(forkgym_command: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, raising(ValueError("a bug")))
    with pytest.raises(ValueError, match="a bug"):
        forkgym_command("tested")


def test_ctrl_c_ends_with_code_130(forkgym_command: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, raising(KeyboardInterrupt()))
    assert forkgym_command("tested").code == 130


def test_a_missing_package_is_named_with_the_extra_that_brings_it(
    forkgym_command: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, raising(ModuleNotFoundError("No module named 'torch'", name="torch.nn")))
    outcome = forkgym_command("tested")
    assert outcome.code == 2
    assert "torch is not installed" in outcome.err
    assert "pip install 'forkgym[train]'" in outcome.err


def test_an_import_error_of_our_own_is_a_defect(forkgym_command: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, raising(ModuleNotFoundError("No module named 'forkgym.x'", name="forkgym.x")))
    with pytest.raises(ModuleNotFoundError):
        forkgym_command("tested")


def test_only_the_expected_kinds_count_as_bad_input() -> None:
    with pytest.raises(UsageError, match="odd"), bad_input(KeyError):
        raise KeyError("odd")
    with pytest.raises(ValueError, match="odd"), bad_input(KeyError):
        raise ValueError("odd")


def test_a_plug_in_adds_a_command(forkgym_command: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("greet", f"{__name__}:GREET", cli.ENTRY_POINT_GROUP)
    monkeypatch.setattr(cli, "plugins", lambda: {"greet": point})
    assert forkgym_command("greet").out == "hello\n"
    assert "greet" in forkgym_command().out
    assert "Did you mean 'greet'" in forkgym_command("gret").err


def test_a_plug_in_that_is_no_command_is_at_fault(forkgym_command: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("odd", "json:dumps", cli.ENTRY_POINT_GROUP)
    monkeypatch.setattr(cli, "plugins", lambda: {"odd": point})
    outcome = forkgym_command("odd")
    assert outcome.code == 2
    assert "its package is at fault" in outcome.err


def _greet(arguments: argparse.Namespace, console: Console) -> int:
    console.line("hello")
    return OK


GREET = command(_greet)


def test_listing_environments_needs_neither_torch_nor_numba() -> None:
    code = (
        "import sys; from forkgym.cli import main; code = main(['envs']); main(['--help']);"
        "heavy = {'torch', 'transformers', 'numba', 'bm25s', 'matplotlib', 'rich'} & set(sys.modules);"
        "print(code, sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"


def test_the_version_is_told(forkgym_command: Caller, capsys: pytest.CaptureFixture[str]) -> None:
    assert forkgym_command("--version").code == OK
    assert capsys.readouterr().out == f"forkgym {forkgym.__version__}\n"


def test_envs_lists_every_registered_environment(forkgym_command: Caller) -> None:
    found = forkgym_command("envs", "--json").last_json["environments"]
    assert [row["id"] for row in found] == forkgym.list_envs()
    assert "toy/Chain-v0" in forkgym_command("envs").out


def test_algos_lists_presets_and_shows_one(forkgym_command: Caller) -> None:
    assert "twice" in forkgym_command("algos").out.splitlines()
    assert "twice-dr" in forkgym_command("algos", "--json").last_json["algorithms"]
    assert "minimum_propensity" in forkgym_command("algos", "twice").out
    shown = forkgym_command("algos", "twice", "--json").last_json
    assert {"option": "omega", "default": "1.0"} in shown["options"]
    outcome = forkgym_command("algos", "twise")
    assert outcome.code == 2
    assert "twice" in outcome.err


def test_envs_makes_environments_as_a_user_would(forkgym_command: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forkgym, "list_envs", lambda: ["toy/Chain-v0", "toy/Coupled-v0"])
    made: list[dict[str, Any]] = []
    chain = forkgym.make

    def remember(env_id: str, **kwargs: Any) -> Any:
        made.append(kwargs)
        return chain("toy/Chain-v0")

    class NeedsNothing:
        def __init__(self, size: int = 9) -> None: ...

        @classmethod
        def example_kwargs(cls) -> dict[str, Any]:
            return {"size": 1}

    class NeedsSize(NeedsNothing):
        def __init__(self, size: int) -> None: ...

    monkeypatch.setattr("forkgym.make", remember)
    for kind in (NeedsNothing, NeedsSize):
        monkeypatch.setattr("forkgym.cli.listings._class_of", lambda env_id, kind=kind: kind)
        forkgym_command("envs", "--check")
    assert made == [{}, {}, {"size": 1}, {"size": 1}], "arguments for tests only where there is no other way"


def test_what_a_user_got_wrong_is_one_line_of_a_benchmark_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from bench.__main__ import command

    monkeypatch.setattr(sys, "argv", ["bench", "env_fork", "--env", "toy/Chian-v0"])
    assert command() == 2
    assert capsys.readouterr().err.startswith("bench: No environment is registered as 'toy/Chian-v0'. Did you mean")


def test_envs_can_be_made_to_say_how_they_fork(forkgym_command: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forkgym, "list_envs", lambda: ["toy/Chain-v0", "toy/Coupled-v0"])
    rows = forkgym_command("envs", "--check", "--json").last_json["environments"]
    assert [row["forks by"] for row in rows] == ["state", "state"]
    assert rows[0]["splits"].startswith("train 4")

    def broken(env_id: str) -> object:
        raise RuntimeError("the dictionary is missing\nand more")

    monkeypatch.setattr("forkgym.make", broken)
    outcome = forkgym_command("envs", "--check", "--json")
    assert outcome.code == 2
    assert outcome.last_json["environments"][0]["problem"] == "the dictionary is missing"
    monkeypatch.setattr(forkgym, "list_envs", list)
    assert forkgym_command("envs").out == "No environment is installed.\n"


def test_a_reader_that_leaves_early_is_no_error() -> None:
    code = "import sys; from forkgym.cli import main; sys.exit(main(['bench']))"
    writer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert writer.stdout is not None
    assert writer.stderr is not None
    writer.stdout.close()
    errors = writer.stderr.read().decode()
    writer.stderr.close()
    assert (writer.wait(), errors) == (0, "")


def test_a_package_without_metadata_has_no_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    def missing(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", missing)
    assert extras() == {}


def test_the_doctor_names_versions_and_the_noise_check(forkgym_command: Caller) -> None:
    pytest.importorskip("torch")
    found = forkgym_command("doctor", "--json").last_json
    assert found["software"]["forkgym"] == forkgym.__version__
    assert found["promises"]["noise, known answer"] == "correct"
    assert found["promises"]["batch invariance"].startswith(("yes", "no"))
    quick = forkgym_command("doctor", "--no-check").out
    assert "promises" not in quick
    assert "usable cores" in quick


def test_the_doctor_says_what_is_wrong_with_the_data_folder(
    forkgym_command: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FORKGYM_DATA", str(tmp_path / "nowhere"))
    assert "is not a directory" in forkgym_command("doctor", "--no-check").out
    monkeypatch.setenv("FORKGYM_DATA", str(tmp_path))
    assert "entries" in forkgym_command("doctor", "--no-check").out


def test_extras_are_read_from_the_packages_own_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "torch" in extras()["train"]
    assert extra_of("torch.nn") == "train"
    assert extra_of("Stemmer") == "retrieval"
    assert extra_of("no_such_module") is None
    monkeypatch.setattr("forkgym.cli.extras.installed_version", lambda name: None if name == "torch" else "1")
    assert missing_by_extra() == {"train": ["torch"]}


def handle_file(path: Path, **changes: Any) -> Path:
    env = forkgym.make("toy/Chain-v0")
    env.reset(seed=3, options={"split": "train", "task": 1})
    action = env.sample_action(__import__("numpy").random.default_rng(0))
    env.step(action)
    document = json.loads(env.handle().to_json()) | changes
    path.write_text(json.dumps(document))
    return path


def test_replay_verifies_a_handle(forkgym_command: Caller, tmp_path: Path) -> None:
    file = handle_file(tmp_path / "handle.json")
    outcome = forkgym_command("replay", file)
    assert outcome.code == OK
    assert "1 turns re-executed, every turn verified" in outcome.out
    document = forkgym_command("replay", file, "--json").last_json
    assert (document["turns"], document["verified"], document["diverged_at"]) == (1, True, None)
    assert "[user]" in forkgym_command("replay", file, "--show").out
    assert "nothing verified (as asked)" in forkgym_command("replay", file, "--verify", "off").out


def test_replay_reads_messagepack_too(forkgym_command: Caller, tmp_path: Path) -> None:
    handle = forkgym.Handle.from_json(handle_file(tmp_path / "handle.json").read_text())
    (tmp_path / "handle.bin").write_bytes(handle.to_bytes())
    assert "every turn verified" in forkgym_command("replay", tmp_path / "handle.bin").out


def test_a_handle_without_hashes_is_replayed_and_said_to_be_unverified(forkgym_command: Caller, tmp_path: Path) -> None:
    outcome = forkgym_command("replay", handle_file(tmp_path / "handle.json", chain=""))
    assert outcome.code == OK
    assert "the handle holds no state hashes" in outcome.out


def test_a_tampered_handle_ends_with_code_1_and_names_the_turn(forkgym_command: Caller, tmp_path: Path) -> None:
    outcome = forkgym_command("replay", handle_file(tmp_path / "handle.json", actions=["something else"]), "--json")
    assert outcome.code == 1
    assert "diverged at turn 1" in outcome.err
    assert outcome.last_json["diverged_at"] == 1


@pytest.fixture
def run_directory(tmp_path: Path) -> Path:
    """A run with one episode that has a handle and one that has none."""
    handle = handle_file(tmp_path / "h.json").read_text()
    common: dict[str, Any] = {"environment": "toy/Chain-v0", "split": "train", "task": 0, "update": 0, "group": 0}
    common |= {"version": 0, "prompt_tokens": [], "turns": [], "utility": 1.0, "success": True}
    episodes = [
        Episode(key=2**64 - 1, member=0, handle=handle, **common),
        Episode(key=8, member=1, **common),
    ]
    config = {"env": {"id": "toy/Chain-v0"}, "policy": {"checkpoint": "x"}, "algorithm": {"name": "rloo"}}
    with RunStore.create(
        tmp_path / "run", config=json.dumps(config | {"budget": {"updates": 1}}), digest="d", versions={}
    ) as store:
        metrics = {"success": 0.5, "training_tokens": 70}
        store.commit_update(0, episodes=episodes, decisions=[], metrics=metrics, ledger=Ledger())
    return tmp_path / "run"


def test_a_recorded_episode_is_replayed_from_its_run(forkgym_command: Caller, run_directory: Path) -> None:
    outcome = forkgym_command("replay", f"{run_directory}:{2**64 - 1}")
    assert outcome.code == OK, outcome.err
    assert "every turn verified" in outcome.out


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("{run}:8", "was recorded without a handle"),
        ("{run}:9", "has no episode 9. Its first keys: 18446744073709551615, 8."),
        ("{run}:first", "is no episode key"),
        ("nowhere:9", "there is no run here"),
        ("nowhere.json", "there is no file nowhere.json"),
    ],
)
def test_an_episode_that_cannot_be_replayed_says_why(
    what: str, said: str, forkgym_command: Caller, run_directory: Path
) -> None:
    outcome = forkgym_command("replay", what.format(run=run_directory))
    assert outcome.code == 2
    assert said in outcome.err


def test_a_run_without_an_episode_is_told_how_to_name_one(forkgym_command: Caller, run_directory: Path) -> None:
    outcome = forkgym_command("replay", run_directory)
    assert outcome.code == 2
    assert f"{run_directory}:KEY" in outcome.err


def test_report_tabulates_runs_and_lists_episodes(forkgym_command: Caller, run_directory: Path) -> None:
    outcome = forkgym_command("report", run_directory, "--episodes", "--json")
    assert outcome.code == OK
    assert str(2**64 - 1) in outcome.out
    assert outcome.last_json["runs"][0]["algorithm"] == "rloo"
    assert forkgym_command("report", run_directory, "--markdown").out.startswith("| run |")


def test_report_draws_a_picture(forkgym_command: Caller, run_directory: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "pictures" / "curve.png"
    assert forkgym_command("report", run_directory, "--plot", picture).code == OK
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_bench_lists_and_dispatches(forkgym_command: Caller, capsys: pytest.CaptureFixture[str]) -> None:
    listed = forkgym_command("bench").out
    assert "fork_latency" in listed
    assert "env_throughput" in listed
    arguments = ["--env", "toy/Chain-v0", "--repeats", "3", "--json"]
    assert forkgym_command("bench", "env_fork", *arguments).code == OK
    result = json.loads(capsys.readouterr().out.strip().splitlines()[-1])["results"][0]
    assert result["env"] == "toy/Chain-v0"
    assert set(result["p50_us"]) >= {"fork", "snapshot", "restore", "replay", "rerun", "deepcopy"}
    assert forkgym_command("bench", "env_throughput", "--env", "toy/Chain-v0", "--seconds", "0.05", "--json").code == OK
    assert json.loads(capsys.readouterr().out.strip().splitlines()[-1])["results"][0]["steps_per_second"] > 0
    assert forkgym_command("bench", "fork_latencyy").code == 2
    assert "Did you mean 'fork_latency'" in capsys.readouterr().err
    assert forkgym_command("bench", "fork_latency", "--repeats", "0").code == 2


@pytest.mark.parametrize(("verbosity", "shown"), [(0, ["told"]), (1, ["step", "told"])])
def test_logs_are_forkgyms_own_and_everybodys_warnings(
    verbosity: int, shown: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    cli.configure_logging(verbosity)
    talkative = logging.getLogger("talkative.library")
    talkative.setLevel(logging.DEBUG)
    talkative.debug("building an index")
    logging.getLogger("forkgym").info("step")
    talkative.warning("told")
    assert capsys.readouterr().err.split() == shown
