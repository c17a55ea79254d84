"""Pure estimators: group baselines, Horvitz-Thompson credit with a control variate, CRR's contrast, merging.

Numbers in, numbers out; no selection, no sampling, no state. Source: ALGORITHMS "Twice" point 4, "CRR" points 3
and 4, "Baselines"; Twice §4.2-4.3; CRR eq. 2-3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from forkgym.rollout.trace import Decision, Episode, state_key

__all__ = [
    "centred",
    "contrast",
    "horvitz_thompson",
    "leave_one_out",
    "merged_returns",
    "plain_difference",
    "root_mean_square",
    "standardised",
]


def standardised(utilities: Sequence[float], *, epsilon: float = 1e-6) -> list[float]:
    """GRPO's group-relative advantage ``(U − mean)/(std + ε)`` with the population standard deviation.

    Args:
        utilities: Returns of one group, at least one.
        epsilon: Added to the standard deviation, so that a group without spread gives zeros.
    """
    mean = math.fsum(utilities) / len(utilities)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in utilities) / len(utilities))
    return [(value - mean) / (deviation + epsilon) for value in utilities]


def centred(utilities: Sequence[float]) -> list[float]:
    """``U − mean`` of the group, itself included (CRR's outcome baseline)."""
    mean = math.fsum(utilities) / len(utilities)
    return [value - mean for value in utilities]


def leave_one_out(utilities: Sequence[float]) -> list[float]:
    """RLOO: ``U`` minus the mean of the *other* members, an unbiased baseline.

    Raises:
        ValueError: The group has one member and so no others.
    """
    if len(utilities) < 2:
        raise ValueError("a leave-one-out baseline needs at least two episodes a group; raise group_size")
    total = math.fsum(utilities)
    others = len(utilities) - 1
    return [value - (total - value) / others for value in utilities]


def horvitz_thompson(decision: Decision) -> float:
    """Unbiased credit of one decision from the branches that were run (ALGORITHMS "Twice", point 4).

    ``Â = b + (B/q)·(1/J)·Σ_j S_j·(D_j − b)/q_same^{e_j}`` for every turn: an unbranched one gives b, a self-twin
    (D = 0, S = 1, e = 0) gives ``b − b/q``. Unbiased for ``A(s_t, y_t)`` whatever q > 0, b and the coupling are, as
    long as b and the coins were fixed before the continuation and no key that chose y_t is read again after it.

    Raises:
        ValueError: The decision was branched with propensity 0, or a branch was given up by its proposal (the
            estimator is defined for alternatives drawn from the policy itself).
    """
    if not decision.branched:
        return decision.baseline
    if decision.propensity <= 0.0:
        raise ValueError(f"turn {decision.turn} was branched with propensity {decision.propensity}; it must be > 0")
    if not decision.branches:
        raise ValueError(f"turn {decision.turn} is marked as branched but holds no branch")
    total = 0.0
    for branch in decision.branches:
        if branch.skipped:
            raise ValueError(
                "Horvitz-Thompson credit needs alternatives drawn from the policy; this branch's proposal rejected "
                "them all (use contrast() for a rejecting proposal)"
            )
        if branch.continued:
            total += (branch.difference - decision.baseline) / (
                branch.continuation_probability if branch.same_evidence else 1.0
            )
    return decision.baseline + total / (len(decision.branches) * decision.propensity)


def plain_difference(decision: Decision) -> float:
    """``B·(1/J)·Σ_j S_j·D_j``: twin credit without inverse weights (Twice, Table 3). Biased; an ablation."""
    differences = [branch.difference for branch in decision.branches if branch.continued and not branch.skipped]
    return math.fsum(differences) / len(decision.branches) if differences else 0.0


def contrast(decision: Decision) -> float | None:
    """CRR's ``R(τ) − mean_k R(τ̃_{t,k})`` (its eq. 2), or ``None`` where no branch was followed to its end."""
    differences = [branch.difference for branch in decision.realised()]
    if not differences:
        return None
    return math.fsum(differences) / len(differences)


def root_mean_square(values: Sequence[float]) -> float:
    """``√(mean of squares)``; 0 for an empty sequence."""
    if not values:
        return 0.0
    return math.sqrt(math.fsum(value * value for value in values) / len(values))


def merged_returns(group: Sequence[Episode], mix: float) -> list[list[float]]:
    """Advantage of every turn with returns shared between members at the same state (ALGORITHMS "merge-annealed").

    With ``z_{i,t}`` = (t, set of tool results before t):
    ``Q̂_{i,t} = (1 − m)·U_i + m·mean{U_j : z_{j,t+1} = z_{i,t+1}}`` (i included; the last turn uses U_i). While m > 0
    the baseline is the mean of the other members that stand at ``z_{i,t}`` where there are any, else of all others;
    with m = 0 this is plain RLOO. Biased while m > 0.

    Args:
        group: Members of one group, at least two.
        mix: m in [0, 1].

    Returns:
        ``Q̂ − baseline`` per member and turn.

    Raises:
        ValueError: Fewer than two members, or ``mix`` outside [0, 1].
    """
    if not 0.0 <= mix <= 1.0:
        raise ValueError(f"mix must be in [0, 1], got {mix}")
    if len(group) < 2:
        raise ValueError("merging needs at least two episodes a group; raise group_size")
    visitors: dict[str, list[int]] = {}
    keys = [[state_key(episode, turn) for turn in range(len(episode.turns))] for episode in group]
    for member, states in enumerate(keys):
        for state in states:
            visitors.setdefault(state, []).append(member)
    utilities = [episode.utility for episode in group]
    plain = leave_one_out(utilities)
    advantages: list[list[float]] = []
    for member, states in enumerate(keys):
        row: list[float] = []
        for turn, state in enumerate(states):
            if mix == 0.0:
                row.append(plain[member])
                continue
            value = utilities[member]
            if turn + 1 < len(states):
                together = visitors[states[turn + 1]]
                value = (1.0 - mix) * value + mix * math.fsum(utilities[j] for j in together) / len(together)
            others = [j for j in visitors[state] if j != member] or [j for j in range(len(group)) if j != member]
            row.append(value - math.fsum(utilities[j] for j in others) / len(others))
        advantages.append(row)
    return advantages
