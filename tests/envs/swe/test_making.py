"""The make-tasks command: what it takes, what it writes, and that it resumes where it was killed."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from forkgym_swe.instance import load_instances
from forkgym_swe.making.commands import MAKE_TASKS
from forkgym_swe.making.fetching import FetchError, fetch_project, is_fetched, source_of
from forkgym_swe.making.injection import Attempt
from forkgym_swe.making.journal import Journal, JournalError, journal_path
from forkgym_swe.making.production import summarise
from forkgym_swe.making.projects import PROJECTS, SAMPLE_SPLITS, find_project
from forkgym_swe.making.subjects import SourceError, find_subject
from forkgym_swe.making.suites import Tests

from forkgym.cli.command import NO, OK, UsageError
from forkgym.console import Console
from forkgym.sandbox import BackendUnavailableError, engine_for

from .conftest import project_files, write_tree

ROOT = Path(__file__).resolve().parents[3]


def call(*arguments: str) -> tuple[int, str]:
    """Exit code and output of ``forkgym make-tasks``."""
    parser = ArgumentParser()
    MAKE_TASKS.configure(parser)
    out = io.StringIO()
    code = MAKE_TASKS.run(parser.parse_args(list(arguments)), Console(out, io.StringIO()))
    return code, out.getvalue()


@pytest.fixture
def _sandboxes() -> None:
    try:
        engine_for()
    except BackendUnavailableError as error:
        pytest.skip(str(error))


class Entry(msgspec.Struct):
    name: str


# --- the journal


def test_a_journal_gives_back_what_was_written(tmp_path: Path) -> None:
    path = journal_path(tmp_path / "tasks.jsonl")
    with Journal(path, Entry, "work") as journal:
        journal.add(Entry("a"))
        journal.add(Entry("b"))
    with Journal(path, Entry, "work") as journal:
        assert journal.entries == [Entry("a"), Entry("b")]


def test_a_torn_line_is_dropped_and_written_over(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path, Entry, "work") as journal:
        journal.add(Entry("a"))
    path.write_bytes(path.read_bytes() + b'{"name": "to')
    with Journal(path, Entry, "work") as journal:
        assert journal.entries == [Entry("a")]
        journal.add(Entry("c"))
    with Journal(path, Entry, "work") as journal:
        assert journal.entries == [Entry("a"), Entry("c")]


def test_a_journal_of_other_work_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path, Entry, "work") as journal:
        journal.add(Entry("a"))
    before = path.read_bytes()
    with pytest.raises(JournalError, match=r"belongs to other work \(work\).*delete it to begin anew"):
        Journal(path, Entry, "other work")
    assert path.read_bytes() == before


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(b'"work"\n{"name": 3}\n{"name": "b"}\n')
    with pytest.raises(JournalError, match="line 2 is damaged"):
        Journal(path, Entry, "work")


def test_another_file_is_no_journal(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(b"hello\n")
    with pytest.raises(JournalError, match="is no journal"):
        Journal(path, Entry, "work")


# --- the catalogue and sources


def test_the_catalogue_is_pinned_sorted_and_split_by_project() -> None:
    names = [project.name for project in PROJECTS]
    assert len(names) >= 14
    assert names == sorted(set(names))
    assert all(len(project.digest) == 64 and project.version for project in PROJECTS)
    assert all("==" in requirement for project in PROJECTS for requirement in project.requires)
    splits = Counter(project.split for project in PROJECTS)
    assert splits["test"] >= 4
    assert splits["validation"] >= 2
    assert splits["train"] >= 8
    assert set(SAMPLE_SPLITS.values()) == {"train", "validation", "test"}


def test_a_project_is_found_however_it_is_written() -> None:
    assert find_project("TinyDB") == find_project("tinydb")
    assert find_project("no-such-project") is None


def test_a_project_that_is_not_there_asks_for_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORKGYM_SWE_CACHE", str(tmp_path))
    with pytest.raises(SourceError, match=r"tinydb .* is not in the cache; add --fetch"):
        find_subject("tinydb")
    assert not is_fetched(PROJECTS[0])


def test_a_file_that_is_not_the_pinned_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORKGYM_SWE_CACHE", str(tmp_path))
    project = PROJECTS[0]
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / f"{project.name}-{project.version}.tar.gz").write_bytes(b"other")
    with pytest.raises(FetchError, match=f"is pinned as {project.digest}"):
        fetch_project(project)
    assert source_of(project).digest == project.digest


def test_what_is_no_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="'nothing' is no directory, no archive and no project"):
        find_subject("nothing")
    with pytest.raises(SourceError, match="there is no sample 'x'; samples: ledger, pagelet, spans"):
        find_subject("sample:x")
    (tmp_path / "thing.zip").write_bytes(b"")
    with pytest.raises(SourceError, match=r"is not called NAME-VERSION\.tar\.gz"):
        find_subject(str(tmp_path / "thing.zip"))


def test_a_folder_is_a_source_with_its_content_as_digest(tmp_path: Path) -> None:
    place = write_tree(tmp_path / "box", project_files())
    subject = find_subject(str(place))
    assert (subject.name, subject.source.kind) == ("box", "folder")
    assert subject.tests == Tests(python_path=("src",))
    other = write_tree(tmp_path / "other" / "box", project_files() | {"README.md": b"changed"})
    assert find_subject(str(other)).source.digest != subject.source.digest


# --- the command


def test_the_list_shows_projects_and_operators() -> None:
    code, text = call("--list")
    assert code == OK
    assert "tinydb" in text
    assert "off-by-one" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name one or more sources"),
        (("spans",), "--output"),
        (("nothing", "--output", "x.jsonl"), "no project of the catalogue"),
        (("sample:spans", "--operator", "typo", "--output", "x.jsonl"), "no operator is called typo"),
        (("sample:spans", "sample:spans", "--output", "x.jsonl"), "named twice: spans"),
    ],
)
def test_bad_input_is_told(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call(*arguments)


@pytest.mark.usefixtures("_sandboxes")
def test_tasks_are_written_and_a_second_run_only_reads(tmp_path: Path) -> None:
    place = write_tree(tmp_path / "box", project_files())
    output = tmp_path / "tasks.jsonl"
    arguments = (str(place), "--count", "2", "--split", "test", "--output", str(output), "--json")
    code, text = call(*arguments)
    assert code == OK
    tasks = load_instances(output)
    assert [task.split for task in tasks] == ["test", "test"]
    summary = json.loads(text.strip().splitlines()[-1])
    assert summary["tasks"] == 2
    assert summary["projects"][0]["tried"] >= 2
    journal, data = journal_path(output).read_bytes(), output.read_bytes()
    assert call(*arguments)[0] == OK
    assert (journal_path(output).read_bytes(), output.read_bytes()) == (journal, data)
    with pytest.raises(UsageError, match="belongs to other work"):
        call(*arguments, "--seed", "1")


@pytest.mark.slow
@pytest.mark.usefixtures("_sandboxes")
def test_a_source_without_passing_tests_is_a_row_with_its_reason(tmp_path: Path) -> None:
    place = write_tree(tmp_path / "bad", {"test_x.py": b"def test_x():\n    assert False\n"})
    code, text = call(str(place), "--output", str(tmp_path / "t.jsonl"))
    assert code == NO
    assert "makes no tasks: no test of the unchanged tree passes" in text
    assert "unusable" in text
    assert load_instances(tmp_path / "t.jsonl") == []


def test_the_summary_counts_reasons_by_project() -> None:
    attempts = [
        Attempt(project="b", key="1", reason="no test fails", seconds=1.0),
        Attempt(project="a", key="2", reason="unusable: because", seconds=2.0),
        Attempt(project="b", key="3", reason="no test fails", seconds=1.0),
    ]
    assert summarise(attempts) == [
        {"project": "a", "tried": 1, "tasks": 0, "seconds": 2, "unusable": 1},
        {"project": "b", "tried": 2, "tasks": 0, "seconds": 2, "no test fails": 2},
        {"project": "all", "tried": 3, "tasks": 0, "seconds": 4, "no test fails": 2, "unusable": 1},
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("_sandboxes")
def test_a_killed_run_loses_at_most_one_candidate_and_ends_the_same(tmp_path: Path) -> None:
    place = write_tree(tmp_path / "box", project_files())
    program = (
        "import sys; from argparse import ArgumentParser; from forkgym.console import Console; "
        "from forkgym_swe.making.commands import MAKE_TASKS as c; p = ArgumentParser(); c.configure(p); "
        "sys.exit(c.run(p.parse_args(sys.argv[1:]), Console()))"
    )

    def command(output: Path) -> list[str]:
        return [sys.executable, "-c", program, str(place), "--count", "4", "--output", str(output)]

    whole, killed = tmp_path / "whole.jsonl", tmp_path / "killed.jsonl"
    subprocess.run(command(whole), check=True, capture_output=True, cwd=ROOT)
    tried: list[int] = []
    for wanted in (1, 3):
        process = subprocess.Popen(command(killed), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None and _entries(killed) < wanted:
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        tried.append(_entries(killed))
    assert 1 <= tried[0] <= tried[1], "nothing that was tried is lost"
    subprocess.run(command(killed), check=True, capture_output=True, cwd=ROOT)
    assert killed.read_bytes() == whole.read_bytes()
    keys = [json.loads(line)["key"] for line in journal_path(killed).read_text().splitlines()[1:]]
    assert len(keys) == len(set(keys)), "nothing is tried twice"


def _entries(output: Path) -> int:
    path = journal_path(output)
    return max(0, path.read_bytes().count(b"\n") - 1) if path.exists() else 0
