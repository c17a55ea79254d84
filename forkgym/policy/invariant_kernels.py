"""Row kernels of the invariant forward pass: each output row is a function of its own inputs alone (numba, float32).

Loops are written so that no sum is re-associated (no fast-math): vector width, batch size, cache length and
companions cannot change a bit. Matrix products are not here, see `invariant_forward.py`.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

__all__ = ["attend", "gate", "root_mean_square_norm"]

Array = Any  # float32 arrays; numba specialises on them


def _compile(function: Any) -> Any:
    """Compile without fast-math and without threads: the loops' order is the result's definition."""
    return numba.njit(cache=True, fastmath=False, parallel=False, nogil=True)(function)


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


def _gate(gate_and_up: Array, out: Array) -> None:
    """``out[r, i] = silu(gate) · up`` with ``gate_and_up: [R, 2f]`` = gate, then up; ``out: [R, f]``."""
    rows, width = out.shape
    one = np.float32(1.0)
    for row in range(rows):
        for column in range(width):
            g = gate_and_up[row, column]
            out[row, column] = g / (one + np.float32(math.exp(-g))) * gate_and_up[row, width + column]


def _scores_loop(query: Array, keys: Array, start: int, score: Array) -> None:
    """``score[t] = query · keys[:, start + t]``, four terms at a time in a fixed order; ``keys: [h, T]``."""
    count = score.shape[0]
    for t in range(count):
        score[t] = 0.0
    for i in range(0, query.shape[0], 4):
        a, b, c, d = query[i], query[i + 1], query[i + 2], query[i + 3]
        ka, kb = keys[i, start : start + count], keys[i + 1, start : start + count]
        kc, kd = keys[i + 2, start : start + count], keys[i + 3, start : start + count]
        for t in range(count):
            score[t] += (a * ka[t] + b * kb[t]) + (c * kc[t] + d * kd[t])


def _mix_loop(weights: Array, values: Array, start: int, out: Array) -> None:
    """``out = Σ_t weights[t] · values[start + t]`` in the order of t; ``values: [T, h]``."""
    width = out.shape[0]
    for i in range(width):
        out[i] = 0.0
    for t in range(weights.shape[0]):
        weight = weights[t]
        value = values[start + t]
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
    epsilon: float, keys: Array, values: Array, window: int, scores: Array, out: Array,
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
        keys: ``[S, G, h, T]`` cache, time last, so that scores are vectorised over time.
        values: ``[S, G, T, h]`` cache.
        window: Sliding window, or at least T for full attention.
        scores: ``[T]`` scratch.
        out: ``[R, H·h]``.
    """
    rows = projected.shape[0]
    groups = keys.shape[1]
    width = keys.shape[2]
    heads = projected.shape[1] // width - 2 * groups
    share = heads // groups
    scale = np.float32(1.0 / math.sqrt(width))
    one = np.float32(1.0)
    head_buffer = np.empty(width, dtype=np.float32)
    total_out = np.empty(width, dtype=np.float32)
    for row in range(rows):
        position = positions[row]
        cos, sin = cosine[position], sine[position]
        for group in range(groups):
            source = projected[row, (heads + group) * width : (heads + group + 1) * width]
            _rotate(source, key_norm, epsilon, cos, sin, one, head_buffer)
            keys[slots[row], group, :, position] = head_buffer
            start = (heads + groups + group) * width
            values[slots[row], group, position, :] = projected[row, start : start + width]
    for row in range(rows):
        position = positions[row]
        cos, sin = cosine[position], sine[position]
        start = max(0, position + 1 - window)
        count = position + 1 - start
        score = scores[:count]
        for head in range(heads):
            source = projected[row, head * width : (head + 1) * width]
            _rotate(source, query_norm, epsilon, cos, sin, scale, head_buffer)
            _scores(head_buffer, keys[slots[row], head // share], start, score)
            largest = score[0]
            for t in range(count):
                largest = max(largest, score[t])
            total = np.float32(0.0)
            for t in range(count):
                score[t] = math.exp(score[t] - largest)
                total += score[t]
            _mix(score, values[slots[row], head // share], start, total_out)
            inverse = np.float32(1.0) / total
            target_row = out[row, head * width : (head + 1) * width]
            for i in range(width):
                target_row[i] = total_out[i] * inverse


root_mean_square_norm = _compile(_root_mean_square_norm)
gate = _compile(_gate)
attend = _compile(_attend)
