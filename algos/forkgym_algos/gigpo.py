"""GiGPO: the episode against its group, and each step against the steps of the group that stood at the same state.

Source: Feng et al. 2025 (Group-in-Group Policy Optimization), eq. 3-9; Twice appendix, "Baselines" (ω = 1).
"""

from __future__ import annotations

from typing import Literal

from forkgym.credit import Algorithm, AnchorStates, GroupRelative
from forkgym.rollout.plan import ClippedSurrogate, RolloutPlan

__all__ = ["gigpo"]


def gigpo(
    *,
    group_size: int = 5,
    temperature: float = 1.0,
    omega: float = 1.0,
    discount: float = 0.95,
    scale: Literal["std", "none"] = "std",
    anchor: Literal["observation", "history"] = "observation",
    clip: float = 0.2,
    kl_coefficient: float = 0.001,
    aggregate: Literal["sum", "episode-mean", "token-mean"] = "sum",
) -> Algorithm:
    """``A_t = Â^traj + ω·A^step_t`` at zero extra tokens.

    Args:
        group_size: G.
        temperature: τ.
        omega: ω, weight of the step term.
        discount: γ of the step's return.
        scale: Divide both terms by their group's standard deviation or not.
        anchor: What a state is known by: the last observation, or all of them.
        clip: ε of the clipped surrogate.
        kl_coefficient: Weight of the k3 KL term.
        aggregate: How token losses are aggregated.
    """
    return Algorithm(
        name="gigpo",
        rollout=RolloutPlan(group_size=group_size, temperature=temperature),
        credit=(
            GroupRelative(scale=scale),
            AnchorStates(weight=omega, discount=discount, scale=scale, anchor=anchor),
        ),
        loss=ClippedSurrogate(clip=clip, kl_coefficient=kl_coefficient, aggregate=aggregate),
        source="Feng et al. 2025, eq. 3-9",
    )
