"""tree-all, tree-grpo and search-select: independent branches that are trained on, or chosen from.

Sources: ALGORITHMS "Cheaper ideas" (tree-all, ours); Ji et al. 2026 (Tree-GRPO); CRR §5.4 (Search-Select).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from forkgym.credit import (
    Algorithm,
    AllBranches,
    BestFork,
    Branching,
    CoinSelector,
    GroupRelative,
    ScoreSelector,
    TreeLeaves,
)
from forkgym.rollout.plan import BranchPlan, ClippedSurrogate, RolloutPlan, require
from forkgym_algos.crr import crr

__all__ = ["search_select", "tree_all", "tree_grpo"]

_FOR_EVER = 2**62
Aggregate = Literal["sum", "episode-mean", "token-mean"]


def tree_all(
    *,
    group_size: int = 4,
    temperature: float = 1.0,
    branch_probability: float = 0.2,
    clip: float = 0.2,
    kl_coefficient: float = 0.0,
    aggregate: Aggregate = "sum",
) -> Algorithm:
    """Uncoupled branches by one constant coin, every turn trained, weighted by ``1/(1 + q·(t + 1))``.

    Args:
        group_size: G ≥ 2 trees a task.
        temperature: τ.
        branch_probability: q.
        clip: ε of the clipped surrogate.
        kl_coefficient: Weight of the k3 KL term.
        aggregate: How token losses are aggregated.
    """
    require(group_size >= 2, "group_size", "at least 2 (each tree is compared with the others)", group_size)
    return Algorithm(
        name="tree-all",
        rollout=RolloutPlan(group_size=group_size, temperature=temperature),
        branching=Branching(
            selector=CoinSelector(rule="uniform", warmup_updates=_FOR_EVER, warmup_propensity=branch_probability),
            plan=BranchPlan(coupling="independent", self_twin_shortcut=False, same_evidence_probability=1.0),
        ),
        credit=(),
        training=AllBranches(),
        loss=ClippedSurrogate(clip=clip, kl_coefficient=kl_coefficient, aggregate=aggregate),
        source="forkgym",
    )


def tree_grpo(
    *,
    trees: int = 4,
    expansions: int = 2,
    temperature: float = 1.0,
    coupled: bool = False,
    clip: float = 0.2,
    kl_coefficient: float = 0.001,
    aggregate: Aggregate = "sum",
) -> Algorithm:
    """M trees of one chain and N random expansions (L = 1 round); a leaf against its tree plus against all trees.

    Args:
        trees: M.
        expansions: N nodes a tree, drawn uniformly without replacement.
        temperature: τ.
        coupled: Siblings' continuations read the chain's noise (Twice, Table 14).
        clip: ε of the clipped surrogate.
        kl_coefficient: Weight of the k3 KL term.
        aggregate: How token losses are aggregated.
    """
    return Algorithm(
        name="tree-grpo",
        rollout=RolloutPlan(group_size=trees, temperature=temperature),
        branching=Branching(
            selector=ScoreSelector(score="random", k=expansions, entropy_threshold=0.0),
            plan=BranchPlan(
                coupling="twin" if coupled else "independent",
                self_twin_shortcut=False,
                same_evidence_probability=1.0,
            ),
        ),
        credit=(),
        training=TreeLeaves(),
        loss=ClippedSurrogate(clip=clip, kl_coefficient=kl_coefficient, aggregate=aggregate),
        source="Ji et al. 2026",
    )


def search_select(
    *,
    group_size: int = 8,
    temperature: float = 0.6,
    k: int = 4,
    entropy_threshold: float = 0.4,
    scale: Literal["std", "none"] = "none",
    kl_coefficient: float = 0.04,
) -> Algorithm:
    """CRR's forks, used to choose sequences instead of to assign credit; then GRPO on what was chosen.

    Args:
        group_size: G.
        temperature: τ.
        k: Branched turns per episode.
        entropy_threshold: η.
        scale: Divide by the group's standard deviation or not.
        kl_coefficient: β of the k3 KL term.
    """
    plain = crr(
        group_size=group_size,
        temperature=temperature,
        k=k,
        entropy_threshold=entropy_threshold,
        kl_coefficient=kl_coefficient,
    )
    return msgspec.structs.replace(
        plain, name="search-select", credit=(GroupRelative(scale=scale),), training=BestFork(), source="CRR §5.4"
    )
