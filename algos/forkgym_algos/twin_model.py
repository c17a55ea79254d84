"""twin-model: a learned advantage as credit; a small budget of twins teaches it and audits it.

Ours. Source: ALGORITHMS "Cheaper ideas".
"""

from __future__ import annotations

from typing import Literal

from forkgym.credit import Algorithm, Branching, CoinSelector, GroupRelative, LearnedCredit
from forkgym.rollout.plan import BranchPlan, ClippedSurrogate, RolloutPlan

__all__ = ["twin_model"]


def twin_model(
    *,
    group_size: int = 5,
    temperature: float = 1.0,
    omega: float = 0.3,
    budget_fraction: float = 0.1,
    minimum_propensity: float = 0.02,
    warmup_updates: int = 3,
    warmup_propensity: float = 0.1,
    clip: float = 0.2,
    kl_coefficient: float = 0.001,
    aggregate: Literal["sum", "episode-mean", "token-mean"] = "sum",
) -> Algorithm:
    """``A_t = Â^traj + ω·b_t/σ̂``, b fitted on the twins of earlier updates; no inverse weights in the update.

    Args:
        group_size: G.
        temperature: τ.
        omega: ω, weight of b.
        budget_fraction: β, twin tokens per factual token.
        minimum_propensity: q_min.
        warmup_updates: First updates that branch with one q everywhere.
        warmup_propensity: That q.
        clip: ε of the clipped surrogate.
        kl_coefficient: Weight of the k3 KL term.
        aggregate: How token losses are aggregated.
    """
    return Algorithm(
        name="twin-model",
        rollout=RolloutPlan(group_size=group_size, temperature=temperature),
        branching=Branching(
            selector=CoinSelector(
                budget_fraction=budget_fraction,
                minimum_propensity=minimum_propensity,
                warmup_updates=warmup_updates,
                warmup_propensity=warmup_propensity,
            ),
            plan=BranchPlan(same_evidence_probability=1.0),
            control_variate="learned",
        ),
        credit=(GroupRelative(scale="std"), LearnedCredit(weight=omega)),
        loss=ClippedSurrogate(clip=clip, kl_coefficient=kl_coefficient, aggregate=aggregate),
        source="forkgym",
    )
