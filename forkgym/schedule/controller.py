"""Plans an update's branches and learns from what came back: predictor, control variate, cost ratio, scale.

The controller's state is plain data that checkpoints as JSON. Everything it reads for update u was realised in
earlier updates, so the coins of u are drawn after b and q are fixed. Running branches is ``rollout``'s job.

Source: Twice §4.3 and appendix, "Discordance predictor"; ALGORITHMS "Twice" points 2-6 and "Doubly robust twins".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from forkgym.credit.protocol import Branching, CoinSelector, ScoreSelector
from forkgym.credit.selectors import select_by_score
from forkgym.noise import coin
from forkgym.rollout.trace import Branch, Decision, Episode
from forkgym.schedule.budget import propensities, solve_multiplier
from forkgym.schedule.predictor import FEATURES, Discordance, RidgeRegression, decision_features

__all__ = [
    "ControllerState",
    "Planning",
    "make_decisions",
    "plan_branches",
    "plans_by_group",
    "same_evidence_probability",
    "settle",
]

Planning = Literal["batch", "group"]
"""How λ is found: ``batch`` solves it over the whole update, as the papers do; ``group`` knows it before the update."""

RUNNING_DECAY = 0.9
COST_DECAY = 0.95
LOWEST_DISCORDANCE = 1e-3
LEARNED_INPUTS = 2 * len(FEATURES)


class ControllerState(msgspec.Struct, kw_only=True):
    """What earlier updates taught.

    Attributes:
        discordance: The predictor η̂ of P(D ≠ 0).
        residual: The predictor of E[(D − b)²], which allocation follows where there is a control variate.
        advantage: The learned control variate b.
        predicted_tokens: Branch tokens that were predicted, older updates discounted.
        real_tokens: Branch tokens that were spent, discounted alike.
        overspent: Branch tokens spent beyond the budget in updates after warm-up (negative: saved), at most one
            update's budget; the next update's budget is smaller by as much.
        squared_same: Running mean of (D − b)² where the alternative brought the same evidence.
        squared_different: The same where it brought different evidence.
        squared_credit: Running mean of Â² over all decisions (``running`` scale), ``None`` before the first update.
        multiplier: λ of the next update where planning is by group, ``None`` before there is one.
    """

    discordance: Discordance = msgspec.field(default_factory=Discordance)
    residual: Discordance = msgspec.field(default_factory=Discordance)
    advantage: RidgeRegression = msgspec.field(default_factory=lambda: RidgeRegression(size=LEARNED_INPUTS))
    predicted_tokens: float = 0.0
    real_tokens: float = 0.0
    overspent: float = 0.0
    squared_same: float = 0.25
    squared_different: float = 1.0
    squared_credit: float | None = None
    multiplier: float | None = None

    @property
    def cost_ratio(self) -> float:
        """Real by predicted branch tokens over earlier updates; 1 before there are any."""
        if self.predicted_tokens <= 0.0:
            return 1.0
        return min(10.0, max(0.05, self.real_tokens / self.predicted_tokens))

    @property
    def running_scale(self) -> float | None:
        """σ̂ from earlier updates, ``None`` before there is one."""
        return None if self.squared_credit is None else math.sqrt(self.squared_credit)


def make_decisions(groups: Sequence[Sequence[Episode]]) -> list[Decision]:
    """One unplanned decision per factual turn in canonical order (group, member, turn), cost and features filled in."""
    decisions: list[Decision] = []
    for group in groups:
        success = math.fsum(episode.utility for episode in group) / len(group)
        for episode in group:
            decisions.extend(_decision(episode, turn.index, success) for turn in episode.turns)
    return decisions


def plan_branches(
    decisions: Sequence[Decision],
    episodes: dict[int, Episode],
    branching: Branching,
    state: ControllerState,
    update: int,
    *,
    planning: Planning = "batch",
) -> float:
    """Fill in η̂, b, q, the coin and the choice of every decision, in place.

    Args:
        decisions: All decisions of the update in canonical order, or those of whole groups of it where
            :func:`plans_by_group` says that this gives the same plan.
        episodes: Factual episodes by key.
        branching: The algorithm's branching.
        state: What earlier updates taught.
        update: Update number.
        planning: ``batch``: λ meets the budget on these decisions, by bisection; ``group``: λ is the state's, which
            :func:`settle` moved once after the last update. Before there is one, q is that of warm-up.

    Returns:
        λ, the budget multiplier (0 for score selectors and in warm-up).
    """
    baselines = _control_variates(decisions, branching, state)
    for decision, baseline in zip(decisions, baselines, strict=True):
        decision.discordance = state.discordance.predict(decision.features)
        if branching.control_variate == "sign":
            baseline = decision.discordance * (2.0 * decision.utility - 1.0)
        decision.baseline = baseline
    if isinstance(branching.selector, ScoreSelector):
        by_episode: dict[int, list[Decision]] = {}
        for decision in decisions:
            by_episode.setdefault(decision.episode, []).append(decision)
        for key, own in by_episode.items():
            select_by_score(branching.selector, episodes[key], own)
        return 0.0
    return _toss_coins(decisions, episodes, branching, state, update, planning)


def plans_by_group(branching: Branching, update: int, planning: Planning) -> bool:
    """Whether a group's plan needs nothing of the update's other groups, so that it can be made when it is whole."""
    selector = branching.selector
    return planning == "group" or isinstance(selector, ScoreSelector) or update < selector.warmup_updates


def same_evidence_probability(decision: Decision, branching: Branching, state: ControllerState) -> float:
    """q_same of one decision: the plan's, or ≈ √(m_same/m_diff) with q·q_same ≥ q_min where it is adaptive."""
    if not branching.adaptive_same_evidence or not isinstance(branching.selector, CoinSelector):
        return branching.plan.same_evidence_probability
    ratio = math.sqrt(state.squared_same / max(state.squared_different, 1e-9))
    floor = branching.selector.minimum_propensity / decision.propensity if decision.propensity > 0.0 else 1.0
    return min(1.0, max(ratio, floor))


