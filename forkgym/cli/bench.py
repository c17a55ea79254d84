"""``forkgym bench``: dispatch to the benchmarks of a checkout (``bench``) or a wheel (``forkgym_bench``)."""

from __future__ import annotations

import argparse
import importlib
from importlib.util import find_spec

from forkgym.cli.command import OK, Command, UsageError
from forkgym.console import Console

__all__ = ["BENCH"]

_PACKAGES = ("forkgym_bench", "bench")


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="benchmark; without it, list them")
    parser.add_argument(
        "options", nargs=argparse.REMAINDER, help="options of the benchmark, e.g. --env ID, --json, --help"
    )


def _bench(arguments: argparse.Namespace, console: Console) -> int:
    runner = importlib.import_module(f"{_package()}.__main__")
    if arguments.name is None:
        for name, summary in runner.benchmarks().items():
            console.line(f"{name:<18} {summary}")
        return OK
    code: int = runner.main([arguments.name, *arguments.options])
    return code


def _package() -> str:
    for name in _PACKAGES:
        # Somebody else's package may be called bench, too: ours has this module.
        if find_spec(name) is not None and find_spec(f"{name}.fork_latency") is not None:
            return name
    raise UsageError("the benchmarks are not part of this installation; reinstall forkgym.")


BENCH = Command("Run a benchmark; without a name, list them.", _configure, _bench)
