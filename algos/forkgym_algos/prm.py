"""prm and crr+prm: process rewards of single turns beside the outcome; and a deterministic rubric that gives them.

Source: CRR §5.1 and Table 4 (rubric process rewards); ALGORITHMS "Baselines", ``prm``.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from forkgym.credit import Algorithm, GroupRelative, ProcessReward
from forkgym.rollout.plan import ClippedSurrogate, RolloutPlan
from forkgym.rollout.trace import Episode
from forkgym_algos.crr import crr

__all__ = ["crr_prm", "prm", "rubric"]

RUBRIC = "forkgym_algos.prm:rubric"


def rubric(episode: Episode, turn: int) -> float:
    """A rubric that reads the trace only: −1 for what did not parse, −½ for an exact repetition, +½ for new evidence.

    An action counts as repeated when an earlier turn of the episode took the same action and got the same answer
    (running the tests again after an edit is none). Evidence is new when no earlier turn brought it.
    """
    here, earlier = episode.turns[turn], episode.turns[:turn]
    if here.action_kind == "invalid":
        return -1.0
    if any(one.action == here.action and one.observation == here.observation for one in earlier):
        return -0.5
    new = here.evidence is not None and all(one.evidence != here.evidence for one in earlier)
    return 0.5 if new else 0.0


def prm(
    *,
    group_size: int = 5,
    temperature: float = 1.0,
    process_weight: float = 0.1,
    score: str = RUBRIC,
    scale: Literal["std", "none"] = "std",
    clip: float = 0.2,
    kl_coefficient: float = 0.001,
    aggregate: Literal["sum", "episode-mean", "token-mean"] = "sum",
) -> Algorithm:
    """``A_t = Â^traj + w·(r_t − mean r of the group)``.

    Args:
        group_size: G.
        temperature: τ.
        process_weight: w.
        score: The process reward, ``module:function`` from (episode, turn number) to a number.
        scale: Divide the outcome term by the group's standard deviation or not.
        clip: ε of the clipped surrogate.
        kl_coefficient: Weight of the k3 KL term.
        aggregate: How token losses are aggregated.
    """
    return Algorithm(
        name="prm",
        rollout=RolloutPlan(group_size=group_size, temperature=temperature),
        credit=(GroupRelative(scale=scale), ProcessReward(score=score, weight=process_weight)),
        loss=ClippedSurrogate(clip=clip, kl_coefficient=kl_coefficient, aggregate=aggregate),
        source="CRR Table 4; Han et al. 2026",
    )


def crr_prm(
    *,
    group_size: int = 8,
    temperature: float = 0.6,
    k: int = 4,
    entropy_threshold: float = 0.4,
    process_weight: float = 0.1,
    score: str = RUBRIC,
    kl_coefficient: float = 0.04,
) -> Algorithm:
    """CRR's contrast with process rewards added to it.

    Args:
        group_size: G.
        temperature: τ.
        k: Branched turns per episode.
        entropy_threshold: η.
        process_weight: w.
        score: The process reward, as for ``prm``.
        kl_coefficient: β of the k3 KL term.
    """
    plain = crr(
        group_size=group_size,
        temperature=temperature,
        k=k,
        entropy_threshold=entropy_threshold,
        kl_coefficient=kl_coefficient,
    )
    term = ProcessReward(score=score, weight=process_weight)
    return msgspec.structs.replace(plain, name="crr+prm", credit=(*plain.credit, term), source="CRR Table 4")
