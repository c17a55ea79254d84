"""Thresholds and test statistics that the propositions' tests share. No test lives here.

Every draw is keyed, so each test always gives the same answer; an error rate says for which share of all seeds a
correct program would fail.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from forkgym_toy import Solver

from forkgym.noise import episode_id

ERROR_RATE = 0.0027
"""Two-sided error rate of "within three standard errors"."""


def limit(comparisons: int = 1) -> float:
    """Bound on |z| over this many comparisons, family error rate `ERROR_RATE` (Bonferroni); 3 for one."""
    return NormalDist().inv_cdf(1 - ERROR_RATE / (2 * comparisons))


def keys(count: int, *, seed: int, task: int = 0):
    """Ids of ``count`` episodes."""
    return np.array([episode_id(seed, "train", 0, task, member) for member in range(count)], dtype=np.uint64)


def mean_z(values, expected: float, variance: float | None = None) -> float:
    """Standardised distance of a sample's mean from ``expected``; the exact variance is used where it is known."""
    values = np.asarray(values, dtype=np.float64)
    spread = values.var() if variance is None else variance
    gap = float(values.mean() - expected)
    if spread <= 1e-12:
        return 0.0 if abs(gap) < 1e-6 else float("inf")
    return gap / np.sqrt(spread / values.size)


def cells(solver: Solver, pairs, layout, *, least: float = 100.0, shared_luck: bool = True):
    """Decisions (s, y) whose D is normal enough to be tested alone: their exact law and their sample of D.

    Yields:
        (turn node, exact `Pair`, D of its pairs) where at least ``least`` of the D are expected to be non-zero, or
        where D is never non-zero.
    """
    for node in np.unique(pairs.decision).tolist():
        sample = pairs.difference[pairs.decision == node]
        law = solver.pair(node, layout, shared_luck=shared_luck)
        if sample.size * law.discordance >= least or law.discordance < 1e-12:
            yield node, law, sample
