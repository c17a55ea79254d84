"""Reference tables are those of the code: after a change run ``python -m forkgym.cli.reference docs``."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path

import pytest

from forkgym.cli import COMMANDS
from forkgym.cli.command import Command
from forkgym.cli.reference import command_tables, configuration_tables, field_meanings, main, refresh
from forkgym.train.config import OptimiserConfig, TrainConfig, parse_config

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_configurations_reference_is_in_step_with_the_structs() -> None:
    text = (DOCS / "configuration.md").read_text(encoding="utf-8")
    assert refresh(text, configuration_tables()) == text


def test_the_commands_reference_is_in_step_with_the_parsers() -> None:
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert refresh(text, command_tables()) == text


def test_every_section_and_key_is_documented() -> None:
    tables = configuration_tables()
    sections = [name.partition(".")[0] for name in tables]
    assert list(dict.fromkeys(sections)) == list(TrainConfig.__struct_fields__)
    assert all(f"| `{key}` |" in tables["optimiser"] for key in OptimiserConfig.__struct_fields__ if key != "lora")


def test_meanings_come_from_the_docstrings_joined_over_lines() -> None:
    meanings = field_meanings(OptimiserConfig)
    assert meanings["gradient_clip"] == "Largest global gradient norm; 0 does not clip."
    assert set(meanings) == set(OptimiserConfig.__struct_fields__)


def test_the_example_in_the_document_is_a_valid_configuration() -> None:
    text = (DOCS / "configuration.md").read_text(encoding="utf-8")
    block = re.search(r"```toml\n(.*?)```", text, re.DOTALL)
    assert block is not None
    assert parse_config(tomllib.loads(block[1])).algorithm.name == "twice"


def test_the_example_of_a_plug_in_makes_a_command() -> None:
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    block = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert block is not None
    namespace: dict[str, object] = {}
    exec(block[1], namespace)
    assert isinstance(namespace["MAKE_TASKS"], Command)


def test_stale_documents_are_rewritten_and_missing_parts_added(tmp_path: Path) -> None:
    for name in ("cli.md", "configuration.md"):
        shutil.copy(DOCS / name, tmp_path / name)
    file = tmp_path / "cli.md"
    whole = file.read_text()
    file.write_text(whole.replace("list the environments", "stale").partition("## forkgym bench")[0])
    with pytest.raises(KeyError, match="bench"):
        refresh(file.read_text(), command_tables())
    assert main([str(tmp_path)]) == 0
    assert all(f"<!-- begin {name} -->" in file.read_text() for name in COMMANDS)
    assert (tmp_path / "configuration.md").read_text() == (DOCS / "configuration.md").read_text()
