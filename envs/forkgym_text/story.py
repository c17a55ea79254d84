"""`StoryEnv`: what all text games have in common: how an agent writes a command, and how an episode is judged.

The games themselves stand in the modules beside this one. Nothing here knows an engine.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from forkgym.core import ResetNeededError, TextEnv

__all__ = ["INSTRUCTIONS", "MAX_COMMAND", "Course", "StoryEnv", "command_of", "refusal"]

State = TypeVar("State")

TOOL = "command"
INVALID = "invalid"
MAX_COMMAND = 120
"""Characters of the longest command; interpreters read 198 bytes at most."""

INSTRUCTIONS = (
    "You play a text game. In each turn you may think, and you end the turn with one command for the game, such as "
    "`look`, `inventory`, `go north` or `take key`, in a line of its own or between <action> and </action>. The game "
    "answers with a text. Reach the goal that it names at the beginning in as few turns as you can."
)

_TAGGED = re.compile(r"<action>(.*?)</action>", re.DOTALL | re.IGNORECASE)
_SENTENCE = re.compile(r"[.,;]|\bthen\b")

# Commands to the interpreter, not to the story. Some write files or start over behind the environment's back, others
# would show what trackers of the game's state print. Forks and rewinds are the controller's act, never the agent's.
_META = frozenset(
    """
    save restore restart quit q die undo script transcript unscript noscript recording record replay verify version
    superbrief verbose brief short long normal full notify pronouns nouns showverb showheap showobj showme actions
    relations rules scenes responses test purloin abstract goto gonear tree trace random changes timers
    """.split()  # noqa: SIM905 - fifty words read better so
)


def command_of(text: str) -> str:
    """The command that an agent's text ends with: the last ``<action>…</action>``, else the last line with words."""
    lines = _TAGGED.findall(text) or [line for line in text.splitlines() if line.strip(" \t>")]
    return " ".join(lines[-1].strip().lstrip(">").split()) if lines else ""


def refusal(command: str) -> str:
    """Why a command is not given to the game, or "" if it may be."""
    if not command:
        return "Write one command in the last line of your turn, for instance: look"
    if len(command) > MAX_COMMAND:
        return f"A command has at most {MAX_COMMAND} letters."
    if not command.isascii() or not command.isprintable():
        return "The game understands plain letters and digits only."
    for sentence in _SENTENCE.split(command.lower()):
        words = sentence.split()
        first = words[0].strip("\"'!?:*#@/") if words else ""
        if first in _META or first.startswith("tw-"):
            return f'"{first}" is not a command of the story.'
    return ""


class Course:
    """What the judge of an episode remembers: how often nothing happened, and which places of the world were seen.

    Attributes:
        idle: Turns that changed nothing in the world.
        returns: Turns that led to a state of the world that was there before.
        seen: States of the world so far, in order of their first sight.
    """

    __slots__ = ("idle", "returns", "seen")

    def __init__(self, idle: int = 0, returns: int = 0, seen: tuple[str, ...] = ()) -> None:
        self.idle = idle
        self.returns = returns
        self.seen = seen

    def after(self, anchor: str) -> Course:
        """The course after a turn that led to a state of the world."""
        if self.seen and anchor == self.seen[-1]:
            return Course(self.idle + 1, self.returns, self.seen)
        if anchor in self.seen:
            rest = tuple(other for other in self.seen if other != anchor)
            return Course(self.idle, self.returns + 1, (*rest, anchor))
        return Course(self.idle, self.returns, (*self.seen, anchor))

    def failure(self, turns: int, lost: bool) -> str:
        """The name of what went wrong in an episode that was not won.

        "lost": the game ended badly. Of an episode that ran out of turns: "no effect": at least half of the turns
        changed nothing; "in circles": at least half of those that did led back to a state seen before; "too slow":
        neither.
        """
        if lost:
            return "lost"
        if 2 * self.idle >= turns:
            return "no effect"
        if 2 * self.returns >= turns - self.idle:
            return "in circles"
        return "too slow"

    def plain(self) -> tuple[Any, ...]:
        """As plain data, for hashes."""
        return (self.idle, self.returns, self.seen)


