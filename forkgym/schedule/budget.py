"""The square-root budget: propensities that minimise summed variance under a token budget.

Pure functions. Source: Twice §4.3, Proposition 4 (proof in appendix B.6) and appendix, "Cost accounting"; ALGORITHMS
"Twice" points 2 and 8.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["BISECTION_STEPS", "propensities", "solve_multiplier", "spend"]

BISECTION_STEPS = 40
_LOWEST, _HIGHEST = 1e-9, 1e9


def propensities(weights: Sequence[float], multiplier: float, minimum: float) -> list[float]:
    """``q_t = min(1, max(q_min, λ·w_t))``.

    Args:
        weights: w, for the square-root rule ``√(η̂/c)``; non-negative.
        multiplier: λ ≥ 0.
        minimum: q_min in [0, 1].
    """
    return [min(1.0, max(minimum, multiplier * weight)) for weight in weights]


def spend(weights: Sequence[float], costs: Sequence[float], multiplier: float, minimum: float) -> float:
    """Expected cost ``Σ q_t·c_t`` in tokens."""
    return math.fsum(q * cost for q, cost in zip(propensities(weights, multiplier, minimum), costs, strict=True))


def solve_multiplier(weights: Sequence[float], costs: Sequence[float], budget: float, minimum: float) -> float:
    """λ by bisection (40 steps, geometric) so that ``Σ q_t·c_t`` meets the budget.

    Where q_min alone overspends, λ = 0 (every q is q_min); where q = 1 everywhere underspends, λ is the largest
    value tried. Both are what the papers' clipping implies.

    Args:
        weights: w per decision, non-negative.
        costs: c per decision in tokens, positive.
        budget: Tokens to spend, non-negative.
        minimum: q_min in [0, 1].

    Raises:
        ValueError: A weight, cost or the budget is negative or not finite.
    """
    for name, values in (("weight", weights), ("cost", costs), ("budget", [budget])):
        bad = next((value for value in values if not math.isfinite(value) or value < 0.0), None)
        if bad is not None:
            raise ValueError(f"a {name} of {bad} cannot be allocated; it must be finite and not negative")
    if not weights or spend(weights, costs, 0.0, minimum) >= budget:
        return 0.0
    if spend(weights, costs, _HIGHEST, minimum) <= budget:
        return _HIGHEST
    low, high = math.log(_LOWEST), math.log(_HIGHEST)
    for _ in range(BISECTION_STEPS):
        middle = 0.5 * (low + high)
        if spend(weights, costs, math.exp(middle), minimum) > budget:
            high = middle
        else:
            low = middle
    return math.exp(low)
