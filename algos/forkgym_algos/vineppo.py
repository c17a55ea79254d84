"""VinePPO: the value at every turn's boundary from fresh rollouts, credit by their differences.

Source: Kazemnejad et al. 2025, eq. 7-8; Twice appendix, "Baselines" (two rollouts a boundary).
"""

from __future__ import annotations

from typing import Literal

from forkgym.credit import Algorithm, BoundaryValues, Branching, CoinSelector
from forkgym.rollout.plan import BranchPlan, ClippedSurrogate, RolloutPlan

__all__ = ["vineppo"]


def vineppo(
    *,
    group_size: int = 5,
    temperature: float = 1.0,
    rollouts: int = 2,
    clip: float = 0.2,
    kl_coefficient: float = 0.001,
    aggregate: Literal["sum", "episode-mean", "token-mean"] = "sum",
) -> Algorithm:
    """``A_t = V̂(s_{t+1}) − V̂(s_t)``, V̂ the mean of K fresh rollouts; after the last turn it is U.

    A fresh rollout from s_t is an independent branch at turn t whose turn is drawn from the policy itself, so every
    turn is branched (q = 1), nothing is shared and no shortcut is taken.

    Args:
        group_size: Episodes a task.
        temperature: τ.
        rollouts: K, fresh rollouts a boundary.
        clip: ε of the clipped surrogate.
        kl_coefficient: Weight of the k3 KL term.
        aggregate: How token losses are aggregated.
    """
    return Algorithm(
        name="vineppo",
        rollout=RolloutPlan(group_size=group_size, temperature=temperature),
        branching=Branching(
            selector=CoinSelector(rule="uniform", minimum_propensity=1.0, warmup_updates=0),
            plan=BranchPlan(
                coupling="independent",
                pairs=rollouts,
                star=True,
                self_twin_shortcut=False,
                same_evidence_probability=1.0,
            ),
        ),
        credit=(BoundaryValues(),),
        loss=ClippedSurrogate(clip=clip, kl_coefficient=kl_coefficient, aggregate=aggregate),
        source="Kazemnejad et al. 2025, eq. 7-8",
    )
