"""Which paths of a tree belong to the harness and not to the agent. Pure rules; ``verdict`` carries them out."""

from __future__ import annotations

import configparser
import fnmatch
import sys
import tomllib
from collections.abc import Iterable

import msgspec

__all__ = ["Protection", "harness_part"]

TEST_FILES = ("test_*.py", "*_test.py", "conftest.py")
TEST_FOLDERS = frozenset({"tests", "test"})
CONFIGURATION = frozenset(
    {"pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg", "pyproject.toml"}
)
START_UP = frozenset({"sitecustomize.py", "usercustomize.py", "pyvenv.cfg"})
RUNNER_MODULES = frozenset({"pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py"})
_TABLES = {"setup.cfg": "tool:pytest", "tox.ini": "pytest"}


class Protection(msgspec.Struct, frozen=True):
    """What the verdict takes from the task, whatever the agent did to it.

    Protected are: test files and folders, ``conftest.py``, files that configure pytest, files that Python runs at its
    start (``sitecustomize.py``, ``usercustomize.py``, ``*.pth``), byte code, new modules at the top of an import path
    that would stand in for the standard library's, pytest's or a requirement's, and what the task names besides. What
    the gold patch changes is never protected.

    Attributes:
        exempt: Paths of the gold patch.
        named: Files of the task's tests and of its test patch.
        folders: Where the task's tests lie.
        roots: Import paths of the tree besides its top.
        modules: Modules of the tests' requirements; nothing new may stand in for them.
    """

    exempt: frozenset[str] = frozenset()
    named: frozenset[str] = frozenset()
    folders: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    modules: frozenset[str] = frozenset()

    def covers(self, path: str, *, new: bool = False) -> bool:
        """Whether a path is the harness's.

        Args:
            path: In the tree.
            new: The task's tree has no such file.
        """
        return self.reason(path, new=new) != ""

    def reason(self, path: str, *, new: bool = False) -> str:
        """Why a path is protected; "" if it is not."""
        if path in self.exempt:
            return ""
        *folders, name = path.split("/")
        if name in CONFIGURATION:
            return "configuration"
        if name == "conftest.py":
            return "conftest"
        if name in START_UP or name.endswith(".pth"):
            return "run at Python's start"
        if name.endswith((".pyc", ".pyo")) or "__pycache__" in folders:
            return "byte code"
        if path in self.named or any(_is_below(path, folder) for folder in self.folders):
            return "tests"
        if TEST_FOLDERS.intersection(folders) or any(fnmatch.fnmatchcase(name, pattern) for pattern in TEST_FILES):
            return "tests"
        return "stands in for a module of the harness" if new and self._shadows(path) else ""

    def _shadows(self, path: str) -> bool:
        for root in ("", *self.roots):
            inside = path if root in ("", ".") else path.removeprefix(f"{root}/") if _is_below(path, root) else None
            if inside is None:
                continue
            top = inside.split("/", 1)[0].split(".", 1)[0]
            importable = "/" in inside or inside.endswith((".py", ".so"))
            if importable and (top in RUNNER_MODULES or top in sys.stdlib_module_names or top in self.modules):
                return True
        return False


def _is_below(path: str, folder: str) -> bool:
    plain = folder.strip("/")
    return plain not in ("", ".") and (path == plain or path.startswith(f"{plain}/"))


def harness_part(name: str, content: bytes | None) -> object:
    """What of a configuration file speaks to pytest, for comparison; other tools' parts are the agent's affair.

    Args:
        name: Of the file, without folders.
        content: None if there is no file.
    """
    if content is None:
        return None
    try:
        text = content.decode()
        if name == "pyproject.toml":
            table = tomllib.loads(text).get("tool", {}).get("pytest")
            return None if table is None else msgspec.json.encode(table, order="sorted", enc_hook=str)
        if name in _TABLES:
            parser = configparser.RawConfigParser(strict=False)
            parser.read_string(text)
            section = _TABLES[name]
            return sorted(parser.items(section)) if parser.has_section(section) else None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, configparser.Error):
        # A file that cannot be read stops pytest, so every change of it counts.
        return content
    return content


def folders_of(paths: Iterable[str]) -> tuple[str, ...]:
    """Test paths that are folders, not single files."""
    return tuple(sorted({path.strip("/") for path in paths if not path.endswith(".py")}))
