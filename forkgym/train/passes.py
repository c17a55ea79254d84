"""pass@k and all-k from counts of successes, with bootstrap intervals; ``evaluate`` plays the episodes."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import msgspec
import numpy as np
from numpy.typing import NDArray

from forkgym.noise import generator

__all__ = ["PassRate", "all_of_k", "pass_at_k", "pass_rates"]

_RESAMPLES = 2_000
_INTERVAL_KEY = 0x7061_7373_4061_7465  # any fixed key: the same counts give the same interval


class PassRate(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table.

    Attributes:
        name: ``pass@k`` or ``all-k``.
        rate: Mean over tasks, in [0, 1].
        low: Lower end of the 95 % percentile bootstrap interval, tasks resampled.
        high: Its upper end.
    """

    name: str
    rate: float
    low: float
    high: float


def pass_at_k(successes: int, samples: int, k: int) -> float:
    """Probability that at least one of ``k`` samples, drawn without replacement, succeeded: unbiased for pass@k.

    Raises:
        ValueError: Not 0 ≤ successes ≤ samples, or not 1 ≤ k ≤ samples.
    """
    _check(successes, samples, k)
    return 1.0 - comb(samples - successes, k) / comb(samples, k)


def all_of_k(successes: int, samples: int, k: int) -> float:
    """Probability that all of ``k`` samples, drawn without replacement, succeeded: unbiased for all-k.

    Raises:
        ValueError: As for `pass_at_k`.
    """
    _check(successes, samples, k)
    return comb(successes, k) / comb(samples, k)


def pass_rates(successes: Sequence[int], samples: int) -> list[PassRate]:
    """pass@1, 2, 4, 8 as far as the samples go, and all-k of the largest k above 1.

    Args:
        successes: Number of successes of each task, at least one task.
        samples: Episodes a task.

    Raises:
        ValueError: No tasks, or counts out of range.
    """
    if not successes:
        raise ValueError("pass@k needs at least one task")
    sizes = [k for k in (1, 2, 4, 8) if k <= samples]
    rows = [(f"pass@{k}", np.array([pass_at_k(count, samples, k) for count in successes])) for k in sizes]
    if sizes[-1] > 1:
        k = sizes[-1]
        rows.append((f"all-{k}", np.array([all_of_k(count, samples, k) for count in successes])))
    return [_row(name, values) for name, values in rows]


def _row(name: str, values: NDArray[np.float64]) -> PassRate:
    drawn = generator(_INTERVAL_KEY).integers(len(values), size=(_RESAMPLES, len(values)))
    low, high = np.percentile(values[drawn].mean(axis=1), [2.5, 97.5])
    return PassRate(name=name, rate=float(values.mean()), low=float(low), high=float(high))


def _check(successes: int, samples: int, k: int) -> None:
    if not 0 <= successes <= samples or not 1 <= k <= samples:
        raise ValueError(
            f"pass@k needs 0 <= successes <= samples and 1 <= k <= samples, got {successes=} {samples=} {k=}"
        )
