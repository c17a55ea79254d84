"""What is trained on where that is more (or other) than the factual episodes: alternatives, branches, chosen forks.

A training set is called with the batch and its algorithm and returns episodes with one advantage a turn. A suffix of a
trajectory is an episode whose prompt is everything before it, so that no token is trained twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from forkgym.credit.estimators import root_mean_square, standardised
from forkgym.credit.protocol import Advantages, Algorithm, CreditBatch
from forkgym.noise import stream_id
from forkgym.rollout.trace import Branch, Decision, Episode, Turn

__all__ = ["AllBranches", "Alternatives", "BestFork", "TreeLeaves"]

Examples = tuple[list[Episode], Advantages]


class Alternatives(msgspec.Struct, frozen=True, kw_only=True):
    """Besides the factual episodes, train the alternative turn of each twin; its coupled continuation only scores.

    y' and y_t are drawn alike, so ``−ω·D/(q·J·q_same^e·σ̂)`` is the alternative's own credit, in the unit of
    the factual turn's. Self-twins (D = 0) and twins that were not followed add nothing.

    Attributes:
        weight: ω, as in ``TurnCredit`` with σ̂ of the batch.
    """

    weight: float = 1.0

    def __call__(self, batch: CreditBatch, algorithm: Algorithm) -> Examples:
        """Factual episodes, then alternatives in canonical order."""
        episodes, rows = list(batch.episodes), algorithm.advantages(batch)
        credits = [one.credit or 0.0 for own in batch.decisions.values() for one in own]
        sigma = root_mean_square([value for value in credits if value != 0.0])
        for parent, decision, branch in _followed(batch):
            if branch.self_twin or sigma == 0.0:
                continue
            seen = decision.propensity * (branch.continuation_probability if branch.same_evidence else 1.0)
            credit = -branch.difference / (seen * len(decision.branches))
            episodes.append(_suffix(parent, branch, branch.turns[:1]))
            rows.append([self.weight * credit / sigma])
        return episodes, rows


class AllBranches(msgspec.Struct, frozen=True, kw_only=True):
    """Train factual episodes and all turns of independent branches, weighted by ``1/(1 + q·(t + 1))`` at depth t.

    With one constant q, ``1 + q·(t + 1)`` is the expected number of trajectories at depth t, so the weighted sum has
    the expectation of one episode's. The advantage is a leaf's return minus the mean factual return of the other
    members, which are independent of the tree.
    """

    def __call__(self, batch: CreditBatch, algorithm: Algorithm) -> Examples:  # noqa: ARG002
        """Factual episodes, then branches in canonical order.

        Raises:
            ValueError: Decisions were branched with different q, or a group has one member.
        """
        chances = {decision.propensity for own in batch.decisions.values() for decision in own}
        if len(chances) != 1:
            raise ValueError("depth weights need one constant branch probability")
        (q,) = chances
        baselines: dict[int, float] = {}
        for group in batch.groups:
            if len(group) < 2:
                raise ValueError("the baseline is the mean of the other members: raise group_size to at least 2")
            total = math.fsum(episode.utility for episode in group)
            baselines |= {one.key: (total - one.utility) / (len(group) - 1) for one in group}
        episodes = list(batch.episodes)
        rows = [_by_depth(one.turns, one.utility - baselines[one.key], q) for one in episodes]
        for parent, _, branch in _followed(batch):
            episodes.append(_suffix(parent, branch, branch.turns))
            rows.append(_by_depth(branch.turns, branch.utility - baselines[parent.key], q))
        return episodes, rows


class TreeLeaves(msgspec.Struct, frozen=True, kw_only=True):
    """Tree-GRPO: a leaf's advantage is its return against its own tree plus its return against all trees of the task.

    An episode and its branches are a tree; each of the two terms is standardised. A turn that several leaves share is
    trained once, with the mean of their advantages. Source: Ji et al. 2026.
    """

    def __call__(self, batch: CreditBatch, algorithm: Algorithm) -> Examples:  # noqa: ARG002
        """Factual episodes, then branches in canonical order."""
        forks: dict[int, list[Branch]] = {}
        for parent, _, branch in _followed(batch):
            forks.setdefault(parent.key, []).append(branch)
        episodes, rows = list(batch.episodes), []
        suffixes: list[tuple[Episode, list[float]]] = []
        for group in batch.groups:
            trees = [[one.utility, *(b.utility for b in forks.get(one.key, []))] for one in group]
            among = iter(standardised([value for tree in trees for value in tree]))
            for one, tree in zip(group, trees, strict=True):
                leaves = [within + next(among) for within in standardised(tree)]
                own = forks.get(one.key, [])
                row = []
                for turn in range(len(one.turns)):
                    through = [leaves[0], *(v for v, b in zip(leaves[1:], own, strict=True) if b.turn > turn)]
                    row.append(math.fsum(through) / len(through))
                rows.append(row)
                for value, branch in zip(leaves[1:], own, strict=True):
                    suffixes.append((_suffix(one, branch, branch.turns), [value] * len(branch.turns)))
        return episodes + [one for one, _ in suffixes], rows + [row for _, row in suffixes]


class BestFork(msgspec.Struct, frozen=True, kw_only=True):
    """Search-Select: the best fork takes the place of a realised episode if its return is strictly higher.

    Then the algorithm's credit terms see the chosen sequences only; forks that were not chosen are discarded. Ties
    keep the realised sequence, and among forks the earlier one. Source: CRR §5.4.
    """

    def __call__(self, batch: CreditBatch, algorithm: Algorithm) -> Examples:
        """The chosen episodes."""
        best: dict[int, Episode] = {one.key: one for one in batch.episodes}
        for parent, _, branch in _followed(batch):
            if branch.utility > best[parent.key].utility:
                turns = [*parent.turns[: branch.turn], *branch.turns]
                best[parent.key] = msgspec.structs.replace(parent, turns=turns, utility=branch.utility)
        groups = [[best[one.key] for one in group] for group in batch.groups]
        chosen = msgspec.structs.replace(batch, groups=groups, decisions={})
        return chosen.episodes, algorithm.advantages(chosen)


def _followed(batch: CreditBatch) -> list[tuple[Episode, Decision, Branch]]:
    """Branches that were followed to their end, with where they hang, in canonical order."""
    return [
        (episode, decision, branch)
        for episode in batch.episodes
        for decision in batch.decisions.get(episode.key, [])
        if decision.branched
        for branch in decision.realised()
    ]


def _suffix(parent: Episode, branch: Branch, turns: Sequence[Turn]) -> Episode:
    return msgspec.structs.replace(
        parent,
        key=stream_id(parent.key, branch.turn, "trained", branch.index),
        prompt_tokens=parent.context(branch.turn),
        turns=list(turns),
        utility=branch.utility,
        handle="",
    )


def _by_depth(turns: Sequence[Turn], advantage: float, q: float) -> list[float]:
    return [advantage / (1.0 + q * (turn.index + 1)) for turn in turns]
