"""``forkgym play``: a person plays an environment in the terminal, with undo, named forks, and saved games.

What a branch is stands in ``branches.py``. The loop reads lines and needs no terminal, so a script can be piped in.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import numpy as np

import forkgym
from forkgym.cli.branches import Branch, Session, Turn, begin, differing_turns, resume
from forkgym.cli.command import OK, Command, UsageError, bad_input
from forkgym.cli.replaying import read_handle
from forkgym.cli.training import parse_arguments
from forkgym.console import Console
from forkgym.core import ForkgymError, nearest

__all__ = ["PLAY", "Player"]

_MAIN = "main"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_HELP = """\
Whatever does not begin with a colon is an action. Beside that:
  :undo [N]            take back the last turn, or the last N
  :fork NAME [STREAM]  go on in a copy of this very state (with other luck, if a number is given)
  :switch NAME         play another branch
  :branches            list the branches
  :diff NAME [OTHER]   compare the current branch, or another, with a branch
  :log                 show the turns of this branch
  :actions             show what can be done here
  :hint [POLICY]       show what a scripted policy would do
  :state               show turn, reward and state hash
  :save FILE           write a handle (JSON); :save! writes over a file
  :resume FILE [NAME]  continue a saved game in a branch of its own
  :help, :quit"""


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("env", metavar="ENV", nargs="?", help="what to play; not needed with --resume")
    parser.add_argument("--env-arg", action="append", default=[], metavar="NAME=VALUE", help="constructor argument")
    parser.add_argument("--seed", type=int, default=0, help="seed of the episode (default 0)")
    parser.add_argument("--split", help="split that the task comes from")
    parser.add_argument("--task", type=int, help="number of the task in its split")
    parser.add_argument("--resume", metavar="FILE", help="continue a saved game")


def _play(arguments: argparse.Namespace, console: Console) -> int:
    branch = _first_branch(arguments)
    interactive = sys.stdin.isatty() and console.is_terminal
    session = Session(branch)
    try:
        Player(session, console, interactive=interactive).run(sys.stdin)
    finally:
        session.close()
    return OK


def _first_branch(arguments: argparse.Namespace) -> Branch:
    if arguments.resume is not None:
        handle = read_handle(Path(arguments.resume).expanduser())
        if arguments.env not in (None, handle.env):
            raise UsageError(f"{arguments.resume} is a game of {handle.env}, not of {arguments.env}.")
        if arguments.env_arg or arguments.split is not None or arguments.task is not None:
            raise UsageError("--resume takes everything from the saved game; leave out --env-arg, --split and --task.")
        return resume(_MAIN, handle, **_rendering(handle.env))
    if arguments.env is None:
        raise UsageError("say what to play, e.g. `forkgym play text/TextWorld-v0` (`forkgym envs` lists environments).")
    options = {name: getattr(arguments, name) for name in ("split", "task") if getattr(arguments, name) is not None}
    given = parse_arguments(arguments.env_arg)
    with bad_input(ValueError, TypeError, LookupError):
        env = forkgym.make(arguments.env, **{**_rendering(arguments.env), **given})
    try:
        return begin(_MAIN, env, arguments.seed, options)
    except BaseException:
        env.close()
        raise


def _rendering(env_id: str) -> dict[str, Any]:
    """Text rendering, for environments of Gymnasium that have it."""
    spec = gymnasium.envs.registration.registry.get(env_id)
    place = None if spec is None else spec.entry_point
    if place is None:
        return {}
    kind: Any = gymnasium.envs.registration.load_env_creator(place) if isinstance(place, str) else place
    modes = (getattr(kind, "metadata", None) or {}).get("render_modes", [])
    return {"render_mode": "ansi"} if "ansi" in modes else {}


class Player:
    """Reads lines, acts, and tells.

    Args:
        session: What is played.
        console: Where to write.
        interactive: Whether a person sits at a terminal: then there is a prompt, and long lines are wrapped.
    """

    def __init__(self, session: Session, console: Console, *, interactive: bool = False) -> None:
        self.session = session
        self.console = console
        self.interactive = interactive
        self.commands: dict[str, Callable[[list[str]], None]] = {
            "undo": self.undo,
            "fork": self.fork,
            "switch": self.switch,
            "branches": lambda _: self.branches(),
            "diff": self.diff,
            "log": lambda _: self.log(),
            "actions": lambda _: self.actions(),
            "hint": self.hint,
            "state": lambda _: self.state(),
            "save": self.save,
            "save!": lambda words: self.save(words, overwrite=True),
            "resume": self.resume,
            "help": lambda _: self.say(_HELP),
        }

    @property
    def branch(self) -> Branch:
        """The branch that is played."""
        return self.session.current

    def run(self, lines: Iterable[str]) -> None:
        """Play until the lines end or say ``:quit``."""
        self.say("Type an action, or :help.")
        self.show()
        source = iter(lines)
        while (line := self._next(source)) is not None:
            line = line.strip()
            if line in (":quit", ":q"):
                return
            if not line:
                continue
            try:
                self.obey(line)
            except (UsageError, ForkgymError) as error:
                self.say(f"! {error}")

    def obey(self, line: str) -> None:
        """Do what one line says.

        Raises:
            UsageError, ForkgymError: It cannot be done; nothing has happened.
        """
        if not line.startswith(":"):
            self.act(line)
            return
        name, *words = line[1:].split()
        if name not in self.commands:
            known = [*self.commands, "quit"]
            raise UsageError(f"there is no command :{name}.{nearest(name, known)} :help lists them.")
        self.commands[name](words)

    # ------------------------------------------------------------------ commands

    def act(self, text: str) -> None:
        """Take an action and show the answer."""
        if self.branch.ended:
            raise UsageError("the episode is over. :undo takes back the last turn, :switch goes to another branch.")
        turn = self.branch.act(read_action(self.branch.env, text))
        self.say(self.answer(turn))
        self._end(turn)

    def undo(self, words: list[str]) -> None:
        """Take back turns."""
        self.branch.undo(_number(words[0]) if words else 1)
        self.show()

    def fork(self, words: list[str]) -> None:
        """Go on in a copy."""
        if not 1 <= len(words) <= 2:
            raise UsageError("give the new branch a name, e.g. :fork brave")
        self.session.fork(words[0], _number(words[1]) if len(words) == 2 else None)
        self.say(f"now on branch {words[0]}, turn {len(self.branch.turns)}")

    def switch(self, words: list[str]) -> None:
        """Play another branch."""
        if len(words) != 1:
            raise UsageError("say which branch, e.g. :switch main")
        self.session.current = self.session.branch(words[0])
        self.show()

    def branches(self) -> None:
        """List the branches."""
        rows = [
            {
                "": "*" if branch is self.branch else "",
                "branch": branch.name,
                "turns": len(branch.turns),
                "reward": round(branch.total, 6),
                "over": "yes" if branch.ended else "no",
                "last action": str(branch.turns[-1].action) if branch.turns else "",
            }
            for branch in self.session.branches.values()
        ]
        self.console.table(rows)

    def diff(self, words: list[str]) -> None:
        """Compare two branches."""
        if not 1 <= len(words) <= 2:
            raise UsageError("say which branch to compare with, e.g. :diff main")
        one = self.branch if len(words) == 1 else self.session.branch(words[0])
        other = self.session.branch(words[-1])
        shared, pairs = differing_turns(one, other)
        if not pairs:
            self.say(f"{one.name} and {other.name} are the same: {shared} turns, reward {one.total:g}")
            return
        self.say(f"{one.name} and {other.name} share {shared} turns, then:")
        for number, (mine, theirs) in enumerate(pairs, start=shared + 1):
            self.say(f"[{number}]")
            for branch, turn, mark in ((one, mine, "-"), (other, theirs, "+")):
                if turn is not None:
                    first = as_text(turn.observation).strip().partition("\n")[0]
                    self.say(f"{mark} {branch.name}: {turn.action} -> {first}")
        for branch, mark in ((one, "-"), (other, "+")):
            over = ", over" if branch.ended else ""
            self.say(f"{mark} {branch.name}: {len(branch.turns)} turns, reward {branch.total:g}{over}")

    def log(self) -> None:
        """Show the turns."""
        self.say(as_text(self.branch.first))
        for number, turn in enumerate(self.branch.turns, start=1):
            self.say(f"[{number}] > {turn.action}\n{as_text(turn.observation)}")

    def actions(self) -> None:
        """Show what can be done."""
        env = self.branch.env
        info = self.branch.turns[-1].info if self.branch.turns else self.branch.info
        if info.get("admissible_commands"):
            self.say("\n".join(info["admissible_commands"]))
        elif isinstance(env, forkgym.TextEnv) and env.tools:
            self.say("\n".join(f"{tool['name']}: {tool.get('description', '')}" for tool in env.tools))
        else:
            self.say(str(env.action_space))
        if not isinstance(env.action_space, gymnasium.spaces.Discrete):
            self.say(
                f"for instance: {_line_for(env, env.sample_action(np.random.default_rng(len(self.branch.turns))))}"
            )

    def hint(self, words: list[str]) -> None:
        """Show what a scripted policy would do."""
        env = self.branch.env
        policies = tuple(getattr(env, "scripted_policies", ()))
        if not policies:
            raise UsageError("this environment has no scripted policies.")
        name = words[0] if words else policies[-1]
        if name not in policies:
            raise UsageError(f"there is no policy {name!r}; this environment has {', '.join(policies)}.")
        action = env.scripted_action(name, np.random.default_rng(len(self.branch.turns)))
        self.say(f"{name}: {_line_for(env, action)}")

    def state(self) -> None:
        """Show turn, reward and state hash."""
        branch = self.branch
        over = ", over" if branch.ended else ""
        self.say(f"branch {branch.name}, turn {len(branch.turns)}, reward {branch.total:g}{over}")
        self.say(f"state hash {branch.env.state_hash()}")

    def save(self, words: list[str], *, overwrite: bool = False) -> None:
        """Write a handle."""
        if len(words) != 1:
            raise UsageError("say where to, e.g. :save game.json")
        path = Path(words[0]).expanduser()
        if path.exists() and not overwrite:
            raise UsageError(f"{path} exists already; :save! {path} writes over it.")
        try:
            path.write_text(self.branch.env.handle().to_json() + "\n", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{path} cannot be written ({error.strerror}).") from error
        self.say(f"saved {path}: {len(self.branch.turns)} turns of branch {self.branch.name}")

    def resume(self, words: list[str]) -> None:
        """Continue a saved game."""
        if not 1 <= len(words) <= 2:
            raise UsageError("say what to resume, e.g. :resume game.json")
        path = Path(words[0]).expanduser()
        name = words[1] if len(words) == 2 else path.stem
        self.session.check_new(name)
        if not path.is_file():
            raise UsageError(f"there is no file {path}.")
        handle = read_handle(path)
        self.session.add(resume(name, handle, **_rendering(handle.env)))
        self.show()

    # ------------------------------------------------------------------ telling

    def show(self) -> None:
        """Show where the current branch stands."""
        branch = self.branch
        if branch.turns:
            self.say(f"[branch {branch.name}, turn {len(branch.turns)}]")
            self.say(self.answer(branch.turns[-1]))
            self._end(branch.turns[-1])
            return
        picture = self._picture()
        self.say(picture if picture else as_text(branch.first))

    def answer(self, turn: Turn) -> str:
        """What an environment answered: its picture where it draws one and stands there, else the observation."""
        picture = self._picture() if self.branch.turns and turn is self.branch.turns[-1] else ""
        text = picture if picture else as_text(turn.observation)
        return f"{text}\n(reward {turn.reward:g})" if turn.reward and not turn.ended else text

    def say(self, text: str) -> None:
        """Write a text; on a terminal, long lines are wrapped; elsewhere colours are left out."""
        if not self.console.is_terminal:
            text = _COLOUR.sub("", text)
        if self.interactive:
            width = max(shutil.get_terminal_size().columns, 20)
            lines = [textwrap.wrap(line, width) if len(line) > width else [line] for line in text.splitlines()]
            text = "\n".join(part for wrapped in lines for part in wrapped)
        self.console.line(text)

    def _end(self, turn: Turn) -> None:
        if turn.ended:
            verdict = "".join(f", {name}: {turn.info[name]}" for name in ("success", "failure") if name in turn.info)
            self.say(f"*** over: reward {self.branch.total:g}{verdict} ***")

    def _picture(self) -> str:
        env = self.branch.env
        if getattr(env, "render_mode", None) != "ansi":
            return ""
        picture = env.render()
        return picture.rstrip() if isinstance(picture, str) else ""

    def _next(self, source: Iterator[str]) -> str | None:
        if self.interactive:
            self.console.output.write(f"{self.branch.name}:{len(self.branch.turns)}> ")
            self.console.output.flush()
        return next(source, None)


def read_action(env: Any, text: str) -> Any:
    """The action that a typed line means: a text for text environments, else a number or JSON.

    Raises:
        UsageError: The line is no action of this environment.
    """
    if isinstance(env, forkgym.TextEnv):
        return text
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        value = text
    space = env.action_space
    if isinstance(space, gymnasium.spaces.Box | gymnasium.spaces.MultiBinary | gymnasium.spaces.MultiDiscrete):
        with bad_input(ValueError, TypeError):
            value = np.asarray(value, dtype=space.dtype)
    if not space.contains(value):
        raise UsageError(f"{text!r} is no action: they are in {space}. Type a number, or JSON.")
    return value


def as_text(observation: Any) -> str:
    """An observation for a reader."""
    return observation if isinstance(observation, str) else str(observation)


def _line_for(env: Any, action: Any) -> str:
    """What a person would type for an action."""
    if isinstance(env, forkgym.TextEnv) and isinstance(action, dict):
        return env.render_action(action)
    return str(action)


def _number(text: str) -> int:
    if not text.isdigit():
        raise UsageError(f"{text!r} is not a number.")
    return int(text)


PLAY = Command(
    "Play an environment in the terminal: undo, fork into named branches, compare them, save and resume.\n"
    "Text environments take commands in words, others a number or JSON. :help lists what else there is.",
    _configure,
    _play,
)
