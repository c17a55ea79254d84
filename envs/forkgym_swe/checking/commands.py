"""``forkgym check-tasks``: the determinism filter, duplicates and leaks between splits; writes what is admitted."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forkgym.cli.command import NO, OK, Command, bad_input
from forkgym.console import Console
from forkgym_swe.instance import Instance, dump_instances, load_instances
from forkgym_swe.making.journal import Journal, journal_path
from forkgym_swe.making.progress import Progress

from .determinism import RUNS, Checked, Checker, mark_of
from .leaks import duplicates, find_leaks, to_drop

__all__ = ["CHECK_TASKS", "check_all", "discard_table"]


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tasks", type=Path, help="task file, as make-tasks wrote it")
    parser.add_argument("--output", type=Path, help="admitted tasks (default: FILE with .admitted before its suffix)")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds of one run of the tests (default: 120)")
    parser.add_argument("--window-days", type=int, default=30, help="commits nearer than this are neighbours")
    parser.add_argument("--similarity", type=float, default=0.8, help="from here on two patch hunks are alike")
    parser.add_argument("--share-projects", action="store_true", help="a project may have tasks in two splits")
    parser.add_argument("--json", action="store_true", help="print the table as one JSON object, too")


def _run(arguments: argparse.Namespace, console: Console) -> int:
    began = time.monotonic()
    with bad_input(ValueError, OSError):
        instances = load_instances(arguments.tasks)
        output = arguments.output or arguments.tasks.with_suffix(f".admitted{arguments.tasks.suffix}")
        purpose = f"forkgym check-tasks, {len(RUNS)} runs of at most {arguments.timeout:g} s"
        journal = Journal(journal_path(output), Checked, purpose)
    checked = check_all(instances, journal, console, timeout=arguments.timeout)
    steady = [instance for instance, found in zip(instances, checked, strict=True) if not found.reason]
    twins = duplicates(steady)
    leaks = find_leaks(
        [instance for instance in steady if instance.id not in twins],
        window_days=arguments.window_days,
        similarity=arguments.similarity,
        share_projects=arguments.share_projects,
    )
    dropped = {
        **{id: f"a leak between splits: {why}" for id, why in to_drop(leaks).items()},
        **{id: f"the same bug as another task: {other}" for id, other in twins.items()},
    }
    admitted = [instance for instance in steady if instance.id not in dropped]
    dump_instances(output, admitted)
    rows = discard_table(instances, checked, dropped)
    console.table(rows, title="Admitted tasks and discard reasons by project")
    for leak in leaks[:20]:
        console.line(f"leak ({leak.kind}): {leak.first} and {leak.second}, {leak.detail}")
    splits = Counter(instance.split for instance in admitted)
    told = ", ".join(f"{count} {name}" for name, count in sorted(splits.items())) or "none"
    seconds = time.monotonic() - began
    console.line(f"{len(admitted)} of {len(instances)} tasks admitted ({told}) to {output}, {seconds:.0f} s.")
    if arguments.json:
        console.json({"admitted": len(admitted), "tasks": len(instances), "projects": rows, "output": str(output)})
    return OK if admitted else NO


def check_all(
    instances: Sequence[Instance], journal: Journal[Checked], console: Console, *, timeout: float = 120.0
) -> list[Checked]:
    """Check tasks in order; what the journal knows is not run again.

    Args:
        instances: The tasks.
        journal: Of this file's checks; closed at the end.
        console: Where progress is shown.
        timeout: Wall-clock seconds of one run of the tests.
    """
    checker, found = Checker(timeout=timeout), list[Checked]()
    known = {entry.mark: entry for entry in journal.entries}
    with journal, Progress(console, len(instances), "tasks") as progress:
        for instance in instances:
            entry = known.get(mark_of(instance))
            if entry is None:
                began = time.monotonic()
                reason, detail = checker.check(instance)
                entry = Checked(
                    project=instance.repository,
                    id=instance.id,
                    mark=mark_of(instance),
                    reason=reason,
                    detail=detail,
                    seconds=round(time.monotonic() - began, 3),
                )
                journal.add(entry)
                if reason:
                    progress.say(f"{instance.id} is not admitted: {reason} ({detail})")
            found.append(entry)
            progress.advance(instance.repository)
    return found


def discard_table(
    instances: Sequence[Instance], checked: Sequence[Checked], dropped: dict[str, str]
) -> list[dict[str, Any]]:
    """One row a project: tasks, admitted ones, and how many were discarded for each reason; the last row sums up.

    Args:
        instances: All tasks.
        checked: What the filter found, in the same order.
        dropped: Id → why, of tasks that passed the filter and are left out all the same.
    """
    names = sorted({instance.repository for instance in instances})
    rows = []
    for name in [*names, *(["all"] if len(names) > 1 else [])]:
        members = [
            (instance, found)
            for instance, found in zip(instances, checked, strict=True)
            if name in ("all", instance.repository)
        ]
        reasons = Counter(found.reason or dropped.get(instance.id, "").partition(":")[0] for instance, found in members)
        row: dict[str, Any] = {
            "project": name,
            "split": members[0][0].split if name != "all" else None,
            "tasks": len(members),
            "admitted": reasons.pop("", 0),
            "seconds": round(sum(found.seconds for _, found in members)),
        }
        rows.append(row | dict(sorted(reasons.items())))
    return rows


CHECK_TASKS = Command(
    description="Admit tasks that behave the same in three runs with other hash seeds and another order of tests:\n"
    "the gold patch solves them, the empty patch does not. Then drop duplicates and leaks between splits.\n"
    "Work resumes where it stopped: a journal lies beside the output file.",
    configure=_configure,
    run=_run,
)
