"""Opt-in repeatability of what the kernel hands out: seeded random bytes, and a clock that begins at a given instant.

Both are a small library that is preloaded into commands (``inside/repeat.c``); static programs do not load it.
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from .broker import compiled
from .errors import SandboxError
from .images import ImageStore

__all__ = ["Clock", "compiled_repeat", "repeat_variables"]


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """What the time of day is for every command.

    Attributes:
        at: Seconds since 1970 at the start of each command.
        frozen: It stays so. Programs that wait for a time of day then wait for ever; waiting for a while works.
    """

    at: float
    frozen: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.at) and 0 <= self.at < 1 << 40):
            raise SandboxError(f"clock.at is {self.at}; it is seconds since 1970")


def compiled_repeat(store: ImageStore) -> Path:
    """The compiled library.

    Raises:
        SandboxError: There is no compiler.
    """
    found = compiled(store, "repeat", ("repeat.c",), "-U_FORTIFY_SOURCE", "-shared", "-fPIC", "-ldl")
    if found is None:
        raise SandboxError(
            "random_seed and clock need a small library, and it could not be compiled here; install a C compiler (cc), "
            "or leave both out"
        )
    return found


def repeat_variables(library: str, random_seed: int | None, clock: Clock | None) -> dict[str, str]:
    """Variables that make commands load the library and tell it what to do.

    Args:
        library: Its path as commands see it.
        random_seed: Of random bytes.
        clock: Of the time of day.

    Raises:
        SandboxError: The seed has more than 64 bits.
    """
    found = {"LD_PRELOAD": library}
    if random_seed is not None:
        if not 0 <= random_seed < 1 << 64:
            raise SandboxError(f"random_seed is {random_seed}; it is a number of at most 64 bits")
        found["FORKGYM_RANDOM_SEED"] = str(random_seed)
    if clock is not None:
        seconds = math.floor(clock.at)
        found["FORKGYM_CLOCK"] = f"{seconds} {round((clock.at - seconds) * 1e9) % 10**9} {int(not clock.frozen)}"
    return found
