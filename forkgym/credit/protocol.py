"""What an algorithm is: rollout × branching × credit terms × loss, as plain data and small callables.

An algorithm never runs an environment or a model; it says which decisions to branch and turns what came back
into one advantage per turn. Presets live in ``forkgym_algos``; shared pieces beside this file.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from forkgym.rollout.plan import BranchPlan, ClippedSurrogate, RolloutPlan, require, require_choices
from forkgym.rollout.trace import Decision, Episode

__all__ = [
    "Advantages",
    "Algorithm",
    "Branching",
    "CoinSelector",
    "CreditBatch",
    "CreditTerm",
    "ScoreSelector",
    "TrainingSet",
]

Advantages = list[list[float]]
"""One advantage per turn: outer index = episode in batch order, inner index = turn."""

_CRR_TYPE_SCORES = {"read": 0.0, "search": 0.0, "test": 0.25, "shell": 0.75, "edit": 1.0}


class CoinSelector(msgspec.Struct, frozen=True, kw_only=True, tag="coin"):
    """Branch every decision by an independent coin (Twice §4.3; ALGORITHMS points 2 and 8).

    Attributes:
        rule: ``sqrt``: q ∝ √(η̂/c); ``sqrt-score``: q ∝ √(η̂·g/c) with g = Σ(1 − Σ_v π(v)²) over the
            turn's tokens; ``uniform``: one q for all; ``mixed-outcome``: q ∝ 2p̂(1−p̂), cost ignored.
        budget_fraction: β: auxiliary tokens per factual token.
        minimum_propensity: q_min, so that no weight exceeds 1/q_min.
        warmup_updates: First updates that use ``warmup_propensity`` everywhere.
        warmup_propensity: q during warm-up.
        correct_cost: Multiply predicted cost by the running ratio of real to predicted branch tokens, and take what
            earlier updates overspent off the budget; ``False`` plans each update as if branches cost what is predicted.
    """

    rule: Literal["sqrt", "sqrt-score", "uniform", "mixed-outcome"] = "sqrt"
    budget_fraction: float = 0.7
    minimum_propensity: float = 0.05
    warmup_updates: int = 10
    warmup_propensity: float = 0.3
    correct_cost: bool = True

    def __post_init__(self) -> None:
        require_choices(self)
        require(self.budget_fraction >= 0.0, "budget_fraction", "at least 0", self.budget_fraction)
        q_min, q_warm = self.minimum_propensity, self.warmup_propensity
        require(0.0 < q_min <= 1.0, "minimum_propensity", "in (0, 1], or credit would be biased", q_min)
        require(0.0 < q_warm <= 1.0, "warmup_propensity", "in (0, 1]", q_warm)
        require(self.warmup_updates >= 0, "warmup_updates", "at least 0", self.warmup_updates)


class ScoreSelector(msgspec.Struct, frozen=True, kw_only=True, tag="score"):
    """Branch the k best-scored non-terminal turns of each episode (CRR §4.2, eq. 5).

    Attributes:
        score: ``entropy-type`` = H·(1 + type_weight·type); ``entropy``; ``type``; ``random``: uniform without
            replacement over the same eligible turns; ``stride``: time-ordered quantiles of them.
        k: Turns per episode.
        entropy_threshold: η: turns whose mean action entropy (nats) is not above it are not eligible.
        type_weight: λ_type.
        type_scores: type(a) by action kind; kinds that are not listed score 0.
    """

    score: Literal["entropy-type", "entropy", "type", "random", "stride"] = "entropy-type"
    k: int = 4
    entropy_threshold: float = 0.4
    type_weight: float = 0.6
    type_scores: dict[str, float] = msgspec.field(default_factory=lambda: dict(_CRR_TYPE_SCORES))

    def __post_init__(self) -> None:
        require_choices(self)
        require(self.k >= 1, "k", "at least 1", self.k)
        require(self.type_weight >= 0.0, "type_weight", "at least 0", self.type_weight)


class Branching(msgspec.Struct, frozen=True, kw_only=True):
    """Which decisions are branched and how.

    Attributes:
        selector: Chooses decisions.
        plan: How each chosen decision is branched.
        control_variate: b, a guess of D that is fixed before the coins: ``zero`` (the paper), ``sign`` =
            η̂(2U − 1), ``learned`` (ridge regression on the predictor's features and twins of earlier updates).
        adaptive_same_evidence: Set q_same ≈ √(m_same/m_diff) from earlier updates (``twice-dr``).
    """

    selector: CoinSelector | ScoreSelector
    plan: BranchPlan = BranchPlan()
    control_variate: Literal["zero", "sign", "learned"] = "zero"
    adaptive_same_evidence: bool = False

    def __post_init__(self) -> None:
        require_choices(self)


class CreditBatch(msgspec.Struct, kw_only=True):
    """What a credit term sees.

    Attributes:
        groups: Factual episodes by group, members in order. Batch order is this order flattened.
        decisions: Decisions by episode key, in turn order (empty lists where nothing was branched).
        progress: Fraction of the run's token budget used before this update, in [0, 1].
        running_scale: Running root mean square of credit over earlier updates, ``None`` before the first.
    """

    groups: list[list[Episode]]
    decisions: dict[int, list[Decision]]
    progress: float = 0.0
    running_scale: float | None = None

    @property
    def episodes(self) -> list[Episode]:
        """All episodes in batch order."""
        return [episode for group in self.groups for episode in group]


class CreditTerm(Protocol):
    """One summand of the advantage."""

    def __call__(self, batch: CreditBatch) -> Advantages:
        """Advantage of every turn of every episode in batch order."""
        ...


class TrainingSet(Protocol):
    """Chooses what is trained on, where that is not the factual episodes."""

    def __call__(self, batch: CreditBatch, algorithm: Algorithm) -> tuple[list[Episode], Advantages]:
        """Episodes (keys unique) and one advantage for each of their turns."""
        ...


class Algorithm(msgspec.Struct, frozen=True, kw_only=True):
    """A point in the space of methods.

    Attributes:
        name: Preset name.
        rollout: How factual episodes are drawn.
        credit: Terms that are summed to each turn's advantage.
        loss: The policy loss.
        branching: Which counterfactuals are run; ``None`` runs none.
        source: Paper, section and equations.
        training: What is trained on; ``None`` means the factual episodes with :meth:`advantages`.
    """

    name: str
    rollout: RolloutPlan
    credit: tuple[CreditTerm, ...]
    loss: ClippedSurrogate
    branching: Branching | None = None
    source: str = ""
    training: TrainingSet | None = None

    def examples(self, batch: CreditBatch) -> tuple[list[Episode], Advantages]:
        """What the learner gets: episodes and one advantage for each of their turns."""
        if self.training is None:
            return batch.episodes, self.advantages(batch)
        return self.training(batch, self)

    def advantages(self, batch: CreditBatch) -> Advantages:
        """Sum of the credit terms, one number per turn."""
        total: Advantages = [[0.0] * len(episode.turns) for episode in batch.episodes]
        for term in self.credit:
            for row, addend in zip(total, term(batch), strict=True):
                for turn, value in enumerate(addend):
                    row[turn] += value
        return total
