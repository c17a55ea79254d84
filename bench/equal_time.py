"""Do counterfactuals pay? Methods side by side at equal tokens and at equal seconds, every cost charged, several seeds.

``python -m bench equal_time PLAN.toml [--seeds 1,2,3] [--set KEY=VALUE] [--workers N] [--plot FILE] [--json FILE]``. A
plan is what ``forkgym demo`` takes: a training configuration with one ``[methods.NAME]`` table a method;
``evaluation.every`` must be set, since success at equal seconds is read off the learning curves (linearly between
evaluations). Seconds are those of rollouts, counterfactuals and the learner, and what the environment took from a memo
is charged at what it once cost.
Runs that are finished are read, not repeated.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from forkgym.demo.compare import load_plan, run_demo
from forkgym.report.tables import render_table
from forkgym.rollout.trace import Ledger
from forkgym.store import RunStore

__all__ = ["Curve", "charged_seconds", "compare", "main", "read_curve", "split"]

TRAINING = ("on_policy", "counterfactual", "learner")
CHARGED = ("charged", "charged_verifier")


class Curve(msgspec.Struct, kw_only=True):
    """Success on held-out tasks along one run.

    Attributes:
        tokens: Training tokens at each evaluation, ascending from 0.
        seconds: Charged seconds at each evaluation.
        success: Sampled success.
        ledger: The run's ledger at its end.
    """

    tokens: list[float]
    seconds: list[float]
    success: list[float]
    ledger: Ledger

    def at(self, axis: str, value: float) -> float:
        """Success at a number of tokens or seconds, linear between evaluations; the last one beyond the end."""
        grid: npt.NDArray[np.float64] = np.asarray(getattr(self, axis), dtype=np.float64)
        return float(np.interp(value, grid, np.asarray(self.success)))


def charged_seconds(ledger: Ledger) -> float:
    """Wall seconds of training so far, and recorded seconds of memoised work on top."""
    return sum(ledger.seconds.get(role, 0.0) for role in TRAINING) + sum(ledger.part(part) for part in CHARGED)


def split(ledger: Ledger) -> dict[str, float]:
    """Where the charged seconds went; the values add up to `charged_seconds`.

    ``rollout`` and ``counterfactual`` are generation and everything else that is in none of the other columns; the
    environment's own time (commands, edits, resets) counts there too, verifiers (steps that ended an episode) and
    forks (snapshots, forks, restores) do not.
    """
    parts = {"rollout": 0.0, "counterfactual": 0.0, "verifier": 0.0, "fork": 0.0}
    for role, name in (("on_policy", "rollout"), ("counterfactual", "counterfactual")):
        inside = ledger.parts.get(role, {})
        fork, verifier = inside.get("fork", 0.0), inside.get("verifier", 0.0)
        parts[name] += ledger.seconds.get(role, 0.0) - fork - verifier + inside.get("charged", 0.0)
        parts["fork"] += fork
        parts["verifier"] += verifier + inside.get("charged_verifier", 0.0)
    return {**parts, "learner": ledger.seconds.get("learner", 0.0)}


def read_curve(directory: Path) -> Curve:
    """The learning curve of a finished run.

    Raises:
        StoreError: There is no run.
    """
    tokens, seconds, success = [], [], []
    with RunStore.open(directory) as store:
        for evaluation in store.evaluations():
            if evaluation.name != "sampled":
                continue
            ledger = Ledger() if evaluation.update == 0 else store.ledger(evaluation.update - 1)
            tokens.append(float(ledger.training_tokens))
            seconds.append(charged_seconds(ledger))
            success.append(float(evaluation.metrics["success"]))
        return Curve(tokens=tokens, seconds=seconds, success=success, ledger=store.ledger())


def compare(curves: Mapping[str, Sequence[Curve]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The table of success and the table of costs.

    Args:
        curves: Method → one curve a seed, the same seeds for each; the first method is the one to beat.

    Returns:
        Rows of success (means over seeds; differences to the first method are paired by seed) and rows of costs.
    """
    every = [curve for runs in curves.values() for curve in runs]
    tokens, seconds = min(c.tokens[-1] for c in every), min(c.seconds[-1] for c in every)
    first = next(iter(curves))
    rows, costs = [], []
    for method, runs in curves.items():
        row: dict[str, Any] = {"method": method, "before": float(np.mean([run.success[0] for run in runs]))}
        for axis, value in (("tokens", tokens), ("seconds", seconds)):
            found = [run.at(axis, value) for run in runs]
            row[f"equal {axis}"] = float(np.mean(found))
            if method != first:
                differences = [a - b.at(axis, value) for a, b in zip(found, curves[first], strict=True)]
                row[f"difference ({axis})"], row[f"s.e. ({axis})"] = _mean_and_error(differences)
        rows.append(row)
        parts = [split(run.ledger) for run in runs]
        means = {name: float(np.mean([part[name] for part in parts])) for name in parts[0]}
        total = sum(means.values())
        costs.append({"method": method, "seconds": total} | {name: share / total for name, share in means.items()})
    return rows, costs


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    error = float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan
    return float(np.mean(values)), error


