"""Every error of the environment contract. Each message says what was wrong and what to do about it.

Nothing here decides anything: the checks live where the misuse happens.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import gymnasium

__all__ = [
    "ActionError",
    "ClosedEnvironmentError",
    "EpisodeEndedError",
    "ForkUnsupportedError",
    "ForkgymError",
    "HandleError",
    "MisuseError",
    "ReplayDivergence",
    "ResetNeededError",
    "SnapshotError",
    "StateError",
    "TaskError",
    "UnknownArgumentError",
    "UnknownEnvironmentError",
    "nearest",
]


class ForkgymError(Exception):
    """Base of every error that forkgym raises on purpose; its text is meant for the user."""


class MisuseError(ForkgymError, RuntimeError):
    """A verb was called at a moment when it has no meaning."""


class ResetNeededError(MisuseError, gymnasium.error.ResetNeeded):
    """A verb that needs an episode was called before the first `reset`."""


class EpisodeEndedError(MisuseError):
    """`step` was called after the episode had ended (or after a step had failed half-way)."""


class ClosedEnvironmentError(MisuseError, gymnasium.error.ClosedEnvironmentError):
    """A verb was called on an environment that was closed before."""


class SnapshotError(MisuseError):
    """A snapshot was restored that is closed or belongs to another environment."""


class ForkUnsupportedError(ForkgymError):
    """The environment cannot be forked; the text says which ways were tried and why each failed."""


class ActionError(ForkgymError, ValueError):
    """The action has a type that the environment does not take."""


class TaskError(ForkgymError, ValueError):
    """The reset options name a split or a task that does not exist."""


class StateError(ForkgymError, TypeError):
    """A state, an option or an action holds a value that has no canonical form."""


class UnknownEnvironmentError(ForkgymError, gymnasium.error.NameNotFound):
    """No environment is registered under this id."""


class UnknownArgumentError(ForkgymError, TypeError):
    """The environment's constructor does not take this keyword argument."""


class HandleError(ForkgymError, ValueError):
    """The bytes or the fields of a handle are not those of a handle."""


class ReplayDivergence(ForkgymError):
    """A replay did not reproduce what its handle recorded.

    Attributes:
        turn: First turn whose link of the hash chain differs (0 is the reset, t is the t-th step).
        expected: The recorded link, hexadecimal.
        got: The link that this replay produced, hexadecimal.
        diff: What can be said about the cause: versions that differ, the last action and observation.
    """

    def __init__(self, turn: int, expected: str, got: str, diff: str) -> None:
        self.turn = turn
        self.expected = expected
        self.got = got
        self.diff = diff
        where = "the reset" if turn == 0 else f"turn {turn}"
        super().__init__(
            f"The replay diverged at {where}: the handle recorded {expected}, this run gave {got}. {diff} "
            "Either the handle was altered, or the environment (its code, data or version) is not the one "
            "that recorded it, or it depends on something that is not part of its declared state "
            "(run forkgym.testing.check_env on it)."
        )


def nearest(name: str, names: Iterable[str]) -> str:
    """A hint such as " Did you mean 'toy/Coin-v0'?", or "" when nothing is near.

    Args:
        name: What the user wrote.
        names: What would have been valid.
    """
    known = sorted(set(names))
    found = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if not found:
        by_lower = {known_name.lower(): known_name for known_name in known}
        lowered = difflib.get_close_matches(name.lower(), list(by_lower), n=1, cutoff=0.5)
        found = [by_lower[match] for match in lowered]
    return f" Did you mean {found[0]!r}?" if found else ""
