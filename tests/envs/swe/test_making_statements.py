"""Issue texts say what failing tests did, expected and got, and nothing of the repair."""

from __future__ import annotations

import textwrap

import pytest
from forkgym_swe.making.statements import Failing, StatementError, leaks, write_statement

TESTS = textwrap.dedent(
    '''
    import unittest
    import pytest
    from box import Heap


    def test_smallest_first():
        """Documentation is not part of the story."""
        heap = Heap()
        heap.push(3)
        assert heap.pop() == 1


    def test_pop_of_nothing():
        heap = Heap()
        with pytest.raises(IndexError):
            heap.pop()


    class TestBox(unittest.TestCase):
        def test_lengthOfBox(self):
            self.assertEqual(len(Heap()), 0)


    def test_long():
        a = 1
        b = 1
        c = 1
        d = 1
        e = 1
        f = 1
        g = 1
        h = 1
        i = 1
        j = 1
        k = 1
        l = 1
        m = 1
        assert a + b == 3
    '''
).lstrip("\n")
FILES = {"tests/test_box.py": TESTS.encode()}
LINES = TESTS.splitlines()


def at(text: str) -> int:
    return next(number for number, line in enumerate(LINES, 1) if text in line)


def told(name: str, message: str, text: str) -> str:
    return write_statement("box", [Failing(f"tests/test_box.py::{name}", message, at(text))], FILES)


def test_a_comparison_says_what_was_expected_and_what_came() -> None:
    statement = told("test_smallest_first", "assert 3 == 1\n +  where 3 = pop()", "heap.pop() == 1")
    assert statement.startswith("box: smallest first: gives a wrong result\n")
    assert "I expected `heap.pop()` to equal `1`." in statement
    assert "assert 3 == 1" in statement
    assert "heap = Heap()\nheap.push(3)\nassert heap.pop() == 1" in statement
    assert "Documentation" not in statement


def test_an_error_that_was_not_raised_is_asked_for() -> None:
    statement = told("test_pop_of_nothing", "Failed: DID NOT RAISE <class 'IndexError'>", "heap.pop()\n".strip())
    assert "I expected this to raise `IndexError`." in statement


def test_another_error_than_the_awaited_one_is_told_as_such() -> None:
    statement = told("test_pop_of_nothing", "NameError: name 'x' is not defined", "        heap.pop()")
    assert "I expected this to raise `IndexError`." in statement
    assert "ends in `NameError`" in statement


def test_the_parameters_of_a_test_are_told() -> None:
    failing = [Failing("tests/test_box.py::test_smallest_first[1,,2-x]", "assert 3 == 1", at("heap.pop() == 1"))]
    assert "Seen with the parameters `1,,2-x`." in write_statement("box", failing, FILES)


def test_an_unexpected_error_is_named() -> None:
    statement = told("test_smallest_first", "TypeError: unhashable", "heap.push(3)")
    assert "ends in `TypeError`" in statement
    assert "without an error" in statement


def test_methods_of_unittest_are_understood() -> None:
    statement = told("TestBox::test_lengthOfBox", "AssertionError: 1 != 0", "assertEqual")
    assert statement.startswith("box: box, length of box:")
    assert "I expected `len(Heap())` to equal `0`." in statement


def test_other_failing_tests_are_named_in_order_and_once() -> None:
    ids = ["test_smallest_first", "test_pop_of_nothing[1]", "test_pop_of_nothing[2]"]
    failing = [Failing(f"tests/test_box.py::{name}", "ValueError: no", 0) for name in ids]
    statement = write_statement("box", failing, FILES)
    assert statement.count("- ") == 1
    assert write_statement("box", failing, FILES) == statement


def test_a_long_test_is_told_by_its_last_statements() -> None:
    statement = told("test_long", "assert 2 == 3", "a + b == 3")
    assert "…\n" in statement
    assert "a = 1\n" not in statement
    assert "m = 1\nassert a + b == 3" in statement


def test_what_differs_from_run_to_run_is_left_out() -> None:
    message = "AssertionError: <Heap at 0x7f12345678> in /tmp/pytest-of-x/1, os.stat_result(st_ino=21), 1796088013"
    statement = told("test_smallest_first", message, "heap.pop() == 1")
    assert "0x7f" not in statement
    assert "/tmp/" not in statement
    assert "st_ino" not in statement
    assert "1796088013" not in statement


def test_no_failing_test_and_no_readable_test_are_errors() -> None:
    with pytest.raises(StatementError, match="at least one"):
        write_statement("box", [], FILES)
    with pytest.raises(StatementError, match="none of the failing tests"):
        write_statement("box", [Failing("gone.py::test_x", "x")], FILES)


PATCH = (
    "diff --git a/box/heap.py b/box/heap.py\n--- a/box/heap.py\n+++ b/box/heap.py\n@@ -1,2 +1,2 @@\n"
    " def pop(self):\n-    return self.items.pop()\n+    return self.items.pop(0)\n"
)


@pytest.mark.parametrize(
    ("statement", "leak"),
    [
        ("it must be\n    return self.items.pop(0)\n", "a line of the gold patch"),
        ("I think `return self.items.pop()` is wrong", "a line of the gold patch"),
        ("an index changed somewhere", "the operator's name"),
        ("an Index-Changed bug", "the operator's name"),
        ("look into box/heap.py", "the file"),
        ("the error is in heap.py, line 2", "the file"),
    ],
)
def test_what_gives_the_repair_away_is_found(statement: str, leak: str) -> None:
    (found,) = leaks(statement, patch=PATCH, operator="index-changed", paths=["box/heap.py"])
    assert found.startswith(leak)


def test_behaviour_gives_nothing_away() -> None:
    assert leaks("heap.pop() gives 3", patch=PATCH, operator="index-changed", paths=["box/heap.py"]) == []
    assert leaks("see test_heap.py", patch=PATCH, paths=["box/heap.py"]) == []
