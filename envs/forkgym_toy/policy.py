"""What a world needs to be played by forkgym's rollouts: its words as tokens, and its policy as an engine's table.

Imports nothing of `forkgym.policy`; `TableEngine(world.context_logits)` and `WordRenderer(world)` meet its protocols.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from forkgym_toy.world import END, World

__all__ = ["WordRenderer"]


class WordRenderer:
    """Tokens are a world's words: no roles, no templates, nothing around a message.

    Attributes:
        world: The world.
        stop_tokens: The one token that ends a turn.
        newlines: ``uint8[V]``: line ends in each word.
    """

    def __init__(self, world: World) -> None:
        """Render for ``world``."""
        self.world = world
        self.stop_tokens: tuple[int, ...] = (world.vocabulary.index(END),)
        self.newlines: npt.NDArray[np.uint8] = world.newlines()

    @property
    def vocabulary_size(self) -> int:
        """V."""
        return len(self.world.vocabulary)

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a conversation: the words of its messages, one message after the other."""
        return [token for message in messages for token in self.world.ids(message["content"])]

    def observation(self, text: str) -> list[int]:
        """Token ids of what the environment answered."""
        return self.world.ids(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of a turn; `END` shows as its own word."""
        return self.world.text(tokens)
