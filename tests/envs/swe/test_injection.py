"""Bugs are injected where tests look, spread over the code, and kept only if some tests fail and some still pass."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from forkgym_swe.checkout import apply_patch, hide_tests, prepare, source_files
from forkgym_swe.instance import Instance, Source
from forkgym_swe.making.defining import Definitions
from forkgym_swe.making.injection import InjectionOptions, Injector, Subject, choose_passing, order_sites
from forkgym_swe.making.mutants import Site
from forkgym_swe.making.statements import leaks
from forkgym_swe.making.suites import Baseline, Suite, SuiteError, Tests

from forkgym.sandbox import BackendUnavailableError, engine_for

from .conftest import FIRST, project_files

TESTS = Tests(python_path=("src",), test_paths=("tests",))


@pytest.fixture(scope="module")
def suite() -> Iterator[Suite]:
    try:
        engine_for()
    except BackendUnavailableError as error:
        pytest.skip(str(error))
    with Suite(project_files(), TESTS) as found:
        yield found


@pytest.fixture(scope="module")
def baseline(suite: Suite) -> Baseline:
    return suite.baseline()


@pytest.fixture(scope="module")
def made(suite: Suite, baseline: Baseline, folder: Path) -> tuple[Injector, list[tuple[Site, str, Instance | None]]]:
    source = Source(kind="folder", name="box", location=str(folder))
    subject = Subject(name="box", source=source, tests=TESTS, split="test")
    injector = Injector(subject, suite, baseline, InjectionOptions(count=2, attempts=2))
    return injector, [(site, *injector.try_site(site)) for site in injector.sites()]


def test_the_baseline_knows_which_tests_run_which_lines(baseline: Baseline) -> None:
    assert len(baseline.passing) == 6
    assert baseline.unsteady == ()
    lines = project_files()["src/box/heap.py"].decode().splitlines()
    pop = next(number for number, line in enumerate(lines, 1) if "pop(0)" in line)
    assert baseline.tests_of("src/box/heap.py", pop, pop) == (FIRST,)
    assert baseline.tests_of("src/box/heap.py", 1, 1) == ()


def test_a_kept_bug_makes_some_tests_fail_and_leaves_some(
    made: tuple[Injector, list[tuple[Site, str, Instance | None]]], baseline: Baseline
) -> None:
    tasks = [instance for _, _, instance in made[1] if instance is not None]
    assert tasks
    for task in tasks:
        assert task.fail_to_pass
        assert task.pass_to_pass
        assert not set(task.fail_to_pass) & set(task.pass_to_pass)
        assert {*task.fail_to_pass, *task.pass_to_pass} <= set(baseline.passing)
        assert task.split == "test"
        assert task.operator
        assert task.difficulty is not None
        assert task.difficulty.tests == len(task.fail_to_pass)


def test_the_patches_are_inverse_and_touch_code_only(
    made: tuple[Injector, list[tuple[Site, str, Instance | None]]],
) -> None:
    for _, _, task in made[1]:
        if task is not None:
            sound = source_files(task.source)
            broken = apply_patch(sound, task.bug_patch)
            assert broken != sound
            assert apply_patch(broken, task.patch) == sound
            assert all(broken[path] == sound[path] for path in sound if path.startswith("tests/"))


def test_the_failing_tests_are_hidden_and_the_text_gives_nothing_away(
    made: tuple[Injector, list[tuple[Site, str, Instance | None]]],
) -> None:
    for site, _, task in made[1]:
        if task is not None:
            hidden = {id.split("[", 1)[0] for id in task.fail_to_pass}
            assert set(task.hidden_tests) == hidden
            visible = hide_tests(source_files(task.source), task.hidden_tests)
            name = task.hidden_tests[0].rpartition("::")[2]
            assert f"def {name}(" not in visible["tests/test_heap.py"].decode()
            paths = [site.path]
            assert leaks(task.problem_statement, patch=task.patch, operator=task.operator, paths=paths) == []
            prepare(task)


def test_only_covered_code_is_changed(made: tuple[Injector, list[tuple[Site, str, Instance | None]]]) -> None:
    assert {site.path for site, _, _ in made[1]} <= {"src/box/heap.py", "src/box/__init__.py"}


def test_the_same_seed_gives_the_same_candidates(
    made: tuple[Injector, list[tuple[Site, str, Instance | None]]], suite: Suite, baseline: Baseline
) -> None:
    injector = made[0]
    again = Injector(injector.subject, suite, baseline, injector.options)
    assert again.sites() == [site for site, _, _ in made[1]]
    other = Injector(injector.subject, suite, baseline, InjectionOptions(count=2, attempts=2, seed=1))
    assert other.sites() != again.sites()


def test_the_same_program_is_not_tried_twice(
    made: tuple[Injector, list[tuple[Site, str, Instance | None]]], suite: Suite, baseline: Baseline
) -> None:
    injector = Injector(made[0].subject, suite, baseline, made[0].options)
    site = made[1][0][0]
    injector.note(site)
    assert injector.try_site(site) == ("the same bug as another candidate", None)


@pytest.mark.slow
def test_a_suite_that_passes_nothing_is_refused() -> None:
    files = {"m.py": b"x = 1\n", "test_m.py": b"import gone\n\n\ndef test_x():\n    assert gone\n"}
    with Suite(files, Tests()) as broken, pytest.raises(SuiteError, match="no test of the unchanged tree passes"):
        broken.baseline()


def sites_of(counts: dict[tuple[str, str, str], int]) -> list[Site]:
    found: list[Site] = []
    for (path, function, operator), count in counts.items():
        found += [Site(path, operator, line, line, function, len(found)) for line in range(count)]
    return found


def test_candidates_are_spread_over_functions_and_operators() -> None:
    sites = sites_of({("a.py", f"f{n}", f"op{m}"): 50 if (n, m) == (0, 0) else 2 for n in range(5) for m in range(4)})
    taken = order_sites(sites, random.Random(0), 20)
    assert set(Counter(site.function for site in taken).values()) == {4}
    assert set(Counter(site.operator for site in taken).values()) == {5}


def test_the_order_does_not_depend_on_how_many_are_wanted() -> None:
    sites = sites_of({("a.py", f"f{n}", f"op{n % 3}"): 5 for n in range(7)})
    assert order_sites(sites, random.Random(3), 30)[:10] == order_sites(sites, random.Random(3), 10)


def test_tests_near_the_change_are_listed_first() -> None:
    passing = [f"t{number:02}" for number in range(40)]
    chosen = choose_passing(passing, {"t03"}, ["t03", "t05", "t07"], 10, "seed")
    assert len(chosen) == 10
    assert {"t05", "t07"} <= set(chosen)
    assert "t03" not in chosen
    assert chosen == choose_passing(passing, {"t03"}, ["t03", "t05", "t07"], 10, "seed")
    assert choose_passing(passing, set(), passing, 5, "seed") != choose_passing(passing, set(), passing, 5, "other")


def test_inherited_tests_are_found_where_they_are_defined() -> None:
    files = {
        "tests/__init__.py": b"class Mixin:\n    def test_a(self):\n        pass\n",
        "tests/base.py": b"class Base:\n    def test_b(self):\n        pass\n",
        "tests/test_x.py": (
            b"from . import Mixin\nfrom .base import Base as B\nimport gone\n\n\n"
            b"class TestX(Mixin, B, gone.Other):\n    def test_c(self):\n        pass\n\n\n"
            b"class TestY(TestX):\n    pass\n"
        ),
    }
    definitions = Definitions(files)
    assert definitions.find("tests/test_x.py::TestY::test_a") == "tests/__init__.py::Mixin::test_a"
    assert definitions.find("tests/test_x.py::TestY::test_b[x::y]") == "tests/base.py::Base::test_b"
    assert definitions.find("tests/test_x.py::TestY::test_c") == "tests/test_x.py::TestX::test_c"
    assert definitions.find("tests/test_x.py::TestY::test_gone") is None
    assert definitions.find("tests/test_x.py::TestZ::test_a") is None
    assert definitions.find("tests/none.py::test_a") is None
