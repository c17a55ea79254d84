"""What a toy world is: a few words, a tabular policy over them, and rules with exactly known odds.

Pure functions only. The worlds themselves are in `worlds.py`, the environment on top in `env.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["END", "INVALID", "LUCK_NAME", "NEWLINE", "Outcome", "State", "World", "split_words"]

END = "<end>"
"""The word that ends a turn; it belongs to the turn's tokens and never to its text."""

NEWLINE = "\n"
"""The word that ends a line."""

INVALID = "invalid"
"""The action of a turn that says nothing a world understands."""

LUCK_NAME = "outcome"
"""Name of the one draw of luck that a step takes where its action has more than one outcome."""

State = tuple[Any, ...]
"""A state: a named tuple of small integers, so it is hashable and JSON-able. Field ``turn`` is always there."""


class Outcome(NamedTuple):
    """One way a turn can end.

    Attributes:
        probability: Chance of this outcome; the outcomes of an action add up to 1, in a fixed order (one uniform
            number chooses, by the inverse of their cumulative sum, so worlds that share luck share that number).
        state: The state that follows.
        observation: The one word the environment answers with; empty at the end of the episode.
        utility: U, 0 or 1, where the episode ends; ``None`` where it goes on.
    """

    probability: float
    state: Hashable
    observation: str
    utility: int | None = None


class World(ABC):
    """A small world with a tabular token policy, so that V, Q and A can be computed instead of estimated.

    Attributes:
        vocabulary: The words; a token id is an index into it. It holds `END`, and at most 12 words.
        tasks: Number of tasks.
        horizon: H, the most turns an episode has.
        max_tokens: The most tokens a turn of the world's own policy has, `END` included.
    """

    vocabulary: ClassVar[tuple[str, ...]]
    tasks: ClassVar[int] = 1
    horizon: ClassVar[int]
    max_tokens: ClassVar[int]

    @abstractmethod
    def start(self, task: int) -> State:
        """The state before the first turn of ``task``."""

    @abstractmethod
    def prompt(self, task: int) -> str:
        """The task's text: words of the vocabulary with spaces between them."""

    @abstractmethod
    def policy(self, state: State, written: tuple[str, ...]) -> Mapping[str, float]:
        """Probability of each possible next word, given the state before the turn and what the turn says so far."""

    @abstractmethod
    def action(self, words: Sequence[str]) -> str:
        """What a finished turn (without `END`) does: an action's name, or `INVALID`."""

    @abstractmethod
    def actions(self, state: State) -> tuple[str, ...]:
        """The legal actions at ``state``."""

    @abstractmethod
    def act(self, state: State, action: str) -> tuple[Outcome, ...]:
        """What an action leads to. Every string is taken: one that is not legal counts as `INVALID`."""

    # ------------------------------------------------------------------------------------------ derived

    def ids(self, text: str) -> list[int]:
        """Token ids of a text.

        Raises:
            ValueError: A word is not in the vocabulary.
        """
        try:
            return [self.vocabulary.index(word) for word in split_words(text)]
        except ValueError as error:
            raise ValueError(f"{text!r} holds a word outside the vocabulary {self.vocabulary}") from error

    def text(self, tokens: Sequence[int]) -> str:
        """Words with single spaces between them."""
        return " ".join(self.vocabulary[token] for token in tokens)

    def newlines(self) -> npt.NDArray[np.uint8]:
        """``uint8[V]``: line ends in each word (the table `forkgym.noise.KeyStream` wants)."""
        return np.array([word.count("\n") for word in self.vocabulary], dtype=np.uint8)

    def logits(self, state: State, written: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """``float32[V]``: log-probabilities of the next token, −inf where it is impossible."""
        row = np.full(len(self.vocabulary), -np.inf, dtype=np.float32)
        for word, probability in self.policy(state, tuple(self.vocabulary[token] for token in written)).items():
            if probability > 0:
                row[self.vocabulary.index(word)] = np.log(probability)
        return row

    def locate(self, context: Sequence[int]) -> tuple[State, tuple[int, ...]]:
        """Read a context: the state before the open turn, and the tokens of that turn.

        Args:
            context: Prompt, then turns (each up to and with `END`) with one observation token after each.

        Raises:
            ValueError: The context is not one that this world and its policy can produce.
        """
        end = self.vocabulary.index(END)
        prompts = [self.ids(self.prompt(task)) for task in range(self.tasks)]
        length = len(prompts[0])
        tokens = list(context)
        if tokens[:length] not in prompts:
            raise ValueError(f"{self.text(tokens[:length])!r} is no prompt of {type(self).__name__}")
        state = self.start(prompts.index(tokens[:length]))
        rest = tokens[length:]
        while end in rest:
            close = rest.index(end)
            action = self.action([self.vocabulary[token] for token in rest[:close]])
            if close + 1 == len(rest):
                raise ValueError("the turn is over and not answered: an observation token is missing")
            observation = self.vocabulary[rest[close + 1]]
            followers = [o.state for o in self.act(state, action) if o.observation == observation and o.utility is None]
            if not followers:
                raise ValueError(f"action {action!r} at {state} is never answered with {observation!r}")
            state = followers[0]  # type: ignore[assignment]  # outcomes of one action differ in what they show
            rest = rest[close + 2 :]
        return state, tuple(rest)

    def context_logits(self, context: Sequence[int]) -> npt.NDArray[np.float32]:
        """The policy as a function of the whole context, as `forkgym.policy.scripted.TableEngine` takes it."""
        return self.logits(*self.locate(context))


def split_words(text: str) -> list[str]:
    """The words of a text; a line end is a word of its own."""
    return [word for word in text.replace("\n", " \n ").split(" ") if word]
