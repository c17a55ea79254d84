"""The ``forkgym`` command: finds the subcommand, runs it, and turns errors into one paragraph and an exit code.

Subcommands live in modules beside this one and are imported only when they are called, so that ``forkgym --help``
and ``forkgym envs`` stay fast and free of torch. Plug-ins add theirs by the entry-point group ``forkgym.commands``.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points

from forkgym._version import __version__
from forkgym.cli.command import BAD_INPUT, INTERRUPTED, OK, Command, UsageError
from forkgym.console import Console
from forkgym.core.errors import ForkgymError, nearest

__all__ = ["COMMANDS", "ENTRY_POINT_GROUP", "load_command", "main", "plugins"]

ENTRY_POINT_GROUP = "forkgym.commands"

COMMANDS: dict[str, tuple[str | Callable[[], Command], str]] = {
    "envs": ("forkgym.cli.listings:ENVS", "list the environments"),
    "algos": ("forkgym.cli.listings:ALGOS", "list the algorithms and their options"),
    "doctor": ("forkgym.cli.doctor:DOCTOR", "say what this machine and this installation can do"),
    "train": ("forkgym.cli.training:TRAIN", "train a policy from a configuration file, or resume"),
    "eval": ("forkgym.cli.training:EVAL", "judge a run's policy or a checkpoint on held-out tasks"),
    "warmstart": ("forkgym.cli.warmstarting:WARMSTART", "teach a small policy by imitation of a scripted expert"),
    "play": ("forkgym.cli.playing:PLAY", "play an environment in the terminal: undo, fork, compare, save"),
    "replay": ("forkgym.cli.replaying:REPLAY", "re-execute a handle or a recorded episode and verify it"),
    "report": ("forkgym.cli.reporting:REPORT", "tabulate runs and draw their learning curves"),
    "demo": ("forkgym.demo.command:DEMO", "train several methods side by side and print one table"),
    "bench": ("forkgym.cli.bench:BENCH", "measure this machine (fork latency, throughput, …)"),
}
"""Name → (``module:OBJECT`` of a :class:`Command`, or a function that makes one; one line of help)."""


def main(argv: Sequence[str] | None = None, *, console: Console | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments without the program's name; by default the process's.
        console: Where to write; by default standard output and error.

    Returns:
        Exit code: 0 ok, 1 the command ran and its verdict is "no" (a replay that diverged), 2 bad input,
        130 stopped by Ctrl-C.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    out = console if console is not None else Console()
    debug = "--debug" in arguments or bool(os.environ.get("FORKGYM_DEBUG"))
    try:
        return _run(arguments, out)
    except KeyboardInterrupt:
        out.error("stopped.")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe (head, less) left; keep Python from complaining again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except (ForkgymError, UsageError) as error:
        if debug:
            traceback.print_exc(file=out.errors)
        out.error(one_paragraph(error))
        return BAD_INPUT
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] == "forkgym" or debug:
            raise
        out.error(f"{error.name.partition('.')[0]} is not installed, but this command needs it.{_remedy(error.name)}")
        return BAD_INPUT


def one_paragraph(error: BaseException) -> str:
    """An error's text without blank lines."""
    return "\n".join(line for line in str(error).splitlines() if line.strip())


def _run(arguments: list[str], console: Console) -> int:
    position = next((i for i, text in enumerate(arguments) if not text.startswith("-")), None)
    own = arguments if position is None else arguments[:position]
    parser = _top_parser()
    try:
        parser.parse_args(own)
    except SystemExit as end:
        return int(end.code or 0)
    if position is None:
        console.output.write(parser.format_help())
        return OK if not own else BAD_INPUT
    name = arguments[position]
    command = load_command(name)
    subparser = argparse.ArgumentParser(
        prog=f"forkgym {name}", description=command.description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.configure(subparser)
    subparser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    if command.logs:
        subparser.add_argument("-v", "--verbose", action="count", default=0, help="log more (twice: everything)")
    try:
        parsed = subparser.parse_args(arguments[position + 1 :])
    except SystemExit as end:
        return int(end.code or 0)
    if command.logs:
        configure_logging(parsed.verbose)
    return command.run(parsed, console)


def _top_parser() -> argparse.ArgumentParser:
    summaries = {name: summary for name, (_, summary) in COMMANDS.items()}
    summaries |= {name: f"from {_package(point)}" for name, point in plugins().items() if name not in summaries}
    width = max(map(len, summaries))
    listed = "\n".join(f"  {name:<{width}}  {summary}" for name, summary in summaries.items())
    parser = argparse.ArgumentParser(
        prog="forkgym",
        usage="forkgym COMMAND [OPTIONS]",
        description="Environments for language agents that fork, replay and teach.",
        epilog=f"commands:\n{listed}\n\n`forkgym COMMAND --help` explains one.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"forkgym {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def plugins() -> Mapping[str, EntryPoint]:
    """Commands that installed packages add; imports none of them."""
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def load_command(name: str) -> Command:
    """Import a command.

    Raises:
        UsageError: There is none of this name (the nearest is named), or a plug-in announced something else.
    """
    if name in COMMANDS:
        place = COMMANDS[name][0]
        if callable(place):
            return place()
        module, _, attribute = place.partition(":")
        loaded = getattr(importlib.import_module(module), attribute)
    else:
        point = plugins().get(name)
        if point is None:
            known = [*COMMANDS, *plugins()]
            raise UsageError(f"there is no command {name!r}.{nearest(name, known)} Commands: {', '.join(known)}.")
        loaded = point.load()
    if not isinstance(loaded, Command):
        raise UsageError(f"the command {name!r} is not a forkgym.cli.command.Command; its package is at fault.")
    return loaded


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value.partition(":")[0]


def _remedy(module: str) -> str:
    from forkgym.cli.extras import extra_of

    extra = extra_of(module)
    return f" Install it: pip install 'forkgym[{extra}]'." if extra else f" Install it: pip install {module}."


def configure_logging(verbosity: int) -> None:
    """Quiet by default: warnings only; 1 adds forkgym's information, 2 all it logs. Lines go to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    # Some libraries (bm25s) set their own loggers to DEBUG; what they do in between is nobody's concern here.
    handler.addFilter(lambda record: record.levelno >= logging.WARNING or record.name.split(".")[0] == "forkgym")
    logging.basicConfig(handlers=[handler], format="%(message)s", force=True)
    logging.getLogger("forkgym").setLevel({0: logging.WARNING, 1: logging.INFO}.get(verbosity, logging.DEBUG))
