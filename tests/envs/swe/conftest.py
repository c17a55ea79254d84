"""A small tested project in a folder, tasks on it, and a store of the tests' own."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forkgym_swe.checkout import Prepared, prepare
from forkgym_swe.instance import Instance, Source
from forkgym_swe.patching import make_patch

from forkgym.sandbox import BackendUnavailableError, Sandbox, close_engines, engine_for

PROJECT = {
    "README.md": "# queue\n",
    "pyproject.toml": """
        [project]
        name = "queue-sample"

        [tool.pytest.ini_options]
        addopts = "-n 4 --no-such-option"
        testpaths = ["tests"]
        """,
    "src/box/__init__.py": '''
        """Boxes."""

        from box.heap import Heap

        __all__ = ["Heap"]
        ''',
    "src/box/heap.py": '''
        """A heap."""


        class Heap:
            """Gives the smallest first."""

            def __init__(self):
                self.items = []

            def push(self, item):
                self.items.append(item)
                self.items.sort()

            def pop(self):
                if not self.items:
                    raise IndexError("pop from an empty heap")
                return self.items.pop(0)

            def __len__(self):
                return len(self.items)


        def smallest(items, count=1):
            """The smallest items, in order."""
            return sorted(items)[:count]
        ''',
    "tests/test_heap.py": """
        import pytest

        from box import Heap
        from box.heap import smallest


        class TestHeap:
            def test_smallest_first(self):
                heap = Heap()
                for item in (3, 1, 2):
                    heap.push(item)
                assert heap.pop() == 1

            def test_length(self):
                heap = Heap()
                heap.push(1)
                assert len(heap) == 1


        def test_empty():
            with pytest.raises(IndexError):
                Heap().pop()


        @pytest.mark.parametrize(("count", "wanted"), [(1, [1]), (2, [1, 2])])
        def test_smallest(count, wanted):
            assert smallest([3, 1, 2], count) == wanted
        """,
    "tests/test_other.py": """
        def test_nothing():
            assert True
        """,
}
BUG = ("self.items.pop(0)", "self.items.pop()")
FIRST = "tests/test_heap.py::TestHeap::test_smallest_first"
PASSING = (
    "tests/test_heap.py::TestHeap::test_length",
    "tests/test_heap.py::test_empty",
    "tests/test_heap.py::test_smallest[1-wanted0]",
    "tests/test_heap.py::test_smallest[2-wanted1]",
    "tests/test_other.py::test_nothing",
)


def project_files() -> dict[str, bytes]:
    """The project, sound."""
    return {path: textwrap.dedent(text).lstrip("\n").encode() for path, text in PROJECT.items()}


def broken_project() -> dict[str, bytes]:
    """The project with a heap that gives the largest first."""
    files = project_files()
    heap = files["src/box/heap.py"]
    return files | {"src/box/heap.py": heap.replace(BUG[0].encode(), BUG[1].encode())}


def write_tree(folder: Path, files: dict[str, bytes]) -> Path:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


@pytest.fixture(scope="session", autouse=True)
def _own_stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setenv("FORKGYM_SANDBOX_STORE", str(tmp_path_factory.mktemp("store")))
    yield
    close_engines()
    patch.undo()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sound project."""
    return write_tree(tmp_path_factory.mktemp("project"), project_files())


@pytest.fixture(scope="session")
def task(folder: Path) -> Instance:
    """The bug as a task; the failing test is hidden."""
    sound, broken = project_files(), broken_project()
    return Instance(
        id="box-1",
        repository="box",
        source=Source(kind="folder", name="box", location=str(folder)),
        bug_patch=make_patch(sound, broken),
        patch=make_patch(broken, sound),
        hidden_tests=(FIRST,),
        fail_to_pass=(FIRST,),
        pass_to_pass=PASSING,
        problem_statement="A heap gives the largest item first.",
        python_path=("src",),
        test_paths=("tests",),
    )


@pytest.fixture(scope="session")
def prepared(task: Instance) -> Prepared:
    try:
        engine_for()
    except BackendUnavailableError as error:
        pytest.skip(str(error))
    return prepare(task)


@pytest.fixture
def sandbox(prepared: Prepared) -> Iterator[Sandbox]:
    with prepared.open() as found:
        yield found


@pytest.fixture
def edit(sandbox: Sandbox) -> Callable[[str, str, str], Any]:
    """Replaces a text of a file of the sandbox."""

    def change(path: str, old: str, new: str) -> None:
        text = sandbox.read(path).decode()
        assert old in text
        sandbox.write(path, text.replace(old, new))

    return change
