"""The discordance predictor and the learned control variate: two small regressions on a decision's features.

Both are plain data plus pure update functions, so they checkpoint as JSON and fold in realised twins in canonical
order. Source: Twice, appendix "Discordance predictor"; ALGORITHMS "Twice" point 6 and "Doubly robust twins".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from forkgym.rollout.trace import Episode

__all__ = ["FEATURES", "Discordance", "RidgeRegression", "decision_features"]

FEATURES = (
    "group success",
    "group success squared",
    "utility",
    "utility × group success",
    "mean token entropy",
    "is search",
    "turn index",
    "turns left",
    "log(1 + remaining tokens)",
)
"""Names of the nine features, in order. "is search" is 1 for every turn that does not end the episode."""


def decision_features(episode: Episode, turn: int, group_success: float) -> list[float]:
    """The nine features of one factual turn; none depends on a branch.

    Args:
        episode: The factual episode.
        turn: Turn number.
        group_success: p̂, the mean utility of the episode's group.
    """
    here = episode.turns[turn]
    return [
        group_success,
        group_success**2,
        episode.utility,
        episode.utility * group_success,
        here.mean_entropy,
        0.0 if here.terminal else 1.0,
        float(turn),
        float(len(episode.turns) - 1 - turn),
        math.log1p(episode.generated_after(turn)),
    ]


class Discordance(msgspec.Struct, kw_only=True):
    """η̂: predicted P(D ≠ 0) (or E[D²], E[(D − b)²], for which targets in [0, 1] serve as well) by logistic regression.

    Trained by SGD, one realised twin after another, each weighted by 1/(q·q_same^e) over the mean weight of its fold,
    so that the step size does not depend on how rare twins are (raw weights reach 80 and overshoot).

    Attributes:
        weights: One weight a feature and the intercept last.
        learning_rate: SGD step size.
        weight_decay: L2 decay per step.
        observations: Realised twins folded in so far.
    """

    weights: list[float] = msgspec.field(default_factory=lambda: [0.0] * (len(FEATURES) + 1))
    learning_rate: float = 0.05
    weight_decay: float = 1e-4
    observations: int = 0

    def predict(self, features: Sequence[float]) -> float:
        """Probability in (0, 1)."""
        score = self.weights[-1] + math.fsum(w * x for w, x in zip(self.weights[:-1], features, strict=True))
        return _logistic(score)

    def fold(self, features: Sequence[Sequence[float]], targets: Sequence[float], weights: Sequence[float]) -> None:
        """One SGD pass over realised twins in the given (canonical) order.

        Args:
            features: Nine features a twin.
            targets: 1 where D ≠ 0, else 0 (or a squared error in [0, 1]).
            weights: 1/(q·q_same^e) of each.
        """
        if not weights:
            return
        mean_weight = math.fsum(weights) / len(weights)
        for row, target, weight in zip(features, targets, weights, strict=True):
            error = (self.predict(row) - target) * weight / mean_weight
            inputs = [*row, 1.0]
            self.weights = [
                w - self.learning_rate * (error * x + self.weight_decay * w)
                for w, x in zip(self.weights, inputs, strict=True)
            ]
            self.observations += 1


class RidgeRegression(msgspec.Struct, kw_only=True):
    """b(features): weighted ridge regression of realised D, with exponential forgetting of old updates.

    Keeps the normal equations (Gram matrix and moment vector), not the twins, so its state has a fixed size.

    Attributes:
        size: Number of inputs, without the intercept.
        ridge: Penalty on the weights.
        forget: Factor that older updates' evidence is multiplied by at each fold.
        gram: Flattened Gram matrix, (size + 1)².
        moment: Moment vector, size + 1.
        total_weight: Summed (discounted) weight.
    """

    size: int
    ridge: float = 2.0
    forget: float = 0.95
    gram: list[float] = []
    moment: list[float] = []
    total_weight: float = 0.0

    def predict_many(self, rows: Sequence[Sequence[float]]) -> list[float]:
        """Predictions for many rows, each as if it were alone; zeros before anything was folded in."""
        if not self.gram or not rows:
            return [0.0] * len(rows)
        n = self.size + 1
        gram = np.asarray(self.gram).reshape(n, n) + self.ridge * np.eye(n)
        solution = np.linalg.solve(gram, np.asarray(self.moment))
        *slopes, intercept = solution.tolist()
        # Exact sums and no matrix product, whose last bits depend on how many rows it has.
        return [math.fsum([intercept, *(slope * x for slope, x in zip(slopes, row, strict=True))]) for row in rows]

    def fold(self, rows: Sequence[Sequence[float]], targets: Sequence[float], weights: Sequence[float]) -> None:
        """Add one update's realised twins; weights are normalised to mean 1 so that the ridge keeps its meaning."""
        n = self.size + 1
        gram = self.forget * np.asarray(self.gram or [0.0] * (n * n)).reshape(n, n)
        moment = self.forget * np.asarray(self.moment or [0.0] * n)
        self.total_weight *= self.forget
        if rows:
            inputs = np.column_stack([np.asarray(rows, dtype=np.float64), np.ones(len(rows))])
            scaled = np.asarray(weights, dtype=np.float64) / (math.fsum(weights) / len(weights))
            gram = gram + (inputs * scaled[:, None]).T @ inputs
            moment = moment + inputs.T @ (scaled * np.asarray(targets, dtype=np.float64))
            self.total_weight += float(scaled.sum())
        self.gram = [float(value) for value in gram.reshape(-1)]
        self.moment = [float(value) for value in moment]


def _logistic(score: float) -> float:
    if score >= 0.0:
        return 1.0 / (1.0 + math.exp(-score))
    exponential = math.exp(score)
    return exponential / (1.0 + exponential)
