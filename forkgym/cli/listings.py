"""``forkgym envs`` and ``forkgym algos``: what is installed, without importing more than is asked for."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from typing import Any

from forkgym.cli.command import BAD_INPUT, OK, Command
from forkgym.console import Console

__all__ = ["ALGOS", "ENVS"]


def _configure_envs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="make each one and say how it forks (slower)")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")


def _envs(arguments: argparse.Namespace, console: Console) -> int:
    import gymnasium

    import forkgym

    rows: list[dict[str, Any]] = []
    for env_id in forkgym.list_envs():
        place = gymnasium.registry[env_id].entry_point
        row: dict[str, Any] = {
            "id": env_id,
            "from": place if isinstance(place, str) else getattr(place, "__name__", ""),
        }
        if arguments.check:
            row |= _look_at(env_id)
        rows.append(row)
    if arguments.json:
        console.json({"environments": rows})
    elif rows:
        console.table(rows)
    else:
        console.line("No environment is installed.")
    return OK if all(row.get("problem") is None for row in rows) else BAD_INPUT


def _look_at(env_id: str) -> dict[str, Any]:
    """Make one environment; whatever it raises is what the listing is about."""
    import forkgym

    try:
        kind = _class_of(env_id)
        example = kind.example_kwargs() if hasattr(kind, "example_kwargs") else {}
        # As a user would make it; arguments meant for tests only where there is no other way.
        env = forkgym.make(env_id, **(example if _needs_arguments(kind) else {}))
    except Exception as error:  # any environment's own error becomes a cell of the table
        return {"forks by": None, "splits": None, "problem": str(error).splitlines()[0]}
    try:
        splits = ", ".join(f"{name} {count}" for name, count in env.splits.items())
        return {"forks by": env.fork_support, "splits": splits or None, "problem": None}
    finally:
        env.close()


def _needs_arguments(kind: Callable[..., Any]) -> bool:
    return any(
        parameter.default is parameter.empty and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        for parameter in inspect.signature(kind).parameters.values()
    )


def _class_of(env_id: str) -> Any:
    from gymnasium.envs import registration

    place = registration.registry[env_id].entry_point
    return registration.load_env_creator(place) if isinstance(place, str) else place


def _configure_algos(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="show one algorithm's options and source")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")


def _algos(arguments: argparse.Namespace, console: Console) -> int:
    from forkgym.cli.command import bad_input
    from forkgym.credit import registry

    if arguments.name is None:
        names = registry.list_algorithms()
        if arguments.json:
            console.json({"algorithms": names})
            return OK
        for name in names:
            console.line(name)
        console.message("`forkgym algos NAME` shows the options of one.")
        return OK
    with bad_input():
        algorithm = registry.make_algorithm(arguments.name)
    rows = [
        {"option": name, "default": repr(default)}
        for name, default in registry.algorithm_options(arguments.name).items()
    ]
    if arguments.json:
        console.json({"name": algorithm.name, "source": algorithm.source, "options": rows})
        return OK
    console.line(f"{algorithm.name}: {algorithm.source}" if algorithm.source else algorithm.name)
    console.table(rows)
    return OK


ENVS = Command("List the registered environments.", _configure_envs, _envs)
ALGOS = Command("List the algorithms, or show one with its options.", _configure_algos, _algos)
