"""A console that writes into strings, and a small configuration that passes every check but the one under test."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from forkgym.cli import main
from forkgym.console import Console


@dataclass
class Outcome:
    """What one call of the command left behind."""

    code: int
    out: str
    err: str

    @property
    def last_json(self) -> Any:
        return json.loads(self.out.strip().splitlines()[-1])


@dataclass
class Caller:
    """Calls the command in this process."""

    directory: Path
    outcomes: list[Outcome] = field(default_factory=list)

    def __call__(self, *arguments: object) -> Outcome:
        output, errors = io.StringIO(), io.StringIO()
        code = main([str(argument) for argument in arguments], console=Console(output, errors))
        self.outcomes.append(Outcome(code, output.getvalue(), errors.getvalue()))
        return self.outcomes[-1]


@pytest.fixture
def forkgym_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Caller:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORKGYM_DEBUG", raising=False)
    monkeypatch.delenv("FORKGYM_DATA", raising=False)
    return Caller(tmp_path)


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    """A configuration that is fine, next to a directory that stands for a checkpoint."""
    (tmp_path / "checkpoint").mkdir()
    file = tmp_path / "run.toml"
    file.write_text(
        '[run]\nname = "small"\n'
        '[env]\nid = "toy/Chain-v0"\n'
        '[policy]\ncheckpoint = "checkpoint"\n'
        '[algorithm]\nname = "rloo"\n'
        "[budget]\nupdates = 2\n"
    )
    return file


@pytest.fixture
def listing(tmp_path: Path) -> Callable[[], dict[str, bytes]]:
    """Every file below the working directory with its content: to show that nothing was written."""
    return lambda: {
        str(path.relative_to(tmp_path)): path.read_bytes() if path.is_file() else b"" for path in tmp_path.rglob("*")
    }
