"""How long fork, snapshot, restore and replay take, against deepcopy and against re-running the actions.

``python -m bench env_fork [--env ID] [--depth 3] [--repeats 200] [--json]``. All operations are timed in turns in
one run; the ratios are the figures to quote.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import forkgym
from forkgym.report.tables import render_table

from ._environments import chosen, example, interleaved, play_into


def measure(env_id: str, depth: int, repeats: int) -> dict[str, Any]:
    """Times of one environment.

    Args:
        env_id: Registered id.
        depth: Actions taken before forking (fewer where random play ends earlier).
        repeats: Repetitions of each operation.

    Returns:
        ``p50_us`` and ``p95_us`` by operation, and how many times cheaper a fork is than each baseline.
    """
    env, fresh = example(env_id), example(env_id)
    seed, actions = play_into(env, depth)
    snapshot, handle = env.snapshot(), env.handle()

    def rerun() -> None:
        fresh.reset(seed=seed)
        for action in actions:
            fresh.step(action)

    operations: dict[str, Callable[[], Any]] = {
        "fork": env.fork,
        "snapshot": env.snapshot,
        "restore": lambda: env.restore(snapshot),
        "rerun": rerun,
    }
    result: dict[str, Any] = {"env": env_id, "support": env.fork_support, "depth": len(actions)}
    rare: dict[str, Callable[[], Any]] = {"replay": lambda: forkgym.replay(handle)}
    try:
        copy.deepcopy(env).close()
        rare["deepcopy"] = lambda: copy.deepcopy(env)
    except Exception as error:  # whatever an environment raises: the row says so
        result["deepcopy_fails"] = f"{type(error).__name__}: {error}"
    try:
        interleaved(operations, 3)  # caches warm up
        seconds = interleaved(operations, repeats)
        # These two may copy or build whole corpora and sweep the caches: apart from the others, and less often.
        for name, operation in rare.items():
            seconds |= interleaved({name: operation}, max(3, repeats // 20))
    finally:
        snapshot.close()
        env.close()
        fresh.close()
    for quantile in (50, 95):
        result[f"p{quantile}_us"] = {
            name: round(float(np.percentile(times, quantile)) * 1e6, 1) for name, times in seconds.items()
        }
    middle = result["p50_us"]
    result["fork_times_cheaper_than"] = {
        name: round(middle[name] / middle["fork"], 2) for name in ("deepcopy", "rerun", "replay") if name in middle
    }
    return result


def main(argv: Sequence[str]) -> int:
    """Run the bench; returns 0."""
    parser = argparse.ArgumentParser(prog="bench env_fork", description=__doc__)
    parser.add_argument("--env", action="append", metavar="ID", help="only this environment; may be repeated")
    parser.add_argument("--depth", type=int, default=3, help="actions before the fork (default 3)")
    parser.add_argument("--repeats", type=int, default=200, help="repetitions (default 200)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    options = parser.parse_args(argv)
    if options.repeats < 1 or options.depth < 0:
        parser.error("--repeats must be at least 1 and --depth at least 0")
    results = [measure(env_id, options.depth, options.repeats) for env_id in chosen(options.env)]
    for quantile in (50, 95):
        rows = [
            {"environment": r["env"], "forks by": r["support"], "depth": r["depth"], **r[f"p{quantile}_us"]}
            for r in results
        ]
        print(render_table(rows, title=f"p{quantile}, microseconds"))
    rows = [{"environment": r["env"], **r["fork_times_cheaper_than"]} for r in results]
    print(render_table(rows, title="a fork is so many times cheaper than (p50)"))
    if options.json:
        print(json.dumps({"bench": "env_fork", "results": results}))
    return 0
