"""The public samplers: input checks, then the numba kernels where numba is installed, else numpy.

numba is imported at the first call, never at import: it is slow to load, and vLLM's start-up fails when it is
there.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from forkgym.noise.distribution import (
    Float,
    Logits,
    check_logits,
    check_row,
    check_sampling,
    check_tokens,
    token_statistics_numpy,
)
from forkgym.noise.gumbel import sample_bounded
from forkgym.noise.philox import check_key64

if TYPE_CHECKING:
    from types import ModuleType

Backend = Literal["auto", "numba", "numpy"]


@functools.cache
def _kernels(backend: Backend) -> ModuleType | None:
    """The numba kernels, or None where numpy does the work."""
    if backend not in ("auto", "numba", "numpy"):
        raise ValueError(f"backend must be 'auto', 'numba' or 'numpy', got {backend!r}")
    if backend == "numpy" or (backend == "auto" and importlib.util.find_spec("numba") is None):
        return None
    from forkgym.noise import numba_backend

    return numba_backend


def check_keys(keys: Any, rows: int) -> npt.NDArray[np.uint64]:
    """Return keys as uint64[B], or say what is wrong with them.

    Raises:
        TypeError: not integers.
        ValueError: wrong shape or out of range.
    """
    if not isinstance(keys, np.ndarray):
        keys = np.array([check_key64(key) for key in keys], dtype=np.uint64)
    if keys.dtype != np.uint64:
        raise TypeError(f"keys must be uint64[B] or a list of integers, got an array of {keys.dtype}")
    if keys.shape != (rows,):
        raise ValueError(f"keys must have the shape [{rows}] (one per row of logits), got {list(keys.shape)}")
    return np.ascontiguousarray(keys)


def sample(logits: Any, key64: int, temperature: float = 1.0, top_p: float = 1.0, *, backend: Backend = "auto") -> int:
    """One token, an exact sample of the behaviour distribution and a function of logits and key alone.

    Args:
        logits: ``float[V]`` (float32; float16 and float64 are accepted), masked tokens −inf.
        key64: the key of this choice.
        temperature: positive; for greedy decoding use `greedy`.
        top_p: nucleus mass in (0, 1].
        backend: ``"auto"`` takes numba where it is installed.

    Returns:
        The token id, the same on every backend: see `forkgym.noise.sample_full` for the definition.

    Raises:
        TypeError: logits or key have the wrong type.
        ValueError: malformed logits, key, temperature or top_p, or a row without a possible token.
    """
    kernels = _kernels(backend)
    if kernels is None:
        return sample_bounded(logits, key64, temperature, top_p)
    temperature, top_p = check_sampling(temperature, top_p)
    rows = check_logits(logits, 1)[None, :]
    keys = np.array([check_key64(key64)], dtype=np.uint64)
    return int(_checked(kernels.sample_rows(rows, keys, temperature, top_p), rows, temperature)[0])


def sample_batch(
    logits: Any,
    keys: Any,
    temperature: float = 1.0,
    top_p: float = 1.0,
    *,
    backend: Backend = "auto",
) -> npt.NDArray[np.int64]:
    """One token per row, each what `sample` returns for that row alone.

    Args:
        logits: ``float32[B, V]`` (float16 and float64 are accepted), masked tokens −inf; B may be 0.
        keys: ``uint64[B]`` or a list of integers.
        temperature: positive; for greedy decoding use `greedy`.
        top_p: nucleus mass in (0, 1].
        backend: ``"auto"`` takes numba where it is installed.

    Returns:
        ``int64[B]`` token ids.

    Raises:
        TypeError: logits or keys have the wrong type.
        ValueError: malformed logits, keys, temperature or top_p, or a row without a possible token.
    """
    kernels = _kernels(backend)
    temperature, top_p = check_sampling(temperature, top_p)
    rows = check_logits(logits, 2)
    row_keys = check_keys(keys, rows.shape[0])
    if kernels is not None:
        return _checked(kernels.sample_rows(rows, row_keys, temperature, top_p), rows, temperature)
    for index, row in enumerate(rows):
        check_row(row, temperature, index)
    tokens = [sample_bounded(row, int(key), temperature, top_p) for row, key in zip(rows, row_keys, strict=True)]
    return np.array(tokens, dtype=np.int64)


def token_statistics(
    logits: Any,
    tokens: Any,
    temperature: float = 1.0,
    top_p: float = 1.0,
    *,
    backend: Backend = "auto",
) -> tuple[Float, Float, Float]:
    """What a rollout records about every sampled token, under the behaviour distribution.

    Args:
        logits: ``float32[B, V]`` (float16 and float64 are accepted), masked tokens −inf; B may be 0.
        tokens: ``int[B]``, the tokens that were chosen.
        temperature: positive.
        top_p: nucleus mass in (0, 1].
        backend: ``"auto"`` takes numba where it is installed.

    Returns:
        Three ``float64[B]``: the token's log-probability (−inf outside the support), the entropy in nats, and
        ``1 − Σ p²``, the probability that two draws differ.

    Raises:
        TypeError: logits or tokens have the wrong type.
        ValueError: malformed logits, tokens, temperature or top_p, or a row without a possible token.
    """
    kernels = _kernels(backend)
    if kernels is None:
        return token_statistics_numpy(logits, tokens, temperature, top_p)
    temperature, top_p = check_sampling(temperature, top_p)
    rows = check_logits(logits, 2)
    ids = check_tokens(tokens, *rows.shape)
    failed, logprobs, entropies, gini_impurities = kernels.statistics_rows(rows, ids, temperature, top_p)
    if failed >= 0:
        check_row(rows[failed], temperature, failed)
    return logprobs, entropies, gini_impurities


def _checked(tokens: npt.NDArray[np.int64], rows: Logits, temperature: float) -> npt.NDArray[np.int64]:
    """The kernels mark a row without a possible token by −1: let the reference say what is wrong with it."""
    if tokens.size and int(tokens.min()) < 0:
        failed = int(tokens.argmin())
        check_row(rows[failed], temperature, failed)
    return tokens
