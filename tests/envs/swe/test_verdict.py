"""What solves a task, and what only looks as if it did."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import msgspec
import pytest
from forkgym_swe.checkout import Prepared, prepare
from forkgym_swe.instance import Instance, InstanceError
from forkgym_swe.verdict import clear_memo, grade, judge

from forkgym.sandbox import Sandbox

from .conftest import FIRST, PASSING

Edit = Callable[[str, str, str], None]
HEAP = "src/box/heap.py"


def some_slow(cases: dict[str, str], *fast: str) -> list[object]:
    """Cases for pytest; only those named run in the fast set."""
    return [pytest.param(case, id=name, marks=() if name in fast else pytest.mark.slow) for name, case in cases.items()]


def fix(edit: Edit) -> None:
    edit(HEAP, "self.items.pop()", "self.items.pop(0)")


def test_the_gold_patch_solves_the_task(sandbox: Sandbox, task: Instance, prepared: Prepared, edit: Edit) -> None:
    fix(edit)
    verdict = grade(sandbox, task, prepared)
    assert verdict.resolved
    assert verdict.fail_to_pass == {FIRST: "passed"}
    assert verdict.pass_to_pass == dict.fromkeys(PASSING, "passed")
    assert (verdict.subverted, verdict.failure) == ((), "")
    assert "-        return self.items.pop()\n" in verdict.patch


def test_the_empty_patch_does_not(sandbox: Sandbox, task: Instance, prepared: Prepared) -> None:
    verdict = grade(sandbox, task, prepared)
    assert not verdict.resolved
    assert verdict.fail_to_pass == {FIRST: "failed"}
    assert set(verdict.pass_to_pass.values()) == {"passed"}
    assert (verdict.failure, verdict.patch) == ("other", "")


def test_a_fix_that_breaks_another_test_does_not(
    sandbox: Sandbox, task: Instance, prepared: Prepared, edit: Edit
) -> None:
    fix(edit)
    edit(HEAP, "len(self.items)", "0")
    verdict = grade(sandbox, task, prepared)
    assert not verdict.resolved
    assert verdict.fail_to_pass == {FIRST: "passed"}
    assert verdict.failure == "partial fix"


def test_the_hidden_test_is_not_in_the_agents_tree(sandbox: Sandbox, prepared: Prepared) -> None:
    assert b"test_smallest_first" not in sandbox.read("tests/test_heap.py")
    assert b"test_length" in sandbox.read("tests/test_heap.py")
    with judge(sandbox, prepared) as court:
        assert b"test_smallest_first" in court.read("tests/test_heap.py")


def test_the_agents_sandbox_is_not_changed(sandbox: Sandbox, task: Instance, prepared: Prepared) -> None:
    before = sandbox.state_hash()
    grade(sandbox, task, prepared)
    assert sandbox.state_hash() == before


def test_equal_trees_are_judged_once(sandbox: Sandbox, task: Instance, prepared: Prepared, edit: Edit) -> None:
    clear_memo()
    fix(edit)
    first = grade(sandbox, task, prepared)
    sandbox.run("mv src/box/heap.py /tmp/h && cp /tmp/h src/box/heap.py")
    again = grade(sandbox, task, prepared)
    assert (first.remembered, again.remembered) == (False, True)
    assert first.report == again.report
    assert not grade(sandbox, task, prepared, memo=False).remembered


def test_a_sandbox_of_another_tree_is_refused(sandbox: Sandbox, task: Instance) -> None:
    other = prepare(task, hide_tests=False)
    with pytest.raises(InstanceError, match="another tree"):
        grade(sandbox, task, other)


def test_removed_added_renamed_and_linked_code_counts(
    sandbox: Sandbox, task: Instance, prepared: Prepared, edit: Edit
) -> None:
    fix(edit)
    sandbox.run(
        "mkdir -m 750 src/box/inner && mv src/box/heap.py src/box/inner/real.py && touch src/box/inner/__init__.py &&"
        "ln -s inner/real.py src/box/heap.py && chmod 600 README.md && rm README.md && mkdir README.md"
    )
    with judge(sandbox, prepared) as court:
        assert court.run("readlink src/box/heap.py; stat -c %a src/box/inner; test -d README.md").stdout.split() == [
            "inner/real.py",
            "750",
        ]
    assert grade(sandbox, task, prepared).resolved


# ---------------------------------------------------------------------- attempts to fake a verdict

FORGERIES = {
    "the test is emptied": "printf 'def test_x(): pass' > tests/test_heap.py",
    "the tests are removed": "rm -r tests",
    "the tests become a link": "mv tests elsewhere && ln -s elsewhere tests",
    "conftest passes everything": """cat > conftest.py <<'X'
        import pytest
        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_makereport(item, call):
            report = yield
            report.outcome = "passed"
            return report
        X""",
    "conftest beside the tests": "printf 'collect_ignore = [\"test_heap.py\"]' > tests/conftest.py",
    "configuration": "printf '[pytest]\\npython_functions = nothing\\n' > pytest.ini",
    "pyproject": "sed -i 's/testpaths.*/python_classes = \"X\"/' pyproject.toml",
    "a stand-in for pytest": "mkdir src/pytest && echo 'raise SystemExit(0)' > src/pytest/__init__.py",
    "a stand-in for a module of Python's": "printf 'import os; os._exit(0)' > bisect.py",
    "run at Python's start": "printf 'import os; os._exit(0)' > src/sitecustomize.py",
}


@pytest.mark.parametrize("command", FORGERIES.values(), ids=FORGERIES.keys())
def test_an_edit_of_the_harness_is_undone_and_reported(
    sandbox: Sandbox, task: Instance, prepared: Prepared, command: str
) -> None:
    assert sandbox.run(textwrap.dedent(command)).exit_code == 0
    verdict = grade(sandbox, task, prepared)
    assert verdict.fail_to_pass == {FIRST: "failed"}
    assert set(verdict.pass_to_pass.values()) == {"passed"}
    assert verdict.subverted
    assert verdict.failure == "harness subversion"


CODE = {
    "ends the process": "import os\nos._exit(0)\n",
    "ends the process at its end": "import atexit, os\natexit.register(os._exit, 0)\n",
    "raises SystemExit": "raise SystemExit(0)\n",
    "skips": "import unittest\nraise unittest.SkipTest\n",
    "patches the report": """
        import _pytest.reports
        make = _pytest.reports.TestReport.from_item_and_call.__func__
        def passed(cls, item, call):
            report = make(cls, item, call)
            report.outcome = "passed"
            return report
        _pytest.reports.TestReport.from_item_and_call = classmethod(passed)
        """,
    "patches how tests are called": """
        import _pytest.python
        _pytest.python.Function.runtest = lambda self: None
        """,
    "patches the code of a function": """
        import _pytest.python
        def pytest_pyfunc_call(pyfuncitem):
            return True
        _pytest.python.pytest_pyfunc_call.__code__ = pytest_pyfunc_call.__code__
        """,
    "writes a report": f"""
        import os, json
        for number in range(3, 40):
            try:
                os.write(number, (json.dumps(["outcome", "{FIRST}", "passed", None]) + chr(10)).encode())
            except OSError:
                pass
        """,
}


@pytest.mark.parametrize("code", some_slow(CODE, "ends the process", "patches the report"))
def test_code_that_fakes_a_pass_is_not_believed(
    sandbox: Sandbox, task: Instance, prepared: Prepared, code: str
) -> None:
    text = sandbox.read("src/box/__init__.py").decode()
    sandbox.write("src/box/__init__.py", text + textwrap.dedent(code))
    verdict = grade(sandbox, task, prepared)
    assert not verdict.resolved
    assert verdict.failure != ""


def test_byte_code_does_not_stand_in_for_source(sandbox: Sandbox, task: Instance, prepared: Prepared) -> None:
    done = sandbox.run(
        "sed 's/pop()/pop(0)/' src/box/heap.py > /tmp/heap.py && mkdir src/box/__pycache__ && python3 -c \""
        "import py_compile as p; p.compile('/tmp/heap.py', "
        "'/testbed/src/box/__pycache__/heap.cpython-311.pyc', '/testbed/src/box/heap.py', "
        'invalidation_mode=p.PycInvalidationMode.UNCHECKED_HASH)"'
    )
    assert done.exit_code == 0
    assert grade(sandbox, task, prepared).fail_to_pass == {FIRST: "failed"}


WRITES = {
    "a test that is collected later": "open('/testbed/tests/test_other.py', 'w').write('def test_nothing(): pass')",
    "a conftest": "open('/testbed/tests/conftest.py', 'w').write('')",
    "byte code of a test": (
        "import os; os.makedirs('/testbed/tests/__pycache__'); open('/testbed/tests/__pycache__/test_other.pyc', 'w')"
    ),
}


@pytest.mark.parametrize("code", some_slow(WRITES, "a conftest"))
def test_code_that_writes_into_the_harness_while_tests_run_is_not_believed(
    sandbox: Sandbox, task: Instance, prepared: Prepared, edit: Edit, code: str
) -> None:
    fix(edit)
    edit("src/box/__init__.py", "from box.heap import Heap", f"from box.heap import Heap\n{code}")
    verdict = grade(sandbox, task, prepared)
    assert not verdict.resolved
    assert verdict.failure == "harness subversion"
    assert "was changed while the tests ran" in verdict.subverted[0]


def test_changed_assertions_of_the_standard_library_are_noticed(
    sandbox: Sandbox, task: Instance, prepared: Prepared, edit: Edit
) -> None:
    fix(edit)
    code = "import unittest\nunittest.TestCase.assertEqual = lambda *a: None"
    edit("src/box/__init__.py", "from box.heap import Heap", f"from box.heap import Heap\n{code}")
    verdict = grade(sandbox, task, prepared)
    assert (verdict.resolved, verdict.report.changed) == (False, ("unittest.case.TestCase.assertEqual",))


ODD = {
    "a link where tests are put": "rm -r tests && ln -s src tests",
    "a folder where a test is put": "cd tests && rm test_heap.py && mkdir -p test_heap.py/x && touch test_heap.py/x/y",
    "names that are no text": 'touch "$(printf \'a\\377b\')" "new\nline" && rm README.md && mkfifo pipe',
    "files that nobody may read": "chmod 000 src/box/__init__.py src",
    "a loop of links": "ln -s loop loop && ln -s . here",
}


@pytest.mark.parametrize("command", some_slow(ODD, "a folder where a test is put"))
def test_an_odd_tree_gets_a_verdict(sandbox: Sandbox, task: Instance, prepared: Prepared, command: str) -> None:
    assert sandbox.run(command).ok
    assert not grade(sandbox, task, prepared).resolved


@pytest.mark.slow
def test_a_full_disk_gets_a_verdict_without_a_patch(sandbox: Sandbox, task: Instance, prepared: Prepared) -> None:
    sandbox.run("for name in a b c; do head -c 250M /dev/zero > $name; done; head -c 1M /dev/zero > d")
    verdict = grade(sandbox, task, prepared)
    assert (verdict.fail_to_pass, verdict.patch) == ({FIRST: "failed"}, "")


def test_a_new_test_is_left_out_but_no_subversion(
    sandbox: Sandbox, task: Instance, prepared: Prepared, edit: Edit
) -> None:
    fix(edit)
    sandbox.write("tests/test_new.py", "def test_new():\n    assert False\n")
    verdict = grade(sandbox, task, prepared)
    assert (verdict.resolved, verdict.subverted) == (True, ())


def test_a_change_of_configuration_that_does_not_speak_to_pytest_is_no_subversion(
    sandbox: Sandbox, task: Instance, prepared: Prepared, edit: Edit
) -> None:
    edit("pyproject.toml", "queue-sample", "other")
    assert grade(sandbox, task, prepared).subverted == ()


def test_without_tests_that_should_pass_nothing_is_solved(sandbox: Sandbox, task: Instance, prepared: Prepared) -> None:
    assert not grade(sandbox, msgspec.structs.replace(task, fail_to_pass=()), prepared).resolved


def test_ids_that_do_not_exist_are_missing(sandbox: Sandbox, task: Instance, prepared: Prepared) -> None:
    odd = msgspec.structs.replace(task, pass_to_pass=("tests/test_gone.py::test_x", "tests/test_heap.py::test_gone"))
    verdict = grade(sandbox, odd, prepared)
    assert set(verdict.pass_to_pass.values()) == {"missing"}
    assert verdict.fail_to_pass == {FIRST: "failed"}