class StoryEnv(TextEnv, Generic[State]):
    """A game that is played by commands in words.

    A subclass keeps the state of an episode in `_situation` and writes `_reset`, `_play(command)`,
    `admissible_commands` and how it forks. An action is a text that ends with a command, or the tool call
    ``{"tool": "command", "arguments": {"command": …}}``.

    ``info`` holds ``action_kind`` (the verb of an admissible command, "other" for one that is not, "invalid" for a
    text without a command), ``evidence`` (what the game said, which is what the agent learned), ``anchor`` (identifies
    the state of the game's world, whenever and however it was reached), ``admissible_commands`` and, at the end,
    ``success`` and, unless it is true, ``failure``.
    """

    observation_role = "user"
    tools: ClassVar[list[dict[str, Any]]] = [
        {
            "name": TOOL,
            "description": "Gives one command to the game.",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string", "description": "For instance: take key"}},
                "required": ["command"],
            },
        }
    ]

    _situation: State | None = None

    @property
    def situation(self) -> State:
        """The state of the episode.

        Raises:
            ResetNeededError: Before the first reset.
        """
        if self._situation is None:
            raise ResetNeededError("There is no game before the first reset. Call env.reset(seed=...) once.")
        return self._situation

    @property
    def admissible_commands(self) -> tuple[str, ...]:
        """Commands that the game would take in this state, sorted."""
        raise NotImplementedError

    def _play(self, command: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Give one command to the game: (observation, utility, terminated, info)."""
        raise NotImplementedError

    def _idle(self, hint: str) -> tuple[str, float, bool, dict[str, Any]]:
        """A turn in which the game was not asked: the same, with `hint` as its text."""
        raise NotImplementedError

    def _step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        command = action["arguments"].get("command")
        if action["tool"] == TOOL and isinstance(command, str):
            command = " ".join(command.split())
            hint = refusal(command)
        else:
            command, hint = "", refusal("")
        if hint:
            kind = INVALID
            observation, utility, terminated, info = self._idle(hint)
        else:
            kind = command.split()[0].lower() if command in self.admissible_commands else "other"
            observation, utility, terminated, info = self._play(command)
        return observation, utility, terminated, False, {"action_kind": kind, **info}

    def parse(self, text: str) -> dict[str, Any]:
        """The command that a text means: a tool call in JSON, ``<action>…</action>``, or the last line."""
        call: dict[str, Any] = super().parse(text) if "{" in text else {"tool": INVALID}
        if call["tool"] == TOOL and isinstance(call["arguments"].get("command"), str):
            return call
        command = command_of(text)
        if not command:
            return {"tool": INVALID, "arguments": {"text": text}}
        return {"tool": TOOL, "arguments": {"command": command}}

    def render_action(self, action: dict[str, Any]) -> str:
        """The command itself."""
        command: Any = action["arguments"].get("command")
        return command if action["tool"] == TOOL and isinstance(command, str) else super().render_action(action)

    def sample_action(self, rng: np.random.Generator) -> Any:
        """An admissible command; now and then one that is nonsense, refused, or no command at all."""
        try:
            choices = self.admissible_commands
        except ResetNeededError:
            choices = ()
        if choices and rng.random() < 0.9:
            command = choices[int(rng.integers(len(choices)))]
        else:
            odd = ("look", "inventory", "go nowhere", "take everything", "", "undo", "save", "xyzzy", "look. look")
            command = odd[int(rng.integers(len(odd)))]
        return command if rng.random() < 0.5 else {"tool": TOOL, "arguments": {"command": command}}

    def scripted_action(self, name: str, rng: np.random.Generator) -> Any:
        """What a scripted policy does: "random" takes an admissible command, "walkthrough" the game's own advice."""
        if name == "random":
            choices = self.admissible_commands
            return choices[int(rng.integers(len(choices)))] if choices else "look"
        if name == "walkthrough" and name in self.scripted_policies:
            return self.advice() or "look"
        return super().scripted_action(name, rng)

    def advice(self) -> str | None:
        """The next command of the game's own solution from this state, or None where it knows none."""
        raise NotImplementedError(f"{type(self).__name__} knows no solution")
