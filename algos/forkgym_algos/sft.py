"""SFT on the policy's own successes (rejection sampling). Imitation of an expert is ``forkgym warmstart``."""

from __future__ import annotations

from forkgym.credit import Algorithm, SuccessOnly
from forkgym.rollout.plan import ClippedSurrogate, RolloutPlan

__all__ = ["sft"]


def sft(*, group_size: int = 5, temperature: float = 1.0, clip: float = 0.2) -> Algorithm:
    """Cross-entropy on the action tokens of successful episodes, averaged over the batch's action tokens.

    Args:
        group_size: Episodes sampled a task.
        temperature: τ.
        clip: How far from the sampling weights further optimiser steps may go.
    """
    return Algorithm(
        name="sft",
        rollout=RolloutPlan(group_size=group_size, temperature=temperature),
        credit=(SuccessOnly(),),
        loss=ClippedSurrogate(clip=clip, aggregate="token-mean"),
        source="Pan et al. 2024 (SWE-Gym, rejection-sampling fine-tuning)",
    )
