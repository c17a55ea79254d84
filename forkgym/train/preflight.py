"""Find what is wrong with a configuration before anything is made: unknown names, missing checkpoints, absent splits.

Reading the file checks types and ranges (``config``); this checks what depends on the installation.
"""

from __future__ import annotations

from importlib.util import find_spec

import msgspec

import forkgym
from forkgym.core import ForkgymError, nearest
from forkgym.credit.protocol import Algorithm
from forkgym.credit.registry import algorithm_types, make_algorithm
from forkgym.store import RunStore
from forkgym.train.config import ConfigError, TrainConfig, check_resumable, config_from_json, resolve_checkpoint
from forkgym.train.tables import describe_type, show_value

__all__ = ["NEEDED", "preflight"]

NEEDED = ("torch", "transformers", "tokenizers", "safetensors")
"""Packages without which nothing can be trained or judged."""


def preflight(config: TrainConfig, *, source: str = "configuration") -> Algorithm:
    """Check everything that can be checked without loading a model; writes nothing.

    Args:
        config: A valid configuration.
        source: How the error calls its origin.

    Returns:
        The algorithm that the configuration names.

    Raises:
        ConfigError: Every problem found, each with its key; or the run exists with another configuration.
        StoreError: There is something else in the run's directory.
    """
    problems: list[str] = []
    algorithm: Algorithm | None = None
    try:
        problems += _option_problems(config)
        if not problems:
            algorithm = make_algorithm(config.algorithm.name, **config.algorithm.arguments)
    except (ValueError, TypeError) as error:
        problems.append(f"algorithm: {error}.")
    try:
        resolve_checkpoint(config.policy.checkpoint)
    except ConfigError as error:
        problems.append(str(error))
    problems += _environment_problems(config)
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        problems.append(f"training needs {', '.join(missing)}: pip install 'forkgym[train]'.")
    elif config.policy.device == "cuda" and not _has_cuda():
        problems.append("policy.device: torch finds no CUDA device; use 'auto' or 'cpu'.")
    if problems or algorithm is None:
        raise ConfigError(source, problems)
    # Last, so that a misspelt key is called that and not a change.
    if RunStore.exists(config.run_directory):
        with RunStore.open(config.run_directory) as store:
            check_resumable(config_from_json(store.config), config)
    return algorithm


def _option_problems(config: TrainConfig) -> list[str]:
    """Options whose value has the wrong type; unknown ones are the registry's to name."""
    types = algorithm_types(config.algorithm.name)
    problems = []
    for option, value in config.algorithm.arguments.items():
        try:
            if option in types:
                msgspec.convert(value, types[option])
        except msgspec.ValidationError:
            problems.append(f"algorithm.{option} is {show_value(value)}, expected {describe_type(types[option])}.")
    return problems


def _has_cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _environment_problems(config: TrainConfig) -> list[str]:
    try:
        env = forkgym.make(config.env.id, **config.env.kwargs)
    except (ForkgymError, ValueError, TypeError, OSError) as error:
        return [f"env: {error}"]
    try:
        if not isinstance(env, forkgym.TextEnv):
            return [f"env.id: {config.env.id} is not a text environment, so a language model cannot act in it."]
        splits = env.splits
    finally:
        env.close()
    problems = []
    for key, split in (("env.split", config.env.split), ("evaluation.split", config.evaluation.split)):
        if split not in splits:
            listed = ", ".join(f"{name} ({count} tasks)" for name, count in splits.items())
            problems.append(f"{key}: {config.env.id} has no split {split!r}.{nearest(split, splits)} It has: {listed}.")
    return problems
