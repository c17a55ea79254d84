"""forkgym: environments for language agents that fork, rewind and replay, and the credit that follows from it.

    import forkgym

    env = forkgym.make("toy/Chain-v0")
    observation, info = env.reset(seed=0)
    twin = env.fork()

Everything public is listed in `__all__`. Heavy parts (training, engines) are packages of their own and are not
imported here.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from forkgym._version import __version__
from forkgym.core import (
    SAME,
    Demonstration,
    Env,
    Forkable,
    ForkgymError,
    Handle,
    Luck,
    Message,
    ReplayDivergence,
    Snapshot,
    TextEnv,
    Vocabulary,
    list_envs,
    make,
    register,
    replay,
)
from forkgym.core.registry import discover as _discover

if TYPE_CHECKING:
    from forkgym.core.wrap import fork, wrap
    from forkgym.runtime import run as run

__all__ = [
    "SAME",
    "Demonstration",
    "Env",
    "Forkable",
    "ForkgymError",
    "Handle",
    "Luck",
    "Message",
    "ReplayDivergence",
    "Snapshot",
    "TextEnv",
    "Vocabulary",
    "__version__",
    "fork",
    "list_envs",
    "make",
    "register",
    "replay",
    "wrap",
]

# What only some programs use is imported when it is first asked for: this package is imported by every process.
_LAZY = {"fork": "forkgym.core.wrap", "wrap": "forkgym.core.wrap", "testing": "", "aio": "", "run": "forkgym.runtime"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name]), name) if _LAZY[name] else import_module(f"{__name__}.{name}")
    globals()[name] = value
    return value


_discover()  # so that gymnasium.make knows the installed environments; reads names, imports nothing
