"""``python -m bench NAME [OPTIONS]``: runs one benchmark, or lists them. What is measured stands in the modules."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from forkgym.core import ForkgymError, nearest

__all__ = ["benchmarks", "main"]


def benchmarks() -> dict[str, str]:
    """Name → first line of the docstring of every benchmark; imports none of them."""
    found = {}
    for file in sorted(Path(__file__).parent.glob("*.py")):
        if not file.stem.startswith("_"):
            text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
            found[file.stem] = text.partition("\n")[0]
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run one benchmark.

    Args:
        argv: Its name and options; by default the process's arguments.

    Returns:
        The benchmark's exit code; 2 for an unknown name.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    known = benchmarks()
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: python -m bench NAME [OPTIONS]\n")
        for name, summary in known.items():
            print(f"  {name:<18} {summary}")
        return 0 if arguments else 2
    name = arguments[0]
    if name not in known:
        print(
            f"bench: there is no benchmark {name!r}.{nearest(name, known)} There are: {', '.join(known)}.",
            file=sys.stderr,
        )
        return 2
    try:
        code: int = importlib.import_module(f".{name}", __package__).main(arguments[1:])
    except SystemExit as end:  # argparse: --help or a wrong option
        return end.code if isinstance(end.code, int) else 0
    return code


def command() -> int:
    """`main` for the shell: what the user got wrong is one line and exit code 2."""
    try:
        return main()
    except ForkgymError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(command())