def draw(curves: Mapping[str, Sequence[Curve]], path: Path) -> None:
    """Learning curves against tokens and against seconds: the mean over seeds, and a band from the worst to the best.

    Args:
        curves: Method → one curve a seed.
        path: Picture to write.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, panes = plt.subplots(1, 2, figsize=(9.5, 3.6), sharey=True, layout="constrained")
    for axis, label, pane in zip(("tokens", "seconds"), ("generated tokens", "charged seconds"), panes, strict=True):
        for method, runs in curves.items():
            end = min(getattr(run, axis)[-1] for run in runs)
            grid = np.linspace(0, end, 61)
            values = np.array([[run.at(axis, value) for value in grid] for run in runs])
            (line,) = pane.plot(grid, values.mean(axis=0), label=method)
            pane.fill_between(grid, values.min(axis=0), values.max(axis=0), color=line.get_color(), alpha=0.12, lw=0)
        pane.set_xlabel(label)
        pane.grid(alpha=0.3)
    panes[0].set_ylabel("held-out sampled success")
    panes[0].legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(argv: Sequence[str] | None = None) -> int:
    """Train what is not trained yet and print both tables.

    Args:
        argv: Options; by default the process's arguments.
    """
    parser = argparse.ArgumentParser(prog="python -m bench equal_time", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("plan", type=Path, help="TOML file with [methods.NAME] tables")
    parser.add_argument("--seeds", default="1,2,3", help="comma-separated (default: 1,2,3)")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--workers", type=int, help="processes at a time; timings want one (the default)", default=1)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the learning curves there (needs matplotlib)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows and curves there")
    arguments = parser.parse_args(argv)
    plan = load_plan(arguments.plan)
    folder = str(plan.config(next(iter(plan.methods)), arguments.overrides).run.directory)
    curves: dict[str, list[Curve]] = {method: [] for method in plan.methods}
    for seed in (int(text) for text in arguments.seeds.split(",")):
        own = [f"run.seed={seed}", f"run.directory='{folder}/seed{seed}'"]
        results = run_demo(plan, overrides=[*arguments.overrides, *own], workers=arguments.workers)
        for method, result in results.items():
            curves[method].append(read_curve(Path(result.training.directory)))
    rows, costs = compare(curves)
    print(render_table(rows, title=f"Held-out sampled success, mean over seeds {arguments.seeds}"))
    print(render_table(costs, title="Charged seconds a run and their split"))
    if arguments.plot is not None:
        draw(curves, arguments.plot)
    if arguments.json is not None:
        arguments.json.write_text(
            json.dumps({"success": rows, "costs": costs, "curves": msgspec.to_builtins(curves)}, indent=1)
        )
    return 0
