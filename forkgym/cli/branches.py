"""An episode that a person plays: named branches, each with its turns and the snapshots before them.

How it looks in a terminal stands in ``playing.py``; nothing here reads or prints.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

import forkgym
from forkgym.cli.command import UsageError
from forkgym.core import Handle, Luck, ReplayDivergence, Snapshot
from forkgym.core.errors import nearest
from forkgym.core.portable import from_portable

__all__ = ["Branch", "Session", "Turn", "differing_turns", "resume"]


class Turn(msgspec.Struct, frozen=True):
    """What one action did.

    Attributes:
        action: The action as it was given.
        observation: What the environment answered.
        reward: What it paid.
        ended: Whether the episode was over then.
        info: Its info.
    """

    action: Any
    observation: Any
    reward: float
    ended: bool
    info: dict[str, Any]


class Branch:
    """One line of play.

    Attributes:
        name: How the person calls it.
        env: The environment, where this line stands.
        first: The observation of the reset.
        info: The info of the reset.
        turns: What was done since.
    """

    def __init__(self, name: str, env: Any, first: Any, info: dict[str, Any]) -> None:
        self.name = name
        self.env = env
        self.first = first
        self.info = info
        self.turns: list[Turn] = []
        self._before: list[Snapshot] = []

    @property
    def ended(self) -> bool:
        """Whether its episode is over."""
        return bool(self.turns) and self.turns[-1].ended

    @property
    def total(self) -> float:
        """The sum of its rewards."""
        return sum(turn.reward for turn in self.turns)

    def act(self, action: Any) -> Turn:
        """Take one action; the state before it is kept."""
        before = self.env.snapshot()
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
        except BaseException:
            before.close()
            raise
        self._before.append(before)
        self.turns.append(Turn(action, observation, float(reward), bool(terminated or truncated), info))
        return self.turns[-1]

    def undo(self, count: int = 1) -> None:
        """Go back by so many turns.

        Raises:
            UsageError: There are fewer.
        """
        if not 1 <= count <= len(self.turns):
            raise UsageError(f"cannot go back {count} turns: {len(self.turns)} were played on this branch.")
        self.env.restore(self._before[-count])
        for snapshot in self._before[-count:]:
            snapshot.close()
        del self._before[-count:], self.turns[-count:]

    def fork(self, name: str, stream: int | None = None) -> Branch:
        """An independent branch from here, with the same luck, or with luck of its own."""
        env = self.env.fork() if stream is None else self.env.fork(luck=Luck.fresh(stream))
        child = Branch(name, env, self.first, self.info)
        child.turns = list(self.turns)
        child._before = [snapshot.share() for snapshot in self._before]
        return child

    def close(self) -> None:
        """Free the environment and the snapshots."""
        for snapshot in self._before:
            snapshot.close()
        self.env.close()


def begin(name: str, env: Any, seed: int, options: dict[str, Any]) -> Branch:
    """Start an episode."""
    first, info = env.reset(seed=seed, options=options)
    return Branch(name, env, first, info)


def resume(name: str, handle: Handle, **kwargs: Any) -> Branch:
    """Play a handle's actions again, so that each of its turns can be seen and undone; every state is verified.

    Args:
        name: Of the branch.
        handle: What to resume.
        **kwargs: Given to `forkgym.make` besides the handle's own (such as a render mode).

    Raises:
        ReplayDivergence: At the first turn that came out otherwise.
    """
    own = {key: from_portable(value) for key, value in handle.kwargs.items()}
    env = forkgym.make(handle.env, max_episode_steps=handle.max_episode_steps, **{**kwargs, **own})
    try:
        branch = begin(name, env, handle.seed, from_portable(handle.options))
        lucks = dict(handle.luck)
        for turn in range(len(handle.actions) + 1):
            if turn in lucks:
                branch = branch.fork(name, lucks[turn])
            if turn < len(handle.actions):
                branch.act(from_portable(handle.actions[turn]))
    except BaseException:
        env.close()
        raise
    got = branch.env.handle().links
    for turn, link in enumerate(handle.links):
        if got[turn] != link:
            branch.close()
            raise ReplayDivergence(turn, link.hex(), got[turn].hex(), "The saved game cannot be resumed here.")
    return branch


class Session:
    """Branches by name, one of which is played.

    Attributes:
        branches: All of them, in the order in which they were made.
        current: The one that is played.
    """

    def __init__(self, branch: Branch) -> None:
        self.branches: dict[str, Branch] = {branch.name: branch}
        self.current = branch

    def add(self, branch: Branch) -> None:
        """Add a branch and play it from now on.

        Raises:
            UsageError: There is one of this name.
        """
        self.check_new(branch.name)
        self.branches[branch.name] = branch
        self.current = branch

    def check_new(self, name: str) -> None:
        """Refuse a name that is taken or empty.

        Raises:
            UsageError: It is.
        """
        if not name or name in self.branches:
            raise UsageError(f"choose another name: the branches are {', '.join(self.branches)}.")

    def branch(self, name: str) -> Branch:
        """A branch by its name.

        Raises:
            UsageError: There is none; the nearest is named.
        """
        if name not in self.branches:
            known = list(self.branches)
            raise UsageError(f"there is no branch {name!r}.{nearest(name, known)} Branches: {', '.join(known)}.")
        return self.branches[name]

    def fork(self, name: str, stream: int | None = None) -> None:
        """Fork the current branch and play the fork from now on.

        Raises:
            UsageError: The name is taken.
        """
        self.check_new(name)
        self.add(self.current.fork(name, stream))

    def close(self) -> None:
        """Free everything."""
        for branch in self.branches.values():
            branch.close()


def differing_turns(one: Branch, other: Branch) -> tuple[int, list[tuple[Turn | None, Turn | None]]]:
    """Where two branches part: how many turns they share, and the pairs of turns from there on.

    Turns are shared while action, answer, reward and end are equal.
    """
    shared = 0
    for mine, theirs in zip(one.turns, other.turns, strict=False):
        if not _equal(mine, theirs):
            break
        shared += 1
    return shared, list(_pairs(one.turns[shared:], other.turns[shared:]))


def _equal(one: Turn, other: Turn) -> bool:
    if (one.reward, one.ended) != (other.reward, other.ended) or str(one.action) != str(other.action):
        return False
    return forkgym.core.canonical(one.observation) == forkgym.core.canonical(other.observation)


def _pairs(left: list[Turn], right: list[Turn]) -> Iterator[tuple[Turn | None, Turn | None]]:
    for place in range(max(len(left), len(right))):
        yield left[place] if place < len(left) else None, right[place] if place < len(right) else None
