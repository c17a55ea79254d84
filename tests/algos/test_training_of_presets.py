"""Every preset beyond the first six trains for a few updates in the world of lamps and changes the policy."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from forkgym.train.config import parse_config  # noqa: E402
from forkgym.train.trainer import train  # noqa: E402
from tests.faults.runs import make_checkpoint  # noqa: E402
from tests.rollout.lamps import ID, register  # noqa: E402

OPTIONS: dict[str, dict[str, Any]] = {
    "grpo-2x": {"group_size": 6},
    "crr-uniform": {"group_size": 4, "warmup_updates": 1},
    "gigpo": {"group_size": 4},
    "vineppo": {"group_size": 2},
    "twin-model": {"group_size": 4, "warmup_updates": 1, "warmup_propensity": 0.5},
    "sft": {"group_size": 4},
    "prm": {"group_size": 4},
    "crr+prm": {"group_size": 4, "k": 2, "temperature": 1.0},
    "twice-alt": {"group_size": 4, "warmup_updates": 1},
    "tree-all": {"group_size": 4, "branch_probability": 0.4},
    "tree-grpo": {"trees": 3},
    "search-select": {"group_size": 4, "k": 2, "temperature": 1.0},
    "twice": {
        "group_size": 4,
        "warmup_updates": 1,
        "twin_only": True,
        "inverse_weights": False,
        "skip_same_evidence": True,
    },
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_checkpoint(tmp_path_factory.mktemp("policy") / "tiny")


@pytest.mark.parametrize("name", OPTIONS)
def test_it_trains(name: str, checkpoint: Any, tmp_path: Any) -> None:
    register()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        result = train(
            parse_config(
                {
                    "run": {"directory": str(tmp_path), "name": "run", "seed": 5},
                    "env": {"id": ID},
                    "policy": {"checkpoint": str(checkpoint), "device": "cpu", "max_turn_tokens": 6, "max_context": 96},
                    "algorithm": {"name": name, **OPTIONS[name]},
                    "optimiser": {"learning_rate": 0.01},
                    "collection": {"groups_per_update": 2},
                    "budget": {"updates": 3},
                    "evaluation": {"tasks": 2},
                }
            )
        )
    finally:
        torch.set_num_threads(threads)
    assert (result.updates, result.algorithm) == (3, name)
    assert result.weights_digest != digest(checkpoint)
    assert (result.branches > 0) == (name not in ("grpo-2x", "gigpo", "prm", "sft"))


def digest(checkpoint: Any) -> str:
    from transformers import AutoModelForCausalLM

    from forkgym.learn.weights import snapshot_weights, weights_digest

    return weights_digest(snapshot_weights(AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)))
