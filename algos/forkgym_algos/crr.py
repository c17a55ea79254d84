"""CRR, Counterfactual Rollout Replay: fork at uncertain turns, contrast the factual return with one other future.

Source: CRR §4, eq. 2-5 and appendix B; ALGORITHMS "CRR". The estimator is unbiased for a *fixed* index only; the
selector weights the objective, and nothing more is claimed.
"""

from __future__ import annotations

from typing import Literal

from forkgym.credit import Algorithm, Branching, CoinSelector, ContrastOrOutcome, ScoreSelector
from forkgym.rollout.plan import BranchPlan, ClippedSurrogate, Proposal, RolloutPlan

__all__ = ["crr", "crr_uniform"]


def crr(
    *,
    group_size: int = 8,
    temperature: float = 0.6,
    k: int = 4,
    entropy_threshold: float = 0.4,
    type_weight: float = 0.6,
    selector: Literal["entropy-type", "entropy", "type", "random", "stride"] = "entropy-type",
    continuations: int = 1,
    counterfactual_temperature: float = 0.7,
    require_valid: bool = False,
    max_attempts: int = 8,
    clip: float = 0.2,
    kl_coefficient: float = 0.04,
    ratio: Literal["token", "turn"] = "turn",
    aggregate: Literal["sum", "episode-mean", "token-mean"] = "sum",
) -> Algorithm:
    """``R(τ) − R(τ̃_t)`` at the k best-scored turns, ``R(τ) − mean(group)`` elsewhere.

    Args:
        group_size: G.
        temperature: τ of the behaviour policy.
        k: Branched turns per episode.
        entropy_threshold: η: lowest mean action entropy (nats) of an eligible turn.
        type_weight: λ_type.
        selector: Score, or one of its ablations.
        continuations: K alternatives per decision, averaged.
        counterfactual_temperature: T_cf: the alternative is drawn from π^(1/T_cf) without the factual action.
        require_valid: Resample alternatives that do not parse, too (the validity filter).
        max_attempts: Rejections before a turn is skipped.
        clip: ε of the clipped surrogate.
        kl_coefficient: β of the k3 KL term.
        ratio: Importance ratio per turn (its eq. 4) or per token.
        aggregate: How losses are aggregated.
    """
    return Algorithm(
        name="crr",
        rollout=RolloutPlan(group_size=group_size, temperature=temperature),
        branching=Branching(
            selector=ScoreSelector(score=selector, k=k, entropy_threshold=entropy_threshold, type_weight=type_weight),
            plan=BranchPlan(
                coupling="independent",
                proposal=Proposal(
                    temperature_scale=counterfactual_temperature,
                    exclude_factual=True,
                    require_valid=require_valid,
                    max_attempts=max_attempts,
                ),
                pairs=continuations,
                star=True,
                self_twin_shortcut=False,
                same_evidence_probability=1.0,
            ),
        ),
        credit=(ContrastOrOutcome(),),
        loss=ClippedSurrogate(clip=clip, kl_coefficient=kl_coefficient, ratio=ratio, aggregate=aggregate),
        source="Counterfactual Rollout Replay, eq. 2-5",
    )


def crr_uniform(
    *,
    group_size: int = 5,
    temperature: float = 1.0,
    budget_fraction: float = 0.7,
    minimum_propensity: float = 0.05,
    warmup_updates: int = 10,
    warmup_propensity: float = 0.3,
    clip: float = 0.2,
    kl_coefficient: float = 0.001,
    aggregate: Literal["sum", "episode-mean", "token-mean"] = "sum",
) -> Algorithm:
    """CRR as the Twice paper compares with it: decisions by one coin at Twice's cost, y' ~ π, credit replaced.

    Args:
        group_size: G.
        temperature: τ.
        budget_fraction: β, auxiliary tokens per factual token.
        minimum_propensity: q_min.
        warmup_updates: First updates that branch with ``warmup_propensity``, as Twice's do.
        warmup_propensity: q of those.
        clip: ε of the clipped surrogate.
        kl_coefficient: Weight of the k3 KL term.
        aggregate: How losses are aggregated.
    """
    return Algorithm(
        name="crr-uniform",
        rollout=RolloutPlan(group_size=group_size, temperature=temperature),
        branching=Branching(
            selector=CoinSelector(
                rule="uniform",
                budget_fraction=budget_fraction,
                minimum_propensity=minimum_propensity,
                warmup_updates=warmup_updates,
                warmup_propensity=warmup_propensity,
            ),
            plan=BranchPlan(coupling="independent", self_twin_shortcut=False, same_evidence_probability=1.0),
        ),
        credit=(ContrastOrOutcome(),),
        loss=ClippedSurrogate(clip=clip, kl_coefficient=kl_coefficient, aggregate=aggregate),
        source='Twice, appendix, "Baselines": its CRR',
    )
