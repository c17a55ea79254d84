"""``forkgym replay``: rebuild an episode from its handle and prove every step, or say where it diverges."""

from __future__ import annotations

import argparse
from pathlib import Path

from forkgym.cli.command import NO, OK, Command, UsageError
from forkgym.console import Console
from forkgym.core import Handle, HandleError, ReplayDivergence

__all__ = ["REPLAY"]

_MAX_HANDLE_BYTES = 64 * 2**20


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", metavar="HANDLE|RUN:EPISODE", help="a handle's file (JSON or MessagePack), or an episode's key in a run"
    )
    parser.add_argument(
        "--verify", choices=["every", "final", "off"], default="every", help="which state hashes to compare"
    )
    parser.add_argument("--show", action="store_true", help="print what the environment said at each turn")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")


def _replay(arguments: argparse.Namespace, console: Console) -> int:
    from forkgym.core import replay

    handle = find_handle(arguments.what)
    turns = len(handle.actions)
    document = {"env": handle.env, "seed": handle.seed, "turns": turns, "verified": False, "diverged_at": None}
    try:
        env = replay(handle, verify=arguments.verify)
    except ReplayDivergence as divergence:
        console.error(str(divergence))
        if arguments.json:
            console.json(document | {"diverged_at": divergence.turn})
        return NO
    try:
        if arguments.show:
            _show(env, handle, console)
        state = env.state_hash()
    finally:
        env.close()
    document |= {"verified": bool(handle.chain) and arguments.verify != "off", "state_hash": state}
    if arguments.json:
        console.json(document)
        return OK
    if document["verified"]:
        which = "every turn" if arguments.verify == "every" else "the final state"
        console.line(f"{handle.env}, seed {handle.seed}: {turns} turns re-executed, {which} verified")
    else:
        reason = "as asked" if handle.chain else "the handle holds no state hashes"
        console.line(f"{handle.env}, seed {handle.seed}: {turns} turns re-executed, nothing verified ({reason})")
    console.line(f"state hash {state}")
    return OK


def _show(env: object, handle: Handle, console: Console) -> None:
    messages = getattr(env, "messages", None)
    if callable(messages):
        for message in messages():
            console.line(f"[{message['role']}] {message['content']}")
    else:
        for turn, action in enumerate(handle.actions):
            console.line(f"[{turn}] {action}")


def find_handle(what: str) -> Handle:
    """The handle that a file holds or an episode of a run recorded.

    Args:
        what: Path, or ``RUN:KEY`` with a run's directory and an episode's key.

    Raises:
        HandleError: The file holds no handle.
        StoreError: The run or the episode does not exist.
        UsageError: ``what`` is neither; or the episode was recorded without a handle.
    """
    path = Path(what).expanduser()
    if path.is_file():
        return read_handle(path)
    run, colon, key = what.rpartition(":")
    if not colon or not run:
        if path.is_dir():
            raise UsageError(
                f"{what} is a directory; to replay an episode of a run say which, {what.rstrip('/')}:KEY "
                f"(`forkgym report {what} --episodes` lists keys)."
            )
        raise UsageError(
            f"there is no file {what}. Give a handle's file, or an episode as RUN:KEY, e.g. runs/grpo:1234 "
            "(`forkgym report RUN --episodes` lists keys)."
        )
    if not key.isdigit():
        raise UsageError(
            f"{key!r} in {what!r} is no episode key (a number); `forkgym report RUN --episodes` lists them."
        )
    from forkgym.store import RunStore

    with RunStore.open(Path(run).expanduser()) as store:
        episode = store.episode(int(key))
    if not episode.handle:
        raise UsageError(f"episode {key} of {run} was recorded without a handle, so it cannot be replayed.")
    return Handle.from_json(episode.handle)


def read_handle(path: Path) -> Handle:
    """A handle from a file, JSON or MessagePack by its first byte.

    Raises:
        HandleError: The file is too large, unreadable or no handle; the text names it.
    """
    try:
        if path.stat().st_size > _MAX_HANDLE_BYTES:
            raise HandleError(f"{path}: the file has more than {_MAX_HANDLE_BYTES} bytes; this is no handle.")
        data = path.read_bytes()
    except OSError as error:
        raise HandleError(f"{path} cannot be read ({error.strerror}); check its permissions.") from error
    if not data.strip():
        raise HandleError(f"{path} is empty; a handle is written by env.handle().to_json().")
    try:
        return Handle.from_json(data) if data.lstrip()[:1] in (b"{", b"[", b'"') else Handle.from_bytes(data)
    except HandleError as error:
        raise HandleError(f"{path}: {error}") from error


REPLAY = Command(
    "Re-execute a handle or a recorded episode and verify its state hashes.\n"
    "Exit code 0: it came out the same; 1: it diverged (the first turn is named); 2: no such handle.",
    _configure,
    _replay,
)
