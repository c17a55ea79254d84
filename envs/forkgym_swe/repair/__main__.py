"""``python -m forkgym_swe.repair TASKS``: study the tasks of a file, so that training on them needs no sandbox."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from forkgym.sandbox import SandboxError
from forkgym_swe.catalogue import load_tasks
from forkgym_swe.instance import Instance, InstanceError
from forkgym_swe.repair.memo import SHIPPED, Memo, open_memo
from forkgym_swe.repair.rehearsal import REHEARSED, make_rehearsals, rehearsals_key
from forkgym_swe.repair.study import Study, make_study, study_entries
from forkgym_swe.repair.tasks import repairable

__all__ = ["main", "precompute"]


def precompute(tasks: str, memo: Memo, *, start: int = 0, step: int = 1) -> dict[str, Study]:
    """Study every task of a file and print a line for each; a second call is over at once.

    Args:
        tasks: "samples", or the path of a task file.
        memo: Where the studies and test results go.
        start: Begin with this task.
        step: Take every so-manieth task, to share the work among processes.

    Returns:
        Studies by the task's id; tasks that cannot be studied here are left out, with a line that says why.
    """
    found: dict[str, Study] = {}
    chosen = load_tasks(tasks)[start::step]
    for number, instance in enumerate(chosen, 1):
        begun = time.perf_counter()
        try:
            study = found[instance.id] = make_study(instance, memo)
        except (InstanceError, SandboxError, OSError) as error:
            print(f"{number}/{len(chosen)} {instance.id}: not studied: {error}", file=sys.stderr, flush=True)
            continue
        print(f"{number}/{len(chosen)} {instance.id}: {_say(study)}, {time.perf_counter() - begun:.1f} s", flush=True)
    return found


def _say(study: Study) -> str:
    if study.reason:
        place = f", right line {study.gold_line or 'not'} among {len(study.lines)}" if study.lines else ""
        return f"not admitted ({study.reason}{place})"
    places = ", ".join(f"{line + 1}{'abcdef'[number]}" for line, number in study.repairs)
    return f"admitted: {len(study.lines)} lines, repaired by {places}"


def _summary(instances: Sequence[Instance], studies: dict[str, Study]) -> list[str]:
    lines = [f"{'project':<20} {'tasks':>5} {'admitted':>8}  reasons"]
    for name in sorted({instance.repository for instance in instances}):
        own = [studies[i.id] for i in instances if i.repository == name and i.id in studies]
        reasons = Counter(study.reason for study in own if study.reason)
        text = ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items()))
        lines.append(f"{name:<20} {len(own):>5} {sum(map(repairable, own)):>8}  {text}".rstrip())
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m forkgym_swe.repair", description=__doc__)
    parser.add_argument("tasks", help="'samples' or a task file")
    parser.add_argument("--start", type=int, default=0, help="begin with this task")
    parser.add_argument("--step", type=int, default=1, help="take every so-manieth task")
    parser.add_argument("--table", action="store_true", help="play the scripted policies on every split")
    parser.add_argument("--ship", action="store_true", help="write these studies and the rehearsals into the package")
    given = parser.parse_args(arguments)
    memo = open_memo()
    studies = precompute(given.tasks, memo, start=given.start, step=given.step)
    instances = load_tasks(given.tasks)
    print("\n".join(_summary(instances, studies)))
    if given.table:
        _print_table(given.tasks)
    if given.ship:
        keys = [key for i in instances if i.id in studies for key in study_entries(i, studies[i.id])]
        make_rehearsals(REHEARSED, memo)
        kept = [rehearsals_key(REHEARSED), *(key for key in keys if memo.get(key) is not None)]
        Path(__file__).with_name(SHIPPED).write_bytes(memo.export(kept))
    return 0 if studies else 1


def _print_table(tasks: str) -> None:
    from forkgym_swe.repair.env import RepairEnv
    from forkgym_swe.repair.measure import measure_policies, policy_table

    env = RepairEnv(tasks=tasks)
    for split, count in env.splits.items():
        print(f"\n{split}: {count} tasks")
        print("\n".join(policy_table(measure_policies(env, split))))
    env.close()


if __name__ == "__main__":
    sys.exit(main())
