"""Exact numbers of a world by dynamic programming: V, Q, A, and every moment of a twin's D, in float64.

Nothing here samples. Coupled moments come from walking both trajectories through the graph at once, in the order in
which their noise is read; see `Solver.pair`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from forkgym.noise import Layout
from forkgym_toy.coupling import gumbel_coupling, luck_coupling
from forkgym_toy.graph import NO_CHILD, Graph
from forkgym_toy.world import World

__all__ = ["Agreement", "Pair", "Solver"]

_LUCK_LINE: Final = 1 << 40  # luck is drawn after every token of its turn


class Pair(NamedTuple):
    """Exact law of (U, U′) at one decision (s, y), averaged over the alternative y′ ~ π(·|s). U and U′ are 0 or 1.

    Attributes:
        advantage: A(s, y) = Q − V.
        mean: E[D | s, y]; equals the advantage wherever credit is unbiased.
        p_plus: P(D = +1 | s, y).
        p_minus: P(D = −1 | s, y), the probability of a reversal where A > 0.
        covariance: Cov(U, U′ | s, y).
        independent_variance: Var(D_ind | s, y), with an independent branch.
    """

    advantage: float
    mean: float
    p_plus: float
    p_minus: float
    covariance: float
    independent_variance: float

    @property
    def discordance(self) -> float:
        """P(D ≠ 0 | s, y) = E[D² | s, y]."""
        return self.p_plus + self.p_minus

    @property
    def variance(self) -> float:
        """Var(D | s, y)."""
        return self.discordance - self.mean**2

    @property
    def rho(self) -> float:
        """Twin correlation ρ = 2·Cov(U, U′)/Var(D_ind) (Twice §5); 0 where nothing varies."""
        return 2 * self.covariance / self.independent_variance if self.independent_variance > 0 else 0.0


class Agreement(NamedTuple):
    """How far two continuations under shared noise stay the same (Twice, Lemma 1).

    Attributes:
        probability: Exact probability that they are identical, token for token.
        distance: ε, the largest total variation between their next-token laws while they agree.
        positions: L, the most positions at which those laws differ at all.
    """

    probability: float
    distance: float
    positions: int

    @property
    def bound(self) -> float:
        """Lemma 1's lower bound ((1 − ε)/(1 + ε))^L."""
        return float(((1 - self.distance) / (1 + self.distance)) ** self.positions)


class _Moments(NamedTuple):
    """E[1], E[U], E[U′], E[UU′], each restricted to the event that the factual side follows its forced tokens."""

    mass: float
    left: float
    right: float
    both: float


