"""Joint distributions of two choices that read the same noise: Gumbel-max choices, and inverse-CDF luck.

Closed forms in float64, no sampling. Everything the exact solver knows about coupling is here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["gumbel_coupling", "luck_coupling"]

Float = npt.NDArray[np.float64]


def gumbel_coupling(p: Float, q: Float) -> Float:
    r"""Joint law of ``argmax(log p + ξ)`` and ``argmax(log q + ξ)`` for one shared standard Gumbel vector ξ.

    With ``E = exp(−ξ)``, independent standard exponentials, the choices are ``argmin E/p`` and ``argmin E/q``. So
    ``P(a, a) = 1 / Σ_j max(p_j/p_a, q_j/q_a)`` (Twice, appendix B.4), and for a ≠ b, with ``r = E_b/E_a``,
    ``P(a, b) = ∫ S(r)^{−2} dr`` over ``[p_b/p_a, q_b/q_a]``, ``S(r) = 1 + r + Σ_{j≠a,b} max(p_j/p_a, r·q_j/q_b)``,
    which is piecewise linear: a piece from r₀ to r₁ contributes ``(r₁ − r₀)/(S(r₀)·S(r₁))``.

    Args:
        p: ``float64[V]`` distribution; zeros are masked tokens.
        q: ``float64[V]`` distribution.

    Returns:
        ``float64[V, V]``; rows are the first choice. Its margins are p and q.

    Raises:
        ValueError: Not two distributions over the same words.
    """
    p, q = np.asarray(p, dtype=np.float64), np.asarray(q, dtype=np.float64)
    if p.shape != q.shape or p.ndim != 1:
        raise ValueError(f"p and q must be two vectors of one length, got the shapes {p.shape} and {q.shape}")
    for name, vector in (("p", p), ("q", q)):
        if (vector < 0).any() or abs(vector.sum() - 1) > 1e-6:
            raise ValueError(f"{name} is no distribution: it sums to {vector.sum()}")
    joint = np.zeros((p.size, p.size))
    for a in np.flatnonzero(p):
        for b in np.flatnonzero(q):
            if a != b:
                joint[a, b] = _different(p, q, int(a), int(b))
            else:
                joint[a, a] = 1.0 / np.maximum(p / p[a], q / q[a]).sum()
    return joint


def _different(p: Float, q: Float, a: int, b: int) -> float:
    """P(first choice a, second choice b), a ≠ b."""
    low = p[b] / p[a]
    high = q[b] / q[a] if q[a] > 0 else np.inf
    if not low < high:
        return 0.0
    others = [j for j in range(p.size) if j not in (a, b) and (p[j] > 0 or q[j] > 0)]
    constant = np.array([p[j] / p[a] for j in others])
    slope = np.array([q[j] / q[b] for j in others])

    def s(r: float) -> float:
        return float(1 + r + np.maximum(constant, r * slope).sum())

    kinks = sorted(c / m for c, m in zip(constant, slope, strict=True) if m > 0 and low < c / m < high)
    total, left = 0.0, float(low)
    for right in [*kinks, high]:
        if np.isinf(right):
            total += 1.0 / (s(left) * (1 + slope.sum()))
        else:
            total += (right - left) / (s(left) * s(right))
        left = right
    return float(total)


def luck_coupling(p: Float, q: Float) -> Float:
    """Joint law of two outcomes chosen by one shared uniform number through their cumulative sums.

    Args:
        p: ``float64[K]`` chances of the first action's outcomes, in order.
        q: ``float64[L]`` chances of the second's.

    Returns:
        ``float64[K, L]``: the overlap of the outcomes' intervals.
    """
    upper_p, upper_q = np.cumsum(p), np.cumsum(q)
    lower_p, lower_q = upper_p - p, upper_q - q
    overlap = np.minimum(upper_p[:, None], upper_q[None, :]) - np.maximum(lower_p[:, None], lower_q[None, :])
    return np.asarray(np.maximum(overlap, 0.0), dtype=np.float64)
