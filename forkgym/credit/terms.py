"""Credit terms: the summands an algorithm adds up to one advantage per turn.

Each is a small frozen struct that is called with a :class:`CreditBatch`. Formulas are in ``estimators.py``.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from forkgym.credit.estimators import (
    centred,
    contrast,
    horvitz_thompson,
    leave_one_out,
    merged_returns,
    plain_difference,
    root_mean_square,
    standardised,
)
from forkgym.credit.protocol import Advantages, CreditBatch
from forkgym.rollout.plan import require, require_choices

__all__ = ["ContrastOrOutcome", "GroupRelative", "MergedEvidence", "TurnCredit"]


class GroupRelative(msgspec.Struct, frozen=True, kw_only=True):
    """One number for the whole episode: its return against its group (GRPO, RLOO).

    Attributes:
        scale: ``std`` = (U − mean)/(std + ε); ``none`` = U − mean; ``leave-one-out`` = U − mean of the others.
        epsilon: ε of ``std``.
    """

    scale: Literal["std", "none", "leave-one-out"] = "std"
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        require_choices(self)

    def __call__(self, batch: CreditBatch) -> Advantages:
        """Broadcast each episode's group-relative return to its turns."""
        out: Advantages = []
        for group in batch.groups:
            utilities = [episode.utility for episode in group]
            if self.scale == "std":
                values = standardised(utilities, epsilon=self.epsilon)
            elif self.scale == "none":
                values = centred(utilities)
            else:
                values = leave_one_out(utilities)
            out += [[value] * len(episode.turns) for value, episode in zip(values, group, strict=True)]
        return out


class TurnCredit(msgspec.Struct, frozen=True, kw_only=True):
    """ω·Â_t/σ̂: Horvitz-Thompson credit of every turn, rescaled but never redirected (Twice §4.2; ALGORITHMS point 5).

    Attributes:
        weight: ω.
        scale: σ̂: ``batch`` = root mean square of the batch's non-zero Â (our reading of the paper); ``running`` =
            running root mean square over all decisions of earlier updates (this batch's, all decisions, before
            there is an earlier update); ``none`` = 1.
        inverse_weights: Divide by the probability that the branch was seen; ``False`` is the paper's ablation
            ``Â = B·S·D``, which favours what is branched often and is biased.
    """

    weight: float = 1.0
    scale: Literal["batch", "running", "none"] = "batch"
    inverse_weights: bool = True

    def __post_init__(self) -> None:
        require_choices(self)

    def __call__(self, batch: CreditBatch) -> Advantages:
        """Estimate every decision's credit, store it on the decision, return it scaled."""
        rows: Advantages = []
        for episode in batch.episodes:
            row = [0.0] * len(episode.turns)
            for decision in batch.decisions.get(episode.key, []):
                decision.credit = horvitz_thompson(decision) if self.inverse_weights else plain_difference(decision)
                row[decision.turn] = decision.credit
            rows.append(row)
        sigma = self._sigma(rows, batch)
        factor = self.weight / sigma if sigma > 0.0 else 0.0
        return [[factor * value for value in row] for row in rows]

    def _sigma(self, rows: Advantages, batch: CreditBatch) -> float:
        if self.scale == "none":
            return 1.0
        values = [value for row in rows for value in row]
        if self.scale == "running":
            return batch.running_scale if batch.running_scale else root_mean_square(values)
        return root_mean_square([value for value in values if value != 0.0])


class ContrastOrOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """CRR's hybrid advantage (its eq. 3): R(τ) − R(τ̃_t) where a turn was branched, R(τ) − mean(group) elsewhere.

    It replaces, it does not add. Unbiased for an action-conditional contrast at a *fixed* index only; the selector
    weights the objective, so no convergence claim is made (CRR §3, limitations).
    """

    def __call__(self, batch: CreditBatch) -> Advantages:
        """Contrast at realised branches, centred return elsewhere."""
        out: Advantages = []
        for group in batch.groups:
            outcomes = centred([episode.utility for episode in group])
            for outcome, episode in zip(outcomes, group, strict=True):
                row = [outcome] * len(episode.turns)
                for decision in batch.decisions.get(episode.key, []):
                    difference = contrast(decision) if decision.branched else None
                    if difference is not None:
                        decision.credit = difference
                        row[decision.turn] = difference
                out.append(row)
        return out


class MergedEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Returns shared between members at the same evidence state, annealed to plain RLOO (``merge-annealed``).

    Attributes:
        initial_mix: m at the start.
        anneal_fraction: Share of the token budget over which m falls linearly to 0; 0 keeps m constant.
    """

    initial_mix: float = 1.0
    anneal_fraction: float = 0.7

    def __post_init__(self) -> None:
        require(0.0 <= self.initial_mix <= 1.0, "initial_mix", "in [0, 1]", self.initial_mix)
        require(0.0 <= self.anneal_fraction <= 1.0, "anneal_fraction", "in [0, 1]", self.anneal_fraction)

    def mix(self, progress: float) -> float:
        """Mixing weight m after ``progress`` (in [0, 1]) of the token budget."""
        if self.anneal_fraction == 0.0:
            return self.initial_mix
        return self.initial_mix * max(0.0, 1.0 - progress / self.anneal_fraction)

    def __call__(self, batch: CreditBatch) -> Advantages:
        """Merged advantages of every turn; costs no extra token."""
        mix = self.mix(batch.progress)
        return [row for group in batch.groups for row in merged_returns(group, mix)]
