"""``swe/Repair-v0`` on a small project: real test runs, honest memo, forks, scripted policies."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from forkgym_swe.instance import Instance, InstanceError, Source, dump_instances
from forkgym_swe.patching import make_patch
from forkgym_swe.repair.env import RepairEnv
from forkgym_swe.repair.measure import measure_policies, policy_table
from forkgym_swe.repair.memo import open_memo
from forkgym_swe.repair.study import find_study
from forkgym_swe.repair.words import LETTERS, VARIABLES, vocabulary

from forkgym import testing
from forkgym.sandbox import BackendUnavailableError, engine_for

# Making the tasks runs some fifty test runs in a sandbox.
pytestmark = pytest.mark.slow

PROJECT = {
    "shop.py": """
        def total(prices, discount=0):
            result = 0
            for price in prices:
                if price < 0:
                    raise ValueError("no price is below zero")
                result += price
            return result - discount

        """,
    "tests/test_shop.py": """
        import pytest

        from shop import total


        def test_total():
            assert total([1, 2, 3]) == 6


        def test_discount():
            assert total([5], 2) == 3


        def test_free():
            assert total([0]) == 0


        def test_negative():
            with pytest.raises(ValueError):
                total([-1])

        """,
}
BUGS = {
    "sign": ("return result - discount", "return result + discount", ["test_discount"]),
    "update": ("result += price", "result = price", ["test_total"]),
    # Nothing in the broken tree says that an error belongs there.
    "raise": ("            raise ValueError(", "            print(", ["test_negative"]),
}
TESTS = ("test_total", "test_discount", "test_free", "test_negative")
SPLITS = {"sign": "test"}


def _instance(name: str, folder: Path, files: dict[str, bytes]) -> Instance:
    old, new, failing = BUGS[name]
    broken = files | {"shop.py": files["shop.py"].replace(old.encode(), new.encode())}
    assert broken != files
    return Instance(
        id=f"shop-{name}",
        repository="shop",
        split=SPLITS.get(name, "train"),  # type: ignore[arg-type]
        source=Source(kind="folder", name="shop", location=str(folder)),
        bug_patch=make_patch(files, broken),
        patch=make_patch(broken, files),
        fail_to_pass=tuple(f"tests/test_shop.py::{test}" for test in failing),
        pass_to_pass=tuple(f"tests/test_shop.py::{test}" for test in TESTS if test not in failing),
        problem_statement="Something is wrong.",
        test_paths=("tests",),
    )


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A task file whose tasks were studied, in a cache of the tests' own."""
    try:
        engine_for()
    except BackendUnavailableError as error:
        pytest.skip(str(error))
    patch = pytest.MonkeyPatch()
    patch.setenv("FORKGYM_SWE_CACHE", str(tmp_path_factory.mktemp("cache")))
    files = {path: textwrap.dedent(text).lstrip("\n").encode() for path, text in PROJECT.items()}
    folder = tmp_path_factory.mktemp("shop")
    for path, content in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(content)
    file = folder.parent / "shop-tasks.jsonl"
    dump_instances(file, [_instance(name, folder, files) for name in BUGS])
    with pytest.raises(InstanceError, match=r"3 tasks .* were not studied yet, shop-sign among them"):
        RepairEnv(tasks=str(file))
    RepairEnv(tasks=str(file), study=True).close()
    yield str(file)
    patch.undo()


@pytest.fixture
def env(tasks: str) -> Iterator[RepairEnv]:
    made = RepairEnv(tasks=tasks, rehearsals=0)
    yield made
    made.close()


def start(env: RepairEnv, split: str, name: str) -> None:
    for task in range(env.splits[split]):
        env.reset(seed=0, options={"split": split, "task": task})
        if env.task.name == f"shop-{name}":
            return
    raise AssertionError(f"shop-{name} was not admitted")


def repair_of(env: RepairEnv) -> str:
    line, number = env.task.study.repairs[0]
    return f"edit {line + 1} {LETTERS[number]}"


def wrong_edit_of(env: RepairEnv) -> str:
    study = env.task.study
    places = [(n, m) for n, line in enumerate(study.lines) for m in range(len(line.edits))]
    line, number = next(place for place in places if place not in study.repairs)
    return f"edit {line + 1} {LETTERS[number]}"


def test_tasks_with_a_candidate_that_passes_the_verdict_are_admitted_and_no_other(env: RepairEnv, tasks: str) -> None:
    from forkgym_swe.catalogue import load_tasks

    assert env.splits == {"train": 1, "test": 1}
    refused = {i.id: s.reason for i in load_tasks(tasks) if (s := find_study(i, open_memo())) is not None and s.reason}
    assert set(refused) == {"shop-raise"}


def test_looking_ranking_inspecting_editing_testing_and_submitting_a_repair_earns_one(env: RepairEnv) -> None:
    start(env, "test", "sign")
    assert env.messages()[0]["content"] == "repair : fails 1 AssertionError passes 3 lines 6"
    looked, *_, info = env.step("look")
    assert looked == "error AssertionError in tests == got int expected int greater many"
    assert info["action_kind"] == "read"
    ranked = env.step("rank")[0]
    assert ranked.startswith("1 ")
    line = env.task.study.repairs[0][0] + 1
    assert "return v" in env.step(f"inspect {line}")[0]
    assert "+ to -" in env.step(f"inspect {line}")[0]
    assert env.step("test")[0] == "passes none of 1 error AssertionError same"
    assert env.step(repair_of(env))[0] == "done"
    tested, *_, info = env.step("test")
    assert tested == "passes 1 of 1 others fine"
    assert info["charged_seconds"] > 0
    _, reward, terminated, _, info = env.step("submit")
    assert (reward, terminated, info["success"]) == (1.0, True, True)


