"""Tables, as TOML gives them, into msgspec structs; every problem is collected, none stops the reading.

Generic: knows the kinds of fields, not what any key of the configuration means. See ``config`` for those.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from forkgym.core.errors import ForkgymError, nearest

__all__ = [
    "ConfigError",
    "TableReader",
    "apply_override",
    "copy_tables",
    "describe_type",
    "nested_struct",
    "read_table",
    "show_value",
]

_Struct = TypeVar("_Struct", bound=msgspec.Struct)
_LARGEST = 2**63 - 1
_LOOSE_NUMBER = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d+)?")


class ConfigError(ForkgymError, ValueError):
    """The configuration is unusable: which keys, what is wrong with each, what would be right.

    Attributes:
        problems: One sentence per problem.
    """

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        if len(self.problems) == 1:
            super().__init__(f"{source}: {self.problems[0]}")
        else:
            listed = "".join(f"\n  - {problem}" for problem in self.problems)
            super().__init__(f"{source}: {len(self.problems)} problems:{listed}")


def read_table(path: str | PathLike[str]) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        ConfigError: The file cannot be read or is not TOML.
    """
    file = Path(path).expanduser()
    try:
        text = file.read_bytes().decode("utf-8")
    except FileNotFoundError:
        siblings = [str(other) for other in file.parent.glob("*.toml")] if file.parent.is_dir() else []
        hint = nearest(str(file), siblings) or " Check the path."
        raise ConfigError(str(file), [f"there is no such file.{hint}"]) from None
    except IsADirectoryError:
        raise ConfigError(str(file), ["this is a directory; name the TOML file inside it."]) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            str(file), [f"byte {error.start + 1} is not UTF-8; a configuration is a UTF-8 text file in TOML."]
        ) from error
    except OSError as error:
        raise ConfigError(str(file), [f"the file cannot be read ({error.strerror}); check its permissions."]) from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            str(file),
            [f"this is not valid TOML: {error}. Text needs quotation marks, sections look like [run]."],
        ) from error


class TableReader:
    """Turns tables into structs and collects what is wrong instead of stopping at the first problem."""

    def __init__(self, overridden: set[str], homes: Mapping[str, str]) -> None:
        """Start without problems.

        Args:
            overridden: Dotted keys that came from the command line.
            homes: Where each known key belongs (key → dotted key), for hints.
        """
        self.problems: list[str] = []
        self._overridden = overridden
        self._homes = homes

    def read(self, struct: type[_Struct], table: Mapping[str, Any], prefix: str) -> _Struct | None:
        """``struct`` from ``table``; ``None`` (and problems) where it cannot be made."""
        fields = {field.encode_name: field for field in msgspec.structs.fields(struct)}
        before = len(self.problems)
        for key in table:
            if key not in fields:
                self._unknown(key, fields, prefix)
        values: dict[str, Any] = {}
        for name, field in fields.items():
            dotted = f"{prefix}{name}"
            if name in table:
                values[name] = self._value(field.type, table[name], dotted)
            elif field.required:
                self._missing(field.type, dotted)
        return struct(**values) if len(self.problems) == before else None

    def free_table(self, prefix: str, table: Mapping[str, Any]) -> None:
        """Check that a table of free keys holds only what JSON holds."""
        for key, value in table.items():
            self._check_plain(value, f"{prefix}.{key}")

    def _value(self, kind: Any, value: Any, dotted: str) -> Any:
        nested = nested_struct(kind)
        if nested is not None:
            if isinstance(value, dict):
                return self.read(nested, value, f"{dotted}.")
            self.problems.append(
                f"{self._called(dotted)} is {show_value(value)}, but it is a section; write it as a table [{dotted}]."
            )
            return None
        known = len(self.problems)
        self._check_plain(value, dotted)
        if len(self.problems) > known:
            return None
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError:
            self.problems.append(f"{self._called(dotted)} is {show_value(value)}, expected {describe_type(kind)}.")
            return None

    def _check_plain(self, value: Any, dotted: str) -> None:
        if isinstance(value, dict):
            self.free_table(dotted, value)
        elif isinstance(value, list):
            for item in value:
                self._check_plain(item, dotted)
        elif isinstance(value, float) and not math.isfinite(value):
            self.problems.append(f"{self._called(dotted)} is {value}, expected a finite number.")
        elif isinstance(value, int) and not -_LARGEST <= value <= _LARGEST:
            self.problems.append(f"{self._called(dotted)} is {value}, expected an integer below 2**63.")
        elif isinstance(value, str) and not _is_unicode(value):
            self.problems.append(f"{self._called(dotted)} is {value!r}, which is not valid UTF-8 text.")
        elif value is not None and not isinstance(value, bool | int | float | str):
            self.problems.append(
                f"{self._called(dotted)} is a {type(value).__name__}, "
                "expected text, a number, true/false, a list or a table."
            )

    def _unknown(self, key: str, fields: Mapping[str, Any], prefix: str) -> None:
        where = f"section [{prefix[:-1]}]" if prefix else "configuration"
        what = "key" if prefix else "section"
        hint = nearest(key, fields) or f" Valid: {', '.join(sorted(fields))}."
        if key in self._homes:
            hint = f" Did you mean {self._homes[key]}?"
        self.problems.append(f"{self._called(prefix + key)} is not a {what} of the {where}.{hint}")

    def _missing(self, kind: Any, dotted: str) -> None:
        nested = nested_struct(kind)
        if nested is None:
            self.problems.append(f"{dotted} is missing, expected {describe_type(kind)}.")
            return
        needed = [field.encode_name for field in msgspec.structs.fields(nested) if field.required]
        with_keys = f" with {' and '.join(f'`{name}`' for name in needed)}" if needed else ""
        self.problems.append(f"{dotted} is missing; add a section [{dotted}]{with_keys}.")

    def _called(self, dotted: str) -> str:
        given = any(dotted == key or dotted.startswith(f"{key}.") for key in self._overridden)
        return f"{dotted} (from --set)" if given else dotted


