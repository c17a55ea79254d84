"""forkgym: environments for language agents that fork, rewind and replay, and the credit that follows from it.

    import forkgym

    env = forkgym.make("toy/Coin-v0")
    observation, info = env.reset(seed=0)
    twin = env.fork()

Everything public is listed in `__all__`. Heavy parts (training, engines) are packages of their own and are not
imported here.
"""

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
from forkgym.core.wrap import fork, wrap

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

_discover()  # so that gymnasium.make knows the installed environments; reads names, imports nothing
