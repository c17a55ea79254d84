"""Scores and choices of CRR's selector, as pure functions of the trace.

Coin selectors need the budget and the predictor and are carried out in ``schedule``. Source: CRR §4.2, eq. 5.
"""

from __future__ import annotations

from collections.abc import Sequence

from forkgym.credit.protocol import ScoreSelector
from forkgym.noise import coin
from forkgym.rollout.trace import Decision, Episode

__all__ = ["select_by_score", "turn_score"]


def turn_score(selector: ScoreSelector, episode: Episode, turn: int) -> float:
    """Score of one turn: ``H_t·(1 + λ_type·type(a_t))`` or one of its ablations (CRR eq. 5)."""
    entropy = episode.turns[turn].action_entropy
    kind = selector.type_scores.get(episode.turns[turn].action_kind, 0.0)
    if selector.score == "entropy":
        return entropy
    if selector.score == "type":
        return kind
    return entropy * (1.0 + selector.type_weight * kind)


def select_by_score(selector: ScoreSelector, episode: Episode, decisions: Sequence[Decision]) -> None:
    """Mark the chosen decisions of one episode, in place (``score``, ``propensity``, ``coin``, ``branched``).

    Eligible are non-terminal turns whose action entropy exceeds the threshold; every ablation chooses among the
    same eligible turns. Ties go to the earlier turn.

    Args:
        selector: The selector.
        episode: The factual episode.
        decisions: Its decisions in turn order.
    """
    for decision in decisions:
        decision.score = turn_score(selector, episode, decision.turn)
        decision.propensity, decision.branched = 0.0, False
    eligible = [
        decision
        for decision in decisions
        if not decision.terminal and episode.turns[decision.turn].action_entropy > selector.entropy_threshold
    ]
    chosen = _choose(selector, episode, eligible)
    # Only the random ablation leaves a turn's choice to chance; the others would choose the same turns again.
    propensity = len(chosen) / len(eligible) if selector.score == "random" and eligible else 1.0
    for decision in chosen:
        decision.propensity, decision.coin, decision.branched = propensity, 0.0, True


def _choose(selector: ScoreSelector, episode: Episode, eligible: list[Decision]) -> list[Decision]:
    if selector.k >= len(eligible):
        return eligible
    if selector.score == "random":
        return sorted(eligible, key=lambda decision: coin(episode.key, decision.turn, "random-selector"))[: selector.k]
    if selector.score == "stride":
        # Quantile midpoints of the time-ordered eligible turns, so k = 1 takes the middle one.
        return [eligible[int((rank + 0.5) * len(eligible) / selector.k)] for rank in range(selector.k)]
    return sorted(eligible, key=lambda decision: (-decision.score, decision.turn))[: selector.k]
