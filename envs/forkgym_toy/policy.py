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
        vocabulary_size: V.
        stop_tokens: The one token that ends a turn.
        newlines: ``uint8[V]``: line ends in each word.
    """

    def __init__(self, world: World) -> None:
        """Render for ``world``."""
        self.world = world
        self.vocabulary_size = len(world.vocabulary)
        self.stop_tokens: tuple[int, ...] = (world.vocabulary.index(END),)
        self.newlines: npt.NDArray[np.uint8] = world.newlines()

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a conversation: the words of its messages, one message after the other."""
        return [token for message in messages for token in self.world.ids(message["content"])]

    def observation(self, text: str, *, closed: bool = True) -> list[int]:
        """Token ids of what the environment answered, after the `END` of a turn that was cut (``closed`` false)."""
        return [*(() if closed else self.stop_tokens), *self.world.ids(text)]

    def written(self, text: str) -> list[int]:
        """Token ids of a turn that somebody else wrote, `END` included."""
        return [*self.world.ids(text), *self.stop_tokens]

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of a turn without `END`."""
        return self.world.text([token for token in tokens if token not in self.stop_tokens])
