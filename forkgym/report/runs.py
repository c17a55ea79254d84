"""What a run's record says, as rows and curves. Drawing is ``plots``' business, layout ``tables``'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from forkgym.store import RunStore
from forkgym.train.config import config_from_json

__all__ = ["Curve", "episode_rows", "read_curve", "run_row"]


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Success of one run against what it cost.

    Attributes:
        label: What the run is called in a legend: its algorithm, so that seeds fall together.
        seed: Seed of the run.
        tokens: Training tokens at each point, rising.
        success: Success at each point, in [0, 1].
        standard_error: Its standard error at each point; ``nan`` where unknown.
        source: What was measured, e.g. "test, sampled".
    """

    label: str
    seed: int
    tokens: list[float]
    success: list[float]
    standard_error: list[float]
    source: str


def read_curve(directory: Path, *, mode: str = "sampled") -> Curve:
    """The learning curve of a run.

    Evaluations where there are at least two, else the training episodes' own success.

    Args:
        directory: Directory of the run.
        mode: Which evaluation: ``sampled`` or ``greedy``.

    Raises:
        StoreError: There is no run, or its record cannot be read.
    """
    with RunStore.open(directory) as store:
        config = config_from_json(store.config)
        points = [e for e in store.evaluations() if e.name == mode]
        rows = store.metrics()
    nan = float("nan")
    if len(points) >= 2:
        tokens = [float(point.metrics["training_tokens"]) for point in points]
        success = [float(point.metrics["success"]) for point in points]
        errors = [nan if e is None else float(e) for e in (p.metrics.get("standard_error") for p in points)]
        source = f"{points[0].metrics.get('split', config.evaluation.split)}, {mode}"
    else:
        tokens = [float(row["training_tokens"]) for row in rows]
        success = [float(row["success"]) for row in rows]
        errors = [nan] * len(rows)
        source = f"{config.env.split}, while training"
    return Curve(
        label=config.algorithm.name,
        seed=config.run.seed,
        tokens=tokens,
        success=success,
        standard_error=errors,
        source=source,
    )


def run_row(directory: Path) -> dict[str, Any]:
    """One row about a run: what it was, how far it came, first and last evaluation.

    Raises:
        StoreError: There is no run, or its record cannot be read.
    """
    with RunStore.open(directory) as store:
        config = config_from_json(store.config)
        last = store.last_update()
        ledger = store.ledger()
        evaluations = store.evaluations()
    row: dict[str, Any] = {
        "run": directory.name,
        "algorithm": config.algorithm.name,
        "seed": config.run.seed,
        "updates": 0 if last is None else last + 1,
        "tokens": ledger.training_tokens,
        "twin tokens": ledger.generated.get("counterfactual", 0),
        "branches": ledger.branches,
    }
    for mode in dict.fromkeys(evaluation.name for evaluation in evaluations):
        points = [evaluation for evaluation in evaluations if evaluation.name == mode]
        row[f"{mode} before"] = points[0].metrics.get("success") if points[0].update == 0 else None
        row[f"{mode} after"] = points[-1].metrics.get("success") if points[-1].update > 0 else None
        row[f"{mode} s.e."] = points[-1].metrics.get("standard_error")
    row["seconds"] = sum(ledger.seconds.values())
    return row


def episode_rows(directory: Path, update: int | None = None) -> list[dict[str, Any]]:
    """Episodes of an update (by default the last), one row each, with the keys that ``forkgym replay`` takes.

    Raises:
        StoreError: There is no run, or its record cannot be read.
    """
    with RunStore.open(directory) as store:
        wanted = store.last_update() if update is None else update
        episodes = [] if wanted is None else store.episodes(wanted)
    return [
        {
            "episode": str(episode.key),
            "group": episode.group,
            "member": episode.member,
            "task": episode.task,
            "turns": len(episode.turns),
            "tokens": episode.generated_tokens,
            "utility": episode.utility,
            "success": episode.success,
            "replayable": bool(episode.handle),
        }
        for episode in episodes
    ]
