"""What a process worker and its owner say to each other: length-prefixed MessagePack. Data only, never code.

Frame: 4 bytes, big-endian length; then one of the structs below. Who speaks when: `runners.py` (the owner) and
`worker.py` (the worker).
"""

from __future__ import annotations

import builtins
import traceback
from typing import Any

import msgspec

from forkgym.core import errors
from forkgym.core.errors import ForkgymError

__all__ = [
    "Call",
    "Failed",
    "Ping",
    "Pong",
    "Ready",
    "RemoteError",
    "Result",
    "Start",
    "Stop",
    "WireError",
    "decode",
    "encode",
    "length",
    "told",
    "untold",
]

_MAX_FRAME = 2**30
_PLAIN = bool | int | float | str | None
_BUILTIN = """
    ArithmeticError AssertionError AttributeError ConnectionError EOFError FileNotFoundError ImportError IndexError
    KeyError LookupError MemoryError ModuleNotFoundError NameError NotImplementedError OSError OverflowError
    PermissionError RecursionError RuntimeError TimeoutError TypeError ValueError ZeroDivisionError
"""


class WireError(ForkgymError, ValueError):
    """A message cannot be sent to a process, or what came from one is not a message."""


class RemoteError(ForkgymError, RuntimeError):
    """A worker raised an error of a class that is not known here.

    Attributes:
        kind: Class of the error in the worker.
        trace: Its traceback there.
    """

    def __init__(self, kind: str, text: str, trace: str) -> None:
        self.kind = kind
        self.trace = trace
        super().__init__(f"{kind}: {text}")


_KNOWN: dict[str, type[Exception]] = {f"builtins.{name}": getattr(builtins, name) for name in _BUILTIN.split()}
_KNOWN |= {f"{errors.__name__}.{name}": getattr(errors, name) for name in errors.__all__ if name != "nearest"}
_KNOWN[f"{__name__}.WireError"] = WireError


class Start(msgspec.Struct, tag=True, array_like=True):
    """Owner → worker, first: the entry point "module:function" and its keyword arguments."""

    entry: str
    config: dict[str, Any]


class Ready(msgspec.Struct, tag=True, array_like=True):
    """Worker → owner: the entry point has been called."""


class Call(msgspec.Struct, tag=True, array_like=True):
    """Owner → worker: work on a message."""

    id: int
    message: Any


class Result(msgspec.Struct, tag=True, array_like=True):
    """Worker → owner: the answer."""

    id: int
    value: Any


class Failed(msgspec.Struct, tag=True, array_like=True):
    """Worker → owner: the answer is an error.

    Attributes:
        id: Of the call; 0 for the entry point itself.
        kind: Module and name of the error's class.
        text: Its text.
        args: Its arguments, where they are plain.
        fields: Its attributes, where they are plain.
        trace: Traceback.
    """

    id: int
    kind: str
    text: str
    args: list[Any]
    fields: dict[str, Any]
    trace: str


class Ping(msgspec.Struct, tag=True, array_like=True):
    """Owner → worker: are you alive? Answered at once, by a thread, while a call is being worked on."""

    id: int


class Pong(msgspec.Struct, tag=True, array_like=True):
    """Worker → owner: alive, and busy with one call for so many seconds (0 when idle)."""

    id: int
    busy: float


class Stop(msgspec.Struct, tag=True, array_like=True):
    """Owner → worker: finish the calls before this one, then end."""


Message = Start | Ready | Call | Result | Failed | Ping | Pong | Stop
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """The frame of a message.

    Raises:
        WireError: It holds something that MessagePack has not, or is too long.
    """
    try:
        body = _encoder.encode(message)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise WireError(
            f"This cannot be sent to or from a worker process: {error}. Send None, bool, int, float, str, bytes, lists "
            "and dicts (forkgym.core.portable has them for arrays), or use an inline or a thread worker."
        ) from error
    if len(body) > _MAX_FRAME:
        raise WireError(f"A message of {len(body)} bytes is too long for a worker; the limit is {_MAX_FRAME}.")
    return len(body).to_bytes(4, "big") + body


def length(prefix: bytes) -> int:
    """Length of the body that follows a prefix of 4 bytes.

    Raises:
        WireError: Not a length that we write.
    """
    size = int.from_bytes(prefix, "big")
    if size > _MAX_FRAME:
        raise WireError(f"A frame of {size} bytes is announced; the limit is {_MAX_FRAME}. Not a worker of forkgym?")
    return size


def decode(body: bytes) -> Message:
    """The message of a frame's body.

    Raises:
        WireError: It is none.
    """
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"This is no message of a worker: {error}") from error


def told(id: int, error: BaseException) -> Failed:
    """An error as data."""
    fields = {name: value for name, value in vars(error).items() if isinstance(value, _PLAIN)}
    args = list(error.args) if all(isinstance(value, _PLAIN) for value in error.args) else [str(error)]
    trace = "".join(traceback.format_exception(error))
    return Failed(id, f"{type(error).__module__}.{type(error).__qualname__}", str(error), args, fields, trace)


def untold(failed: Failed) -> Exception:
    """The error again: forkgym's and the common built-in ones as what they were, all others as `RemoteError`."""
    kind = _KNOWN.get(failed.kind)
    if kind is None:
        return RemoteError(failed.kind, failed.text, failed.trace)
    error = kind.__new__(kind)
    error.args = tuple(failed.args)
    error.__dict__.update(failed.fields)
    error.add_note(f"In the worker process:\n{failed.trace}")
    return error