def settle(
    decisions: Sequence[Decision],
    branching: Branching,
    state: ControllerState,
    *,
    credited: bool,
    episodes: dict[int, Episode] | None = None,
) -> None:
    """Fold an update's realised branches into the state, in canonical order.

    Args:
        decisions: The update's decisions, branches run and (when ``credited``) credit estimated.
        branching: The algorithm's branching.
        state: Changed in place.
        credited: Whether decisions carry Horvitz-Thompson credit to fold into the running scale.
        episodes: Factual episodes by key where planning is by group: λ of the next update is then what would have met
            this update's budget, less what has been overspent so far in real tokens, with what is known by now.
    """
    realised = [(decision, branch) for decision in decisions if decision.branched for branch in decision.realised()]
    weights = [_inverse_probability(decision, branch) for decision, branch in realised]
    features = [decision.features for decision, _ in realised]
    squares = [min(1.0, (branch.difference - decision.baseline) ** 2) for decision, branch in realised]
    state.discordance.fold(features, [min(1.0, branch.difference**2) for _, branch in realised], weights)
    if branching.control_variate != "zero":
        state.residual.fold(features, squares, weights)
    if branching.control_variate == "learned":
        state.advantage.fold(
            [_learned_inputs(decision) for decision, _ in realised],
            [branch.difference for _, branch in realised],
            weights,
        )
    _settle_evidence(realised, squares, state)
    _settle_cost(decisions, branching, state)
    if episodes and isinstance(branching.selector, CoinSelector):
        weights, costs, budget = _allocation(decisions, episodes, branching.selector, branching, state)
        state.multiplier = solve_multiplier(weights, costs, budget, branching.selector.minimum_propensity)
    if credited:
        values = [decision.credit for decision in decisions if decision.credit is not None]
        if values:
            mean_square = math.fsum(value * value for value in values) / len(values)
            previous = state.squared_credit
            state.squared_credit = (
                mean_square if previous is None else RUNNING_DECAY * previous + (1.0 - RUNNING_DECAY) * mean_square
            )


def _decision(episode: Episode, turn: int, group_success: float) -> Decision:
    here = episode.turns[turn]
    return Decision(
        episode=episode.key,
        update=episode.update,
        group=episode.group,
        member=episode.member,
        turn=turn,
        terminal=here.terminal,
        utility=episode.utility,
        features=decision_features(episode, turn, group_success),
        cost=float(len(here.tokens) + episode.generated_after(turn)),
    )


def _toss_coins(
    decisions: Sequence[Decision],
    episodes: dict[int, Episode],
    branching: Branching,
    state: ControllerState,
    update: int,
    planning: Planning,
) -> float:
    selector, multiplier = branching.selector, 0.0
    if not isinstance(selector, CoinSelector):
        raise TypeError(f"coins are for a CoinSelector, not a {type(selector).__name__}")
    if update < selector.warmup_updates or (planning == "group" and state.multiplier is None):
        chosen = [selector.warmup_propensity] * len(decisions)
    else:
        weights, costs, budget = _allocation(decisions, episodes, selector, branching, state)
        if planning == "group" and state.multiplier is not None:
            multiplier = state.multiplier
        else:
            multiplier = solve_multiplier(weights, costs, budget, selector.minimum_propensity)
        chosen = propensities(weights, multiplier, selector.minimum_propensity)
    for decision, q in zip(decisions, chosen, strict=True):
        decision.propensity = q
        decision.coin = coin(decision.episode, decision.turn, "branch")
        decision.branched = decision.coin < q
    return multiplier


