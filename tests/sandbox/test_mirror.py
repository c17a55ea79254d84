"""A frozen package index: what is installed is the same in every fork, and nothing that changed is handed out."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from forkgym.sandbox import Limits, Network, NetworkError, PackageMirror, Sandbox
from forkgym.sandbox.network.mirror import LOCK_NAME, project_name, project_of

Create = Callable[..., Sandbox]
ROOM = Limits(disk=64 << 20, files=20_000, memory=2 << 30, wall_seconds=60)
# A whole build backend in one file, so that an sdist can be built without any package from elsewhere.
BACKEND = """
import base64, hashlib, os, zipfile

INFO = "gamma-3.0.dist-info"

def build_wheel(folder, config_settings=None, metadata_directory=None):
    tags = "Generator: own\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    files = {
        "gamma.py": open("gamma.py").read(),
        f"{INFO}/METADATA": "Metadata-Version: 2.1\\nName: gamma\\nVersion: 3.0\\n",
        f"{INFO}/WHEEL": f"Wheel-Version: 1.0\\n{tags}",
    }
    record = ""
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(text)}\\n"
    files[f"{INFO}/RECORD"] = f"{record}{INFO}/RECORD,,\\n"
    with zipfile.ZipFile(os.path.join(folder, "gamma-3.0-py3-none-any.whl"), "w") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return "gamma-3.0-py3-none-any.whl"
