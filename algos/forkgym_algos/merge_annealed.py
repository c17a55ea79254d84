"""merge-annealed: members of a group at the same evidence state share their returns, annealed to plain RLOO.

Ours, at zero extra tokens; biased while m > 0. Source: ALGORITHMS "Cheaper ideas".
"""

from __future__ import annotations

from typing import Literal

from forkgym.credit import Algorithm, MergedEvidence
from forkgym.rollout.plan import ClippedSurrogate, RolloutPlan, require

__all__ = ["merge_annealed"]


def merge_annealed(
    *,
    group_size: int = 5,
    temperature: float = 1.0,
    initial_mix: float = 1.0,
    anneal_fraction: float = 0.7,
    clip: float = 0.2,
    kl_coefficient: float = 0.001,
    aggregate: Literal["sum", "episode-mean", "token-mean"] = "sum",
) -> Algorithm:
    """``Q̂ = (1 − m)·U + m·mean of returns at the same next state``, minus the others at the same state.

    Args:
        group_size: G ≥ 2.
        temperature: τ.
        initial_mix: m at the start.
        anneal_fraction: Share of the token budget over which m falls linearly to 0.
        clip: ε of the clipped surrogate.
        kl_coefficient: Weight of the k3 KL term.
        aggregate: How token losses are aggregated.
    """
    require(group_size >= 2, "group_size", "at least 2 (each episode is compared with the others)", group_size)
    return Algorithm(
        name="merge-annealed",
        rollout=RolloutPlan(group_size=group_size, temperature=temperature),
        credit=(MergedEvidence(initial_mix=initial_mix, anneal_fraction=anneal_fraction),),
        loss=ClippedSurrogate(clip=clip, kl_coefficient=kl_coefficient, aggregate=aggregate),
        source="forkgym",
    )
