"""The determinism filter admits steady tasks only, and splits give nothing of each other away."""

from __future__ import annotations

import io
import textwrap
from argparse import ArgumentParser
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from forkgym_swe.checking.commands import CHECK_TASKS, discard_table
from forkgym_swe.checking.determinism import RUNS, Checked, Checker
from forkgym_swe.checking.leaks import Leak, duplicates, find_leaks, to_drop
from forkgym_swe.instance import Instance, Source, dump_instances, load_instances
from forkgym_swe.making.journal import journal_path
from forkgym_swe.patching import make_patch

from forkgym.cli.command import NO, OK, UsageError
from forkgym.console import Console
from forkgym.sandbox import BackendUnavailableError, engine_for

from .conftest import write_tree

# --- the filter

CODE = "def double(a):\n    return 2 * a\n"
BROKEN = "def double(a):\n    return 3 * a\n"
TESTS = """
    import os
    import pytest
    from m import double

    seen = []

    def test_double():
        assert double(1) == 2

    def test_nothing():
        assert double(0) == 0

    @pytest.mark.parametrize("number", range(5))
    def test_chain(number):
        seen.append(number)
        assert seen == list(range(number + 1))

    def test_hash():
        assert os.environ["PYTHONHASHSEED"] == "0" or double(1) == 2

    def test_fails_by_hash():
        assert os.environ["PYTHONHASHSEED"] == "1" or double(1) == 2
"""


@pytest.fixture(scope="module")
def checker() -> Checker:
    try:
        engine_for()
    except BackendUnavailableError as error:
        pytest.skip(str(error))
    return Checker()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tests = textwrap.dedent(TESTS).lstrip("\n")
    return write_tree(tmp_path_factory.mktemp("m"), {"m.py": CODE.encode(), "test_m.py": tests.encode()})


def make(place: Path, failing: Iterable[str], passing: Iterable[str], **changes: str) -> Instance:
    sound, broken = {"m.py": CODE.encode()}, {"m.py": BROKEN.encode()}
    fields = {"bug_patch": make_patch(sound, broken), "patch": make_patch(broken, sound)}
    return Instance(
        id="m-1",
        repository="m",
        source=Source(kind="folder", name="m", location=str(place)),
        fail_to_pass=tuple(f"test_m.py::{name}" for name in failing),
        pass_to_pass=tuple(f"test_m.py::{name}" for name in passing),
        problem_statement="m",
        python_path=(".",),
        **{**fields, **changes},
    )


def test_a_steady_task_is_admitted(checker: Checker, place: Path) -> None:
    assert checker.check(make(place, ["test_double"], ["test_nothing"])) == ("", "")


@pytest.mark.parametrize(
    ("failing", "passing", "reason"),
    [
        (["test_nothing"], [], "the bug does not make its tests fail"),
        (["test_double"], ["test_hash"], "a passing test fails with the bug"),
        (["test_fails_by_hash"], ["test_nothing"], "a failing test passes in another order or with another seed"),
        (["test_double"], ["test_gone"], "a passing test fails with the bug"),
        (["test_double"], ["test_double"], "a test is in both lists"),
        ([], ["test_nothing"], "no test begins to pass"),
    ],
)
def test_what_is_not_steady_is_discarded(
    checker: Checker, place: Path, failing: list[str], passing: list[str], reason: str
) -> None:
    assert checker.check(make(place, failing, passing))[0] == reason


def test_tests_that_need_each_other_are_found_by_the_shuffled_order(checker: Checker, place: Path) -> None:
    reason, detail = checker.check(make(place, ["test_double"], [f"test_chain[{number}]" for number in range(5)]))
    assert reason == "a passing test fails with the bug"
    assert "test_chain" in detail


@pytest.mark.slow
def test_a_gold_patch_that_repairs_something_else_is_discarded(checker: Checker, place: Path) -> None:
    other = {"m.py": BROKEN.encode()}, {"m.py": b"def double(a):\n    return 4 * a\n"}
    reason, detail = checker.check(make(place, ["test_double"], ["test_nothing"], patch=make_patch(*other)))
    assert reason == "a test fails with the gold patch"
    assert "test_double" in detail


def test_a_patch_that_does_not_fit_is_discarded(checker: Checker, place: Path) -> None:
    other = {"m.py": b"something else\n"}, {"m.py": CODE.encode()}
    reason, detail = checker.check(make(place, ["test_double"], [], patch=make_patch(*other)))
    assert reason == "the task cannot be prepared"
    assert "m.py" in detail


@pytest.mark.slow
def test_a_hidden_test_does_not_matter(checker: Checker, place: Path) -> None:
    task = make(place, ["test_double"], ["test_nothing"])
    assert checker.check(msgspec.structs.replace(task, hidden_tests=("test_m.py::test_double",))) == ("", "")


def test_runs_differ_in_hash_seed_and_order_and_begin_as_the_verdict_does() -> None:
    assert len(RUNS) >= 3
    assert (RUNS[0].hash_seed, RUNS[0].order_seed) == (0, None)
    assert len({run.hash_seed for run in RUNS}) == len({run.order_seed for run in RUNS}) == len(RUNS)


# --- leaks

HUNK = (
    "@@ -{line},4 +{line},4 @@\n def area(width, height):\n     total = width * height\n"
    "-    return {old}\n+    return {new}\n"
)


def patch_of(path: str, old: str, new: str, line: int = 1) -> str:
    head = f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n"
    return head + HUNK.format(line=line, old=old, new=new)