class Solver:
    """Exact values of a world.

    Attributes:
        graph: The world unrolled.
        value: ``float64[nodes]``: E[U] from each node: V(s) at the root of a turn, Q(s, y) at a turn node.
        advantage: ``float64[nodes]``: value minus the value at the root of the same turn: A(s, y) at a turn node.
    """

    def __init__(self, world: World | Graph) -> None:
        """Solve a world (or its graph) for V and Q."""
        self.graph = world if isinstance(world, Graph) else Graph(world)
        self.value = self._values()
        self.advantage = np.where(self.graph.root >= 0, self.value - self.value[self.graph.root], np.nan)
        self._rows, self._row_of = np.unique(self.graph.probabilities, axis=0, return_inverse=True)
        self._walks: dict[tuple[Layout, bool], _Walk] = {}
        self._couplings: dict[tuple[int, int], list[tuple[int, int, float]]] = {}

    def _values(self) -> npt.NDArray[np.float64]:
        graph = self.graph
        value = np.full(graph.size, np.nan)
        value[:2] = (0.0, 1.0)

        def solve(node: int) -> float:
            if np.isnan(value[node]):
                children, weights = (
                    (graph.outcome[node], graph.chance[node])
                    if graph.is_turn(node)
                    else (graph.child[node], graph.probabilities[node])
                )
                value[node] = sum(
                    weight * solve(int(child)) for child, weight in zip(children, weights, strict=True) if child >= 0
                )
            return float(value[node])

        for root in graph.roots:
            solve(int(root))
        return value

    # ------------------------------------------------------------------------------------------ one decision

    def turn_probability(self, turn_node: int) -> float:
        """π(y | s) of a turn node."""
        node, probability = int(self.graph.root[turn_node]), 1.0
        for token in self.graph.written[turn_node]:
            probability *= float(self.graph.probabilities[node, token])
            node = int(self.graph.child[node, token])
        return probability

    def self_twin(self, root: int) -> float:
        """P(y′ = y | s) = Σ_y π(y | s)² (Twice, appendix B.1)."""
        return float(sum(self.turn_probability(node) ** 2 for node in self.graph.turn_nodes(root)))

    def visits(self, task: int) -> dict[int, float]:
        """Probability that an episode of ``task`` passes each node of the graph that it can reach."""
        graph = self.graph
        reach: dict[int, float] = {int(graph.roots[task]): 1.0}
        # Within a task a node's turn and length grow along every edge, so this order is topological.
        pending = {int(graph.roots[task])}
        while pending:
            node = min(pending, key=lambda n: (graph.is_end(n), graph.turn[n], len(graph.written[n]), n))
            pending.discard(node)
            if graph.is_end(node):
                continue
            children, weights = (
                (graph.outcome[node], graph.chance[node])
                if graph.is_turn(node)
                else (graph.child[node], graph.probabilities[node])
            )
            for child, weight in zip(children.tolist(), weights.tolist(), strict=True):
                if child != NO_CHILD:
                    reach[child] = reach.get(child, 0.0) + reach[node] * weight
                    pending.add(child)
        return reach

    # ------------------------------------------------------------------------------------------ two trajectories

    def pair(self, turn_node: int, layout: Layout | str = Layout.TURN_LINE, *, shared_luck: bool = True) -> Pair:
        """Exact law of a twin's outcome at (s, y).

        Both trajectories are walked in the order in which they read noise; where both are about to read the same
        key, the next tokens have the joint law of `gumbel_coupling`, elsewhere they are independent. This is exact
        for every layout whose keys come in one order along a trajectory (all but ``ngram``).

        Args:
            turn_node: The decision (s, y).
            layout: Noise layout; ``independent`` gives CRR's branch, which shares no luck either.
            shared_luck: A twin meets the factual episode's environment luck (from turn t itself on).

        Returns:
            The moments. Under ``episode`` ``mean`` is the biased expectation E[D | s, y].

        Raises:
            ValueError: ``ngram``, or ``episode`` with shared luck in a world that has luck (no common order of keys).
        """
        root = int(self.graph.root[turn_node])
        alternatives = self.graph.turn_nodes(root)
        law = np.zeros((2, 2))
        tables = self.outcomes(turn_node, alternatives, layout, shared_luck=shared_luck)
        for alternative, table in zip(alternatives, tables, strict=True):
            law += self.turn_probability(alternative) * table
        left, right, both = float(law[1].sum()), float(law[:, 1].sum()), float(law[1, 1])
        q, v = float(self.value[turn_node]), float(self.value[root])
        return Pair(
            advantage=q - v,
            mean=left - right,
            p_plus=left - both,
            p_minus=right - both,
            covariance=both - left * right,
            independent_variance=q * (1 - q) + v * (1 - v),
        )

    def outcomes(
        self,
        turn_node: int,
        alternatives: Sequence[int],
        layout: Layout | str = Layout.TURN_LINE,
        *,
        shared_luck: bool = True,
    ) -> list[npt.NDArray[np.float64]]:
        """Joint law of (U, U′) given y and each alternative y′; arguments and errors as for `pair`.

        Args:
            turn_node: The factual (s, y).
            alternatives: Turn nodes (s, y′) at the same state.
            layout: Noise layout.
            shared_luck: Whether the twin meets the factual luck.

        Returns:
            For each alternative ``float64[2, 2]``: P(U = row, U′ = column | y, y′).
        """
        layout = Layout(layout)
        graph = self.graph
        if layout is Layout.NGRAM:
            raise ValueError("n-gram keys repeat within a trajectory, so no exact law is known: simulate it")
        if layout is Layout.EPISODE and shared_luck and graph.lucky.any():
            raise ValueError("the episode layout has no common order with shared luck: pass shared_luck=False")
        walk = self._walk(layout, shared_luck, graph.written[turn_node] if layout is Layout.EPISODE else ())
        tables = []
        for alternative in alternatives:
            if layout is Layout.EPISODE:
                lead = -len(graph.written[alternative])
                moments = walk.from_here(int(graph.root[turn_node]), alternative, lead, 0)
            else:
                moments = walk.from_here(turn_node, alternative, 0, 0)
            left, right, both = (moment / moments.mass for moment in moments[1:])
            tables.append(np.array([[1 - left - right + both, right - both], [left - both, both]]))
        return tables

    def _walk(self, layout: Layout, shared_luck: bool, forced: tuple[int, ...]) -> _Walk:
        """The walk of a layout; it remembers what it has solved, and serves every decision unless tokens are forced."""
        if forced:
            return _Walk(self, layout, shared_luck, forced)
        return self._walks.setdefault((layout, shared_luck), _Walk(self, layout, shared_luck, ()))

    def agreement(self, left: int, right: int) -> Agreement:
        """Lemma 1's quantities for two turn nodes of one turn, under ``turn-line`` keys, in a world without luck.

        Args:
            left: Turn node after which one trajectory goes on.
            right: Turn node after which the other goes on.
        """
        graph = self.graph

        @functools.cache
        def walk(a: int, b: int) -> Agreement:
            if graph.is_end(a) or graph.is_end(b):
                return Agreement(float(graph.is_end(a) and graph.is_end(b)), 0.0, 0)
            if graph.is_turn(a):
                return walk(int(graph.outcome[a, 0]), int(graph.outcome[b, 0]))
            distance = float(np.abs(graph.probabilities[a] - graph.probabilities[b]).sum() / 2)
            probability, largest, positions = 0.0, distance, 0
            for token, other, weight in self.coupled(a, b):
                if token != other:
                    continue
                rest = walk(int(graph.child[a, token]), int(graph.child[b, token]))
                probability += weight * rest.probability
                largest = max(largest, rest.distance)
                positions = max(positions, rest.positions)
            return Agreement(probability, largest, positions + (distance > 0))

        return walk(left, right)

    def coupled(self, left: int, right: int) -> list[tuple[int, int, float]]:
        """Joint law of the next tokens of two token nodes that read one key: (left, right, probability > 0)."""
        key = int(self._row_of[left]), int(self._row_of[right])
        if key not in self._couplings:
            joint = gumbel_coupling(self._rows[key[0]], self._rows[key[1]])
            self._couplings[key] = [(int(a), int(b), float(joint[a, b])) for a, b in np.argwhere(joint > 0)]
        return self._couplings[key]


