"""Learning: training sequences, the policy loss, the learner, weights and checkpoints.

Importing the package alone does not import torch; names are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forkgym.learn.batch import TrainingSequence, pack, training_sequences
    from forkgym.learn.checkpoint import CheckpointError, CheckpointWarning, load_latest, write_checkpoint
    from forkgym.learn.config import LearnerConfig, LoraConfig
    from forkgym.learn.learner import Learner, NonFiniteError
    from forkgym.learn.lora import adapter_weights, add_lora
    from forkgym.learn.metrics import Counters, LearnerMetrics
    from forkgym.learn.weights import equal_weights, snapshot_weights, weights_digest

__all__ = [
    "CheckpointError",
    "CheckpointWarning",
    "Counters",
    "Learner",
    "LearnerConfig",
    "LearnerMetrics",
    "LoraConfig",
    "NonFiniteError",
    "TrainingSequence",
    "adapter_weights",
    "add_lora",
    "equal_weights",
    "load_latest",
    "pack",
    "snapshot_weights",
    "training_sequences",
    "weights_digest",
    "write_checkpoint",
]

_HOMES = {
    "batch": ("TrainingSequence", "pack", "training_sequences"),
    "checkpoint": ("CheckpointError", "CheckpointWarning", "load_latest", "write_checkpoint"),
    "config": ("LearnerConfig", "LoraConfig"),
    "learner": ("Learner", "NonFiniteError"),
    "lora": ("adapter_weights", "add_lora"),
    "metrics": ("Counters", "LearnerMetrics"),
    "weights": ("equal_weights", "snapshot_weights", "weights_digest"),
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
