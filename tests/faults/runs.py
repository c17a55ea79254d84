"""Tiny training runs for tests: a random policy of a few thousand weights learns a world that rewards it now and then.

Run as ``python -m tests.faults.runs CONFIG.json`` it trains in a process of its own, which can be killed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from forkgym.train.config import TrainConfig, config_from_json, config_to_json, parse_config
from tests.rollout.lamps import ID, Lamps, register


def make_checkpoint(path: Path, *, seed: int = 0) -> Path:
    """Save a random tiny policy for the world of lamps."""
    from forkgym.policy.tiny import build_model, build_tokenizer, save_checkpoint

    vocabulary = Lamps().vocabulary()
    Lamps.live -= 1
    tokenizer = build_tokenizer(vocabulary)
    model = build_model(len(tokenizer), hidden_size=16, layers=2, heads=2, max_positions=128, seed=seed)
    save_checkpoint(path, model.eval(), tokenizer, vocabulary)
    return path


OPTIONS: dict[str, dict[str, Any]] = {
    "grpo": {"group_size": 4},
    "rloo": {"group_size": 4},
    "merge-annealed": {"group_size": 4},
    "crr": {"group_size": 4, "k": 2, "temperature": 1.0},
    "twice": {"group_size": 4, "warmup_updates": 1},
    "twice-dr": {"group_size": 4, "warmup_updates": 1},
}


def make_config(directory: Path, policy_path: Path | str, algorithm: str, /, **sections: dict[str, Any]) -> TrainConfig:
    """A run of four updates; keyword arguments are sections whose keys replace the defaults here."""
    register()
    table: dict[str, dict[str, Any]] = {
        "run": {"directory": str(directory), "name": "run", "seed": 5},
        "env": {"id": ID},
        "policy": {"checkpoint": str(policy_path), "device": "cpu", "max_turn_tokens": 6, "max_context": 96},
        "algorithm": {"name": algorithm, **OPTIONS[algorithm]},
        "optimiser": {"learning_rate": 0.01, "minibatch": 4},
        "collection": {"groups_per_update": 2},
        "budget": {"updates": 4},
        "evaluation": {"tasks": 3},
    }
    for name, changes in sections.items():
        table.setdefault(name, {}).update(changes)
    return parse_config(table)


def main(path: str) -> None:
    """Train the configuration in ``path`` and print the digest of the final weights."""
    from forkgym.train.trainer import train

    register()
    result = train(config_from_json(Path(path).read_text()))
    print(result.weights_digest)


def write_config(config: TrainConfig, path: Path) -> Path:
    """Write a configuration for :func:`main`."""
    path.write_text(config_to_json(config))
    return path


if __name__ == "__main__":
    main(sys.argv[1])
