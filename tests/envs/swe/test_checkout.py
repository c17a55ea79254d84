"""Sources of every kind, hidden tests, and what is protected."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import msgspec
import pytest
from forkgym_swe.checkout import Prepared, digest_files, hide_tests, prepare, site_directory, source_files
from forkgym_swe.instance import Instance, InstanceError, Source
from forkgym_swe.protection import Protection, harness_part

from .conftest import FIRST, project_files, write_tree


def archive(path: Path, members: dict[str, bytes], links: dict[str, str] | None = None) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    return path


def test_an_archive_is_found_by_name_and_read_without_its_top_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORKGYM_SWE_CACHE", str(tmp_path))
    (tmp_path / "sources").mkdir()
    path = archive(
        tmp_path / "sources" / "My_Box-1.0.tar.gz",
        {"box-1.0/a.py": b"1", "box-1.0/d/b.py": b"2", "box-1.0/.git/config": b""},
        {"box-1.0/link.py": "d/b.py", "box-1.0/out": "../../etc/passwd"},
    )
    source = Source(kind="sdist", name="my-box", version="1.0", digest=hashlib.sha256(path.read_bytes()).hexdigest())
    assert source_files(source) == {"a.py": b"1", "d/b.py": b"2", "link.py": b"2"}
    with pytest.raises(InstanceError, match="not the source that the task was made from"):
        source_files(msgspec.structs.replace(source, digest="0" * 64))
    with pytest.raises(InstanceError, match=r"pip download .*my-box==2\.0"):
        source_files(msgspec.structs.replace(source, version="2.0"))


@pytest.mark.parametrize("name", ["box-1.0/../../evil", "/etc/evil", "box-1.0/a/../../../evil"])
def test_an_archive_with_a_path_out_of_it_is_refused(tmp_path: Path, name: str) -> None:
    path = archive(tmp_path / "box-1.0.tar.gz", {name: b"x"})
    with pytest.raises(InstanceError, match="leads out of the archive"):
        source_files(Source(kind="sdist", name="box", version="1.0", location=str(path)))


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.tar.gz").write_bytes(b"no archive")
    with pytest.raises(InstanceError, match="cannot be unpacked"):
        source_files(Source(kind="sdist", name="x", version="1", location=str(tmp_path / "x.tar.gz")))


def test_a_folder_is_read_without_caches_and_outer_links(tmp_path: Path) -> None:
    write_tree(tmp_path / "p", {"a.py": b"1", "__pycache__/a.pyc": b"", ".git/x": b"", "d/e.py": b"2"})
    (tmp_path / "secret").write_text("s")
    os.symlink(tmp_path / "secret", tmp_path / "p" / "outer")
    os.symlink("a.py", tmp_path / "p" / "inner")
    source = Source(kind="folder", name="p", location=str(tmp_path / "p"))
    files = source_files(source)
    assert files == {"a.py": b"1", "d/e.py": b"2", "inner": b"1"}
    assert source_files(msgspec.structs.replace(source, digest=digest_files(files))) == files
    with pytest.raises(InstanceError, match="is no directory"):
        source_files(Source(kind="folder", name="p", location=str(tmp_path / "gone")))


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_commit_is_read_from_a_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORKGYM_SWE_CACHE", str(tmp_path))
    place = write_tree(tmp_path / "mirrors" / "we__box", {"a.py": b"1\n"})
    commit = make_commit(place)
    (place / "a.py").write_text("later\n")
    assert source_files(Source(kind="git", name="we/box", version=commit)) == {"a.py": b"1\n"}
    with pytest.raises(InstanceError, match="git cannot give commit"):
        source_files(Source(kind="git", name="we/box", version="0" * 40))
    for version, words in (("--output=x", "is no commit"), ("", "is no commit")):
        with pytest.raises(InstanceError, match=words):
            source_files(Source(kind="git", name="we/box", version=version))
    with pytest.raises(InstanceError, match="no git repository of we/other"):
        source_files(Source(kind="git", name="we/other", version=commit))


def make_commit(place: Path) -> str:
    git = ["git", "-C", str(place), "-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "x"], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


def test_missing_requirements_are_named_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORKGYM_SWE_CACHE", str(tmp_path))
    assert site_directory(()) is None
    with pytest.raises(InstanceError, match=r"the tests need six, which are not in .*pip install --target"):
        site_directory(["six"])
    place = site_directory(["six"], create=True)
    assert place is not None
    assert place == site_directory(["six", "six"], create=True)


def test_requirements_that_bring_the_answer_are_refused(
    task: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORKGYM_SWE_CACHE", str(tmp_path))
    place = site_directory(["six"], create=True)
    assert place is not None
    write_tree(Path(place), {"six.py": b"", "six-1.dist-info/METADATA": b"", "deep/x.py": b""})
    found = prepare(msgspec.structs.replace(task, requires=("six",)))
    assert found.protection.modules == {"six", "deep"}
    assert found.protection.covers("src/six/__init__.py", new=True)
    place = site_directory(["other"], create=True)
    assert place is not None
    write_tree(Path(place), {"box/heap.py": b"answer"})
    with pytest.raises(InstanceError, match="bring box, which the task is about"):
        prepare(msgspec.structs.replace(task, requires=("other",)))


# ---------------------------------------------------------------------- hiding

SUITE = b'''"""Tests."""
import pytest

@pytest.fixture
def box():
    return 1

@pytest.mark.parametrize(
    "x", [1, 2]
)
def test_gone(x):
    assert x

class TestKept:
    def test_a(self):
        assert 1

    def test_b(self):
        assert 2

class TestGone:
    """Only one."""
    def test_c(self):
        assert 3

async def test_d(): pass
'''


def test_hidden_tests_are_cut_out_whole() -> None:
    ids = ["t.py::test_gone[1]", "t.py::TestKept::test_b", "t.py::TestGone::test_c", "t.py::test_d"]
    text = hide_tests({"t.py": SUITE, "u.py": b""}, ids)["t.py"].decode()
    for gone in ("parametrize", "test_gone", "test_b", "TestGone", "Only one", "test_d"):
        assert gone not in text
    for kept in ("def box", "class TestKept", "def test_a", '"""Tests."""'):
        assert kept in text
    compile(text, "t.py", "exec")


@pytest.mark.parametrize(
    ("id", "words"),
    [
        ("t.py", "names a file but no test"),
        ("gone.py::test_x", "not in the repository"),
        ("t.py::test_none", "not in the repository: t.py::test_none"),
        ("broken.py::test_x", "cannot be read"),
    ],
)
def test_a_hidden_test_that_is_not_there_is_an_error(id: str, words: str) -> None:
    with pytest.raises(InstanceError, match=words):
        hide_tests({"t.py": SUITE, "broken.py": b"def"}, [id])


# ---------------------------------------------------------------------- preparing


def test_a_prepared_task_knows_the_tests_and_is_shared(task: Instance, prepared: Prepared) -> None:
    assert prepare(msgspec.structs.replace(task, hints="other words")) is prepared
    assert sorted(prepared.tests) == ["pyproject.toml", "tests/test_heap.py", "tests/test_other.py"]
    assert prepared.changed == ("tests/test_heap.py",)
    assert prepare(task, hide_tests=False).changed == ()


def test_a_test_patch_is_what_the_verdict_adds(task: Instance, prepared: Prepared) -> None:
    patch = "--- /dev/null\n+++ b/tests/test_new.py\n@@ -0,0 +1,2 @@\n+def test_new():\n+    assert True\n"
    patch += "--- a/tests/test_other.py\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-def test_nothing():\n-    assert True\n"
    found = prepare(msgspec.structs.replace(task, test_patch=patch))
    assert found.image.id == prepared.image.id
    assert found.changed == ("tests/test_heap.py", "tests/test_new.py")
    assert found.missing == ("tests/test_other.py",)


def test_a_patch_that_does_not_fit_the_source_is_named(task: Instance) -> None:
    with pytest.raises(InstanceError, match="does not fit"):
        prepare(msgspec.structs.replace(task, bug_patch=task.patch))


@pytest.mark.parametrize(
    ("path", "new", "protected"),
    [
        ("tests/data/x.json", False, True),
        ("pkg/test/x.py", False, True),
        ("pkg/test_x.py", False, True),
        ("pkg/x_test.py", False, True),
        ("deep/conftest.py", True, True),
        ("tox.ini", True, True),
        ("a/b.pth", True, True),
        ("src/sitecustomize.py", True, True),
        ("pkg/__pycache__/x.pyc", True, True),
        ("json.py", True, True),
        ("src/_pytest/x.py", True, True),
        ("src/pluggy.py", True, True),
        ("checks/case.py", False, True),
        ("spec.py", False, True),
        ("json.py", False, False),
        ("src/pkg/json.py", True, False),
        ("pkg/tests.py", False, False),
        ("pkg/testing.py", False, False),
        ("src/pkg/latest.py", False, False),
        ("tests/gold.py", False, False),
        ("docs/random/x.txt", True, False),
    ],
)
def test_what_belongs_to_the_harness(path: str, new: bool, protected: bool) -> None:
    rules = Protection(
        exempt=frozenset({"tests/gold.py"}), named=frozenset({"spec.py"}), folders=("checks",), roots=("src",)
    )
    assert rules.covers(path, new=new) is protected


def test_only_the_part_that_speaks_to_pytest_counts() -> None:
    sound = project_files()["pyproject.toml"]
    assert harness_part("pyproject.toml", sound) == harness_part("pyproject.toml", sound + b"\n[tool.x]\na = 1\n")
    assert harness_part("pyproject.toml", sound) != harness_part("pyproject.toml", sound.replace(b"addopts", b"other"))
    assert harness_part("setup.cfg", b"[metadata]\nname=x\n") == harness_part("setup.cfg", b"")
    assert harness_part("setup.cfg", b"[tool:pytest]\naddopts=-x\n") != harness_part("setup.cfg", b"")
    assert harness_part("tox.ini", b"[broken") == b"[broken"


def test_ids_of_the_task_are_those_of_the_tests() -> None:
    assert FIRST.split("::")[0] in project_files()
