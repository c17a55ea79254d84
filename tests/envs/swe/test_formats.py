"""Task files of other projects: their traps, what is missing or odd by name, and tasks that really run."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from forkgym_swe.catalogue import load_tasks
from forkgym_swe.checkout import prepare, source_files
from forkgym_swe.formats import convert, detect_format, read_tasks, write_tasks
from forkgym_swe.instance import Instance, InstanceError, dump_instances
from forkgym_swe.patching import apply_patch, make_patch
from forkgym_swe.verdict import grade

from .conftest import FIRST, PASSING, broken_project, project_files, write_tree

GOLD = make_patch(broken_project(), project_files())
BUG = make_patch(project_files(), broken_project())
BENCH: dict[str, Any] = {
    "repo": "we/box",
    "instance_id": "we__box-1",
    "base_commit": "0" * 40,
    "patch": GOLD,
    "test_patch": "",
    "problem_statement": "The largest comes first.",
    "hints_text": "look at pop",
    "created_at": "2024-01-02T03:04:05Z",
    "version": "1.0",
    "FAIL_TO_PASS": json.dumps([FIRST]),
    "PASS_TO_PASS": json.dumps(list(PASSING)),
    "environment_setup_commit": "1" * 40,
}
GYM = {**BENCH, "FAIL_TO_PASS": [FIRST], "PASS_TO_PASS": list(PASSING)}
REBENCH = {**GYM, "FAIL_TO_FAIL": [], "PASS_TO_FAIL": [], "meta": {"has_test_patch": True}, "license_name": "MIT"}
SMITH = {
    "instance_id": "we__box.0000000.func__1",
    "repo": "swesmith/we__box.00000000",
    "patch": BUG,
    "FAIL_TO_PASS": [FIRST],
    "PASS_TO_PASS": list(PASSING),
    "image_name": "swebench/x",
    "problem_statement": "The largest comes first.",
}
ALL = {"swe-bench": BENCH, "swe-gym": GYM, "swe-rebench": REBENCH, "swe-smith": SMITH}


def write(path: Path, records: list[Any]) -> Path:
    if path.suffix == ".parquet":
        arrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.Table.from_pylist(records), path)
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize("name", ALL)
def test_each_format_is_recognised_and_means_the_same_task(tmp_path: Path, name: str, ending: str) -> None:
    assert detect_format(ALL[name]) == name
    (task,) = read_tasks(write(tmp_path / f"tasks.{ending}", [ALL[name]]))
    assert (task.fail_to_pass, task.pass_to_pass) == ((FIRST,), PASSING)
    assert (task.repository, task.source.kind, task.python_path) == ("we/box", "git", ("src",))
    assert task.split == ("test" if name == "swe-bench" else "train")
    assert task.problem_statement == "The largest comes first."
    assert task.difficulty == msgspec.convert({"files": 1, "lines": 2, "tests": 1}, type(task.difficulty))


def test_the_patch_of_a_smith_task_is_the_bug() -> None:
    task = convert(SMITH)
    assert (task.bug_patch, task.source.version) == (BUG, "00000000")
    assert apply_patch(project_files(), task.bug_patch) == broken_project()
    assert apply_patch(broken_project(), task.patch) == project_files()


@pytest.mark.parametrize("name", ALL)
def test_every_missing_field_is_named(name: str) -> None:
    for field in ("instance_id", "patch", "FAIL_TO_PASS", "PASS_TO_PASS"):
        record = {key: value for key, value in ALL[name].items() if key != field}
        with pytest.raises(InstanceError, match=rf"lacks the field {field}$"):
            convert(record, format=name)  # type: ignore[arg-type]


def test_several_missing_fields_are_named_together() -> None:
    with pytest.raises(InstanceError, match="lacks the fields test_patch, problem_statement"):
        convert({k: v for k, v in BENCH.items() if k not in ("test_patch", "problem_statement")})
    with pytest.raises(InstanceError, match=r"of no known format .* it lacks instance_id, repo, base_commit"):
        detect_format({"question": "?"})


@pytest.mark.parametrize("name", ALL)
def test_an_unknown_field_is_named_or_left_out(name: str) -> None:
    record = {**ALL[name], "odd": 1, "queer": 2}
    with pytest.raises(InstanceError, match="unknown fields odd, queer"):
        convert(record)
    assert convert(record, unknown="ignore") == convert(ALL[name])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"FAIL_TO_PASS": "not json"}, "FAIL_TO_PASS is neither a list nor"),
        ({"FAIL_TO_PASS": [1]}, "FAIL_TO_PASS must be a list of test ids"),
        ({"PASS_TO_PASS": ["test_x (module.Class)"]}, "is no pytest id"),
        ({"patch": "hello"}, "the field patch is wrong"),
        ({"patch": 3}, "patch must be a text, not int"),
        ({"repo": "../../x"}, "repo must look like owner/name"),
    ],
)
def test_a_wrong_value_is_named_with_its_task(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InstanceError, match=words) as caught:
        convert({**BENCH, **change}, where="file, task 3", format="swe-bench")
    assert str(caught.value).startswith("file, task 3 (we__box-1, swe-bench)")


def test_a_smith_task_without_a_commit_is_refused() -> None:
    with pytest.raises(InstanceError, match="names a commit"):
        convert({**SMITH, "repo": "swesmith/we__box"})


def test_files_that_are_no_task_files(tmp_path: Path) -> None:
    for text, words in {
        "{": "line 1 is no JSON",
        "3\n": "task 1 is no JSON object",
        json.dumps(BENCH) + "\n" + json.dumps(BENCH): "'we__box-1' twice",
    }.items():
        (tmp_path / "t.jsonl").write_text(text)
        with pytest.raises(InstanceError, match=words):
            read_tasks(tmp_path / "t.jsonl")
    (tmp_path / "t.jsonl").write_text("")
    with pytest.raises(InstanceError, match="holds no task"):
        load_tasks(tmp_path / "t.jsonl")
    with pytest.raises(InstanceError, match="no tasks at"):
        load_tasks(tmp_path / "gone.jsonl")
    with pytest.raises(InstanceError, match="cannot be read"):
        read_tasks(tmp_path / "gone.parquet")


def test_tasks_of_other_test_runners_can_be_left_out(tmp_path: Path) -> None:
    other = {**BENCH, "instance_id": "django__django-1", "FAIL_TO_PASS": json.dumps(["test_x (module.Class)"])}
    path = write(tmp_path / "t.jsonl", [other, BENCH])
    assert [task.id for task in read_tasks(path, other_runners="skip")] == ["we__box-1"]


def test_a_list_in_one_json_file_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps([GYM]))
    assert [task.id for task in read_tasks(tmp_path / "t.json")] == ["we__box-1"]


def test_our_own_format_is_recognised(tmp_path: Path, task: Instance) -> None:
    dump_instances(tmp_path / "t.jsonl", [task])
    assert load_tasks(tmp_path / "t.jsonl") == [task]


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize("name", ALL)
def test_what_is_written_is_read_again(tmp_path: Path, name: Any, ending: str) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    before = convert(ALL[name])
    write_tasks(tmp_path / f"t.{ending}", [before], format=name)
    (after,) = read_tasks(tmp_path / f"t.{ending}", format=name)
    for field in ("id", "repository", "source", "bug_patch", "patch", "test_patch", "fail_to_pass", "pass_to_pass"):
        assert getattr(after, field) == getattr(before, field)


def test_a_task_that_a_format_cannot_say_is_refused(tmp_path: Path, task: Instance) -> None:
    with pytest.raises(InstanceError, match="box-1 is no commit"):
        write_tasks(tmp_path / "t", [task], format="swe-bench")
    with pytest.raises(InstanceError, match="is no injected bug"):
        write_tasks(tmp_path / "t", [convert(BENCH)], format="swe-smith")


# ---------------------------------------------------------------------- with a repository


def repository(place: Path, files: dict[str, bytes]) -> str:
    write_tree(place, files)
    git = ["git", "-C", str(place), "-c", "user.name=t", "-c", "user.email=t@t"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *command], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("mirrored", [True, False])
def test_a_bench_task_runs_on_a_checkout_or_a_mirror(tmp_path: Path, mirrored: bool, prepared: object) -> None:
    old = broken_project()
    old["tests/test_heap.py"] = old["tests/test_heap.py"].replace(b"heap.pop() == 1", b"heap.pop() == 3")
    new = {path: old[path] if path != "tests/test_heap.py" else project_files()[path] for path in old}
    commit = repository(tmp_path / "we__box", old)
    record = {**BENCH, "base_commit": commit, "test_patch": make_patch(old, new)}
    place = tmp_path if mirrored else tmp_path / "we__box"
    (task,) = read_tasks(write(tmp_path / "t.jsonl", [record]), repository=place)
    assert source_files(task.source) == old
    found = prepare(task)
    with found.open() as sandbox:
        assert b"heap.pop() == 3" in sandbox.read("tests/test_heap.py")
        assert grade(sandbox, task, found).fail_to_pass == {FIRST: "failed"}
        sandbox.write("src/box/heap.py", project_files()["src/box/heap.py"])
        assert grade(sandbox, task, found).resolved


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.slow
def test_a_smith_task_runs_from_a_mirror_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepared: object
) -> None:
    monkeypatch.setenv("FORKGYM_SWE_CACHE", str(tmp_path))
    commit = repository(tmp_path / "mirrors" / "we__box", project_files())
    task = convert({**SMITH, "repo": f"swesmith/we__box.{commit[:8]}"})
    found = prepare(task)
    with found.open() as sandbox:
        assert not grade(sandbox, task, found).resolved
        sandbox.write("src/box/heap.py", apply_patch(broken_project(), task.patch)["src/box/heap.py"])
        assert grade(sandbox, task, found).resolved


def test_a_place_without_the_repository_is_named(tmp_path: Path) -> None:
    with pytest.raises(InstanceError, match="nor a mirror of it named we__box"):
        convert(BENCH, repository=tmp_path)
