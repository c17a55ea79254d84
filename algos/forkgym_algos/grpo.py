"""GRPO and RLOO: G chains a task, one number for the whole episode, no branches.

Source: Shao et al. 2024 (GRPO), Ahmadian et al. 2024 (RLOO); ALGORITHMS "Baselines"; Twice §6.1, CRR §3.1.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from forkgym.credit import Algorithm, GroupRelative
from forkgym.rollout.plan import ClippedSurrogate, RolloutPlan, require

__all__ = ["grpo", "grpo_2x", "rloo"]


def grpo(
    *,
    group_size: int = 5,
    temperature: float = 1.0,
    top_p: float = 1.0,
    scale: Literal["std", "none"] = "std",
    clip: float = 0.2,
    kl_coefficient: float = 0.001,
    ratio: Literal["token", "turn"] = "token",
    aggregate: Literal["sum", "episode-mean", "token-mean"] = "sum",
) -> Algorithm:
    """``(U − mean)/(std + ε)``, or ``U − mean`` with ``scale="none"`` (CRR's convention).

    Args:
        group_size: G.
        temperature: τ.
        top_p: Nucleus mass.
        scale: Divide by the group's standard deviation or not.
        clip: ε of the clipped surrogate.
        kl_coefficient: Weight of the k3 KL term.
        ratio: Importance ratio per token or per turn.
        aggregate: How token losses are aggregated.
    """
    return Algorithm(
        name="grpo",
        rollout=RolloutPlan(group_size=group_size, temperature=temperature, top_p=top_p),
        credit=(GroupRelative(scale=scale),),
        loss=ClippedSurrogate(clip=clip, kl_coefficient=kl_coefficient, ratio=ratio, aggregate=aggregate),
        source="Shao et al. 2024; Twice §6.1",
    )


def grpo_2x(
    *,
    group_size: int = 10,
    temperature: float = 1.0,
    scale: Literal["std", "none"] = "std",
    clip: float = 0.2,
    kl_coefficient: float = 0.001,
    aggregate: Literal["sum", "episode-mean", "token-mean"] = "sum",
) -> Algorithm:
    """GRPO with twice the rollouts: what the tokens of twins buy when they are spent on more episodes instead.

    Args:
        group_size: 2G.
        temperature: τ.
        scale: Divide by the group's standard deviation or not.
        clip: ε of the clipped surrogate.
        kl_coefficient: Weight of the k3 KL term.
        aggregate: How token losses are aggregated.
    """
    plain = grpo(
        group_size=group_size,
        temperature=temperature,
        scale=scale,
        clip=clip,
        kl_coefficient=kl_coefficient,
        aggregate=aggregate,
    )
    return msgspec.structs.replace(plain, name="grpo-2x", source="Twice §6.1, its compute-matched GRPO")


def rloo(
    *,
    group_size: int = 5,
    temperature: float = 1.0,
    top_p: float = 1.0,
    clip: float = 0.2,
    kl_coefficient: float = 0.001,
    aggregate: Literal["sum", "episode-mean", "token-mean"] = "sum",
) -> Algorithm:
    """``U`` minus the mean of the other members: an unbiased baseline.

    Args:
        group_size: G ≥ 2.
        temperature: τ.
        top_p: Nucleus mass.
        clip: ε of the clipped surrogate.
        kl_coefficient: Weight of the k3 KL term.
        aggregate: How token losses are aggregated.
    """
    require(group_size >= 2, "group_size", "at least 2 (each episode is compared with the others)", group_size)
    return Algorithm(
        name="rloo",
        rollout=RolloutPlan(group_size=group_size, temperature=temperature, top_p=top_p),
        credit=(GroupRelative(scale="leave-one-out"),),
        loss=ClippedSurrogate(clip=clip, kl_coefficient=kl_coefficient, aggregate=aggregate),
        source="Ahmadian et al. 2024",
    )
