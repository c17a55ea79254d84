"""The behaviour distribution in numpy (mask, then temperature, then nucleus, renormalised), and input checks.

Masked tokens are logits of −inf. No noise lives here; `numba_backend.py` holds the kernels of the same
functions.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float64]
Logits = npt.NDArray[np.float32] | npt.NDArray[np.float64]


def check_sampling(temperature: float, top_p: float) -> tuple[float, float]:
    """Return both as floats, or say what is wrong with them.

    Raises:
        ValueError: temperature is not positive and finite, or top_p lies outside (0, 1].
    """
    temperature, top_p = float(temperature), float(top_p)
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(f"temperature must be positive and finite, got {temperature}: for temperature 0 use greedy()")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p must lie in (0, 1], got {top_p}")
    return temperature, top_p


def check_logits(logits: Any, dimensions: int) -> Logits:
    """Return the logits as a C-contiguous float32 or float64 array, or say what is wrong with their form.

    float16 is widened to float32, which is exact. The values are checked where they are read, see
    `check_row`.

    Args:
        logits: anything numpy can read without guessing: an array or nested lists of real numbers.
        dimensions: 1 for one row, 2 for a batch.

    Raises:
        TypeError: not real floating-point numbers.
        ValueError: wrong number of dimensions, or an empty vocabulary.
    """
    array = np.asarray(logits)
    if array.dtype == np.float16:
        array = array.astype(np.float32)
    if array.dtype not in (np.float32, np.float64):
        raise TypeError(f"logits must be float32 (float16 and float64 are accepted), got {array.dtype}")
    if array.ndim != dimensions:
        form = "[V]" if dimensions == 1 else "[B, V]"
        raise ValueError(f"logits must have the shape {form}, got {list(array.shape)}")
    if array.shape[-1] == 0:
        raise ValueError("logits have an empty vocabulary: there is nothing to choose from")
    return np.ascontiguousarray(array)


class BrokenLogitsError(ValueError):
    """NaN or +inf among the logits: the model that made them has diverged or is damaged."""


def check_row(row: Logits, temperature: float, index: int = 0) -> None:
    """Say why nothing can be chosen from a row of logits.

    Args:
        row: ``float[V]`` logits.
        temperature: checked temperature.
        index: the row's number, for the message.

    Raises:
        BrokenLogitsError: NaN or +inf among them.
        ValueError: Every token masked, or a temperature too small to divide by.
    """
    largest = float(row.max())  # NaN if there is one
    if math.isnan(largest) or largest == math.inf:
        count = int(np.count_nonzero(np.isnan(row) | np.isposinf(row)))
        raise BrokenLogitsError(f"row {index} of the logits holds {count} NaN or +inf: the model's output is broken")
    if largest == -math.inf:
        raise ValueError(f"row {index} of the logits is -inf everywhere: the mask leaves no token to choose")
    with np.errstate(over="ignore"):
        if not np.isfinite(np.float64(largest) / temperature):
            raise ValueError(f"temperature {temperature} is too small for logits of {largest}: use greedy()")


def scaled_row(row: Logits, temperature: float) -> Float:
    """``float64(logit) / temperature`` of one row (float64[V]); may underflow to −inf, never to NaN."""
    with np.errstate(over="ignore"):
        return row.astype(np.float64) / temperature


def nucleus(probabilities: Float, top_p: float) -> npt.NDArray[np.intp]:
    """The nucleus of one distribution (Holtzman et al. 2020, section 3.1), ties broken by id.

    Args:
        probabilities: ``float64[V]``.
        top_p: in (0, 1].

    Returns:
        The ids, ascending, of the shortest prefix of the order (probability descending, id ascending) whose
        sequential float64 sum reaches ``top_p``; never empty; all tokens at ``top_p = 1``.
    """
    if top_p >= 1:
        return np.arange(probabilities.size)
    candidates = np.flatnonzero(probabilities >= nucleus_floor(top_p, probabilities.size))
    order = candidates[np.argsort(-probabilities[candidates], kind="stable")]
    reached = np.cumsum(probabilities[order]) >= top_p
    count = int(np.argmax(reached)) + 1 if reached[-1] else order.size
    return np.sort(order[:count])


def nucleus_floor(top_p: float, vocabulary: int) -> float:
    """A probability below which no token can belong to the nucleus.

    All tokens below it together weigh less than half of ``1 − top_p``, so the others alone reach ``top_p``.
    """
    # Closer to 1, the rounding of the running sum could matter: keep every token.
    return 0.5 * (1 - top_p) / vocabulary if top_p < 1 - 1e-9 else 0.0


def softmax_row(scaled: Float) -> Float:
    """float64 softmax of one row of scaled logits (float64[V])."""
    weights = np.exp(scaled - scaled.max())
    probabilities: Float = weights / weights.sum()
    return probabilities


def behaviour_logprobs(logits: Any, temperature: float = 1.0, top_p: float = 1.0) -> Float:
    """Log-probabilities of the distribution that `forkgym.noise.sample_batch` samples exactly.

    Args:
        logits: ``float[B, V]``, masked tokens −inf.
        temperature: positive.
        top_p: in (0, 1].

    Returns:
        ``float64[B, V]``; −inf outside the support.

    Raises:
        TypeError: logits are not floating-point numbers.
        ValueError: malformed logits, temperature or top_p, or a row without a possible token.
    """
    temperature, top_p = check_sampling(temperature, top_p)
    rows = check_logits(logits, 2)
    out = np.full(rows.shape, -np.inf)
    for index, row in enumerate(rows):
        check_row(row, temperature, index)
        scaled = scaled_row(row, temperature)
        support = nucleus(softmax_row(scaled), top_p)
        shifted = scaled[support] - scaled.max()
        out[index, support] = shifted - np.log(np.exp(shifted).sum())
    return out


def token_statistics_numpy(
    logits: Any, tokens: Any, temperature: float = 1.0, top_p: float = 1.0
) -> tuple[Float, Float, Float]:
    """Reference of `forkgym.noise.token_statistics` (same arguments, results and errors)."""
    logprobs = behaviour_logprobs(logits, temperature, top_p)
    ids = check_tokens(tokens, logprobs.shape[0], logprobs.shape[1])
    probabilities = np.exp(logprobs)
    products = np.multiply(probabilities, logprobs, out=np.zeros_like(logprobs), where=probabilities > 0)
    chosen = logprobs[np.arange(ids.size), ids]
    return chosen, -products.sum(axis=1) + 0.0, np.maximum(1 - (probabilities**2).sum(axis=1), 0.0)


def check_tokens(tokens: Any, rows: int, vocabulary: int) -> npt.NDArray[np.int64]:
    """Return token ids as int64[B], or say what is wrong with them.

    Raises:
        TypeError: not integers.
        ValueError: wrong shape or an id outside the vocabulary.
    """
    ids = np.asarray(tokens)
    if ids.dtype.kind not in "iu":
        raise TypeError(f"tokens must be integers, got {ids.dtype}")
    if ids.shape != (rows,):
        raise ValueError(f"tokens must have the shape [{rows}] (one per row of logits), got {list(ids.shape)}")
    if rows and (int(ids.min()) < 0 or int(ids.max()) >= vocabulary):
        raise ValueError(f"tokens must lie in [0, {vocabulary}), got {int(ids.min())} … {int(ids.max())}")
    return np.ascontiguousarray(ids, dtype=np.int64)


def greedy(logits: Any) -> int | npt.NDArray[np.int64]:
    """The most probable token, the lowest id among equals.

    Explicit, because 0 is not a temperature: no sampler takes it.

    Args:
        logits: ``float[V]`` or ``float[B, V]``.

    Returns:
        An int for one row, ``int64[B]`` for a batch.

    Raises:
        TypeError: logits are not floating-point numbers.
        ValueError: malformed logits or a row without a possible token.
    """
    if np.ndim(logits) == 1:
        row = check_logits(logits, 1)
        check_row(row, 1.0)
        return int(row.argmax())
    rows = check_logits(logits, 2)
    for index, row in enumerate(rows):
        check_row(row, 1.0, index)
    tokens: npt.NDArray[np.int64] = rows.argmax(axis=1).astype(np.int64)
    return tokens
