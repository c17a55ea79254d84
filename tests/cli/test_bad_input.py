"""Malformed configurations, handles, question files and actions: one clear paragraph, exit code 2, nothing written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forkgym
from forkgym.core import ActionError, ForkgymError
from forkgym.store import RunStore
from tests.cli.conftest import Caller

Listing = Callable[[], dict[str, bytes]]

QUESTION = '{"id": "q1", "question": "Who?", "golden_answers": ["Ada"], "passages": [{"title": "A", "text": "Ada"}]}'


def refuse(command: Caller, listing: Listing, *arguments: object) -> str:
    """Call the command, check the manner of the refusal, and return what it said."""
    before = listing()
    outcome = command(*arguments)
    text = outcome.err
    assert outcome.code == 2, text
    assert outcome.out == ""
    assert text.startswith("forkgym: ")
    assert text.endswith("\n")
    assert "\n\n" not in text, "one paragraph"
    assert "Traceback" not in text
    assert len(text) < 3000
    assert listing() == before, "nothing may be written half"
    return text


# Configurations: the file itself


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no such file"),
        (b"\xff\xfe[run]", "not UTF-8"),
        (b"[run\nseed = 1", "not valid TOML"),
        (b"seed: 1\n", "not valid TOML"),
        (b"", "env is missing; add a section [env] with `id`"),
        (b"[run]\nseed = 1\nseed = 2\n", "not valid TOML"),
        (b'{"run": {"seed": 1}}', "not valid TOML"),
    ],
)
def test_a_file_that_is_no_configuration(
    content: bytes | None, said: str, forkgym_command: Caller, listing: Listing, tmp_path: Path
) -> None:
    file = tmp_path / "broken.toml"
    if content is not None:
        file.write_bytes(content)
    assert said in refuse(forkgym_command, listing, "train", file)


def test_a_directory_is_no_configuration(forkgym_command: Caller, listing: Listing, tmp_path: Path) -> None:
    assert "this is a directory" in refuse(forkgym_command, listing, "train", tmp_path)


# Configurations: one wrong key each


def test_the_configuration_of_these_tests_is_fine_itself(forkgym_command: Caller, config_file: Path) -> None:
    pytest.importorskip("torch")
    outcome = forkgym_command("train", config_file, "--check")
    assert (outcome.code, outcome.err) == (0, "")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("runn.seed=1", "runn is not a section"),
        ("run.sede=1", "Did you mean 'seed'?"),
        ("run.seed=one", "run.seed (from --set) is 'one', expected an integer of at least 0"),
        ("run.seed=-1", "expected an integer of at least 0"),
        ("run.name=../../elsewhere", "expected a name"),
        ("optimiser.learning_rate=nan", "expected a finite number"),
        ("optimiser.learning_rate=-1.0", "expected a number greater than 0"),
        ("optimiser.betas=[0.9, 0.99, 0.999]", "expected a list of 2"),
        ("budget.updates=0", "expected an integer of at least 1"),
        ("budget.update=3", "Did you mean 'updates'?"),
        ("policy.device=tpu", "expected one of 'auto', 'cpu', 'cuda'"),
        ("policy.checkpoint=no/such/place", "there is no directory no/such/place"),
        ("policy.checkpoint=package:no_such_package/x", "there is no installed package 'no_such_package'"),
        ("env.id=toy/Chian-v0", "Did you mean 'toy/Chain-v0'?"),
        ("env.id=CartPole-v1", "is not a text environment"),
        ("env.id=../../etc/passwd", "No environment is registered"),
        ("env.split=trian", "Did you mean 'train'?"),
        ("evaluation.split=nowhere", "evaluation.split: toy/Chain-v0 has no split 'nowhere'"),
        ("algorithm.name=twise", "did you mean 'twice'?"),
        ("algorithm.omga=1", "has no option 'omga'"),
        ("algorithm.group_size=many", "algorithm.group_size is 'many', expected an integer"),
        ("seed=1", "is not of the form section.key=value"),
    ],
)
def test_one_wrong_key(override: str, said: str, forkgym_command: Caller, listing: Listing, config_file: Path) -> None:
    assert said in refuse(forkgym_command, listing, "train", config_file, "--set", override)


def test_a_wrong_argument_of_the_environment(forkgym_command: Caller, listing: Listing, config_file: Path) -> None:
    overrides = ["--set", "env.id=retrieval/QA-v0", "--set", "env.kwargs.reward=bleu"]
    assert "bleu" in refuse(forkgym_command, listing, "train", config_file, *overrides)
    overrides[-1] = "env.kwargs.questons=x"
    assert "Did you mean 'questions'?" in refuse(forkgym_command, listing, "train", config_file, *overrides)


def test_a_gpu_that_is_not_there(forkgym_command: Caller, listing: Listing, config_file: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    text = refuse(forkgym_command, listing, "train", config_file, "--set", "policy.device=cuda")
    assert "torch finds no CUDA device" in text


def test_a_directory_that_holds_no_checkpoint(forkgym_command: Caller, listing: Listing, config_file: Path) -> None:
    pytest.importorskip("transformers")
    assert "checkpoint" in refuse(forkgym_command, listing, "train", config_file)


def test_a_run_that_was_started_with_another_configuration(
    forkgym_command: Caller, listing: Listing, config_file: Path, tmp_path: Path
) -> None:
    from forkgym.train.config import config_digest, config_to_json, load_config

    config = load_config(config_file)
    directory = tmp_path / "runs" / "small"
    RunStore.create(directory, config=config_to_json(config), digest=config_digest(config), versions={}).close()
    text = refuse(forkgym_command, listing, "train", config_file, "--set", "run.seed=9")
    assert "run.seed (was 0, now 9)" in text


def test_a_run_whose_record_is_no_database(
    forkgym_command: Caller, listing: Listing, config_file: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "runs" / "small"
    directory.mkdir(parents=True)
    (directory / "run.sqlite").write_text("this is not a database " * 100)
    assert "corrupted or is no SQLite database" in refuse(forkgym_command, listing, "train", config_file)
    assert "corrupted or is no SQLite database" in refuse(forkgym_command, listing, "report", directory)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "there is no directory nowhere"),
        (["checkpoint"], "say which environment"),
        (["checkpoint", "--env", "toy/Chian-v0"], "Did you mean 'toy/Chain-v0'?"),
        (["checkpoint", "--env", "toy/Chain-v0", "--env-arg", "3"], "is not of the form NAME=VALUE"),
        (["checkpoint", "--env", "toy/Chain-v0", "--temperature", "0"], "--temperature must be greater than 0"),
        (["checkpoint", "--env", "toy/Chain-v0", "--top-p", "1.5"], "--top-p in (0, 1]"),
        (["checkpoint", "--env", "toy/Chain-v0", "--split", "dev"], "there is no split 'dev'"),
    ],
)
def test_an_evaluation_of_nothing(
    arguments: list[str], said: str, forkgym_command: Caller, listing: Listing, config_file: Path
) -> None:
    pytest.importorskip("transformers")
    assert said in refuse(forkgym_command, listing, "eval", *arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["toy/Chian-v0", "out"], "Did you mean 'toy/Chain-v0'?"),
        (["CartPole-v1", "out"], "is not a text environment"),
        (["toy/Chain-v0", "checkpoint"], "exists already"),
        (["toy/Chain-v0", "out", "--error-rate", "1.5"], "--error-rate is 1.5"),
        (["toy/Chain-v0", "out", "--learning-rate", "-1"], "--learning-rate is -1.0"),
    ],
)
def test_a_warm_start_from_nothing(
    arguments: list[str], said: str, forkgym_command: Caller, listing: Listing, config_file: Path
) -> None:
    assert said in refuse(forkgym_command, listing, "warmstart", *arguments)


# Handles


def good_handle() -> dict[str, Any]:
    env = forkgym.make("toy/Chain-v0")
    env.reset(seed=3, options={"split": "train", "task": 1})
    env.step("anything")
    document: dict[str, Any] = json.loads(env.handle().to_json())
    env.close()
    return document


def test_the_handle_of_these_tests_is_fine_itself(forkgym_command: Caller, tmp_path: Path) -> None:
    (tmp_path / "handle.json").write_text(json.dumps(good_handle()))
    assert forkgym_command("replay", "handle.json").code == 0


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"env": "toy/Chian-v0"}, "Did you mean 'toy/Chain-v0'?"),
        ({"env": "os:system"}, "is not an id"),
        ({"env": 3}, "not a handle"),
        ({"seed": -1}, "seed is not between"),
        ({"seed": "three"}, "not a handle"),
        ({"format": 99}, "its format is 99"),
        ({"surprise": 1}, "surprise"),
        ({"env": "retrieval/QA-v0", "kwargs": {"questons": "x"}}, "Did you mean 'questions'?"),
        ({"options": {"split": "train", "task": 10**6}}, "task"),
        ({"options": {"split": "nowhere"}}, "nowhere"),
        ({"actions": [3]}, "takes a text or a tool call"),
        ({"actions": [{"tool": "say", "arguments": 3}]}, "takes a text or a tool call"),
        ({"actions": [{"$float": "zz"}]}, "$float"),
        ({"actions": nested(200)}, "nested"),
        ({"actions": [], "chain": "AAAA"}, "hash chain"),
        ({"luck": [[2, 1], [1, 1]]}, "luck"),
        ({"wrappers": ["TimeLimit"]}, "wrappers"),
        ({"kwargs": {"$int": "5"}}, "kwargs"),
        ({"kwargs": {"id": "x"}}, "'id'"),
        ({"options": {"$int": "5"}}, "options"),
        ({"env": "retrieval/QA-v0", "kwargs": {"questions": 5}}, "cannot be made with this handle's arguments"),
        ({"max_episode_steps": -7}, "max_episode_steps"),
    ],
)
def test_a_malformed_handle(
    changes: dict[str, Any], said: str, forkgym_command: Caller, listing: Listing, tmp_path: Path
) -> None:
    (tmp_path / "handle.json").write_text(json.dumps(good_handle() | changes))
    assert said in refuse(forkgym_command, listing, "replay", "handle.json")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"{", "not a handle in JSON"),
        (b"[]", "not a handle in JSON"),
        (b'{"env": "toy/Chain-v0"}', "seed"),
        (b"\x00\x01\x02", "not a handle in MessagePack"),
        (b"\x80\x04\x95pickle", "not a handle in MessagePack"),
        (b"{" + b'"a":[' * 5000, "not a handle in JSON"),
    ],
)
def test_a_file_that_is_no_handle(
    content: bytes, said: str, forkgym_command: Caller, listing: Listing, tmp_path: Path
) -> None:
    (tmp_path / "handle").write_bytes(content)
    text = refuse(forkgym_command, listing, "replay", "handle")
    assert said in text
    assert "handle" in text


def test_a_file_too_large_for_a_handle_is_not_even_read(forkgym_command: Caller, tmp_path: Path) -> None:
    with (tmp_path / "handle").open("wb") as file:
        file.truncate(2**40)  # sparse: takes no room
    outcome = forkgym_command("replay", "handle")
    assert outcome.code == 2
    assert "this is no handle" in outcome.err


# Question files


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no file"),
        ("", "has no lines"),
        ("not json\n", "line 1"),
        (QUESTION + "\n[1, 2]\n", "line 2"),
        ('{"id": "q", "question": "Who?"}\n', "golden_answers"),
        ('{"id": "q", "question": "Who?", "golden_answers": []}\n', "golden_answers"),
        ('{"id": "q", "question": " ", "golden_answers": ["a"]}\n', "`question` is empty"),
        ('{"id": "q", "question": 3, "golden_answers": ["a"]}\n', "line 1"),
        (QUESTION + "\n" + QUESTION + "\n", "was used in line 1 already"),
    ],
)
def test_a_malformed_question_file(
    content: str | None, said: str, forkgym_command: Caller, listing: Listing, config_file: Path, tmp_path: Path
) -> None:
    pytest.importorskip("bm25s")
    if content is not None:
        (tmp_path / "questions.jsonl").write_text(content)
    text = refuse(
        forkgym_command,
        listing,
        "train",
        config_file,
        *("--set", "env.id=retrieval/QA-v0"),
        *("--set", "env.kwargs={questions = 'questions.jsonl'}"),
    )
    assert said in text
    assert "questions.jsonl" in text


# Actions, through the Python interface


@pytest.mark.parametrize(
    "action", [3, None, 1.5, [], {"tool": 3}, {"arguments": {}}, {"tool": "say", "arguments": [1]}]
)
def test_an_action_of_the_wrong_type_is_refused_and_changes_nothing(action: object) -> None:
    env = forkgym.make("toy/Chain-v0")
    env.reset(seed=0)
    before = env.state_hash()
    with pytest.raises(ActionError, match="takes a text or a tool call") as caught:
        env.step(action)
    assert "\n\n" not in str(caught.value)
    assert env.state_hash() == before
    env.step("a text is fine")


def test_an_action_after_the_end_names_the_remedy() -> None:
    env = forkgym.make("toy/Chain-v0")
    with pytest.raises(ForkgymError, match="reset"):
        env.step("too early")
    env.reset(seed=0)
    ended = False
    while not ended:
        _, _, terminated, truncated, _ = env.step("nonsense")
        ended = terminated or truncated
    with pytest.raises(ForkgymError, match="reset"):
        env.step("too late")


def test_a_warm_start_is_refused_before_its_minutes_of_training(forkgym_command: Caller, tmp_path: Path) -> None:
    target = tmp_path / "policy"
    outcome = forkgym_command("warmstart", "swe/Repair-v0", target, "--split", "nosuch")
    assert outcome.code == 2
    assert "nosuch" in outcome.err
    assert "validation" in outcome.err
    outcome = forkgym_command("warmstart", "swe/Repair-v0", target, "--demonstrations", "20")
    assert outcome.code == 2
    assert "fewer than one batch" in outcome.err
    assert not target.exists()


def test_a_project_without_tests_makes_no_tasks_and_says_why(forkgym_command: Caller, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "code.py").write_text("def f(x):\n    return x + 1\n")
    outcome = forkgym_command("make-tasks", project, "--output", tmp_path / "tasks.jsonl")
    assert outcome.code == 1
    assert "makes no tasks" in outcome.out
    assert "Next" not in outcome.out
    for wrong in (
        ("--output", tmp_path),
        ("--output", tmp_path / "o", "--count", "0"),
        ("--output", tmp_path / "o", "--history"),
    ):
        outcome = forkgym_command("make-tasks", project, *wrong)
        assert outcome.code == 2, wrong
