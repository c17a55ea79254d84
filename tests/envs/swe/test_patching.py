"""Patches: what is made can be applied, by us and by git; what does not fit is refused with its place."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from forkgym_swe.patching import PatchError, apply_patch, changed_lines, make_patch, patched_paths, reverse_patch
from hypothesis import given
from hypothesis import strategies as st

from .conftest import write_tree

LINES = st.lists(st.sampled_from(["a", "b", "", "--- x", "+++ y", "@@ -1 +1 @@", "\\ odd", "é\r"]), max_size=12)
TEXT = st.builds(lambda lines, end: ("\n".join(lines) + ("\n" if end and lines else "")).encode(), LINES, st.booleans())
TREE = st.dictionaries(st.sampled_from(["a.py", "d/b.txt", "with space", 'quo"te', "ü/x"]), TEXT, max_size=4)


@given(TREE, TREE)
def test_the_difference_of_two_trees_leads_from_one_to_the_other(
    before: dict[str, bytes], after: dict[str, bytes]
) -> None:
    patch = make_patch(before, after)
    assert apply_patch(before, patch) == after
    assert apply_patch(after, reverse_patch(patch)) == before
    assert set(patched_paths(patch)) == {p for p in before.keys() | after.keys() if before.get(p) != after.get(p)}


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_applies_what_is_made_and_we_apply_what_git_makes(tmp_path: Path) -> None:
    before = {"keep.py": b"1\n", "change.py": b"a\nb\nc\nd\ne\nf\ng\nh\n", "gone.txt": b"x\n", "no end": b"one\ntwo"}
    after = {"keep.py": b"1\n", "change.py": b"a\nB\nc\nd\ne\nf\ng\nh\ni\n", "new/ü.py": b"", "no end": b"one\ntwo\n"}
    write_tree(tmp_path, before)
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=make_patch(before, after).encode(), check=True)
    found = {str(p.relative_to(tmp_path)): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert found == after
    place = write_tree(tmp_path / "repository", before)
    git = ["git", "-C", str(place), "-c", "user.name=t", "-c", "user.email=t@t"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "before"]):
        subprocess.run([*git, *command], check=True)
    (place / "gone.txt").unlink()
    write_tree(place, after)
    subprocess.run([*git, "add", "-A"], check=True)
    text = subprocess.run([*git, "diff", "--cached", "-M"], capture_output=True, check=True).stdout.decode()
    assert apply_patch(before, text) == after


def test_renames_and_moved_hunks() -> None:
    files = {"old.py": b"0\n" * 5 + b"a\nb\nc\n"}
    patch = (
        "diff --git a/old.py b/new.py\nsimilarity index 90%\nrename from old.py\nrename to new.py\n"
        "--- a/old.py\n+++ b/new.py\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n"
    )
    assert apply_patch(files, patch) == {"new.py": b"0\n" * 5 + b"a\nB\nc\n"}
    assert patched_paths(patch) == ("new.py", "old.py")
    assert apply_patch({"x": b"1\n"}, "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-1\n+2\n") == {"x": b"2\n"}


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ("hello", "names no file"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-9\n+2\n", "does not fit x at line 1"),
        ("--- a/gone\n+++ b/gone\n@@ -1 +1 @@\n-9\n+2\n", "changes gone, which is not there"),
        ("--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+2\n", "adds x, which is there"),
        ("--- a/x\n+++ b/x\n@@ -1,4 +1 @@\n-1\n", "cut short"),
        ("--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n", "lines of it would be left"),
        ("--- a/../x\n+++ b/../x\n@@ -1 +1 @@\n-1\n+2\n", "no path inside"),
        ("--- /etc/passwd\n+++ /etc/passwd\n@@ -1 +1 @@\n-1\n+2\n", "no path inside"),
        ("diff --git a/x b/x\nGIT binary patch\nliteral 0\n", "no text file"),
        ("@@ -1 +1 @@\n-1\n+2\n", "before any file"),
    ],
)
def test_a_patch_that_cannot_be_applied_is_refused_with_the_reason(patch: str, words: str) -> None:
    with pytest.raises(PatchError, match=words):
        apply_patch({"x": b"1\n2\n"}, patch)


def test_changed_lines_are_those_of_the_old_file() -> None:
    before = b"".join(b"%d\n" % number for number in range(1, 30))
    after = before.replace(b"5\n6\n", b"five\n", 1).replace(b"20\n", b"20\nmore\n")
    assert changed_lines(make_patch({"f": before}, {"f": after})) == {"f": (5, 6, 20)}
