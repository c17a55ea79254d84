"""Test runs as data: outcomes, reasons, order, coverage, and processes that end badly."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import pytest
from forkgym_swe.checkout import make_image_of, open_sandbox
from forkgym_swe.runner import RunnerError, TestReport, run_tests, selects

from forkgym.sandbox import BackendUnavailableError, Sandbox, engine_for

SUITE = """
    import os, sys, unittest
    import pytest
    from pkg.code import double, never

    def test_pass(): assert double(1) == 2
    def test_fail(): assert double(1) == 3
    def test_error(gone): pass
    def test_skip(): pytest.skip("no")
    @pytest.mark.xfail
    def test_xfail(): assert 0
    @pytest.mark.xfail(strict=True)
    def test_strict(): pass
    @pytest.fixture
    def bad_end():
        yield
        raise ValueError("late")
    def test_teardown(bad_end): pass
    class TestUnit(unittest.TestCase):
        def test_sub(self):
            for number in (1, 2):
                with self.subTest(number=number):
                    assert number == 1
        def test_fine(self):
            with self.subTest(x=1):
                pass
    @pytest.mark.parametrize("text", ["a::b", "[c]"])
    def test_odd(text): pass
    """
FILES = {
    "pkg/__init__.py": "",
    "pkg/code.py": "def double(x):\n    return x * 2\n\ndef never():\n    return 0\n",
    "tests/test_a.py": SUITE,
    "tests/test_b.py": "def test_b(): pass\n",
    "pytest.ini": "[pytest]\naddopts = -x --maxfail=1 -p no_such_plugin\nrequired_plugins = nothing\n",
}


@pytest.fixture(scope="module")
def base() -> Sandbox:
    try:
        engine_for()
    except BackendUnavailableError as error:
        pytest.skip(str(error))
    files = {path: textwrap.dedent(text).lstrip("\n").encode() for path, text in FILES.items()}
    return open_sandbox(make_image_of(files))


@pytest.fixture(scope="module")
def report(base: Sandbox) -> TestReport:
    return run_tests(base.fork())


Run = Callable[..., TestReport]


@pytest.fixture
def run(base: Sandbox) -> Run:
    """Runs a file of tests in a fork."""

    def start(text: str, **options: object) -> TestReport:
        with base.fork() as copy:
            copy.write("tests/test_c.py", textwrap.dedent(text))
            return run_tests(copy, ["tests/test_c.py"], **options)  # type: ignore[arg-type]

    return start


def test_every_kind_of_outcome(report: TestReport) -> None:
    assert report.outcomes == {
        "tests/test_a.py::test_pass": "passed",
        "tests/test_a.py::test_fail": "failed",
        "tests/test_a.py::test_error": "error",
        "tests/test_a.py::test_skip": "skipped",
        "tests/test_a.py::test_xfail": "skipped",
        "tests/test_a.py::test_strict": "failed",
        "tests/test_a.py::test_teardown": "error",
        "tests/test_a.py::TestUnit::test_sub": "failed",
        "tests/test_a.py::TestUnit::test_fine": "passed",
        "tests/test_a.py::test_odd[a::b]": "passed",
        "tests/test_a.py::test_odd[[c]]": "passed",
        "tests/test_b.py::test_b": "passed",
    }
    assert (report.exit_code, report.timed_out, report.trusted, report.changed) == (1, False, True, ())
    assert report.count("failed") == 3


def test_a_failure_says_why_and_where(report: TestReport) -> None:
    failure = report.failures["tests/test_a.py::test_fail"]
    assert (failure.phase, failure.places) == ("call", (("tests/test_a.py", 6),))
    assert "assert 2 == 3" in failure.message
    assert report.failures["tests/test_a.py::test_teardown"].phase == "teardown"
    assert report.failures["tests/test_a.py::test_error"].phase == "setup"


def test_a_few_ids_run_alone_and_wrong_ones_are_missing(base: Sandbox) -> None:
    wanted = ["tests/test_a.py::test_odd[a::b]", "tests/test_b.py", "tests/test_a.py::gone", "gone.py::test_x"]
    found = run_tests(base.fork(), wanted)
    assert found.outcomes == {"tests/test_a.py::test_odd[a::b]": "passed", "tests/test_b.py::test_b": "passed"}
    assert found.exit_code == 0
    assert run_tests(base.fork(), ["gone.py"]).exit_code == 4


@pytest.mark.slow
def test_a_seed_shuffles_and_the_same_seed_shuffles_alike(base: Sandbox, report: TestReport) -> None:
    orders = [run_tests(base.fork(), order_seed=seed).collected for seed in (1, 1, 2)]
    assert orders[0] == orders[1]
    assert len({report.collected, orders[0], orders[2]}) == 3
    assert sorted(orders[0]) == sorted(report.collected)


def test_each_tests_lines_are_traced(base: Sandbox) -> None:
    found = run_tests(base.fork(), ["tests/test_a.py::test_pass", "tests/test_b.py"], trace=True)
    assert found.coverage["tests/test_a.py::test_pass"]["pkg/code.py"] == (1, 2)
    assert "pkg/code.py" not in found.coverage["tests/test_b.py::test_b"]
    assert found.outcomes["tests/test_a.py::test_pass"] == "passed"


def test_a_file_that_cannot_be_imported_does_not_hide_the_others(base: Sandbox) -> None:
    with base.fork() as copy:
        copy.write("tests/test_b.py", "import gone\n")
        found = run_tests(copy, ["tests/test_a.py::test_pass", "tests/test_b.py::test_b"])
    assert found.outcomes == {"tests/test_a.py::test_pass": "passed"}
    assert "No module named 'gone'" in found.collection_errors["tests/test_b.py"]
    assert found.exit_code == 1


@pytest.mark.parametrize(("ending", "code"), [("os._exit(0)", 0), ("os.kill(os.getpid(), 9)", -9), ("os.abort()", -6)])
def test_a_test_that_ends_the_process_is_an_error(run: Run, ending: str, code: int) -> None:
    found = run(f"import os\ndef test_one(): pass\ndef test_two(): {ending}\ndef test_three(): pass\n")
    assert found.outcomes == {"tests/test_c.py::test_one": "passed", "tests/test_c.py::test_two": "error"}
    assert (found.exit_code, found.trusted) == (code, False)


def test_what_was_done_before_the_time_was_up_is_kept(run: Run) -> None:
    found = run(
        """
        import subprocess, time
        def test_one(): pass
        def test_two():
            subprocess.Popen(["sleep", "60"], start_new_session=True)
            time.sleep(60)
        """,
        timeout=1.5,
    )
    assert found.outcomes == {"tests/test_c.py::test_one": "passed", "tests/test_c.py::test_two": "error"}
    assert (found.timed_out, found.exit_code, found.trusted) == (True, 124, False)
    assert found.seconds < 10


def test_a_process_left_behind_does_not_keep_the_run(run: Run) -> None:
    found = run("import subprocess\ndef test_one(): subprocess.Popen(['sleep', '60'], start_new_session=True)\n")
    assert found.trusted
    assert found.seconds < 10


def test_the_keeper_cannot_be_reached_from_a_test(run: Run) -> None:
    found = run(
        """
        import os, pathlib
        def test_streams():
            for name in ("fd/1", "mem", "environ"):
                try:
                    open(f"/proc/{os.getppid()}/{name}", "r+b")
                except OSError:
                    continue
                assert False, name
        def test_the_request_is_gone():
            assert os.read(0, 10) == b""
        """
    )
    assert set(found.outcomes.values()) == {"passed"}


@pytest.mark.slow
def test_python_path_requirements_and_variables(base: Sandbox) -> None:
    with base.fork() as copy:
        copy.run("mkdir -p lib/inner && mv pkg lib/inner/pkg")
        copy.write(
            "tests/test_b.py",
            "import os, subprocess, sys\nimport pkg.code\ndef test_b():\n    assert os.environ['COLOUR'] == 'red'\n"
            "    subprocess.run([sys.executable, '-c', 'import pkg.code'], check=True, cwd='/tmp')\n",
        )
        found = run_tests(copy, ["tests/test_b.py"], python_path=["lib/inner"], env={"COLOUR": "red"})
    assert found.outcomes == {"tests/test_b.py::test_b": "passed"}


@pytest.mark.slow
def test_a_keyword_chooses(base: Sandbox) -> None:
    assert set(run_tests(base.fork(), keyword="odd or test_b").outcomes) == {
        "tests/test_a.py::test_odd[a::b]",
        "tests/test_a.py::test_odd[[c]]",
        "tests/test_b.py::test_b",
    }


def test_a_sandbox_without_the_harness_is_refused(base: Sandbox) -> None:
    with Sandbox.create(base.image, visible=("/usr",)) as plain, pytest.raises(RunnerError, match="harness"):
        run_tests(plain)


@pytest.mark.slow
def test_reports_are_equal_but_for_the_time(base: Sandbox, report: TestReport) -> None:
    import msgspec

    again = run_tests(base.fork())
    plain = [msgspec.structs.replace(found, seconds=0.0, output="") for found in (report, again)]
    assert plain[0] == plain[1]


def test_what_a_selector_means() -> None:
    for selector in ("t/a.py::T::x[1]", "t/a.py::T::x", "t/a.py::T", "t/a.py", "t", "t/"):
        assert selects(selector, "t/a.py::T::x[1]")
    for selector in ("t/a.py::T::xx", "t/a.p", "a.py", "t/a.py::T::x[2]"):
        assert not selects(selector, "t/a.py::T::x[1]")
