"""``forkgym warmstart``: a small policy from a scripted expert. The work is ``forkgym.learn.warmstart``'s."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import msgspec

from forkgym.cli.command import OK, Command, UsageError, bad_input, positive
from forkgym.cli.training import parse_arguments, without_nan
from forkgym.console import Console

__all__ = ["WARMSTART"]

_OPTIONS = ("seed", "steps", "demonstrations", "error_rate", "batch_size", "learning_rate")


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("env", metavar="ENV", help="environment with a vocabulary and demonstrations")
    parser.add_argument("output", metavar="DIRECTORY", help="where the checkpoint goes")
    parser.add_argument("--env-arg", action="append", default=[], metavar="NAME=VALUE", help="constructor argument")
    parser.add_argument("--seed", type=int, help="seed of everything")
    parser.add_argument("--steps", type=positive, help="optimiser steps")
    parser.add_argument("--demonstrations", type=positive, help="expert episodes to draw from")
    parser.add_argument("--error-rate", type=float, help="probability of an expert's error in each turn")
    parser.add_argument("--batch-size", type=positive, help="sequences a step")
    parser.add_argument("--learning-rate", type=float, help="largest learning rate")
    parser.add_argument("--split", help="held-out split that is reported on")
    parser.add_argument("--tasks", type=positive, help="most tasks a figure is measured on")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing directory")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")


def _warmstart(arguments: argparse.Namespace, console: Console) -> int:
    output = Path(arguments.output).expanduser()
    if output.exists() and not arguments.overwrite:
        raise UsageError(f"{output} exists already; choose another directory or add --overwrite.")
    if arguments.error_rate is not None and not 0 <= arguments.error_rate < 1:
        raise UsageError(f"--error-rate is {arguments.error_rate}; expected a number of at least 0 and less than 1.")
    if arguments.learning_rate is not None and not arguments.learning_rate > 0:
        raise UsageError(f"--learning-rate is {arguments.learning_rate}; expected a number greater than 0.")
    options: dict[str, Any] = {name: getattr(arguments, name) for name in _OPTIONS}
    options |= {"evaluation_split": arguments.split, "evaluation_tasks": arguments.tasks}
    kwargs = parse_arguments(arguments.env_arg)
    check_teachable(arguments.env, kwargs, split=arguments.split)
    from forkgym.learn.warmstart import BATCH_SIZE, warm_start

    batch = arguments.batch_size or BATCH_SIZE
    if arguments.demonstrations is not None and arguments.demonstrations < batch:
        raise UsageError(
            f"--demonstrations is {arguments.demonstrations}, fewer than one batch of {batch}: make more, or lower "
            "--batch-size."
        )
    # Beside its place and renamed at the end: a crash leaves no half checkpoint under the name.
    partial = output.with_name(f".{output.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        # Before the minutes of training, not after them.
        partial.mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"{output} cannot be made ({error.strerror}); check the path and permissions.") from error
    try:
        given = {name: value for name, value in options.items() if value is not None}
        report = warm_start(arguments.env, kwargs, partial, progress=console.message, **given)
        if output.exists():
            shutil.rmtree(output)
        partial.rename(output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    for line in report.lines():
        console.line(line)
    console.line(f"checkpoint: {output}")
    if arguments.json:
        document = msgspec.to_builtins(report, str_keys=True)
        console.json(without_nan({**document, "output": str(output)}))
    return OK


def check_teachable(env_id: str, kwargs: dict[str, Any], *, split: str | None = None) -> None:
    """Refuse an environment that nothing can be imitated in.

    Args:
        env_id: Environment id.
        kwargs: Its keyword arguments.
        split: Held-out split that is reported on; by default ``test``.

    Raises:
        UsageError: It is no text environment, offers no vocabulary or demonstrations, or has no such split.
    """
    import forkgym

    with bad_input(ValueError, TypeError):
        env = forkgym.make(env_id, **kwargs)
    try:
        if not isinstance(env, forkgym.TextEnv):
            raise UsageError(f"{env_id} is not a text environment; a small policy is taught in words.")
        with bad_input(NotImplementedError):
            env.vocabulary()
            env.demonstrations(1, seed=0, error_rate=0.0)
        if not env.splits.get(split or "test"):
            raise UsageError(
                f"{env_id} has no tasks in split {split or 'test'!r} to report on; choose another by --split: it has "
                f"{', '.join(name for name, count in env.splits.items() if count)}."
            )
    finally:
        env.close()


WARMSTART = Command(
    "Teach a small policy by imitation of an environment's scripted expert, in false worlds redrawn all the time.",
    _configure,
    _warmstart,
    logs=True,
)
