"""The shipped tasks of ``swe/Repair-v0``: known without a sandbox, and neither too easy nor too hard."""

from __future__ import annotations

from pathlib import Path

import pytest
from forkgym_swe.repair.env import RepairEnv
from forkgym_swe.repair.measure import PolicyRow, measure_policies

from forkgym import testing


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORKGYM_SWE_CACHE", str(tmp_path))


def test_the_shipped_studies_are_those_of_the_shipped_tasks() -> None:
    env = RepairEnv()
    assert set(env.splits) == {"train", "validation", "test"}
    # Only what is in the package can be known: the cache is empty, and nothing was studied.
    assert len(env.demonstrations(4, seed=0)) == 4
    env.close()


def test_it_keeps_every_promise() -> None:
    testing.check_env(RepairEnv)


@pytest.mark.slow
def test_policies_are_where_they_should_be_on_the_shipped_tasks() -> None:
    env = RepairEnv()
    rows: dict[str, list[PolicyRow]] = {}
    for split in env.splits:
        for row in measure_policies(env, split, policies=("random", "first", "expert", "gold", "empty"), samples=16):
            rows.setdefault(row.policy, []).append(row)
    share = {
        policy: sum(row.success * row.episodes for row in found) / sum(row.episodes for row in found)
        for policy, found in rows.items()
    }
    # The draws are seeded, so this cannot flicker. There are thirteen tasks: `first` counts in steps of 0.08.
    assert share["random"] <= 0.10
    assert share["first"] <= 0.40
    assert share["expert"] >= 0.80
    assert share["gold"] == 1.0
    assert share["empty"] == 0.0
    env.close()
