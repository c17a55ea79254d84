"""Gumbel noise and the choice it makes, in numpy: the full argmax, which defines it, and the bounded one.

`sampling.py` picks between these and the numba kernels; device tensors are `torch_backend.py`.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from forkgym.noise.distribution import (
    Float,
    Logits,
    check_logits,
    check_row,
    check_sampling,
    nucleus,
    scaled_row,
    softmax_row,
)
from forkgym.noise.philox import check_key64, philox_blocks, words, words_at

# u ≤ 1 − 2⁻³³, so no noise value exceeds −log(−log(1 − 2⁻³³)) = 22.8739.
LARGEST_NOISE: Final = 22.88
# A chunk's Philox blocks should fill numpy's calls without leaving the L2 cache.
_CHUNK: Final = 32_768
# Up to this size numpy's calls cost more than the logarithms they would save.
_SMALL: Final = 4_096


def noise_of_words(values: npt.NDArray[np.uint32]) -> Float:
    """``−log(−log u)`` with ``u = (w + ½)·2⁻³²``: finite for every word (float64, same shape)."""
    noise: Float = -np.log(-np.log((values + 0.5) * 2.0**-32))
    return noise


def gumbel(key64: int, n: int) -> Float:
    """Standard Gumbel noise of tokens 0 … n−1 under one key.

    Args:
        key64: the key of this choice.
        n: vocabulary size.

    Returns:
        ``float64[n]``, between −3.14 and 22.88.

    Raises:
        TypeError: the key is not an integer.
        ValueError: the key is out of range or ``n`` is negative.
    """
    return noise_of_words(words(key64, n))


def sample_full(logits: Any, key64: int, temperature: float = 1.0, top_p: float = 1.0) -> int:
    """The definition of a keyed choice: ``argmax_v [float64(logit)/τ + ξ(v)]`` over the nucleus.

    Ties go to the lowest id.

    An exact sample of the behaviour distribution by the Gumbel-max trick (Maddison, Tarlow & Minka 2014,
    section 2). Every faster sampler must return the same token.

    Args:
        logits: ``float[V]``, masked tokens −inf.
        key64: the key of this choice.
        temperature: positive.
        top_p: in (0, 1].

    Returns:
        The token id.

    Raises:
        TypeError: logits or key have the wrong type.
        ValueError: malformed logits, key, temperature or top_p, or a row without a possible token.
    """
    temperature, top_p = check_sampling(temperature, top_p)
    row = check_logits(logits, 1)
    check_row(row, temperature)
    scaled = scaled_row(row, temperature)
    scores = scaled + gumbel(key64, row.size)
    if top_p < 1:
        allowed = nucleus(softmax_row(scaled), top_p)
        return int(allowed[scores[allowed].argmax()])
    return int(scores.argmax())


def smallest_winning_word(need: float) -> int:
    """The smallest word whose noise may reach ``need``: a conservative inverse of `noise_of_words`.

    ``w ≥ 2³²·exp(−exp(−need)) − ½`` is exact; one more is allowed for the rounding of the exponentials.
    """
    if need <= -3.2:
        return 0
    return min(max(int(math.exp(-math.exp(-need)) * 2.0**32 - 1.5), 0), 0xFFFFFFFF)


def needed_noise(best: float, largest: float) -> float:
    """The noise a token of scaled logit ≤ ``largest`` needs to reach the score ``best``, less rounding."""
    if largest == -math.inf:
        return math.inf
    return best - largest - (1e-9 + 1e-14 * (abs(best) + abs(largest)))


def sample_bounded(logits: Any, key64: int, temperature: float = 1.0, top_p: float = 1.0) -> int:
    """The token of `sample_full` without computing most of the noise.

    Chunks are visited from the largest logit down; noise is bounded, so a chunk that cannot reach the best
    score ends the walk, and within a chunk one integer comparison leaves the few tokens whose logarithms are
    worth computing. With ``top_p < 1`` only the nucleus draws noise. Arguments, result and errors are those
    of `sample_full`.
    """
    temperature, top_p = check_sampling(temperature, top_p)
    row = check_logits(logits, 1)
    check_row(row, temperature)
    key = check_key64(key64)
    if top_p < 1:
        scaled = scaled_row(row, temperature)
        allowed = nucleus(softmax_row(scaled), top_p)
        return int(allowed[(scaled[allowed] + noise_of_words(words_at(key, allowed))).argmax()])
    return _bounded_argmax(row, key, temperature)


def _bounded_argmax(row: Logits, key: int, temperature: float) -> int:
    """`sample_bounded` at ``top_p = 1`` of a checked row."""
    if row.size <= _SMALL:
        return int((scaled_row(row, temperature) + gumbel(key, row.size)).argmax())
    starts = np.arange(0, row.size, _CHUNK)
    maxima = scaled_row(np.maximum.reduceat(row, starts), temperature)
    winner = int(row.argmax())
    leader = np.array([winner])
    best = float((scaled_row(row[leader], temperature) + noise_of_words(words_at(key, leader)))[0])
    for chunk in np.argsort(-maxima, kind="stable"):
        need = needed_noise(best, float(maxima[chunk]))
        if need > LARGEST_NOISE:
            break
        start = int(starts[chunk])
        stop = min(start + _CHUNK, row.size)
        counters = np.arange(start // 4, (stop + 3) // 4, dtype=np.uint64)
        chunk_words = philox_blocks(key, counters).reshape(-1)[: stop - start].astype(np.uint32)
        reach = float(noise_of_words(chunk_words.max(keepdims=True))[0])
        able = np.flatnonzero(
            (chunk_words >= np.uint32(smallest_winning_word(need)))
            & (row[start:stop] >= needed_noise(best, reach) * temperature)
        )
        if able.size == 0:
            continue
        scores = scaled_row(row[start + able], temperature) + noise_of_words(chunk_words[able])
        first = int(scores.argmax())
        score, token = float(scores[first]), start + int(able[first])
        if score > best or (score == best and token < winner):
            best, winner = score, token
    return winner
