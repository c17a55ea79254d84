"""The portable record of an episode, and its two encodings. A handle is data from anybody: nothing in it is executed.

Rebuilding an environment from a handle stands in `registry.py` (`make`, `replay`).
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from forkgym.core.errors import HandleError
from forkgym.core.hashing import CHAIN_BYTES

__all__ = ["FORMAT", "Handle", "forkgym_version"]

FORMAT = 1
_MAX_BYTES = 64 * 2**20
_MAX_ACTIONS = 1_000_000
_MAX_DEPTH = 120
_ENV_ID = re.compile(r"(?:[\w-]+/)?[\w.-]+")
_WRITTEN_BY = "Handles are written by env.handle(); get a fresh one from where it came."


def forkgym_version() -> str:
    """This package's version."""
    from forkgym._version import __version__

    return __version__


class Handle(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Everything that rebuilds one episode's state on another machine, and proves that it did.

    In MessagePack it takes its actions, 16 bytes a turn, and less than 1 KB (plus the environment's arguments).

    Attributes:
        env: Registered environment id.
        env_version: The environment's own version when it was recorded.
        kwargs: Constructor arguments, in portable form.
        max_episode_steps: Time limit given to `make`, or None.
        wrappers: Class names of the wrapper chain, outermost first.
        seed: Seed of the reset.
        options: Options of the reset, in portable form.
        luck: (turn, stream) segments: after `turn` steps, luck comes from `stream`.
        actions: Portable actions, one a turn.
        chain: Concatenated 16-byte links of the state-hash chain: the reset's, then one a turn.
        forkgym: Version of forkgym that wrote it.
        format: Version of this layout.
    """

    env: str
    seed: int
    env_version: str = ""
    kwargs: dict[str, Any] = {}
    max_episode_steps: int | None = None
    wrappers: list[str] = []
    options: dict[str, Any] = {}
    luck: list[tuple[int, int]] = []
    actions: list[Any] = []
    chain: bytes = b""
    forkgym: str = msgspec.field(default_factory=forkgym_version)
    format: int = FORMAT

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"its format is {self.format}, this forkgym reads {FORMAT}: install the one that wrote it")
        if not _ENV_ID.fullmatch(self.env) or len(self.env) > 200:
            raise ValueError("its env is not an id such as 'toy/Coin-v0' (module prefixes are not allowed)")
        if not 0 <= self.seed < 2**64:
            raise ValueError("its seed is not between 0 and 2**64 - 1")
        if len(self.actions) > _MAX_ACTIONS:
            raise ValueError(f"it has more than {_MAX_ACTIONS} actions")
        if len(self.chain) not in (0, CHAIN_BYTES * (len(self.actions) + 1)):
            raise ValueError("its hash chain does not have 16 bytes for the reset and 16 for each action")
        if self.max_episode_steps is not None and self.max_episode_steps < 1 and self.max_episode_steps != -1:
            raise ValueError("its max_episode_steps is neither positive nor -1")
        turns = [turn for turn, _ in self.luck]
        if turns != sorted(set(turns)) or any(not 0 <= turn <= len(self.actions) for turn in turns):
            raise ValueError("its luck segments are not in ascending turns within the episode")
        if any(not 0 < stream < 2**64 for _, stream in self.luck):
            raise ValueError("a luck stream is not between 1 and 2**64 - 1")

    @property
    def links(self) -> list[bytes]:
        """The hash chain as one 16-byte link for the reset and one for each turn."""
        return [self.chain[at : at + CHAIN_BYTES] for at in range(0, len(self.chain), CHAIN_BYTES)]

    def __repr__(self) -> str:
        return f"<Handle of {self.env}: seed {self.seed}, {len(self.actions)} actions>"

    def to_json(self) -> str:
        """JSON text (the chain in base64)."""
        return msgspec.json.encode(self).decode()

    def to_bytes(self) -> bytes:
        """MessagePack bytes, the smallest form."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Handle:
        """Read what `to_json` wrote.

        Raises:
            HandleError: Not a handle; the text says which field is wrong.
        """
        return _decode(text.encode() if isinstance(text, str) else text, "JSON")

    @classmethod
    def from_bytes(cls, data: bytes) -> Handle:
        """Read what `to_bytes` wrote.

        Raises:
            HandleError: Not a handle; the text says which field is wrong.
        """
        return _decode(data, "MessagePack")


def _decode(data: bytes, encoding: str) -> Handle:
    if not isinstance(data, bytes | bytearray | memoryview):
        raise HandleError(f"a handle is read from text or bytes, not from {type(data).__name__}. {_WRITTEN_BY}")
    if len(data) > _MAX_BYTES:
        raise HandleError(f"a handle of {len(data)} bytes is refused; the limit is {_MAX_BYTES}. {_WRITTEN_BY}")
    module: Any = msgspec.json if encoding == "JSON" else msgspec.msgpack
    try:
        handle: Handle = module.decode(data, type=Handle)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise HandleError(f"this is not a handle in {encoding}: {error}. {_WRITTEN_BY}") from error
    _check_depth(handle.kwargs, "kwargs")
    _check_depth(handle.options, "options")
    _check_depth(handle.actions, "actions")
    return handle


def _check_depth(value: Any, field: str) -> None:
    """Refuse nesting that would exhaust the stack of whoever walks the value; walks without recursion itself."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        if not below:
            return
        level = below
    raise HandleError(f"the field {field} of this handle is nested more than {_MAX_DEPTH} deep. {_WRITTEN_BY}")
