"""From a task to the agent's tree and to what the verdict puts back. Where sources are read stands in ``sources``."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from forkgym.sandbox import Image, Limits, Sandbox, image_store
from forkgym.sandbox import prepare as make_image
from forkgym_swe.harness import Harness, cache_root, harness, shown
from forkgym_swe.hiding import hide_tests
from forkgym_swe.instance import Instance, InstanceError
from forkgym_swe.patching import apply_patch, make_patch, patched_paths
from forkgym_swe.protection import Protection, folders_of
from forkgym_swe.sources import digest_files, source_files

__all__ = [
    "Prepared",
    "apply_patch",
    "broken_files",
    "digest_files",
    "hide_tests",
    "make_image_of",
    "make_patch",
    "open_sandbox",
    "prepare",
    "site_directory",
    "source_files",
]

_KEPT = 512
_cache: OrderedDict[tuple[str, bool, str, int], Prepared] = OrderedDict()
_lock = threading.Lock()


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A task, ready for episodes; shared by all that have the same task.

    Attributes:
        image: The agent's tree.
        tests: Path → content of every protected file at the verdict.
        missing: Protected files of the agent's tree that the verdict's tree lacks.
        changed: Paths of `tests` whose content in the agent's tree is another, or that it lacks.
        protection: Which paths the verdict takes from the task.
        python_path: Import paths of the tree, as the task gives them.
        site: Directory with the requirements of the tests, or None.
    """

    image: Image
    tests: dict[str, bytes]
    missing: tuple[str, ...]
    changed: tuple[str, ...]
    protection: Protection
    python_path: tuple[str, ...]
    site: str | None

    def open(self, *, limits: Limits | None = None) -> Sandbox:
        """A sandbox on the agent's tree that shows the harness and the requirements; see `open_sandbox`."""
        return open_sandbox(self.image, site=self.site, limits=limits)

    def environment(self) -> dict[str, str]:
        """Variables for an agent's commands; see `Harness.environment`."""
        return harness().environment(self.python_path, self.site)


def open_sandbox(image: Image, *, site: str | None = None, limits: Limits | None = None) -> Sandbox:
    """A sandbox that shows the harness and a directory of requirements read-only, and nothing of this environment.

    Args:
        image: The tree.
        site: What `site_directory` gave.
        limits: By default a sandbox's own.
    """
    tools: Harness = harness()
    return Sandbox.create(image, limits=limits, visible=(*tools.visible, *([site] if site else [])))


def site_directory(requires: Sequence[str], *, create: bool = False) -> str | None:
    """Where the installed requirements of some tests lie; None if there are none.

    The directory is named by the requirements and the version of Python, so projects that need the same share it.

    Args:
        requires: In pip's notation.
        create: Give the place even if nothing is there yet, for somebody who installs them
            (``pip install --target``).

    Raises:
        InstanceError: They were not installed.
    """
    if not requires:
        return None
    wanted = sorted(set(requires))
    text = "\0".join([f"{sys.version_info[0]}.{sys.version_info[1]}", *wanted])
    path = cache_root() / "site" / hashlib.sha256(text.encode()).hexdigest()[:16]
    if create:
        return str(path)
    if not path.is_dir():
        raise InstanceError(
            f"the tests need {', '.join(wanted)}, which are not in {path}; install them with "
            f"`pip install --target {path} {' '.join(wanted)}`"
        )
    return str(shown(path))


def broken_files(instance: Instance) -> dict[str, bytes]:
    """The broken tree of a task, all tests included but those of its test patch.

    Raises:
        InstanceError: The source is not there, or the patch does not fit.
    """
    return apply_patch(source_files(instance.source), instance.bug_patch)


def make_image_of(files: Mapping[str, bytes]) -> Image:
    """A base image of a tree in memory. Files that begin with ``#!`` are executable.

    Raises:
        InstanceError: A path is a file and a directory at once.
    """
    with image_store().workplace() as place:
        folder = place / "tree"
        folder.mkdir()
        for path, content in files.items():
            target = folder / path
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            except (NotADirectoryError, FileExistsError, IsADirectoryError) as error:
                raise InstanceError(f"{path} is a file and a directory of the same tree") from error
            target.chmod(0o755 if content.startswith(b"#!") else 0o644)
        return make_image(str(folder))


def prepare(instance: Instance, *, hide_tests: bool = True) -> Prepared:
    """Make a task ready: the agent's image, and what the verdict puts back. Cached by content.

    Args:
        instance: The task.
        hide_tests: Take the task's hidden tests out of the agent's tree.

    Raises:
        InstanceError: The source is not there, a patch does not fit, or requirements are not installed.
    """
    # What is only for people does not make another tree.
    plain = msgspec.structs.replace(instance, problem_statement="", hints="", provenance={}, difficulty=None)
    mark = hashlib.sha256(msgspec.json.encode(plain)).hexdigest()
    key = (mark, hide_tests, str(image_store().root), os.getpid())
    with _lock:
        if key in _cache:
            _cache.move_to_end(key)
            return _cache[key]
    made = _prepare(instance, hide=hide_tests)
    with _lock:
        _cache[key] = made
        while len(_cache) > _KEPT:
            _cache.popitem(last=False)
    return made


def _prepare(instance: Instance, *, hide: bool) -> Prepared:
    site = site_directory(instance.requires)
    broken = broken_files(instance)
    complete = apply_patch(broken, instance.test_patch)
    visible = hide_tests(broken, instance.hidden_tests) if hide else complete
    modules = _modules(site)
    _check_leak(instance, modules)
    protection = _protection(instance, modules)
    tests = {path: content for path, content in complete.items() if protection.covers(path)}
    return Prepared(
        image=make_image_of(visible),
        tests=tests,
        missing=tuple(sorted(path for path in visible if path not in complete)),
        changed=tuple(sorted(path for path, content in tests.items() if visible.get(path) != content)),
        protection=protection,
        python_path=instance.python_path,
        site=site,
    )


def _modules(site: str | None) -> frozenset[str]:
    """What can be imported from the requirements, by name."""
    if site is None:
        return frozenset()
    names = (entry.name for entry in Path(site).iterdir() if entry.is_dir() or entry.suffix in (".py", ".so"))
    return frozenset(name.split(".", 1)[0] for name in names if not name.endswith((".dist-info", "__pycache__")))


def _check_leak(instance: Instance, modules: frozenset[str]) -> None:
    """The requirements must not bring the answer: a released version of the project itself."""
    roots = [root.strip("/") for root in instance.python_path if root.strip("/.")]
    for path in patched_paths(instance.patch):
        root = next((root for root in roots if path.startswith(f"{root}/")), "")
        top = path.removeprefix(f"{root}/").split("/", 1)[0].removesuffix(".py")
        if path.endswith(".py") and top in modules:
            raise InstanceError(f"the requirements of task {instance.id} bring {top}, which the task is about")


def _protection(instance: Instance, modules: frozenset[str]) -> Protection:
    named = {id.split("::", 1)[0] for id in (*instance.fail_to_pass, *instance.pass_to_pass)}
    named |= set(patched_paths(instance.test_patch))
    return Protection(
        exempt=frozenset(patched_paths(instance.patch)),
        named=frozenset(named),
        folders=folders_of(instance.test_paths),
        roots=tuple(path.strip("/") for path in instance.python_path),
        modules=modules,
    )
