"""``forkgym report``: runs as a table and a picture, from their records alone."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from forkgym.cli.command import OK, Command
from forkgym.console import Console

__all__ = ["REPORT"]


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="directories of runs")
    parser.add_argument("--plot", metavar="FILE.png", help="draw learning curves of all runs into one picture")
    parser.add_argument("--mode", default="sampled", choices=["sampled", "greedy"], help="which evaluation to draw")
    parser.add_argument("--markdown", action="store_true", help="the table in Markdown")
    parser.add_argument("--episodes", action="store_true", help="list the last update's episodes of each run")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")


def _report(arguments: argparse.Namespace, console: Console) -> int:
    from forkgym.cli.training import without_nan
    from forkgym.report.runs import episode_rows, run_row

    directories = [Path(run).expanduser() for run in arguments.runs]
    rows = [run_row(directory) for directory in directories]
    options: dict[str, Any] = {"style": "markdown"} if arguments.markdown else {}
    console.table(rows, **options)
    if arguments.episodes:
        for directory in directories:
            console.table(episode_rows(directory), title=f"\n{directory}", **options)
    if arguments.plot:
        from forkgym.report.plots import plot_learning_curves

        path = plot_learning_curves(directories, Path(arguments.plot), mode=arguments.mode)
        console.line(f"plot: {path}")
    if arguments.json:
        console.json(without_nan({"runs": rows}))
    return OK


REPORT = Command("Tabulate runs and draw their learning curves.", _configure, _report)