class _Walk:
    """Both trajectories at once; results are remembered for one (layout, luck, forced tokens)."""

    def __init__(self, solver: Solver, layout: Layout, shared_luck: bool, forced: tuple[int, ...]) -> None:
        self.solver = solver
        self.graph = solver.graph
        self.layout = layout
        self.shared_luck = shared_luck
        self.forced = forced
        self._known: dict[tuple[int, int, int, int], _Moments] = {}

    def from_here(self, left: int, right: int, lead: int, done: int) -> _Moments:
        """Moments from two nodes on.

        Args:
            left: Factual node.
            right: Twin's node.
            lead: Factual minus the twin's count of generated tokens (``episode`` layout only, else 0).
            done: Forced factual tokens already written.
        """
        key = (left, right, lead, done)
        if key not in self._known:
            self._known[key] = self._solve(left, right, lead, done)
        return self._known[key]

    def _solve(self, left: int, right: int, lead: int, done: int) -> _Moments:
        graph, value = self.graph, self.solver.value
        if graph.is_end(left) or graph.is_end(right) or self.layout is Layout.INDEPENDENT:
            mass = self._finish_forced(left, done)
            u, v = self._left_value(left, done), float(value[right])
            return _Moments(mass, mass * u, mass * v, mass * u * v)
        for node, is_left in ((left, True), (right, False)):
            if graph.is_turn(node) and not (self.shared_luck and graph.lucky[node]):
                edges = zip(graph.outcome[node].tolist(), graph.chance[node].tolist(), strict=True)
                moves = [(c, right, p) if is_left else (left, c, p) for c, p in edges if c != NO_CHILD]
                return self._sum([(a, b, p, lead, done) for a, b, p in moves])
        first, second = self._clock(left, lead), self._clock(right, 0)
        if first < second:
            return self._sum([(a, right, p, lead + 1, d) for a, p, d in self._left_moves(left, done)])
        if second < first:
            return self._sum([(left, b, p, lead - 1, done) for b, p in self._edges(right)])
        if graph.is_turn(left):
            joint = luck_coupling(graph.chance[left], graph.chance[right])
            a, b = graph.outcome[left].tolist(), graph.outcome[right].tolist()
            return self._sum([(a[i], b[j], float(joint[i, j]), lead, done) for i, j in np.argwhere(joint > 0)])
        moves_both = []
        for a, b, p in self.solver.coupled(left, right):
            if done < len(self.forced) and a != self.forced[done]:
                continue
            after = min(done + 1, len(self.forced))
            moves_both.append((int(graph.child[left, a]), int(graph.child[right, b]), p, lead, after))
        return self._sum(moves_both)

    def _sum(self, moves: list[tuple[int, int, float, int, int]]) -> _Moments:
        """Weighted sum over moves (left node, right node, probability, lead, forced tokens done)."""
        mass = left = right = both = 0.0
        for a, b, probability, lead, done in moves:
            kept = lead if self.layout is Layout.EPISODE else 0
            moments = self.from_here(a, b, kept, done)
            mass += probability * moments.mass
            left += probability * moments.left
            right += probability * moments.right
            both += probability * moments.both
        return _Moments(mass, left, right, both)

    def _clock(self, node: int, count: int) -> tuple[int, int, int]:
        """When the node's noise is read; equal clocks read the same key."""
        graph = self.graph
        if self.layout is Layout.EPISODE:
            return (count, 0, 0)
        turn = int(graph.turn[node])
        if graph.is_turn(node):
            return (turn, _LUCK_LINE, 0)
        if self.layout is Layout.TURN:
            return (turn, 0, len(graph.written[node]))
        return (turn, int(graph.line[node]), int(graph.position[node]))

    def _edges(self, node: int) -> list[tuple[int, float]]:
        graph = self.graph
        rows = (
            (graph.outcome[node], graph.chance[node])
            if graph.is_turn(node)
            else (graph.child[node], graph.probabilities[node])
        )
        return [(c, p) for c, p in zip(rows[0].tolist(), rows[1].tolist(), strict=True) if c != NO_CHILD]

    def _left_moves(self, node: int, done: int) -> list[tuple[int, float, int]]:
        if done == len(self.forced):
            return [(child, probability, done) for child, probability in self._edges(node)]
        token = self.forced[done]
        return [(int(self.graph.child[node, token]), float(self.graph.probabilities[node, token]), done + 1)]

    def _finish_forced(self, left: int, done: int) -> float:
        """Probability of the forced tokens that are still to come."""
        mass = 1.0
        for token in self.forced[done:]:
            mass *= float(self.graph.probabilities[left, token])
            left = int(self.graph.child[left, token])
        return mass

    def _left_value(self, left: int, done: int) -> float:
        for token in self.forced[done:]:
            left = int(self.graph.child[left, token])
        return float(self.solver.value[left])