def apply_override(table: dict[str, Any], override: str, problems: list[str]) -> str | None:
    """Write one ``a.b=c`` into ``table``; returns the dotted key, or ``None`` after noting a problem."""
    key, equals, text = override.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not equals or not all(parts) or len(parts) < 2:
        problems.append(f"--set {override!r} is not of the form section.key=value, e.g. --set run.seed=3.")
        return None
    here = table
    for depth, part in enumerate(parts[:-1], start=1):
        below = here.setdefault(part, {})
        if not isinstance(below, dict):
            problems.append(f"--set {override!r}: {'.'.join(parts[:depth])} is a value, not a section.")
            return None
        here = below
    here[parts[-1]] = _override_value(text.strip())
    return ".".join(parts)


def _override_value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        # TOML wants a digit on both sides of the point; people write .5 and 1. all the same.
        return float(text) if _LOOSE_NUMBER.fullmatch(text) else text
    # A line break in the text could smuggle in further keys: then it was text.
    return parsed["value"] if parsed.keys() == {"value"} else text


def copy_tables(table: Mapping[str, Any]) -> dict[str, Any]:
    """A copy whose tables, at every depth, may be written to."""
    return {key: copy_tables(value) if isinstance(value, Mapping) else value for key, value in table.items()}


def nested_struct(kind: Any) -> type[msgspec.Struct] | None:
    """The struct that a field holds (``LoraConfig`` for ``LoraConfig | None``), if it holds one."""
    info = msgspec.inspect.type_info(kind)
    for option in info.types if isinstance(info, msgspec.inspect.UnionType) else (info,):
        if isinstance(option, msgspec.inspect.StructType):
            return option.cls
    return None


def describe_type(kind: Any) -> str:
    """A type annotation of a configuration field in words, e.g. "an integer of at least 1"."""
    return _describe(msgspec.inspect.type_info(kind))


def show_value(value: Any) -> str:
    """A value as an error shows it: as in the file, shortened to 80 characters."""
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= 80 else f"{text[:77]}…"


def _describe(info: Any) -> str:
    inspect = msgspec.inspect
    match info:
        case inspect.IntType():
            return f"an integer{_range(info)}"
        case inspect.FloatType():
            return f"a number{_range(info)}"
        case inspect.StrType(pattern=str()):
            return "a name (letters, digits, '.', '_', '-'; first a letter or digit)"
        case inspect.StrType():
            return "text that is not empty" if info.min_length else "text"
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType():
            return "one of " + ", ".join(repr(value) for value in sorted(info.values, key=str))
        case inspect.VarTupleType() | inspect.ListType():
            filled = " that is not empty" if info.min_length else ""
            return f"a list{filled}, each item {_describe(info.item_type)}"
        case inspect.TupleType():
            return f"a list of {len(info.item_types)}, each {_describe(info.item_types[0])}"
        case inspect.DictType():
            return "a table"
        case inspect.UnionType():
            options = (option for option in info.types if not isinstance(option, inspect.NoneType))
            return " or ".join(_describe(option) for option in options)
        case inspect.StructType():
            return "a section"
    return "any value"


def _range(info: Any) -> str:
    words = [
        (info.ge, "of at least {}"),
        (info.gt, "greater than {}"),
        (None if info.le == _LARGEST else info.le, "at most {}"),
        (info.lt, "less than {}"),
    ]
    said = [form.format(f"{bound:g}") for bound, form in words if bound is not None]
    return f" {' and '.join(said)}" if said else ""


def _is_unicode(text: str) -> bool:
    # Arguments of a command that are not UTF-8 reach Python as lone surrogates.
    return not any("\ud800" <= character <= "\udfff" for character in text)
