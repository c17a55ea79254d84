"""The environment contract. The names an author needs are re-exported here and in `forkgym` itself."""

from forkgym.core.env import Env
from forkgym.core.errors import (
    ActionError,
    ClosedEnvironmentError,
    EpisodeEndedError,
    ForkgymError,
    ForkUnsupportedError,
    HandleError,
    MisuseError,
    ReplayDivergence,
    ResetNeededError,
    SnapshotError,
    StateError,
    TaskError,
    UnknownArgumentError,
    UnknownEnvironmentError,
    nearest,
)
from forkgym.core.handle import Handle
from forkgym.core.hashing import canonical, copy_state, digest
from forkgym.core.luck import SAME, KeyedLuck, Luck
from forkgym.core.registry import list_envs, make, register, replay
from forkgym.core.snapshot import Snapshot
from forkgym.core.spaces import TextSpace, ToolCallSpace
from forkgym.core.text import Action, Demonstration, Message, TextEnv, Vocabulary
from forkgym.core.verbs import Forkable

__all__ = [
    "SAME",
    "Action",
    "ActionError",
    "ClosedEnvironmentError",
    "Demonstration",
    "Env",
    "EpisodeEndedError",
    "ForkUnsupportedError",
    "Forkable",
    "ForkgymError",
    "Handle",
    "HandleError",
    "KeyedLuck",
    "Luck",
    "Message",
    "MisuseError",
    "ReplayDivergence",
    "ResetNeededError",
    "Snapshot",
    "SnapshotError",
    "StateError",
    "TaskError",
    "TextEnv",
    "TextSpace",
    "ToolCallSpace",
    "UnknownArgumentError",
    "UnknownEnvironmentError",
    "Vocabulary",
    "canonical",
    "copy_state",
    "digest",
    "list_envs",
    "make",
    "nearest",
    "register",
    "replay",
]
