"""Why an attempt failed, rule by rule."""

from __future__ import annotations

from typing import Any

import pytest
from forkgym_swe.patching import make_patch
from forkgym_swe.taxonomy import classify_failure

CODE = {
    "a.py": b"""x = 1

class Box:
    def push(self, item):
        self.items.append(item)

    def pop(self):
        return self.items.pop()

def other():
    return 2
""",
    "b.py": b"y = 2\n",
}


def edit(path: str, old: bytes, new: bytes) -> str:
    assert old in CODE[path]
    return make_patch(CODE, CODE | {path: CODE[path].replace(old, new)})


GOLD = edit("a.py", b"pop()\n", b"pop(0)\n")
RIGHT = edit("a.py", b"return self.items.pop()", b"return self.items.pop(-1)")
SAME_FILE = edit("a.py", b"return 2", b"return 3")
OTHER_FILE = edit("b.py", b"y = 2", b"y = 3")
GOOD, BAD = {"t": "passed"}, {"t": "failed"}


@pytest.mark.parametrize(
    ("patch", "fixed", "kept", "more", "label"),
    [
        (RIGHT, BAD, GOOD, {"subverted": ["conftest.py: added"]}, "harness subversion"),
        ("", BAD, GOOD, {}, "other"),
        (RIGHT, {"t": "missing"}, {"t": "missing"}, {"trusted": False}, "other"),
        (RIGHT, GOOD, GOOD, {}, "other"),
        (OTHER_FILE, BAD, GOOD, {}, "wrong localisation"),
        (SAME_FILE, BAD, GOOD, {}, "wrong localisation"),
        (OTHER_FILE, BAD, BAD, {}, "regression"),
        (RIGHT, BAD, BAD, {}, "regression"),
        (RIGHT, BAD, GOOD, {}, "partial fix"),
        (RIGHT, GOOD, BAD, {}, "partial fix"),
        (RIGHT, {"t": "passed", "u": "failed"}, GOOD, {}, "partial fix"),
        (SAME_FILE, BAD, GOOD, {"before": None}, "partial fix"),
    ],
)
def test_the_first_rule_that_applies_decides(
    patch: str, fixed: dict[str, str], kept: dict[str, str], more: dict[str, Any], label: str
) -> None:
    arguments = {"before": CODE, **more}
    found = classify_failure(patch=patch, gold=GOLD, fail_to_pass=fixed, pass_to_pass=kept, **arguments)
    assert found == label


def test_a_file_that_is_no_python_is_one_place() -> None:
    files = {"a.txt": b"1\n2\n3\n4\n5\n6\n7\n8\n9\n"}
    gold = make_patch(files, {"a.txt": files["a.txt"].replace(b"1\n", b"one\n")})
    patch = make_patch(files, {"a.txt": files["a.txt"].replace(b"9\n", b"nine\n")})
    found = classify_failure(patch=patch, gold=gold, fail_to_pass=BAD, pass_to_pass=GOOD, before={"a.txt": b"def"})
    assert found == "partial fix"
