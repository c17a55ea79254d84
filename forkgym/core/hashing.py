"""The canonical form of a state: one byte string per value, the same in every process, and copies of states.

Knows nothing of environments. The portable (JSON) form of actions lives in `portable.py`.

Encoding: a type tag, then lengths and contents, so that no two different values share a form (it is prefix-free).
Integers are decimal, so they may have any size. Floats are their IEEE-754 bits; `-0.0` differs from `0.0` (their
futures can differ), every NaN is the same NaN. Mappings and sets are sorted by the encoding of their keys. Arrays
carry dtype and shape and are written little-endian in C order.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import hashlib
import random
import struct
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from forkgym.core.errors import StateError

__all__ = ["CHAIN_BYTES", "canonical", "chain_link", "copy_state", "digest", "generator_state"]

CHAIN_BYTES = 16
"""Bytes of one link of a hash chain: 2^-128 is small enough against accidents, and a handle stays small."""

_NAN = struct.pack("<d", float("nan"))
_MAX_DEPTH = 200


def digest(value: object) -> str:
    """BLAKE2b-256 of the canonical form of `value`, as 64 hexadecimal digits.

    Raises:
        StateError: `value` holds something without a canonical form.
    """
    return hashlib.blake2b(canonical(value), digest_size=32).hexdigest()


def chain_link(previous: bytes, value: object, what: str = "value") -> bytes:
    """The next link (16 bytes) of a hash chain: BLAKE2b-128 of the previous link and the canonical `value`.

    Args:
        previous: The link before.
        value: What is added.
        what: How an error calls it.
    """
    return hashlib.blake2b(previous + canonical(value, what), digest_size=CHAIN_BYTES).digest()


def canonical(value: object, what: str = "state") -> bytes:
    """The canonical byte form of a state.

    Args:
        value: The state.
        what: How an error calls it.

    Takes None, bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, enum members, numpy
    arrays, scalars and generators, `random.Random`, msgspec structs and dataclasses, nested up to 200 deep.

    Raises:
        StateError: Names the path to the first value that has no canonical form.
    """
    out = bytearray()
    _encode(value, out, what, 0)
    return bytes(out)


def generator_state(generator: np.random.Generator) -> dict[str, Any]:
    """The complete state of a numpy generator as plain data (a copy)."""
    state: dict[str, Any] = generator.bit_generator.state  # type: ignore[assignment]
    return state


def _sized(tag: bytes, content: bytes, out: bytearray) -> None:
    out += tag
    out += struct.pack("<Q", len(content))
    out += content


def _encode(value: object, out: bytearray, path: str, depth: int) -> None:
    """Append the form of `value`; the frequent exact types first, since this runs at every turn."""
    kind = type(value)
    if kind is str:
        _sized(b"s", value.encode("utf-8", "surrogatepass"), out)  # type: ignore[attr-defined]
    elif kind is int:
        _sized(b"i", b"%d" % value, out)  # type: ignore[str-format]
    elif value is None:
        out += b"N"
    elif kind is bool:
        out += b"T" if value else b"F"
    elif kind is float:
        out += b"f"
        out += _NAN if value != value else struct.pack("<d", value)
    elif kind is bytes or kind is bytearray:
        _sized(b"b", bytes(value), out)  # type: ignore[call-overload]
    elif depth > _MAX_DEPTH:
        raise StateError(
            f"{path[:200]} is nested more than {_MAX_DEPTH} deep, or refers to itself. A state is a tree of plain "
            "values: replace the reference by an index or a name."
        )
    elif kind is list or kind is tuple:
        _encode_sequence(b"l" if kind is list else b"t", value, out, path, depth)
    elif kind is dict:
        _encode_mapping(b"d", value, out, path, depth)  # type: ignore[arg-type]
    else:
        _encode_other(value, out, path, depth)


def _encode_sequence(tag: bytes, values: Any, out: bytearray, path: str, depth: int) -> None:
    out += tag
    out += struct.pack("<Q", len(values))
    for index, item in enumerate(values):
        _encode(item, out, f"{path}[{index}]" if depth < 8 else path, depth + 1)


def _encode_mapping(tag: bytes, mapping: Mapping[Any, Any], out: bytearray, path: str, depth: int) -> None:
    pairs = []
    for key, item in mapping.items():
        encoded = bytearray()
        _encode(key, encoded, f"a key of {path}", depth + 1)
        pairs.append((bytes(encoded), key, item))
    pairs.sort(key=lambda pair: pair[0])
    out += tag
    out += struct.pack("<Q", len(pairs))
    for encoded_key, key, item in pairs:
        out += encoded_key
        _encode(item, out, f"{path}[{key!r}]" if depth < 8 else path, depth + 1)


def _encode_other(value: object, out: bytearray, path: str, depth: int) -> None:
    """The rarer types: numpy, sets, structs, dataclasses, enums, generators, and subclasses of the plain ones."""
    if isinstance(value, np.ndarray | np.generic):
        _encode_array(np.asarray(value), b"g" if isinstance(value, np.generic) else b"a", out, path, depth)
    elif isinstance(value, set | frozenset):
        members = []
        for member in value:
            encoded = bytearray()
            _encode(member, encoded, f"a member of {path}", depth + 1)
            members.append(bytes(encoded))
        _sized(b"S", b"".join(sorted(members)), out)
    elif isinstance(value, enum.Enum):
        out += b"e"
        _encode((type(value).__qualname__, value.name), out, path, depth + 1)
    elif isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        _sized(b"m", type(value).__qualname__.encode(), out)
        _encode_mapping(b"d", fields, out, path, depth)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        _sized(b"c", type(value).__qualname__.encode(), out)
        _encode_mapping(b"d", fields, out, path, depth)
    elif isinstance(value, np.random.Generator):
        out += b"G"
        _encode(generator_state(value), out, path, depth + 1)
    elif isinstance(value, random.Random):
        out += b"R"
        _encode(value.getstate(), out, path, depth + 1)
    elif isinstance(value, complex):
        out += b"z"
        _encode((value.real, value.imag), out, path, depth + 1)
    elif isinstance(value, Mapping):
        _sized(b"M", type(value).__qualname__.encode(), out)
        _encode_mapping(b"d", value, out, path, depth)
    elif isinstance(value, list | tuple):
        _sized(b"L", type(value).__qualname__.encode(), out)
        _encode_sequence(b"l", value, out, path, depth)
    elif isinstance(value, int | float | str):
        _sized(b"P", type(value).__qualname__.encode(), out)
        plain = int if isinstance(value, int) else float if isinstance(value, float) else str
        _encode(plain(value), out, path, depth + 1)
    else:
        raise StateError(
            f"{path} is a {type(value).__module__}.{type(value).__qualname__}, which has no canonical form. A state "
            "may hold plain values (None, bool, int, float, str, bytes), containers of them, numpy arrays and "
            "generators, msgspec structs and dataclasses: return such a description of it instead."
        )


def _encode_array(array: np.ndarray[Any, Any], tag: bytes, out: bytearray, path: str, depth: int) -> None:
    if array.dtype.hasobject:
        out += b"o"
        _encode(array.shape, out, path, depth + 1)
        _encode_sequence(b"l", array.ravel().tolist(), out, path, depth)
        return
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    if little.dtype.kind in "fc" and np.isnan(little).any():
        little = np.where(np.isnan(little), np.array(np.nan, dtype=little.dtype), little)
    out += tag
    _encode((little.dtype.str, array.shape), out, path, depth + 1)
    _sized(b"", little.tobytes(order="C"), out)


def copy_state(value: Any) -> Any:
    """An independent copy of a state: no list, array or generator of the copy is shared with the original.

    Does not use `copy.deepcopy` on plain values and structs, so a class cannot interfere (EzPickle's hooks
    re-create an object from its constructor and drop its state without a word).

    Raises:
        StateError: The state holds an object of a type that `canonical` does not take either.
    """
    kind = type(value)
    if value is None or kind in (bool, int, float, str, bytes, complex):
        return value
    if kind is dict:
        return {copy_state(key): copy_state(item) for key, item in value.items()}
    if kind is list:
        return [copy_state(item) for item in value]
    if kind is tuple:
        return tuple([copy_state(item) for item in value])
    if isinstance(value, np.ndarray):
        return value.copy() if not value.dtype.hasobject else _copy_object_array(value)
    if isinstance(value, np.generic | enum.Enum):
        return value
    return _copy_other(value)


def _copy_object_array(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    fresh = np.empty_like(array)
    for index in np.ndindex(array.shape):
        fresh[index] = copy_state(array[index])
    return fresh


def _copy_other(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return type(value)(copy_state(item) for item in value)
    if isinstance(value, bytearray):
        return bytearray(value)
    if isinstance(value, msgspec.Struct):
        fields = {name: copy_state(getattr(value, name)) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **fields)
    if isinstance(value, np.random.Generator):
        bits = type(value.bit_generator)()
        bits.state = generator_state(value)
        return np.random.Generator(bits)
    if isinstance(value, random.Random):
        fresh = type(value)()
        fresh.setstate(value.getstate())
        return fresh
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fresh_object = object.__new__(type(value))
        for name, item in vars(value).items():
            object.__setattr__(fresh_object, name, copy_state(item))
        return fresh_object
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[copy_state(item) for item in value])
    if isinstance(value, dict | list):
        fresh_container = copy.copy(value)  # value.copy() of a subclass may be a plain list or dict
        if isinstance(value, dict):
            for key, item in value.items():
                fresh_container[key] = copy_state(item)
        else:
            fresh_container[:] = [copy_state(item) for item in value]
        return fresh_container
    canonical(value)  # names the type and the remedy
    raise StateError(f"a {type(value).__qualname__} cannot be copied as part of a state; use a plain dict or list")
