"""The toy worlds as environments (`forkgym.core.TextEnv`). Rules and odds are the worlds'; nothing is decided here."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from forkgym.core import Action, StateError, TextEnv
from forkgym_toy.world import INVALID, LUCK_NAME, NEWLINE, Outcome, State, World, split_words
from forkgym_toy.worlds import Chain, Coupled, Shortcut, SlipperyChain

__all__ = ["ChainEnv", "CoupledEnv", "ShortcutEnv", "SlipperyChainEnv", "ToyEnv"]


class ToyEnv(TextEnv):
    """A world to be played with texts; its only tool is ``say`` with one word.

    Splits ``train`` and ``test`` are the same tasks: nothing is learned here that could leak.
    """

    world: ClassVar[World]
    tools: ClassVar[list[dict[str, Any]]] = [
        {
            "name": "say",
            "description": "Say a word; the turn's last line decides which.",
            "parameters": {
                "type": "object",
                "properties": {"word": {"type": "string", "description": "The word."}},
                "required": ["word"],
            },
        }
    ]
    _state: State
    _ended: bool

    @property
    def splits(self) -> dict[str, int]:
        """Number of tasks, the same in both splits."""
        return {"train": self.world.tasks, "test": self.world.tasks}

    def _reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        split, task = self.pick_task(seed, options)
        self._state = self.world.start(task)
        self._ended = False
        return self.world.prompt(task), {"split": split, "task": task}

    def parse(self, text: str) -> Action:
        """The word that a turn's text says; tool ``invalid`` where it says none."""
        word = self.world.action(split_words(text))
        if word == INVALID:
            return {"tool": INVALID, "arguments": {"text": text}}
        return {"tool": "say", "arguments": {"word": word}}

    def render_action(self, action: Action) -> str:
        """The shortest text that `parse` reads as the action."""
        word = _word(action)
        if word == "think":
            return "think hard heads"
        return f"{NEWLINE} {word}" if isinstance(self.world, Chain) else word

    def _step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        word = _word(action)
        legal = word in self.world.actions(self._state)
        outcome = self._choose(self.world.act(self._state, word))
        self._state = outcome.state  # type: ignore[assignment]  # outcomes hold states
        self._ended = outcome.utility is not None
        info: dict[str, Any] = {
            "action_kind": word if legal else INVALID,
            "evidence": outcome.observation,
        }
        if self._ended:
            info["success"] = outcome.utility == 1
        return outcome.observation, float(outcome.utility or 0), self._ended, False, info

    def _choose(self, outcomes: tuple[Outcome, ...]) -> Outcome:
        """The outcome that luck picks: the first whose cumulative probability exceeds one keyed uniform number."""
        if len(outcomes) == 1:
            return outcomes[0]
        draw = self.luck.random(LUCK_NAME)
        for outcome, bound in zip(outcomes, np.cumsum([o.probability for o in outcomes]), strict=True):
            if draw < bound:
                return outcome
        return outcomes[-1]

    def _get_state(self) -> Any:
        return {"state": list(self._state), "ended": self._ended}

    def _set_state(self, state: Any) -> None:
        kind = type(self.world.start(0))
        try:
            self._state = kind(*[int(field) for field in state["state"]])  # type: ignore[arg-type]  # a named tuple
            self._ended = bool(state["ended"])
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"{state!r} is no state of {type(self).__name__}: {error}") from error

    def sample_action(self, rng: np.random.Generator) -> str | Action:
        """A legal word (as a call or a text), now and then nonsense."""
        words = self.world.actions(getattr(self, "_state", self.world.start(0)))
        pick = int(rng.integers(len(words) + 1))
        if pick == len(words):
            return "no idea"
        call: Action = {"tool": "say", "arguments": {"word": words[pick]}}
        return self.render_action(call) if rng.integers(2) else call


def _word(action: Action) -> str:
    """The word of a tool call; `INVALID` for any other call."""
    word = action["arguments"].get("word") if action["tool"] == "say" else None
    return word if isinstance(word, str) else INVALID


class CoupledEnv(ToyEnv):
    """``toy/Coupled-v0``; see `forkgym_toy.worlds.Coupled`."""

    world = Coupled()
    max_turns = Coupled.horizon


class ShortcutEnv(ToyEnv):
    """``toy/Shortcut-v0``; see `forkgym_toy.worlds.Shortcut`."""

    world = Shortcut()
    max_turns = Shortcut.horizon


class ChainEnv(ToyEnv):
    """``toy/Chain-v0``; see `forkgym_toy.worlds.Chain`."""

    world = Chain()
    max_turns = Chain.horizon


class SlipperyChainEnv(ToyEnv):
    """``toy/SlipperyChain-v0``; see `forkgym_toy.worlds.SlipperyChain`."""

    world = SlipperyChain()
    max_turns = Chain.horizon
