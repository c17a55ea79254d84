"""A world unrolled into a finite graph of tables: what the exact solver sums over and the simulator walks through.

Three kinds of node: *token* (the policy chooses a word), *turn* (a finished turn at a state: the (s, y) of the
papers; the environment answers) and *end* (utility 0 or 1).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from forkgym_toy.world import END, State, World

__all__ = ["NO_CHILD", "Graph"]

NO_CHILD: Final = -1
_ENDS: Final = (0, 1)


class Graph:
    """Every place an episode of ``world`` can be at, numbered; nodes 0 and 1 are the ends with utility 0 and 1.

    Arrays are indexed by node; V words, L the most outcomes of an action.

    Attributes:
        world: The world.
        roots: ``int64[tasks]``: token node before the first turn of each task.
        logits: ``float64[nodes, V]``: the policy's float32 logits, widened (−inf: impossible).
        probabilities: ``float64[nodes, V]``: their softmax; rows of zeros except at token nodes.
        child: ``int64[nodes, V]``: node after each token, `NO_CHILD` where impossible.
        outcome: ``int64[nodes, L]``: node after each outcome of a turn node, `NO_CHILD` padded.
        chance: ``float64[nodes, L]``: probability of each outcome.
        shown: ``int64[nodes, L]``: token of the observation, −1 at the end of the episode.
        root: ``int64[nodes]``: token node at which the node's turn begins, −1 for ends.
        lucky: ``bool[nodes]``: turn nodes with more than one outcome, where the environment draws.
        turn: ``int64[nodes]``: turn number, −1 for ends.
        line: ``int64[nodes]``: line ends so far in the turn (token nodes).
        position: ``int64[nodes]``: tokens since the last line end (token nodes).
        states: State before the node's turn (``None`` for ends).
        written: The turn's tokens so far; at a turn node the whole turn y.
    """

    def __init__(self, world: World) -> None:
        """Unroll every task of a world.

        Raises:
            ValueError: The policy has no possible word somewhere, or does not end a turn within ``max_tokens``.
        """
        self.world = world
        self.newlines = world.newlines()
        self._end = world.vocabulary.index(END)
        self._starts: dict[Hashable, int] = {}
        self._links: list[tuple[int, int, Hashable]] = []
        self.states: list[State | None] = [None, None]
        self.written: list[tuple[int, ...]] = [(), ()]
        self._place: list[tuple[int, int, int]] = [(-1, 0, 0)] * 2
        width = len(world.vocabulary)
        self._logits: list[npt.NDArray[Any]] = [np.full(width, -np.inf)] * 2
        self._child: list[list[int]] = [[NO_CHILD] * width for _ in _ENDS]
        self._outcomes: list[list[tuple[float, int, int]]] = [[], []]
        self.roots = np.array([self._start(world.start(task)) for task in range(world.tasks)])
        self._freeze()

    # ------------------------------------------------------------------------------------------ queries

    @property
    def size(self) -> int:
        """Number of nodes."""
        return len(self.states)

    def is_end(self, node: int) -> bool:
        """Whether the node is an end of the episode; its number is then its utility."""
        return node < len(_ENDS)

    def is_turn(self, node: int) -> bool:
        """Whether the node is a finished turn (s, y)."""
        return bool(self.outcome[node, 0] != NO_CHILD)

    def turn_nodes(self, root: int) -> list[int]:
        """The finished turns that can be written from ``root``, in order of their tokens."""
        found, stack = [], [root]
        while stack:
            node = stack.pop()
            if self.is_turn(node):
                found.append(node)
            else:
                stack += [int(child) for child in self.child[node] if child != NO_CHILD]
        return sorted(found, key=lambda node: self.written[node])

    def text(self, node: int) -> str:
        """The turn written so far, `END` left out."""
        return self.world.text([token for token in self.written[node] if token != self._end])

    # ------------------------------------------------------------------------------------------ building

    def _start(self, state: State) -> int:
        """The token node at which the policy begins a turn at ``state``; unrolled on first use."""
        pending = [state]
        while pending:
            current = pending.pop()
            if current not in self._starts:
                self._starts[current] = self._unroll(current, (), 0, 0, pending)
        return self._starts[state]

    def _unroll(self, state: State, written: tuple[int, ...], line: int, position: int, pending: list[State]) -> int:
        """Add the subtree of a turn; states it leads to are put on ``pending``."""
        node = self._add(state, written, line, position)
        if written and written[-1] == self._end:
            self._logits[node] = np.full(len(self.world.vocabulary), -np.inf)
            self._finish(node, state, written, pending)
            return node
        logits = self.world.logits(state, written)
        if len(written) == self.world.max_tokens or not np.isfinite(logits).any():
            raise ValueError(f"the policy does not end the turn {self.world.text(written)!r} at {state}")
        self._logits[node] = logits
        for token in np.flatnonzero(np.isfinite(logits)).tolist():
            ends = int(self.newlines[token])
            place = (line + ends, 0) if ends else (line, position + 1)
            self._child[node][token] = self._unroll(state, (*written, token), *place, pending)
        return node

    def _add(self, state: State, written: tuple[int, ...], line: int, position: int) -> int:
        self.states.append(state)
        self.written.append(written)
        self._place.append((state[1], line, position))
        self._child.append([NO_CHILD] * len(self.world.vocabulary))
        self._outcomes.append([])
        self._logits.append(np.empty(0))
        return len(self.states) - 1

    def _finish(self, node: int, state: State, written: tuple[int, ...], pending: list[State]) -> None:
        action = self.world.action([self.world.vocabulary[token] for token in written[:-1]])
        for number, outcome in enumerate(self.world.act(state, action)):
            if outcome.utility is not None:
                self._outcomes[node].append((outcome.probability, outcome.utility, -1))
                continue
            shown = self.world.vocabulary.index(outcome.observation)
            self._outcomes[node].append((outcome.probability, NO_CHILD, shown))
            self._links.append((node, number, outcome.state))
            pending.append(outcome.state)  # type: ignore[arg-type]  # states are tuples

    def _freeze(self) -> None:
        """Lists to arrays; outcomes learn the number of the node they lead to."""
        for node, number, state in self._links:
            probability, _, shown = self._outcomes[node][number]
            self._outcomes[node][number] = (probability, self._starts[state], shown)
        size, width = self.size, max(len(row) for row in self._outcomes)
        self.logits = np.stack(self._logits).astype(np.float64)
        weights = np.exp(self.logits)
        self.probabilities = weights / np.maximum(weights.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
        self.child = np.array(self._child)
        self.outcome = np.full((size, width), NO_CHILD)
        self.shown = np.full((size, width), -1)
        self.chance = np.zeros((size, width))
        for node, row in enumerate(self._outcomes):
            for number, (probability, child, shown) in enumerate(row):
                self.outcome[node, number] = child
                self.shown[node, number] = shown
                self.chance[node, number] = probability
        self.root = np.array([-1 if state is None else self._starts[state] for state in self.states])
        self.lucky = (self.outcome != NO_CHILD).sum(axis=1) > 1
        self.turn, self.line, self.position = np.array(self._place).T
