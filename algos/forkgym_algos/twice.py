"""Twice, twin-world credit: the same sampling luck, a different decision; and its doubly robust form.

``twice`` is the paper to the letter (Twice §4, eq. of §4.2-4.3; ALGORITHMS "Twice" points 1-7). ``twice-dr`` adds
what takes its variance out: a learned control variate, an adaptive evidence coin, a running scale (ALGORITHMS
"Doubly robust twins").
"""

from __future__ import annotations

from typing import Literal

from forkgym.credit import Algorithm, Branching, CoinSelector, GroupRelative, TurnCredit
from forkgym.rollout.plan import BranchPlan, ClippedSurrogate, RolloutPlan

__all__ = ["twice", "twice_dr"]

Rule = Literal["sqrt", "sqrt-score", "uniform", "mixed-outcome"]
Layout = Literal["turn-line", "turn", "episode", "ngram", "independent"]


def twice(
    *,
    group_size: int = 5,
    temperature: float = 1.0,
    omega: float = 1.0,
    budget_fraction: float = 0.7,
    minimum_propensity: float = 0.05,
    same_evidence_probability: float = 0.25,
    pairs: int = 1,
    star: bool = False,
    rule: Rule = "sqrt",
    warmup_updates: int = 10,
    layout: Layout = "turn-line",
    warmup_propensity: float = 0.3,
    self_twin_shortcut: bool = True,
    skip_same_evidence: bool = False,
    inverse_weights: bool = True,
    twin_only: bool = False,
    top_p: float = 1.0,
    clip: float = 0.2,
    kl_coefficient: float = 0.001,
    aggregate: Literal["sum", "episode-mean", "token-mean"] = "sum",
    loss_scale: float = 32.0,
) -> Algorithm:
    """``A_t = Â^traj + ω·Â_t/σ̂`` with Horvitz-Thompson twin credit.

    Args:
        group_size: G.
        temperature: τ.
        omega: ω, weight of the twin credit.
        budget_fraction: β, auxiliary tokens per factual token.
        minimum_propensity: q_min.
        same_evidence_probability: q_same.
        pairs: J.
        star: J alternatives against the one factual noise instead of J pairs (ablation).
        rule: Allocation rule (ablations).
        warmup_updates: First updates that branch with one q everywhere.
        warmup_propensity: That q.
        layout: Noise layout; ``independent`` decouples the branches, ``episode`` and ``ngram`` are inexact ablations.
        self_twin_shortcut: Skip the continuation of an alternative equal to the factual turn.
        skip_same_evidence: Never continue where the alternative brought the same evidence (ablation, biased).
        inverse_weights: ``False`` drops 1/(q·q_same^e) (ablation, biased).
        twin_only: Drop Â^traj (ablation).
        top_p: Nucleus mass.
        clip: ε of the clipped surrogate.
        kl_coefficient: Weight of the k3 KL term.
        aggregate: How token losses are aggregated.
        loss_scale: The constant that ``sum`` divides by, in tokens an episode.
    """
    return Algorithm(
        name="twice",
        rollout=RolloutPlan(group_size=group_size, temperature=temperature, top_p=top_p, layout=layout),
        branching=Branching(
            selector=CoinSelector(
                rule=rule,
                budget_fraction=budget_fraction,
                minimum_propensity=minimum_propensity,
                warmup_updates=warmup_updates,
                warmup_propensity=warmup_propensity,
            ),
            plan=BranchPlan(
                coupling="independent" if layout == "independent" else "twin",
                pairs=pairs,
                star=star,
                self_twin_shortcut=self_twin_shortcut and layout != "independent",
                same_evidence_probability=0.0 if skip_same_evidence else same_evidence_probability,
            ),
        ),
        credit=(
            *(() if twin_only else (GroupRelative(scale="std"),)),
            TurnCredit(weight=omega, scale="batch", inverse_weights=inverse_weights),
        ),
        loss=ClippedSurrogate(clip=clip, kl_coefficient=kl_coefficient, aggregate=aggregate, scale=loss_scale),
        source="Same Luck, Different Choice (Twice), §4",
    )


def twice_dr(
    *,
    group_size: int = 5,
    temperature: float = 1.0,
    omega: float = 0.3,
    budget_fraction: float = 0.3,
    minimum_propensity: float = 0.1,
    control_variate: Literal["zero", "sign", "learned"] = "learned",
    pairs: int = 1,
    rule: Rule = "sqrt",
    warmup_updates: int = 3,
    warmup_propensity: float = 0.3,
    clip: float = 0.2,
    kl_coefficient: float = 0.001,
    aggregate: Literal["sum", "episode-mean", "token-mean"] = "sum",
    loss_scale: float = 32.0,
) -> Algorithm:
    """``Â = b + B·S·(D − b)/(q·q_same^e)`` with b fitted on earlier twins, q ∝ √(E[(D − b)²]/c).

    Args:
        group_size: G.
        temperature: τ.
        omega: ω, weight of the twin credit.
        budget_fraction: β, auxiliary tokens per factual token.
        minimum_propensity: q_min; q·q_same never falls below it.
        control_variate: b.
        pairs: J.
        rule: Allocation rule.
        warmup_updates: First updates that branch with one q everywhere.
        warmup_propensity: That q.
        clip: ε of the clipped surrogate.
        kl_coefficient: Weight of the k3 KL term.
        aggregate: How token losses are aggregated.
        loss_scale: The constant that ``sum`` divides by, in tokens an episode.
    """
    return Algorithm(
        name="twice-dr",
        rollout=RolloutPlan(group_size=group_size, temperature=temperature),
        branching=Branching(
            selector=CoinSelector(
                rule=rule,
                budget_fraction=budget_fraction,
                minimum_propensity=minimum_propensity,
                warmup_updates=warmup_updates,
                warmup_propensity=warmup_propensity,
            ),
            plan=BranchPlan(pairs=pairs),
            control_variate=control_variate,
            adaptive_same_evidence=True,
        ),
        credit=(GroupRelative(scale="std"), TurnCredit(weight=omega, scale="running")),
        loss=ClippedSurrogate(clip=clip, kl_coefficient=kl_coefficient, aggregate=aggregate, scale=loss_scale),
        source="forkgym, after Twice §4",
    )