"""


def make_wheel(
    folder: Path, name: str, version: str, *, body: str, needs: str = "", python: str = "", script: bool = False
) -> Path:
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"Requires-Dist: {needs}\n" if needs else ""
    metadata += f"Requires-Python: {python}\n" if python else ""
    files = {
        f"{name}/__init__.py": body,
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if script:
        files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{name} = {name}:main\n"
    record = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text)}\n"
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    target = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return target


def make_sdist(folder: Path) -> Path:
    files = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": BACKEND,
        "gamma.py": "value = 'from source'\n",
        "PKG-INFO": "Metadata-Version: 2.1\nName: gamma\nVersion: 3.0\nRequires-Python: >=3.8\n",
    }
    target = folder / "gamma-3.0.tar.gz"
    with tarfile.open(target, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"gamma-3.0/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return target


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("packages")
    make_wheel(root, "alpha", "1.0", body="value = 'old'\ndef main(): print('alpha runs')\n", script=True)
    make_wheel(
        root, "alpha", "1.1", body="value = 'new'\ndef main(): print('alpha runs')\n", script=True, python=">=3.8"
    )
    make_wheel(root, "alpha", "9.0", body="value = 'for a later Python'\n", python=">=4")
    make_wheel(root, "beta", "2.0", body="import alpha\nvalue = alpha.value\n", needs="alpha>=1.0")
    make_sdist(root)
    PackageMirror.lock(root)
    return root


@pytest.mark.parametrize(
    ("file", "project"),
    [
        ("Foo_Bar-1.0-py3-none-any.whl", "foo-bar"),
        ("foo-1.0-1-cp311-cp311-manylinux_2_17_x86_64.whl", "foo"),
        ("foo.bar-1.0.tar.gz", "foo-bar"),
        ("foo-bar-1.0.zip", "foo-bar"),
    ],
)
def test_a_file_belongs_to_its_project(file: str, project: str) -> None:
    assert project_of(file) == project == project_name(project)


@pytest.mark.parametrize(
    "file", ["foo.whl", "foo-1.0.whl", "foo.tar.gz", "foo-1.0.exe", "foo-<b>-1.0.tar.gz", "-1.0.zip"]
)
def test_other_files_are_no_packages(file: str) -> None:
    with pytest.raises(NetworkError, match="named neither"):
        project_of(file)


def test_the_index_speaks_html_and_json(folder: Path) -> None:
    mirror = PackageMirror(folder)
    assert list(mirror.projects) == ["alpha", "beta", "gamma"]
    root, page = mirror.answer("/simple/").body.decode(), mirror.answer("/simple/Alpha/").body.decode()
    assert '<a href="/simple/beta/">beta</a>' in root
    digest = hashlib.sha256((folder / "alpha-1.1-py3-none-any.whl").read_bytes()).hexdigest()
    assert f'href="/files/alpha-1.1-py3-none-any.whl#sha256={digest}" data-requires-python="&gt;=3.8"' in page
    accept = "application/vnd.pypi.simple.v1+json, text/html;q=0.1"
    answer = mirror.answer("/simple/alpha/", accept)
    assert dict(answer.headers)["Content-Type"] == "application/vnd.pypi.simple.v1+json"
    files = {entry["filename"]: entry for entry in json.loads(answer.body)["files"]}
    assert files["alpha-1.1-py3-none-any.whl"]["hashes"] == {"sha256": digest}
    assert files["alpha-1.1-py3-none-any.whl"]["requires-python"] == ">=3.8"
    assert "requires-python" not in files["alpha-1.0-py3-none-any.whl"]
    assert [entry["name"] for entry in json.loads(mirror.answer("/simple/", accept).body)["projects"]] == list(
        mirror.projects
    )
    assert mirror.answer("/simple/delta/").status == 404
    assert b"alpha, beta, gamma" in mirror.answer("/simple/delta/").body


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/files/",
        f"/files/{LOCK_NAME}",
        "/files/../secret",
        "/files/%2e%2e%2fsecret",
        "/files//etc/passwd",
        "/x/alpha",
    ],
)
def test_nothing_but_the_packages_can_be_fetched(path: str, folder: Path) -> None:
    assert PackageMirror(folder).answer(path).status == 404


def test_a_folder_is_used_only_as_it_was_locked(tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match="not frozen"):
        PackageMirror(tmp_path)
    first = make_wheel(tmp_path, "alpha", "1.0", body="a = 1\n")
    PackageMirror.lock(tmp_path)
    mirror = PackageMirror(tmp_path)
    second = make_wheel(tmp_path, "beta", "1.0", body="b = 1\n")
    with pytest.raises(NetworkError, match=r"not in the lock.*beta-1\.0"):
        PackageMirror(tmp_path)
    second.unlink()
    make_wheel(tmp_path, "alpha", "1.0", body="a = 2\n")
    with pytest.raises(NetworkError, match="has changed: its SHA-256"):
        PackageMirror(tmp_path)
    refused = mirror.answer("/files/alpha-1.0-py3-none-any.whl")
    assert refused.status == 410
    assert b"has changed" in refused.body
    PackageMirror.lock(tmp_path)
    assert PackageMirror(tmp_path).answer("/files/alpha-1.0-py3-none-any.whl").status == 200
    first.unlink()
    with pytest.raises(NetworkError, match="has lost"):
        PackageMirror(tmp_path)


def test_a_lock_of_something_else_is_refused(tmp_path: Path) -> None:
    for text in ("", "[]", '{"version": 2, "files": {}}', '{"version": 1, "files": {"a": {}}}'):
        (tmp_path / LOCK_NAME).write_text(text)
        with pytest.raises(NetworkError, match=r"cannot be used|version"):
            PackageMirror(tmp_path)
    (tmp_path / "broken-1.0-py3-none-any.whl").write_text("no archive")
    with pytest.raises(NetworkError, match="cannot be read as a package"):
        PackageMirror.lock(tmp_path)


def has_pip(sandbox: Sandbox) -> bool:
    return sandbox.run("python3 -m pip --version").ok


def test_two_forks_install_the_same(isolated: Create, folder: Path) -> None:
    with Network(mirror=PackageMirror(folder)) as network:
        parent = isolated(network=network, limits=ROOM, scratch=())
        if not has_pip(parent):
            pytest.skip("this Python has no pip")
        child = parent.fork()
        before = parent.state_hash()
        outputs = [side.run("pip install beta gamma").stdout for side in (parent, child)]
        assert "Successfully installed alpha-1.1 beta-2.0 gamma-3.0" in outputs[0]
        use = "python3 -c 'import beta, gamma; print(beta.value, gamma.value)'; alpha"
        assert [side.run(use).stdout for side in (parent, child)] == ["new from source\nalpha runs\n"] * 2
        # pip builds a source package in a directory with a random name, which it prints; nothing else differs.
        random = re.compile("(?<=/pip-ephem-wheel-cache-)[^/]+")
        assert random.sub("", outputs[0]) == random.sub("", outputs[1])
        assert before != parent.state_hash() == child.state_hash(), "everything is hashed here, /tmp too"
        files = "find /tmp /testbed -type f | sort | xargs sha256sum"
        assert parent.run(files).stdout == child.run(files).stdout, "the hash says nothing that is not so"
        names = [change.path for change in parent.diff()]
        assert any(name.endswith("alpha-1.1.dist-info/RECORD") for name in names)
        assert not any(name.endswith(".pyc") for name in names)


@pytest.mark.slow
def test_another_prefix_and_another_process_path_install_the_same(isolated: Create, folder: Path) -> None:
    """What is installed into the tree is part of its hash, and a version that is named is the one that comes."""
    with Network(mirror=PackageMirror(folder, prefix="/testbed/.packages")) as network:
        sides = [isolated(network=network, limits=ROOM) for _ in range(2)]
        if not has_pip(sides[0]):
            pytest.skip("this Python has no pip")
        for side in sides:
            assert side.run("pip install alpha==1.0").ok
        assert len({side.run("pip install beta").stdout for side in sides}) == 1
        assert sides[0].state_hash() == sides[1].state_hash() != isolated(network=network).state_hash()
        assert sides[0].run("python3 -c 'import alpha; print(alpha.value)'").stdout == "old\n"
        site = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
        assert any(change.path == f".packages/{site}/alpha/__init__.py" for change in sides[0].diff())


@pytest.mark.slow
def test_without_the_pins_two_installations_differ(isolated: Create, folder: Path) -> None:
    """The control: byte code holds times, so an installation with it is another one each time."""
    with Network(mirror=PackageMirror(folder)) as network:
        sides = [isolated(network=network, limits=ROOM, scratch=()) for _ in range(2)]
        if not has_pip(sides[0]):
            pytest.skip("this Python has no pip")
        for number, side in enumerate(sides):
            side.run(f"sleep {1.1 * number}; pip install --compile alpha==1.0", env={"SOURCE_DATE_EPOCH": ""})
        assert sides[0].state_hash() != sides[1].state_hash()


@pytest.mark.slow
def test_a_package_that_is_not_there_is_an_observation(isolated: Create, folder: Path) -> None:
    with Network(mirror=PackageMirror(folder)) as network:
        sandbox = isolated(network=network, limits=ROOM)
        if not has_pip(sandbox):
            pytest.skip("this Python has no pip")
        done = sandbox.run("pip install delta")
        assert not done.ok
        assert not done.timed_out
        assert "No matching distribution found for delta" in done.stderr


@pytest.mark.slow
def test_a_file_that_changes_meanwhile_is_not_installed(isolated: Create, tmp_path: Path) -> None:
    make_wheel(tmp_path, "alpha", "1.0", body="a = 1\n")
    PackageMirror.lock(tmp_path)
    with Network(mirror=PackageMirror(tmp_path)) as network:
        sandbox = isolated(network=network, limits=ROOM)
        if not has_pip(sandbox):
            pytest.skip("this Python has no pip")
        make_wheel(tmp_path, "alpha", "1.0", body="a = 'evil'\n")
        done = sandbox.run("pip install alpha; python3 -c 'import alpha'")
        assert not done.ok
        assert "410" in done.stderr


def test_packages_are_not_put_outside_a_plain_copy(image: object, folder: Path) -> None:
    with Network(mirror=PackageMirror(folder)) as network, pytest.raises(NetworkError, match="prefix=None"):
        Sandbox.create(image, backend="copy", isolation="none", network=network)  # type: ignore[arg-type]
