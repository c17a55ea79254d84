"""Row kernels of the invariant forward pass: each output row is a function of its own inputs alone (numba, float32).

Loops are written so that no sum is re-associated (no fast-math): vector width, batch size, cache length and
companions cannot change a bit. Matrix products are not here, see `invariant_forward.py`.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

__all__ = ["BLOCK", "attend", "gate", "root_mean_square_norm"]

Array = Any  # float32 arrays unless said otherwise; numba specialises on them

# Tokens in one block of the key cache: few pages of memory a head, long enough for vectors.
BLOCK = 64

_ONE, _HALF, _LOG2_E = np.float32(1.0), np.float32(0.5), np.float32(1.44269504088896341)
_LOWEST, _HIGHEST = np.float32(-87.0), np.float32(87.0)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_P0, _P1, _P2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_P3, _P4, _P5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)


def _compile(function: Any) -> Any:
    """Compile without fast-math and without threads: the loops' order is the result's definition."""
    options: dict[str, Any] = {"fastmath": False, "parallel": False, "nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # numba's word for "no place to cache this file": then compile at every start
        return numba.njit(**options)(function)


def _root_mean_square_norm(x: Array, weight: Array, epsilon: Array, out: Array) -> None:
    """``out[r] = weight · x[r] / sqrt(mean(x[r]²) + ε)``, the sum in float64; ``x, out: [R, d]``."""
    rows, width = x.shape
    for row in range(rows):
        total = 0.0
        for column in range(width):
            value = np.float64(x[row, column])
            total += value * value
        scale = np.float32(1.0 / math.sqrt(total / width + epsilon))
        for column in range(width):
            out[row, column] = weight[column] * (x[row, column] * scale)


def _exponential_loop(x: Array, power: Array, out: Array) -> None:
    """``out = exp(x)`` for float32 vectors, about one unit in the last place (Cephes' ``expf``; x is cut to ±87).

    Multiplications and additions only, so that the compiler can use vectors without changing a bit.

    Args:
        x: ``float32[n]``.
        power: ``int32[n]`` scratch.
        out: ``float32[n]``, not ``x``: overlapping arrays cannot be vectorised.
    """
    factor = power.view(np.float32)
    for i in range(x.shape[0]):
        value = min(max(x[i], _LOWEST), _HIGHEST)
        whole = np.float32(math.floor(value * _LOG2_E + _HALF))
        power[i] = (np.int32(whole) + np.int32(127)) << np.int32(23)
        r = (value - whole * _LN2_HIGH) - whole * _LN2_LOW
        series = ((((_P0 * r + _P1) * r + _P2) * r + _P3) * r + _P4) * r + _P5
        out[i] = series * (r * r) + r + _ONE
    for i in range(x.shape[0]):
        out[i] *= factor[i]


_exponential = _compile(_exponential_loop)


def _gate(gate_and_up: Array, power: Array, out: Array) -> None:
    """``out[r, i] = silu(gate) · up``.

    Args:
        gate_and_up: ``[R, 2f]``: gate, then up; the gate's sign is turned.
        power: ``int32[f]`` scratch.
        out: ``[R, f]``.
    """
    rows, width = out.shape
    for row in range(rows):
        gate_row, up_row, target = gate_and_up[row, :width], gate_and_up[row, width:], out[row]
        for column in range(width):
            gate_row[column] = -gate_row[column]
        _exponential(gate_row, power, target)
        for column in range(width):
            target[column] = -gate_row[column] / (_ONE + target[column]) * up_row[column]


def _scores_loop(query: Array, keys: Array, start: int, stop: int, scores: Array) -> None:
    """``scores[t - start] = query · key[t]`` for ``start ≤ t < stop``; four terms at a time, in a fixed order.

    Args:
        query: ``[h]``.
        keys: ``[T / BLOCK, h, BLOCK]``.
        start: First time.
        stop: Time after the last.
        scores: ``[stop - start]``.
    """
    for block in range(start // BLOCK, (stop - 1) // BLOCK + 1):
        first = max(start, block * BLOCK)
        last = min(stop, (block + 1) * BLOCK)
        low, high = first - block * BLOCK, last - block * BLOCK
        score = scores[first - start : last - start]
        for t in range(score.shape[0]):
            score[t] = 0.0
        for i in range(0, query.shape[0], 4):
            a, b, c, d = query[i], query[i + 1], query[i + 2], query[i + 3]
            ka, kb = keys[block, i, low:high], keys[block, i + 1, low:high]
            kc, kd = keys[block, i + 2, low:high], keys[block, i + 3, low:high]
            for t in range(score.shape[0]):
                score[t] += (a * ka[t] + b * kb[t]) + (c * kc[t] + d * kd[t])


def _mix_loop(weights: Array, values: Array, out: Array) -> None:
    """``out = Σ_t weights[t] · values[t]``, four terms at a time, in a fixed order; ``values: [n, h]``."""
    width = out.shape[0]
    count = weights.shape[0]
    for i in range(width):
        out[i] = 0.0
    whole = count - count % 4
    for t in range(0, whole, 4):
        a, b, c, d = weights[t], weights[t + 1], weights[t + 2], weights[t + 3]
        va, vb, vc, vd = values[t], values[t + 1], values[t + 2], values[t + 3]
        for i in range(width):
            out[i] += (a * va[i] + b * vb[i]) + (c * vc[i] + d * vd[i])
    for t in range(whole, count):
        weight = weights[t]
        value = values[t]
        for i in range(width):
            out[i] += weight * value[i]


_scores = _compile(_scores_loop)
_mix = _compile(_mix_loop)


def _rotate_loop(source: Array, norm: Array, epsilon: float, cos: Array, sin: Array, scale: float, out: Array) -> None:
    """One head: root-mean-square norm where ``norm`` is not empty (Qwen3), rotary embedding, times ``scale``."""
    half = source.shape[0] // 2
    if norm.shape[0]:
        total = 0.0
        for i in range(source.shape[0]):
            value = np.float64(source[i])
            total += value * value
        inverse = np.float32(1.0 / math.sqrt(total / source.shape[0] + epsilon))
        for i in range(half):
            low = norm[i] * (source[i] * inverse)
            high = norm[half + i] * (source[half + i] * inverse)
            out[i] = (low * cos[i] - high * sin[i]) * scale
            out[half + i] = (high * cos[half + i] + low * sin[half + i]) * scale
    else:
        for i in range(half):
            out[i] = (source[i] * cos[i] - source[half + i] * sin[i]) * scale
            out[half + i] = (source[half + i] * cos[half + i] + source[i] * sin[half + i]) * scale


_rotate = _compile(_rotate_loop)


def _attend(
    projected: Array, slots: Array, positions: Array, cosine: Array, sine: Array, query_norm: Array, key_norm: Array,
    epsilon: float, keys: Array, values: Array, window: int, scores: Array,
    weights: Array, power: Array, out: Array,
) -> None:  # fmt: skip
    """Rotate queries and keys, write keys and values, attend to the own slot's earlier tokens.

    Args:
        projected: ``[R, (H + 2·G)·h]``: H query heads, then G key heads, then G value heads, each of width h.
        slots: ``int64[R]``: which cache a row belongs to. Rows of one slot must be consecutive positions.
        positions: ``int64[R]``: the row's position; it sees positions ``max(0, p + 1 - window) … p``.
        cosine: ``[T, h]`` rotary table.
        sine: ``[T, h]`` rotary table.
        query_norm: ``[h]`` weight of the norm of each query head, or empty.
        key_norm: ``[h]`` weight of the norm of each key head, or empty.
        epsilon: ε of these norms.
        keys: ``[S, G, T / BLOCK, h, BLOCK]`` cache: blocks of time, so that scores are vectorised over time.
        values: ``[S, G, T, h]`` cache.
        window: Sliding window, or at least T for full attention.
        scores: ``[T]`` scratch.
        weights: ``[T]`` scratch.
        power: ``int32[T]`` scratch.
        out: ``[R, H·h]``.
    """
    rows = projected.shape[0]
    groups = keys.shape[1]
    width = keys.shape[3]
    heads = projected.shape[1] // width - 2 * groups
    share = heads // groups
    scale = np.float32(1.0 / math.sqrt(width))
    one = np.float32(1.0)
    head_buffer = np.empty(width, dtype=np.float32)
    mixed = np.empty(width, dtype=np.float32)
    for row in range(rows):
        position = positions[row]
        cos, sin = cosine[position], sine[position]
        for group in range(groups):
            source = projected[row, (heads + group) * width : (heads + group + 1) * width]
            _rotate(source, key_norm, epsilon, cos, sin, one, head_buffer)
            keys[slots[row], group, position // BLOCK, :, position % BLOCK] = head_buffer
            start = (heads + groups + group) * width
            values[slots[row], group, position, :] = projected[row, start : start + width]
    for row in range(rows):
        position = positions[row]
        cos, sin = cosine[position], sine[position]
        start = max(0, position + 1 - window)
        count = position + 1 - start
        score, weight = scores[:count], weights[:count]
        for head in range(heads):
            source = projected[row, head * width : (head + 1) * width]
            _rotate(source, query_norm, epsilon, cos, sin, scale, head_buffer)
            _scores(head_buffer, keys[slots[row], head // share], start, position + 1, score)
            largest = score[0]
            for t in range(count):
                largest = max(largest, score[t])
            for t in range(count):
                score[t] -= largest
            _exponential(score, power[:count], weight)
            total = np.float32(0.0)
            for t in range(count):
                total += weight[t]
            _mix(weight, values[slots[row], head // share, start : position + 1], mixed)
            inverse = np.float32(1.0) / total
            target_row = out[row, head * width : (head + 1) * width]
            for i in range(width):
                target_row[i] = mixed[i] * inverse


root_mean_square_norm = _compile(_root_mean_square_norm)
gate = _compile(_gate)
attend = _compile(_attend)
