"""The tasks that ship: made by the command of the sample projects, one split each, and steady."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from forkgym_swe.checking.determinism import Checker
from forkgym_swe.checking.leaks import find_leaks
from forkgym_swe.checkout import apply_patch, hide_tests, source_files
from forkgym_swe.instance import Instance, load_instances
from forkgym_swe.making.injection import Attempt, InjectionOptions
from forkgym_swe.making.journal import Journal
from forkgym_swe.making.production import inject_bugs
from forkgym_swe.making.projects import SAMPLE_SPLITS
from forkgym_swe.making.statements import leaks
from forkgym_swe.making.subjects import find_subject
from forkgym_swe.making.suites import Suite
from forkgym_swe.sources import SAMPLES

from forkgym.sandbox import BackendUnavailableError, engine_for


@pytest.fixture(scope="module")
def tasks() -> list[Instance]:
    return load_instances(SAMPLES / "tasks.jsonl")


@pytest.fixture
def _sandboxes() -> None:
    try:
        engine_for()
    except BackendUnavailableError as error:
        pytest.skip(str(error))


def test_there_are_tasks_of_every_sample_and_each_in_its_split(tasks: list[Instance]) -> None:
    assert len(tasks) >= 20
    assert {task.repository: task.split for task in tasks} == SAMPLE_SPLITS
    assert find_leaks(tasks) == []
    assert len({task.operator for task in tasks}) >= 12
    assert min(Counter(task.repository for task in tasks).values()) >= 6


def test_patches_fit_the_projects_as_they_are(tasks: list[Instance]) -> None:
    for task in tasks:
        sound = source_files(task.source)
        broken = apply_patch(sound, task.bug_patch)
        assert apply_patch(broken, task.patch) == sound
        hide_tests(broken, task.hidden_tests)


def test_no_text_gives_the_repair_away(tasks: list[Instance]) -> None:
    for task in tasks:
        paths = [task.provenance["file"]]
        assert leaks(task.problem_statement, patch=task.patch, operator=task.operator, paths=paths) == []


@pytest.mark.slow
@pytest.mark.usefixtures("_sandboxes")
@pytest.mark.parametrize("name", sorted(SAMPLE_SPLITS))
def test_a_sample_passes_its_own_tests_in_half_a_second_or_so(name: str) -> None:
    subject = find_subject(f"sample:{name}")
    with Suite(source_files(subject.source), subject.tests) as suite:
        report = suite.run()
    assert set(report.outcomes.values()) == {"passed"}
    assert len(report.outcomes) > 40
    assert report.seconds < 10, "half a second where nothing else runs"


@pytest.mark.slow
@pytest.mark.usefixtures("_sandboxes")
def test_the_command_makes_the_first_tasks_again(tasks: list[Instance], tmp_path: Path) -> None:
    subject = find_subject("sample:spans")
    with Journal(tmp_path / "j", Attempt, "again") as journal:
        # The order of candidates does not depend on how many are wanted.
        made = inject_bugs(subject, InjectionOptions(count=3), journal)
    shipped = [task for task in tasks if task.repository == "spans"]
    assert made == shipped[:3]


@pytest.mark.slow
@pytest.mark.usefixtures("_sandboxes")
def test_shipped_tasks_pass_the_filter(tasks: list[Instance]) -> None:
    checker = Checker()
    assert {task.id: checker.check(task) for task in tasks[::5]} == {task.id: ("", "") for task in tasks[::5]}
