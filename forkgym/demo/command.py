"""``forkgym demo``: run the plan, print the table, draw the picture."""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

from forkgym.cli.command import OK, Command, positive
from forkgym.console import Console
from forkgym.demo.compare import MethodResult, load_plan, run_demo

__all__ = ["DEMO", "table_rows"]


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", nargs="?", type=Path, help="TOML file with [methods.NAME] tables (default: built in)")
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a key everywhere",
    )
    parser.add_argument("--workers", type=positive, help="processes at a time (default: one a core)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")


def _run(arguments: argparse.Namespace, console: Console) -> int:
    plan = load_plan(arguments.plan)
    started = time.monotonic()
    budget = plan.config(next(iter(plan.methods)), arguments.overrides).budget.tokens
    console.line(
        f"Training {len(plan.methods)} methods from one warm start, {budget:,} generated tokens each "
        "(counterfactual tokens included)."
    )
    results = run_demo(plan, overrides=arguments.overrides, workers=arguments.workers, say=console.line)
    console.line()
    rows = table_rows(results)
    console.table(rows, title="Success on held-out questions (standard error); one seed a method")
    console.line(
        "Differences below two standard errors say nothing. 'tie' is the share of realised branches with the same\n"
        "outcome; ρ is measured on the final policy by an independent branch beside each twin at non-terminal turns."
    )
    directories = [Path(result.training.directory) for result in results.values()]
    picture = directories[0].parent / "learning_curves.png"
    from forkgym.report.plots import plot_learning_curves

    plot_learning_curves(directories, picture)
    console.line(f"\nLearning curves: {picture}")
    console.line(f"Runs: {directories[0].parent} (try: forkgym report RUN, forkgym replay RUN:EPISODE)")
    console.line(f"Wall time: {time.monotonic() - started:.0f} s")
    if arguments.json:
        console.json({"rows": rows, "picture": str(picture), "seconds": time.monotonic() - started})
    return OK


def table_rows(results: dict[str, MethodResult]) -> list[dict[str, Any]]:
    """One row per method, in order."""
    rows: list[dict[str, Any]] = []
    for method, result in results.items():
        training = result.training
        row: dict[str, Any] = {"method": method}
        for mode in ("sampled", "greedy"):
            for when, evaluations in (("before", training.before), ("after", training.after)):
                one = evaluations[mode]
                row[f"{mode} {when}"] = f"{one.success:.3f} ({one.standard_error:.3f})"
        row["updates"] = training.updates
        row["tokens"] = training.training_tokens
        row["auxiliary"] = training.counterfactual_tokens
        row["twins"] = training.branches
        row["tie"] = None if math.isnan(training.ties) else round(training.ties, 3)
        row["ρ"] = (
            None
            if result.coupling is None
            else f"{result.coupling.correlation:.2f} ({result.coupling.standard_error:.2f})"
        )
        row["run"] = training.directory
        rows.append(row)
    return rows


DEMO = Command(
    description="Train several methods side by side at equal tokens and print one table.",
    configure=_configure,
    run=_run,
)
