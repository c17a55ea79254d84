"""Actions, options and keyword arguments as JSON-able data and back, exactly. Never pickle: this is data, not code.

A value that JSON has is itself; every other one is a mapping with a single key that begins with "$".
"""

from __future__ import annotations

import base64
import binascii
import struct
from typing import Any

import numpy as np

from forkgym.core.errors import HandleError, StateError

__all__ = ["from_portable", "plain", "to_portable"]

_LARGE = 2**63
_MAX_DEPTH = 100
_ARRAY_KINDS = "biufcUSmM"


def plain(value: Any) -> Any:
    """A numpy integer or boolean as Python's own, anything else unchanged.

    `Discrete.sample()` gives `np.int64`; an environment shall see the same type when the action comes from a
    handle, so the conversion happens before the environment sees the action.
    """
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, np.bool_):
        return bool(value)
    return value


def to_portable(value: Any, where: str = "the action", depth: int = 0) -> Any:
    """`value` as data that JSON and MessagePack can hold; shares nothing mutable with `value`.

    Args:
        value: None, bool, int, float, str, bytes, list, tuple, dict or numpy data, nested.
        where: How an error calls the value.
        depth: Current nesting.

    Raises:
        StateError: A value of another type, or nested more than 100 deep.
    """
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is str:
        return value if _is_unicode(value) else {"$text": base64.b64encode(_surrogates(value)).decode()}
    if kind is int:
        return value if -_LARGE <= value < _LARGE else {"$int": str(value)}
    if kind is float:
        finite = value == value and value not in (float("inf"), float("-inf"))
        return value if finite else {"$float": struct.pack(">d", value).hex()}
    if depth > _MAX_DEPTH:
        raise StateError(f"{where} is nested more than {_MAX_DEPTH} deep; use a flatter form.")
    if kind is list:
        return [to_portable(item, where, depth + 1) for item in value]
    if kind is tuple:
        return {"$tuple": [to_portable(item, where, depth + 1) for item in value]}
    if isinstance(value, dict):
        if all(type(key) is str and not key.startswith("$") and _is_unicode(key) for key in value):
            return {key: to_portable(item, where, depth + 1) for key, item in value.items()}
        return {
            "$dict": [
                [to_portable(key, where, depth + 1), to_portable(item, where, depth + 1)] for key, item in value.items()
            ]
        }
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, np.generic | np.ndarray) and value.dtype.kind in _ARRAY_KINDS:
        return _array_to_portable(value)
    if isinstance(value, list | tuple):
        return to_portable(list(value) if isinstance(value, list) else tuple(value), where, depth)
    raise StateError(
        f"{where} holds a {type(value).__module__}.{type(value).__qualname__}, which a handle cannot carry. Use "
        "None, bool, int, float, str, bytes, lists, tuples, dicts or numpy arrays."
    )


def _is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8; one with half a surrogate pair cannot."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def _surrogates(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _array_to_portable(value: np.generic | np.ndarray[Any, Any]) -> dict[str, Any]:
    array = np.asarray(value)
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    data = base64.b64encode(little.tobytes(order="C")).decode()
    if isinstance(value, np.generic):
        return {"$scalar": [little.dtype.str, data]}
    return {"$array": [little.dtype.str, list(array.shape), data]}


def from_portable(value: Any, depth: int = 0) -> Any:
    """The inverse of `to_portable`.

    Raises:
        HandleError: Not something that `to_portable` writes.
    """
    if depth > _MAX_DEPTH + 1:
        raise HandleError(f"a value of this handle is nested more than {_MAX_DEPTH} deep; it was not written by us.")
    if isinstance(value, list):
        return [from_portable(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    special = [key for key in value if isinstance(key, str) and key.startswith("$")]
    if not special:
        return {key: from_portable(item, depth + 1) for key, item in value.items()}
    try:
        if len(value) != 1:
            raise ValueError("a mapping with a '$' key has exactly one key")
        return _from_special(special[0], value[special[0]], depth)
    except (ValueError, TypeError, LookupError, binascii.Error, struct.error, OverflowError) as error:
        raise HandleError(
            f"a value of this handle is malformed ({special[0]}: {error}). Handles are written by env.handle(); "
            "do not edit the encoded values by hand."
        ) from error


def _from_special(tag: str, content: Any, depth: int) -> Any:
    if tag == "$tuple":
        return tuple([from_portable(item, depth + 1) for item in list(content)])
    if tag == "$dict":
        return {from_portable(key, depth + 1): from_portable(item, depth + 1) for key, item in content}
    if tag == "$int":
        if len(content) > 4000:
            raise ValueError("an integer of more than 4000 digits")
        return int(content)
    if tag == "$float":
        return struct.unpack(">d", bytes.fromhex(content))[0]
    if tag == "$text":
        return base64.b64decode(content, validate=True).decode("utf-8", "surrogatepass")
    if tag == "$bytes":
        return base64.b64decode(content, validate=True)
    if tag in ("$scalar", "$array"):
        dtype = np.dtype(str(content[0]))
        if dtype.kind not in _ARRAY_KINDS or dtype.hasobject:
            raise ValueError(f"dtype {content[0]!r} is not plain numeric or text data")
        flat = np.frombuffer(base64.b64decode(content[-1], validate=True), dtype=dtype)
        if tag == "$scalar":
            return flat.reshape(())[()]
        shape = [int(side) for side in content[1]]
        if any(side < 0 for side in shape):
            raise ValueError("a negative side")
        return flat.reshape(shape).copy()
    raise ValueError("this tag is unknown")