def _allocation(
    decisions: Sequence[Decision],
    episodes: dict[int, Episode],
    selector: CoinSelector,
    branching: Branching,
    state: ControllerState,
) -> tuple[list[float], list[float], float]:
    """Weights and costs of decisions, and the budget of their update."""
    ratio = state.cost_ratio if selector.correct_cost else 1.0
    costs = [max(1.0, decision.cost) * ratio * branching.plan.continuations for decision in decisions]
    # Where b takes part of D away, variance follows what is left.
    predictor = state.discordance if branching.control_variate == "zero" else state.residual
    weights = [
        _allocation_weight(selector, decision, episodes[decision.episode], predictor, cost)
        for decision, cost in zip(decisions, costs, strict=True)
    ]
    budget = selector.budget_fraction * sum(episode.generated_tokens for episode in episodes.values())
    if selector.correct_cost:
        budget -= min(budget, max(-budget, state.overspent))
    return weights, costs, budget


def _allocation_weight(
    selector: CoinSelector, decision: Decision, episode: Episode, predictor: Discordance, cost: float
) -> float:
    predicted = max(predictor.predict(decision.features), LOWEST_DISCORDANCE)
    if selector.rule == "uniform":
        return 1.0
    if selector.rule == "mixed-outcome":
        success = decision.features[0]
        return 2.0 * success * (1.0 - success)
    if selector.rule == "sqrt-score":
        predicted *= math.fsum(episode.turns[decision.turn].gini_impurities)
    return math.sqrt(predicted / cost)


def _control_variates(decisions: Sequence[Decision], branching: Branching, state: ControllerState) -> list[float]:
    if branching.control_variate != "learned":
        return [0.0] * len(decisions)
    predicted = state.advantage.predict_many([_learned_inputs(decision) for decision in decisions])
    return [min(1.0, max(-1.0, value)) for value in predicted]


def _learned_inputs(decision: Decision) -> list[float]:
    """Features and their interaction with the outcome: b is the advantage of *this* outcome's episode."""
    return [*decision.features, *(decision.utility * value for value in decision.features)]


def _inverse_probability(decision: Decision, branch: Branch) -> float:
    return 1.0 / (decision.propensity * (branch.continuation_probability if branch.same_evidence else 1.0))


def _settle_evidence(
    realised: Sequence[tuple[Decision, Branch]], squares: Sequence[float], state: ControllerState
) -> None:
    same = [
        square
        for (_, branch), square in zip(realised, squares, strict=True)
        if branch.same_evidence and not branch.self_twin
    ]
    different = [
        square
        for (_, branch), square in zip(realised, squares, strict=True)
        if not branch.same_evidence and not branch.self_twin
    ]
    if same:
        state.squared_same = RUNNING_DECAY * state.squared_same + (1 - RUNNING_DECAY) * math.fsum(same) / len(same)
    if different:
        mean = math.fsum(different) / len(different)
        state.squared_different = RUNNING_DECAY * state.squared_different + (1 - RUNNING_DECAY) * mean


def _settle_cost(decisions: Sequence[Decision], branching: Branching, state: ControllerState) -> None:
    """Compare real with predicted tokens: as a ratio for the next prediction, as a debt for the next budget."""
    continuations = branching.plan.continuations
    predicted = math.fsum(max(1.0, decision.cost) * continuations for decision in decisions if decision.branched)
    real = sum(branch.generated_tokens for decision in decisions for branch in decision.branches)
    # A slow average: chance moves one update's cost by a tenth, and the debt below corrects that already.
    state.predicted_tokens = COST_DECAY * state.predicted_tokens + predicted
    state.real_tokens = COST_DECAY * state.real_tokens + real
    selector = branching.selector
    if not isinstance(selector, CoinSelector) or not decisions or decisions[0].update < selector.warmup_updates:
        return
    # A first turn's cost is its episode: the turn's tokens and all after it.
    factual = math.fsum(decision.cost for decision in decisions if decision.turn == 0)
    budget = selector.budget_fraction * factual
    # Bounded, so that a budget that cannot be met (q_min above it, q = 1 below it) leaves no endless debt.
    state.overspent = min(budget, max(-budget, state.overspent + real - budget))
