"""twice-alt: Twice whose alternative turns train too, their coupled continuations only score.

Ours. Source: ALGORITHMS "Cheaper ideas".
"""

from __future__ import annotations

import msgspec

from forkgym.credit import Algorithm, Alternatives
from forkgym_algos.twice import twice

__all__ = ["twice_alt"]


def twice_alt(
    *,
    group_size: int = 5,
    temperature: float = 1.0,
    omega: float = 1.0,
    budget_fraction: float = 0.7,
    minimum_propensity: float = 0.05,
    same_evidence_probability: float = 0.25,
    warmup_updates: int = 10,
    clip: float = 0.2,
    kl_coefficient: float = 0.001,
) -> Algorithm:
    """Twice, and every alternative y' trained with its own credit ``−D``, weighted as D is.

    Args:
        group_size: G.
        temperature: τ.
        omega: ω, weight of the twin credit.
        budget_fraction: β, auxiliary tokens per factual token.
        minimum_propensity: q_min.
        same_evidence_probability: q_same.
        warmup_updates: First updates that branch with q = 0.3 everywhere.
        clip: ε of the clipped surrogate.
        kl_coefficient: Weight of the k3 KL term.
    """
    plain = twice(
        group_size=group_size,
        temperature=temperature,
        omega=omega,
        budget_fraction=budget_fraction,
        minimum_propensity=minimum_propensity,
        same_evidence_probability=same_evidence_probability,
        warmup_updates=warmup_updates,
        clip=clip,
        kl_coefficient=kl_coefficient,
    )
    return msgspec.structs.replace(
        plain, name="twice-alt", training=Alternatives(weight=omega), source="forkgym, after Twice §4"
    )
