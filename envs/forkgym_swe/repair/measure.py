"""How far scripted policies come: successes by policy, as a table. Also what `python -m forkgym_swe.repair` prints."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from forkgym.noise import generator, stream_id
from forkgym_swe.repair.env import RepairEnv

__all__ = ["PolicyRow", "measure_policies", "policy_table"]


class PolicyRow(msgspec.Struct, frozen=True):
    """How one policy did.

    Attributes:
        policy: Its name.
        episodes: How many.
        success: Share of successful ones.
        turns: Mean number of turns.
        failures: Label of the taxonomy to number of episodes.
    """

    policy: str
    episodes: int
    success: float
    turns: float
    failures: dict[str, int]


def measure_policies(
    env: RepairEnv, split: str, *, policies: Sequence[str] = (), samples: int = 8, seed: int = 0
) -> list[PolicyRow]:
    """Play scripted policies on all tasks of a split.

    Args:
        env: Is reset.
        split: Of the tasks.
        policies: Names; empty for all.
        samples: Episodes of a policy that draws on each task.
        seed: Of all draws.

    Raises:
        ValueError: There is no such split or policy.
    """
    if split not in env.splits:
        raise ValueError(f"there is no split {split!r}; choose one of {', '.join(env.splits)}")
    rows = []
    for policy in policies or env.scripted_policies:
        draws = samples if policy in ("random", "expert") else 1
        rng = generator(stream_id(0, 0, f"measure {policy}", seed))
        successes, turns = 0, 0
        failures: dict[str, int] = {}
        for task in range(env.splits[split]):
            for sample in range(draws):
                env.reset(seed=sample, options={"split": split, "task": task})
                done = False
                info: dict[str, object] = {}
                while not done:
                    _, _, terminated, truncated, info = env.step(env.scripted_action(policy, rng))
                    done = terminated or truncated
                    turns += 1
                successes += info["success"] is True
                label = info.get("failure")
                if isinstance(label, str):
                    failures[label] = failures.get(label, 0) + 1
        episodes = env.splits[split] * draws
        rows.append(PolicyRow(policy, episodes, successes / episodes, turns / episodes, dict(sorted(failures.items()))))
    return rows


def policy_table(rows: Sequence[PolicyRow]) -> list[str]:
    """Rows for a terminal."""
    lines = [f"{'policy':<10} {'episodes':>8} {'success':>8} {'turns':>6}  failures"]
    for row in rows:
        failures = ", ".join(f"{label} {count}" for label, count in row.failures.items())
        lines.append(f"{row.policy:<10} {row.episodes:>8} {row.success:>8.1%} {row.turns:>6.1f}  {failures}".rstrip())
    return lines
