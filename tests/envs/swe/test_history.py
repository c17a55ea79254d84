"""Tasks from git history: a commit's change of code is the gold patch, its tests tell before from after."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from forkgym_swe.checkout import prepare
from forkgym_swe.instance import Instance
from forkgym_swe.making.history import commits_of, split_change, take_history
from forkgym_swe.making.injection import Attempt, InjectionOptions
from forkgym_swe.making.journal import Journal
from forkgym_swe.making.subjects import SourceError, find_subject
from forkgym_swe.making.suites import Tests
from forkgym_swe.protection import Protection
from forkgym_swe.verdict import grade

from forkgym.sandbox import BackendUnavailableError, engine_for

FIRST = {
    "calc/__init__.py": "def add(a, b):\n    return a - b\n\n\ndef double(a):\n    return 2 * a\n",
    "tests/test_calc.py": "from calc import double\n\n\ndef test_double():\n    assert double(2) == 4\n",
    "README.md": "calc\n",
}
REPAIR = {
    "calc/__init__.py": "def add(a, b):\n    return a + b\n\n\ndef double(a):\n    return 2 * a\n",
    "tests/test_calc.py": (
        "from calc import add, double\n\n\ndef test_double():\n    assert double(2) == 4\n\n\n"
        "def test_add():\n    assert add(1, 2) == 3\n"
    ),
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one repair among other commits."""
    folder = tmp_path_factory.mktemp("calc")

    def git(*arguments: str) -> None:
        command = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org", *arguments]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)

    def commit(message: str, files: dict[str, str], date: str) -> None:
        for path, text in files.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text)
        git("add", ".")
        git("commit", "-q", "--date", date, "-m", message)

    git("init", "-q", "-b", "main", ".")
    commit("Begin", FIRST, "2024-01-01T00:00:00Z")
    commit("Documentation", {"README.md": "calc, a calculator\n"}, "2024-01-02T00:00:00Z")
    commit("add takes sums\n\nSigned-off-by: A <a@example.org>", REPAIR, "2024-01-03T00:00:00Z")
    commit("Rename", {"calc/__init__.py": REPAIR["calc/__init__.py"] + "\n\ntwice = double\n"}, "2024-01-04T00:00:00Z")
    more = REPAIR["tests/test_calc.py"] + "\n\ndef test_more():\n    assert double(0) == 0\n"
    both = {"tests/test_calc.py": more, "calc/__init__.py": REPAIR["calc/__init__.py"] + "\n\nthrice = None\n"}
    commit("Tests and a name", both, "2024-01-05T00:00:00Z")
    return folder


@pytest.fixture(scope="module")
def taken(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Instance], list[Attempt]]:
    try:
        engine_for()
    except BackendUnavailableError as error:
        pytest.skip(str(error))
    subject = find_subject(str(checkout), tests=Tests())
    told: list[Attempt] = []
    path = tmp_path_factory.mktemp("journal") / "j"
    with Journal(path, Attempt, "x") as journal:
        made = take_history(subject, InjectionOptions(count=5), journal, told.append)
    again: list[Attempt] = []
    with Journal(path, Attempt, "x") as journal:
        assert take_history(subject, InjectionOptions(count=5), journal, again.append) == made
        assert len(journal.entries) == len(told), "what the journal knows is not tried again"
    assert again == told
    return made, told


def test_commits_come_newest_first_with_their_parents(checkout: Path) -> None:
    commits = list(commits_of(checkout))
    assert [commit.message.splitlines()[0] for commit in commits] == [
        "Tests and a name",
        "Rename",
        "add takes sums",
        "Documentation",
    ]
    assert commits[0].parent == commits[1].id


def test_a_change_is_split_into_code_and_tests() -> None:
    before = {path: text.encode() for path, text in FIRST.items()}
    after = before | {path: text.encode() for path, text in REPAIR.items()}
    patch, test_patch = split_change(before, after, Protection())
    assert "calc/__init__.py" in patch
    assert "tests/" not in patch
    assert "tests/test_calc.py" in test_patch
    assert "calc/__init__.py" not in test_patch


def test_the_repair_becomes_a_task_and_the_other_commits_say_why_not(
    taken: tuple[list[Instance], list[Attempt]],
) -> None:
    made, told = taken
    assert [attempt.reason for attempt in told] == [
        "no test tells before from after",
        "no change of tests",
        "",
        "no change of Python code",
    ]
    (task,) = made
    assert task.fail_to_pass == ("tests/test_calc.py::test_add",)
    assert task.pass_to_pass == ("tests/test_calc.py::test_double",)
    assert task.hidden_tests == (), "the parent has no such test yet"
    assert "+    return a + b" in task.patch
    assert "test_add" in task.test_patch
    assert task.bug_patch == ""
    assert task.source.version == task.provenance["parent"]


def test_the_text_tells_the_behaviour_and_not_the_repair(taken: tuple[list[Instance], list[Attempt]]) -> None:
    statement = taken[0][0].problem_statement
    assert "I expected `add(1, 2)` to equal `3`." in statement
    assert "return a + b" not in statement


@pytest.mark.slow
def test_the_gold_patch_solves_it_and_nothing_does_not(taken: tuple[list[Instance], list[Attempt]]) -> None:
    (task,) = taken[0]
    prepared = prepare(task)
    with prepared.open() as agent:
        assert not grade(agent, task, prepared).resolved
        agent.write("calc/__init__.py", REPAIR["calc/__init__.py"])
        assert grade(agent, task, prepared).resolved


def test_a_folder_without_history_is_refused(folder: Path, tmp_path: Path) -> None:
    subject = find_subject(str(folder))
    take: Callable[..., object] = take_history
    with (
        Journal(tmp_path / "j", Attempt, "x") as journal,
        pytest.raises(SourceError, match="is no git checkout; history needs"),
    ):
        take(subject, InjectionOptions(), journal)
