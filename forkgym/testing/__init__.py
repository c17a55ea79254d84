"""What the author of an environment runs: `check_env` at once, `fork_machine` as a test.

    from forkgym import testing

    testing.check_env("my/Env-v0")                                # raises ConformanceError
    TestMyEnv = testing.fork_machine("my/Env-v0").TestCase        # pytest or unittest finds it

`check_env` needs nothing but forkgym; `fork_machine` needs hypothesis, which is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forkgym.testing.conformance import ConformanceError, Finding, check_env, environment_factory, example_kwargs

if TYPE_CHECKING:
    from forkgym.testing.machine import ForkMachine, fork_machine

__all__ = [
    "ConformanceError",
    "Finding",
    "ForkMachine",
    "check_env",
    "environment_factory",
    "example_kwargs",
    "fork_machine",
]


def __getattr__(name: str) -> Any:
    """Import the state machine, and hypothesis with it, at its first use."""
    if name in ("ForkMachine", "fork_machine"):
        from forkgym.testing import machine

        return getattr(machine, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