def task(id: str, repository: str, split: str, patch: str, date: str = "") -> Instance:
    return msgspec.convert(
        {
            "id": id,
            "repository": repository,
            "split": split,
            "source": {"kind": "folder", "name": repository},
            "patch": patch,
            "fail_to_pass": ["t.py::test_x"],
            "problem_statement": "x",
            "created_at": date,
        },
        Instance,
    )


FAR = patch_of("b.py", "[letter for letter in words if letter]", "sorted(words, key=len, reverse=True)").replace(
    "def area(width, height)", "def longest(words)"
)


def test_other_projects_with_other_patches_do_not_leak() -> None:
    tasks = [task("a", "one", "train", patch_of("a.py", "total - 1", "total")), task("b", "two", "test", FAR)]
    assert find_leaks(tasks) == []


def test_a_project_in_two_splits_is_a_leak() -> None:
    tasks = [task("a", "One_x", "test", patch_of("a.py", "total - 1", "total")), task("b", "one-x", "train", FAR)]
    assert find_leaks(tasks) == [Leak("project", "b", "a", "one-x")]
    assert find_leaks(tasks, share_projects=True) == []


def test_the_same_patch_in_two_splits_is_a_leak_of_the_task() -> None:
    patch = patch_of("a.py", "total - 1", "total")
    tasks = [task("a", "one", "validation", patch), task("b", "one", "train", patch)]
    assert [leak.kind for leak in find_leaks(tasks, share_projects=True)] == ["patch hunk", "task"]


def test_neighbouring_commits_are_a_leak_also_where_projects_may_be_shared() -> None:
    patch = patch_of("a.py", "total - 1", "total")
    near = [task("a", "one", "train", patch, "2024-01-01"), task("b", "one", "test", FAR, "2024-01-20")]
    assert [leak.kind for leak in find_leaks(near, share_projects=True)] == ["commit window"]
    assert find_leaks(near, share_projects=True, window_days=10) == []


def test_nearly_the_same_hunk_in_another_project_is_a_leak() -> None:
    one = patch_of("a.py", "total - 1", "total")
    copied = patch_of("vendored/area.py", "total - 1", "total", line=90)
    renamed = copied.replace("total", "product").replace("width", "w").replace("height", "h")
    assert find_leaks([task("a", "one", "train", one), task("b", "two", "test", copied)]) == [
        Leak("patch hunk", "a", "b", "100% alike")
    ]
    assert find_leaks([task("a", "one", "train", one), task("b", "two", "test", renamed)]) == []


def test_what_is_held_out_stays_and_the_other_side_goes() -> None:
    leaks = [Leak("project", "train-1", "test-1", "x"), Leak("patch hunk", "train-1", "test-2", "y")]
    assert set(to_drop(leaks)) == {"train-1"}


def test_the_same_repair_twice_is_kept_once() -> None:
    patch = patch_of("a.py", "total - 1", "total")
    tasks = [task("a", "one", "train", patch), task("b", "one", "train", patch), task("c", "two", "train", patch)]
    assert duplicates(tasks) == {"b": "a"}


# --- the command


def call(*arguments: str) -> tuple[int, str]:
    parser = ArgumentParser()
    CHECK_TASKS.configure(parser)
    out = io.StringIO()
    code = CHECK_TASKS.run(parser.parse_args(list(arguments)), Console(out, io.StringIO()))
    return code, out.getvalue()


def test_the_command_writes_what_is_admitted_tells_why_and_resumes(
    checker: Checker, place: Path, tmp_path: Path
) -> None:
    good = make(place, ["test_double"], ["test_nothing"])
    bad = msgspec.structs.replace(make(place, ["test_nothing"], []), id="m-2")
    twin = msgspec.structs.replace(good, id="m-3")
    tasks, output = tmp_path / "tasks.jsonl", tmp_path / "tasks.admitted.jsonl"
    dump_instances(tasks, [good, bad, twin])
    code, text = call(str(tasks))
    assert code == OK
    assert load_instances(output) == [good]
    assert "the bug does not make its tests fail" in text
    assert "the same bug as another task" in text
    assert "1 of 3 tasks admitted (1 train)" in text
    before = journal_path(output).read_bytes()
    assert call(str(tasks))[0] == OK
    assert journal_path(output).read_bytes() == before, "what was checked is not checked again"
    dump_instances(tasks, [bad])
    assert call(str(tasks))[0] == NO


def test_a_file_that_holds_no_tasks_is_bad_input(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("{}\n")
    with pytest.raises(UsageError, match="line 1 is no task instance"):
        call(str(path))
    with pytest.raises(UsageError, match="gone"):
        call(str(tmp_path / "gone.jsonl"))


def test_the_table_sums_up_and_names_the_reasons() -> None:
    tasks = [task("a", "one", "train", ""), task("b", "one", "train", ""), task("c", "two", "test", "")]
    checked = [
        Checked(project="one", id="a", mark="1", seconds=1.2),
        Checked(project="one", id="b", mark="2", reason="the tests take too long", seconds=1.2),
        Checked(project="two", id="c", mark="3"),
    ]
    one, two, total = discard_table(tasks, checked, {"c": "a leak between splits: project"})
    assert (one["admitted"], one["the tests take too long"], one["seconds"]) == (1, 1, 2)
    assert (two["admitted"], two["a leak between splits"]) == (0, 1)
    assert (total["project"], total["tasks"], total["admitted"]) == ("all", 3, 1)
