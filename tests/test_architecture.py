"""The import rules of the house: downward only, and light packages stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Package of forkgym -> packages of forkgym it may import. A dotted name allows that module only.
ALLOWED: dict[str, set[str]] = {
    "noise": set(),
    "core": {"noise"},
    "runtime": {"core"},
    "aio": {"core", "runtime"},
    "sandbox": {"core"},
    "testing": {"core", "noise"},
    "policy": {"core", "noise", "runtime"},
    "rollout": {"core", "noise", "policy", "runtime"},
    "credit": {"rollout.trace", "rollout.plan", "noise"},
    "schedule": {"core", "credit", "rollout", "runtime", "noise", "policy.engine"},
    "learn": {"rollout", "policy", "core", "noise"},
    "store": {"rollout", "core"},
    "train": {"core", "noise", "policy", "rollout", "credit", "schedule", "learn", "store", "runtime", "aio"},
}
TOP = {"audit", "report", "cli", "commands", "console", "integrations", "view", "demo"}
PLUGINS = {
    "envs": {"forkgym", "forkgym.core", "forkgym.testing", "forkgym.noise", "forkgym.sandbox"},
    "algos": {"forkgym.credit", "forkgym.rollout", "forkgym.learn.losses"},
}
LIGHT = ["forkgym", "forkgym.core", "forkgym.noise", "forkgym.credit", "forkgym.schedule", "forkgym.store"]
HEAVY = ["torch", "transformers", "numba", "bm25s", "matplotlib", "hypothesis", "rich"]


def imported_modules(path: Path) -> list[tuple[str, int]]:
    """Every absolute module name a file imports, wherever in the file, with its line."""
    found: list[tuple[str, int]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def violation(owner: str, module: str) -> bool:
    """Whether a file of forkgym.``owner`` may not import ``module``."""
    parts = module.split(".")
    if parts[0] in {
        "forkgym_retrieval",
        "forkgym_toy",
        "forkgym_text",
        "forkgym_swe",
        "forkgym_algos",
        "bench",
        "tests",
    }:
        return True
    if parts[0] != "forkgym" or len(parts) == 1 or owner in TOP:
        return False
    package = parts[1]
    if package == owner or (package not in ALLOWED and package not in TOP):
        return False
    return package not in ALLOWED[owner] and ".".join(parts[1:3]) not in ALLOWED[owner]


def test_packages_of_the_framework_import_downward_only() -> None:
    wrong: list[str] = []
    for path in sorted((ROOT / "forkgym").rglob("*.py")):
        relative = path.relative_to(ROOT / "forkgym")
        owner = relative.parts[0].removesuffix(".py")
        if owner in {"__init__", "_version", "__main__"}:
            continue
        assert owner in ALLOWED or owner in TOP, f"{relative} is a new package: say in this test what it may import"
        wrong += [
            f"forkgym/{relative}:{line} imports {module}"
            for module, line in imported_modules(path)
            if violation(owner, module)
        ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("family", sorted(PLUGINS))
def test_plug_ins_use_public_modules_only(family: str) -> None:
    wrong: list[str] = []
    for path in sorted((ROOT / family).rglob("*.py")):
        for module, line in imported_modules(path):
            if module.split(".")[0] != "forkgym":
                continue
            public = any(
                module == name or module.startswith(f"{name}.") for name in PLUGINS[family] if name != "forkgym"
            )
            public = public or (family == "envs" and module.count(".") <= 1)
            # A plug-in's commands are built like the framework's own.
            command = path.name == "commands.py" and module.startswith(("forkgym.cli.command.", "forkgym.console."))
            public = public or command
            private = any(part.startswith("_") for part in module.split("."))
            if not public or private:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_the_rule_itself_catches_an_upward_import() -> None:
    assert violation("core", "forkgym.train.trainer")
    assert violation("credit", "forkgym.rollout.episode.drive")
    assert violation("noise", "forkgym_toy.worlds")
    assert not violation("credit", "forkgym.rollout.trace.Decision")
    assert not violation("train", "forkgym.learn.batch")


@pytest.mark.parametrize("module", LIGHT)
def test_light_packages_import_nothing_heavy(module: str) -> None:
    program = f"import sys, {module}; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "", f"importing {module} loaded {done.stdout.strip()}"
