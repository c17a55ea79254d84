"""What a subcommand is, its exit codes and its errors. Plug-ins build a :class:`Command` and announce it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from forkgym.console import Console

__all__ = ["BAD_INPUT", "INTERRUPTED", "NO", "OK", "Command", "UsageError", "bad_input", "positive"]

OK = 0
NO = 1
BAD_INPUT = 2
INTERRUPTED = 130


class UsageError(Exception):
    """The user asked for something impossible; the text says what to do. Exit code 2."""


@dataclass(frozen=True)
class Command:
    """A subcommand of ``forkgym``.

    Attributes:
        description: What ``forkgym NAME --help`` says above the options.
        configure: Adds the arguments.
        run: Does the work and returns the exit code; raises ForkgymError or UsageError for bad input.
        logs: Takes ``--verbose`` and shows what the run logs.
    """

    description: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Console], int]
    logs: bool = False


@contextmanager
def bad_input(*kinds: type[Exception]) -> Iterator[None]:
    """Report errors of these kinds (by default ValueError) as the user's, not as a defect.

    For calls whose only cause of failure is what the user wrote; never around a whole run.
    """
    expected = kinds if kinds else (ValueError,)
    try:
        yield
    except expected as error:
        raise UsageError(str(error)) from error


def positive(text: str) -> int:
    """An integer of at least 1, for argparse.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least 1")
    return value