def test_a_wrong_edit_earns_nothing_and_is_named(env: RepairEnv) -> None:
    start(env, "test", "sign")
    env.step(wrong_edit_of(env))
    _, reward, terminated, _, info = env.step("submit")
    assert (reward, terminated, info["success"]) == (0.0, True, False)
    assert info["failure"] in ("wrong localisation", "partial fix", "regression", "other")


def test_undo_takes_the_edit_back_and_a_second_edit_the_place_of_the_first(env: RepairEnv) -> None:
    start(env, "train", "update")
    assert env.step("undo")[0] == "nothing"
    assert env.step(repair_of(env))[0] == "done"
    assert env.step("undo")[0] == "undone"
    assert env.step("test")[0].startswith("passes none of 1")
    env.step(wrong_edit_of(env))
    env.step(repair_of(env))
    assert env.step("submit")[1] == 1.0


def test_what_cannot_be_read_or_done_is_answered(env: RepairEnv) -> None:
    start(env, "train", "update")
    assert env.step("please repair")[0] == "unknown"
    assert env.step("inspect 9")[0] == "nothing"
    assert env.step("edit 9 a")[0] == "nothing"
    assert env.step({"tool": "sing", "arguments": {}})[4]["action_kind"] == "invalid"


def test_running_out_of_turns_truncates_without_reward(tasks: str) -> None:
    env = RepairEnv(tasks=tasks, max_turns=2)
    start(env, "test", "sign")
    env.step(repair_of(env))
    observation, reward, terminated, truncated, info = env.step("test")
    assert (observation, reward, terminated, truncated) == ("", 0.0, False, True)
    assert info["success"] is False
    env.close()


def test_results_of_the_memo_are_those_of_real_runs(tasks: str, env: RepairEnv) -> None:
    real = RepairEnv(tasks=tasks, memoise=False)
    for text in (repair_of, wrong_edit_of):
        for split, name in (("test", "sign"), ("train", "update")):
            start(env, split, name)
            start(real, split, name)
            action = text(env)
            assert env.step(action)[0] == real.step(action)[0]
            assert env.step("test")[0] == real.step("test")[0]
            assert env.step("submit")[1] == real.step("submit")[1]
    real.close()


def test_an_episode_of_a_studied_task_needs_no_sandbox(env: RepairEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    import forkgym_swe.repair.workplace as module

    def fail(*_: object) -> None:
        raise AssertionError("a sandbox was asked for")

    monkeypatch.setattr(module, "prepare", fail)
    monkeypatch.setattr(module, "run_tests_on", fail)
    rng = np.random.default_rng(0)
    for policy in env.scripted_policies:
        for split, count in env.splits.items():
            for task in range(count):
                env.reset(seed=1, options={"split": split, "task": task})
                done = False
                while not done:
                    _, _, terminated, truncated, _ = env.step(env.scripted_action(policy, rng))
                    done = terminated or truncated


def test_all_that_is_said_stands_in_the_vocabulary(env: RepairEnv) -> None:
    known = {*vocabulary().words, *VARIABLES}
    said: set[str] = set()
    for demonstration in env.demonstrations(30, seed=0, error_rate=0.5):
        for message in demonstration.prompt:
            said |= set(message["content"].split())
        for text, observation in demonstration.turns:
            said |= {*text.split(), *observation.split()}
    assert not said - known


def test_demonstrations_are_a_function_of_the_seed_and_good_without_errors(env: RepairEnv) -> None:
    assert env.demonstrations(6, seed=3, error_rate=0.4) == env.demonstrations(6, seed=3, error_rate=0.4)
    assert env.demonstrations(6, seed=3, error_rate=0.4) != env.demonstrations(6, seed=4, error_rate=0.4)
    assert all(demonstration.utility == 1.0 for demonstration in env.demonstrations(12, seed=0))
    with pytest.raises(ValueError, match="there is no split 'dev'"):
        env.demonstrations(1, seed=0, split="dev")


def test_gold_repairs_everything_and_empty_nothing(env: RepairEnv) -> None:
    rows = {row.policy: row for row in measure_policies(env, "train", samples=4)}
    assert rows["gold"].success == 1.0
    assert rows["empty"].success == 0.0
    assert rows["empty"].failures == {"other": 1}
    assert len(policy_table(list(rows.values()))) == 1 + len(env.scripted_policies)


def test_evidence_of_a_turn_tells_trees_apart(env: RepairEnv) -> None:
    start(env, "train", "update")
    first, second = repair_of(env), wrong_edit_of(env)

    def evidence(*actions: str) -> list[object]:
        start(env, "train", "update")
        return [env.step(action)[4]["evidence"] for action in actions]

    one, other = evidence(first, "undo", second), evidence(second, "undo", first)
    assert {str(item) for item in one} != {str(item) for item in other}
    assert evidence(first, "test") != evidence(second, "test")


def test_arguments_are_checked(tasks: str) -> None:
    with pytest.raises(ValueError, match="max_turns"):
        RepairEnv(tasks=tasks, max_turns=0)
    with pytest.raises(InstanceError, match="there are no tasks"):
        RepairEnv(tasks="/nowhere.jsonl")


def test_it_keeps_every_promise(tasks: str) -> None:
    testing.check_env(RepairEnv, tasks=tasks)
