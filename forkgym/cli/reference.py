"""The reference tables of ``docs/cli.md`` and ``docs/configuration.md``, made from the structs and the parsers.

``python -m forkgym.cli.reference docs`` rewrites the marked parts of both files; a test fails when they are stale.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from forkgym.cli import COMMANDS, load_command
from forkgym.train.config import MAY_CHANGE, AlgorithmConfig, TrainConfig
from forkgym.train.tables import describe_type, nested_struct

__all__ = ["command_tables", "configuration_tables", "field_meanings", "refresh"]

_MARKED = re.compile(r"<!-- begin (?P<name>[\w.-]+) -->\n.*?<!-- end (?P=name) -->", re.DOTALL)


def refresh(text: str, tables: dict[str, str]) -> str:
    """A document with its marked parts (``<!-- begin NAME -->`` … ``<!-- end NAME -->``) renewed.

    Raises:
        KeyError: The document marks a part that does not exist, or leaves one out.
    """
    marked = [match["name"] for match in _MARKED.finditer(text)]
    if sorted(marked) != sorted(tables):
        raise KeyError(f"the document marks {sorted(marked)}, but there are {sorted(tables)}")
    return _MARKED.sub(
        lambda match: f"<!-- begin {match['name']} -->\n{tables[match['name']]}<!-- end {match['name']} -->", text
    )


def configuration_tables() -> dict[str, str]:
    """Section → Markdown table of its keys."""
    return dict(_sections(TrainConfig, ""))


def command_tables() -> dict[str, str]:
    """Command → Markdown: what it does and its options."""
    return {name: _command(name) for name in COMMANDS}


def field_meanings(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Field → its line in the ``Attributes:`` part of the struct's docstring."""
    _, _, listed = (inspect.getdoc(struct) or "").partition("Attributes:\n")
    found: dict[str, str] = {}
    name = ""
    for line in listed.splitlines():
        if match := re.match(r"    (\w+): (.*)", line):
            name = match[1]
            found[name] = match[2]
        elif name and line.startswith("        "):
            found[name] += f" {line.strip()}"
    return {name: text.replace("``", "`") for name, text in found.items()}


def _sections(struct: type[msgspec.Struct], prefix: str) -> Iterator[tuple[str, str]]:
    meanings = field_meanings(struct)
    rows = []
    below: list[tuple[str, str]] = []
    for field in msgspec.structs.fields(struct):
        nested = nested_struct(field.type)
        name = f"{prefix}{field.name}"
        if nested is not None:
            below += _sections(nested, f"{name}.")
        elif struct is AlgorithmConfig and field.name == "arguments":
            rows.append(("*other keys*", "any value", "", "Options of the preset (`forkgym algos NAME` lists them)."))
        else:
            mark = " †" if name in MAY_CHANGE else ""
            rows.append((f"`{field.name}`{mark}", describe_type(field.type), _default(field), meanings[field.name]))
    if prefix:
        table = "| key | value | default | meaning |\n| --- | --- | --- | --- |\n"
        yield prefix[:-1], table + "".join(f"| {' | '.join(_cell(cell) for cell in row)} |\n" for row in rows)
    yield from below


def _default(field: Any) -> str:
    if field.required:
        return "required"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if value is None:
        return "none"
    # As it is written in TOML: lists in brackets, text in quotation marks.
    return f"`{msgspec.json.encode(value).decode()}`"


def _command(name: str) -> str:
    command = load_command(name)
    parser = argparse.ArgumentParser(prog=f"forkgym {name}", add_help=False)
    command.configure(parser)
    usage = re.sub(r"\s+", " ", parser.format_usage().removeprefix("usage: ")).strip()
    description = command.description.replace("\n", "  \n")
    rows = "".join(
        f"| {_cell(_names(action))} | {_cell(action.help or '')} |\n"
        for action in parser._actions
        if action.help != argparse.SUPPRESS
    )
    table = f"\n| argument | meaning |\n| --- | --- |\n{rows}" if rows else ""
    return f"```\n{usage}\n```\n\n{description}\n{table}"


def _names(action: argparse.Action) -> str:
    takes = action.metavar if action.metavar is not None else action.dest.upper()
    if action.choices is not None:
        takes = "{" + ",".join(str(choice) for choice in action.choices) + "}"
    if not action.option_strings:
        return f"`{takes if action.metavar else action.dest}`"
    return f"`{', '.join(action.option_strings)}{'' if action.nargs == 0 else f' {takes}'}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(argv: Sequence[str]) -> int:
    """Rewrite the documents in a directory.

    A command or a section that a document lacks is added at its end.

    Args:
        argv: The directory.
    """
    directory = Path(argv[0] if argv else "docs")
    for name, tables in (("cli.md", command_tables()), ("configuration.md", configuration_tables())):
        file = directory / name
        text = file.read_text(encoding="utf-8")
        for missing in tables.keys() - {match["name"] for match in _MARKED.finditer(text)}:
            heading = f"forkgym {missing}" if name == "cli.md" else f"[{missing}]"
            text = f"{text.rstrip()}\n\n## {heading}\n<!-- begin {missing} -->\n<!-- end {missing} -->\n"
        file.write_text(refresh(text, tables), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
