"""A fast keyed simulator: many episodes and their branches at once, with the keys that real rollouts use.

Token for token what `forkgym.rollout` produces with `TableEngine` and the environment (a test compares them), at
some hundred thousand tokens a second, so that statistics over 20,000 pairs take seconds.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from forkgym.noise import FACTUAL_STREAM, Layout, stream_id
from forkgym.noise.keys import TAG_EPISODE, TAG_LINE, TAG_NGRAM, TAG_TURN
from forkgym.noise.layouts import NGRAM_CONTEXT, NO_TOKEN
from forkgym_toy.exact import Solver
from forkgym_toy.graph import NO_CHILD, Graph
from forkgym_toy.keyed import gumbels, luck_uniforms, prefixes, splitmix
from forkgym_toy.world import LUCK_NAME, World

__all__ = ["BranchKind", "Episodes", "Pairs", "Simulator"]

BranchKind = Literal["twin", "independent", "pair"]
Ints = npt.NDArray[np.int64]

_TAGS = {
    Layout.TURN_LINE: TAG_LINE,
    Layout.INDEPENDENT: TAG_LINE,
    Layout.TURN: TAG_TURN,
    Layout.EPISODE: TAG_EPISODE,
    Layout.NGRAM: TAG_NGRAM,
}


class Episodes(msgspec.Struct, frozen=True):
    """N trajectories, or the parts of them after a fork. −1 fills what lies outside.

    Attributes:
        keys: ``uint64[N]``: episode ids.
        tasks: ``int64[N]``: task numbers.
        turns: ``int64[N, H]``: turn node (s_t, y_t) of every turn; see `forkgym_toy.graph.Graph`.
        shown: ``int64[N, H]``: observation token after every turn; −1 also at the end.
        utility: ``int64[N]``: U, 0 or 1.
    """

    keys: npt.NDArray[np.uint64]
    tasks: Ints
    turns: Ints
    shown: Ints
    utility: Ints

    @property
    def lengths(self) -> Ints:
        """``int64[N]``: number of turns."""
        return np.asarray((self.turns >= 0).sum(axis=1))


class Pairs(msgspec.Struct, frozen=True):
    """Branches of one turn, one for each episode that has this turn (M of them).

    Attributes:
        rows: ``int64[M]``: number of the episode.
        turn: The turn t that was branched.
        decision: ``int64[M]``: factual turn node (s_t, y_t).
        alternative: ``int64[M]``: turn node (s_t, y′).
        utility: ``int64[M]``: U of the factual arm (re-run under the fresh stream for kind ``pair``).
        twin_utility: ``int64[M]``: U′.
        self_twin: ``bool[M]``: y′ = y_t token for token.
        same_evidence: ``bool[M]``: e: y′ ≠ y_t, neither ends the episode, and both show the same observation.
        terminal: ``bool[M]``: the factual turn ended the episode.
        tokens: ``int64[M]``: tokens of the alternative and of its continuation (of both arms' for kind ``pair``).
        after: What followed the fork in the branch (turn t holds the alternative).
    """

    rows: Ints
    turn: int
    decision: Ints
    alternative: Ints
    utility: Ints
    twin_utility: Ints
    self_twin: npt.NDArray[np.bool_]
    same_evidence: npt.NDArray[np.bool_]
    terminal: npt.NDArray[np.bool_]
    tokens: Ints
    after: Episodes

    @property
    def difference(self) -> Ints:
        """``int64[M]``: D = U − U′."""
        return self.utility - self.twin_utility


class Simulator:
    """Plays a world's own policy under one noise layout.

    Attributes:
        graph: The world unrolled.
        layout: The noise layout of every trajectory.
        written: ``int64[nodes]``: tokens written so far in the node's turn; at a turn node its length.
    """

    def __init__(self, world: World | Graph | Solver, layout: Layout | str = Layout.TURN_LINE) -> None:
        """Prepare tables.

        Args:
            world: The world, its graph or its solver (the latter two save unrolling it again).
            layout: Noise layout.
        """
        self.graph = world if isinstance(world, Graph) else world.graph if isinstance(world, Solver) else Graph(world)
        self.layout = Layout(layout)
        graph = self.graph
        possible = graph.child != NO_CHILD
        self._forced = np.where(possible.sum(axis=1) == 1, possible.argmax(axis=1), -1)
        self._is_turn = graph.outcome[:, 0] != NO_CHILD
        self.written = np.array([len(tokens) for tokens in graph.written])
        self._bounds = np.cumsum(graph.chance, axis=1)
        prompts = [graph.world.ids(graph.world.prompt(task)) for task in range(graph.world.tasks)]
        self._prompts = np.array([([NO_TOKEN] * NGRAM_CONTEXT + prompt)[-NGRAM_CONTEXT:] for prompt in prompts])

    def play(self, keys: npt.ArrayLike, tasks: npt.ArrayLike = 0) -> Episodes:
        """Factual episodes.

        Args:
            keys: Episode ids, e.g. from `forkgym.noise.episode_id`; unique, or episodes repeat.
            tasks: Task of every episode, or one for all.

        Raises:
            ValueError: No such task.
        """
        ids = np.asarray(keys, dtype=np.uint64)
        numbers = np.broadcast_to(np.asarray(tasks, dtype=np.int64), ids.shape).copy()
        if ids.size and not (numbers.min() >= 0 and numbers.max() < self.graph.roots.size):
            raise ValueError(
                f"tasks must lie in 0 to {self.graph.roots.size - 1}, got {numbers.min()} to {numbers.max()}"
            )
        place = _Place(self, ids, numbers, self.graph.roots[numbers])
        return self._continue(place, 0, FACTUAL_STREAM, FACTUAL_STREAM, FACTUAL_STREAM)

    def branch(
        self,
        episodes: Episodes,
        turn: int,
        *,
        kind: BranchKind = "twin",
        index: int = 0,
        shared_luck: bool = True,
    ) -> Pairs:
        """Branch every episode that has turn ``turn``, with y′ ~ π from a stream of its own.

        Args:
            episodes: Factual episodes, played by this simulator.
            turn: t.
            kind: ``twin``: later turns read the factual stream; ``independent``: a stream of their own, and luck of
                their own; ``pair``: both arms' later turns read one fresh stream, and luck too
                from turn t on (the second and further of J pairs).
            index: Number of the branch at this decision.
            shared_luck: Twins meet the factual luck; false draws it afresh from turn t on.

        Returns:
            The pairs. Self-twins are continued like any other branch.

        Raises:
            ValueError: No such turn.
        """
        if not 0 <= turn < self.graph.world.horizon:
            raise ValueError(f"turn {turn} cannot be branched: turns are 0 to {self.graph.world.horizon - 1}")
        rows = np.flatnonzero(episodes.turns[:, turn] >= 0)
        decision = episodes.turns[rows, turn]
        later = luck = FACTUAL_STREAM
        if kind == "independent":
            later = luck = stream_id(FACTUAL_STREAM, turn, "continuation", index)
        elif kind == "pair":
            later = luck = stream_id(FACTUAL_STREAM, turn, "pair", index, index)
        elif not shared_luck:
            luck = stream_id(FACTUAL_STREAM, turn, "luck", index)
        place = self._place_before(episodes, rows, turn)
        after = self._continue(place, turn, stream_id(FACTUAL_STREAM, turn, "alternative", index), luck, later)
        alternative = after.turns[:, turn]
        tokens = self.token_counts(after).sum(axis=1)
        utility, terminal = episodes.utility[rows], episodes.shown[rows, turn] < 0
        if kind == "pair":
            arm = self._place_before(episodes, rows, turn)
            arm.take(decision)
            again = self._continue(arm, turn, stream=later, luck=luck, later=later)
            utility = again.utility
            tokens += self.token_counts(again)[:, turn + 1 :].sum(axis=1)
        self_twin = alternative == decision
        shown = after.shown[:, turn]
        same = ~self_twin & (shown >= 0) & (shown == episodes.shown[rows, turn])
        return Pairs(
            rows, turn, decision, alternative, utility, after.utility, self_twin, same, terminal, tokens, after
        )

    def token_counts(self, episodes: Episodes) -> Ints:
        """``int64[N, H]``: tokens that the policy wrote in every turn."""
        return np.where(episodes.turns >= 0, self.written[episodes.turns], 0)

    def text(self, episodes: Episodes, row: int) -> list[str]:
        """The turns of one trajectory as text."""
        return [self.graph.text(int(node)) for node in episodes.turns[row] if node >= 0]

    def tokens(self, episodes: Episodes, row: int) -> list[list[int]]:
        """The turns of one trajectory as token ids."""
        return [list(self.graph.written[int(node)]) for node in episodes.turns[row] if node >= 0]

    # ------------------------------------------------------------------------------------------ inside

    def _place_before(self, episodes: Episodes, rows: Ints, turn: int) -> _Place:
        """The episodes ``rows`` at the start of ``turn``: node, tokens generated, last tokens of the context."""
        roots = self.graph.root[episodes.turns[rows, turn]]
        earlier = episodes.turns[rows, :turn]
        counter = np.where(earlier >= 0, self.written[earlier], 0).sum(axis=1)
        context = self._prompts[episodes.tasks[rows]].copy()
        if self.layout is Layout.NGRAM:
            for place, row in enumerate(rows):
                said: list[int] = context[place].tolist()
                for number in range(turn):
                    said += [*self.graph.written[int(episodes.turns[row, number])], int(episodes.shown[row, number])]
                context[place] = said[-NGRAM_CONTEXT:]
        return _Place(self, episodes.keys[rows], episodes.tasks[rows], roots, counter, context)

    def _continue(
        self,
        place: _Place,
        turn: int,
        stream: int,
        luck: int,
        later: int,
    ) -> Episodes:
        """Play from ``turn`` to the end: this turn under ``stream``, later ones under ``later``."""
        size, horizon = place.node.size, self.graph.world.horizon
        turns, shown = np.full((size, horizon), -1), np.full((size, horizon), -1)
        first = turn
        while place.alive.any():
            place.write(turn, stream if turn == first else later)
            alive = np.flatnonzero(place.alive)
            turns[alive, turn] = place.node[alive]
            shown[alive, turn] = place.answer(turn, luck)
            turn += 1
        return Episodes(place.keys, place.tasks, turns, shown, place.node.copy())


class _Place:
    """Where N trajectories stand, all of them in the same turn; the ends' node numbers are their utilities."""

    def __init__(
        self,
        simulator: Simulator,
        keys: npt.NDArray[np.uint64],
        tasks: Ints,
        node: Ints,
        counter: Ints | None = None,
        context: Ints | None = None,
    ) -> None:
        self.simulator = simulator
        self.graph = simulator.graph
        self.keys = keys
        self.tasks = tasks
        self.node = node.copy()
        self.counter = np.zeros_like(self.node) if counter is None else counter.copy()
        self.context = simulator._prompts[tasks].copy() if context is None else context.copy()

    @property
    def alive(self) -> npt.NDArray[np.bool_]:
        """Trajectories that have not ended."""
        return self.node > 1

    def take(self, turns: Ints) -> None:
        """Let every trajectory write a given turn (turn nodes) instead of sampling one."""
        self.node = turns.copy()
        self.counter += self.simulator.written[turns]
        if self.simulator.layout is Layout.NGRAM:
            for row, node in enumerate(turns.tolist()):
                self._remember(np.array([row]), np.array([self.graph.written[node]]))

    def write(self, turn: int, stream: int) -> None:
        """Sample a turn in every trajectory that goes on and has not written this one yet."""
        simulator, graph = self.simulator, self.graph
        keyed_turn = turn if simulator.layout not in (Layout.EPISODE, Layout.NGRAM) else 0
        rows = np.flatnonzero(self.alive & ~simulator._is_turn[self.node])
        prefix = np.zeros(self.node.size, dtype=np.uint64)
        prefix[rows] = prefixes(_TAGS[simulator.layout], self.keys[rows].tolist(), keyed_turn, stream)
        while rows.size:
            node = self.node[rows]
            token = simulator._forced[node].copy()
            free = np.flatnonzero(token < 0)
            if free.size:
                keys = self._next_keys(prefix[rows[free]], rows[free])
                noise = gumbels(keys, graph.logits.shape[1])
                token[free] = (graph.logits[node[free]] + noise).argmax(axis=1)
            self.node[rows] = graph.child[node, token]
            self.counter[rows] += 1
            self._remember(rows, token[:, None])
            rows = rows[~simulator._is_turn[self.node[rows]]]

    def answer(self, turn: int, luck: int) -> Ints:
        """Let the environment answer the finished turns; returns the observation tokens (−1 at ends)."""
        graph = self.graph
        rows = np.flatnonzero(self.alive)
        node = self.node[rows]
        picked = np.zeros(rows.size, dtype=np.int64)
        lucky = np.flatnonzero(graph.lucky[node])
        if lucky.size:
            draw = luck_uniforms(self.keys[rows[lucky]].tolist(), luck, turn + 1, LUCK_NAME)
            picked[lucky] = (draw[:, None] >= self.simulator._bounds[node[lucky], :-1]).sum(axis=1)
        shown = graph.shown[node, picked]
        self.node[rows] = graph.outcome[node, picked]
        seen = shown >= 0
        self._remember(rows[seen], shown[seen, None])
        return shown

    def _next_keys(self, prefix: npt.NDArray[np.uint64], rows: Ints) -> npt.NDArray[np.uint64]:
        graph, node = self.graph, self.node[rows]
        layout = self.simulator.layout
        if layout is Layout.NGRAM:
            a, b, c, d = self.context[rows].astype(np.uint64).T
            half = np.uint64(32)
            return splitmix(splitmix(prefix, a << half | b), c << half | d)
        index: npt.NDArray[Any]
        if layout is Layout.EPISODE:
            index = self.counter[rows]
        elif layout is Layout.TURN:
            index = self.simulator.written[node]
        else:
            index = graph.line[node] << 32 | graph.position[node]
        return splitmix(prefix, index.astype(np.uint64))

    def _remember(self, rows: Ints, tokens: Ints) -> None:
        """Append tokens ``[len(rows), k]`` to the contexts that n-gram keys read."""
        if self.simulator.layout is Layout.NGRAM and rows.size:
            self.context[rows] = np.concatenate((self.context[rows], tokens), axis=1)[:, -NGRAM_CONTEXT:]
