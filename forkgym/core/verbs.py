"""The verbs every environment has (reset, step, fork, snapshot, restore, state_hash, handle), written once.

`ForkVerbs` keeps the episode's journal and states the rules; how a state is captured and given to another object
is left to hooks (`_capture`, `_install`, `_spawn`), which `env.py` (for our environments) and `wrap.py` (for anybody
else's) implement.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np

from forkgym import noise
from forkgym.core import handle as handles
from forkgym.core.errors import (
    ClosedEnvironmentError,
    EpisodeEndedError,
    ForkUnsupportedError,
    MisuseError,
    ReplayDivergence,
    ResetNeededError,
    SnapshotError,
)
from forkgym.core.hashing import digest
from forkgym.core.journal import Journal
from forkgym.core.luck import SAME, KeyedLuck, Luck, episode_of_seed
from forkgym.core.portable import from_portable, plain, to_portable
from forkgym.core.snapshot import Snapshot

__all__ = ["ForkVerbs", "Forkable"]


@runtime_checkable
class Forkable(Protocol):
    """Anything that can be forked, rewound and replayed."""

    def fork(self, *, luck: Luck = SAME) -> Any:
        """An independent environment at this very state."""

    def snapshot(self) -> Snapshot:
        """A cheap reference to this state on this machine."""

    def restore(self, snapshot: Snapshot) -> None:
        """Rewind in place."""

    def state_hash(self) -> str:
        """Hash of the canonical state."""

    def handle(self) -> handles.Handle:
        """A portable record that rebuilds this state anywhere."""


class ForkVerbs:
    """Mixin that implements the contract on top of a few hooks; see `Env` for what an author writes."""

    _journal: Journal | None = None
    _closed: bool = False
    _luck: KeyedLuck

    # ------------------------------------------------------------------ hooks

    @property
    def fork_support(self) -> str:
        """How this environment forks: "native", "state", "replay" or "none"."""
        raise NotImplementedError

    def _begin(self, seed: int, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Reset the world itself."""
        raise NotImplementedError

    def _advance(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the world itself, time limit included."""
        raise NotImplementedError

    def _capture(self) -> Any:
        """The world's state as something that `_install` can use any number of times (not for "replay")."""
        raise NotImplementedError

    def _install(self, payload: Any) -> None:
        """Make this object's world equal to the captured one."""
        raise NotImplementedError

    @staticmethod
    def _release(payload: Any) -> None:
        """Free what `_capture` returned."""

    def _spawn(self) -> Self:
        """A new object of the same kind and arguments, not yet reset."""
        raise NotImplementedError

    def _branch(self) -> Self:
        """An independent object at this world state (default: spawn and install; not for "replay")."""
        child = self._spawn()
        child._install(self._capture())
        return child

    def _world_state(self) -> Any:
        """The declared state of the world, with a canonical form; None if there is none but the interaction."""
        return None

    def _family(self) -> object:
        """Equal for environments of the same id and arguments."""
        raise NotImplementedError

    def _recipe(self) -> dict[str, Any]:
        """The handle's fields that say how to make this environment."""
        raise NotImplementedError

    def _generator(self) -> np.random.Generator | None:
        """The world's own numpy generator, if it has one."""
        return None

    def _draw_seed(self) -> int:
        """A seed for `reset(seed=None)`, from the environment's own generator."""
        raise NotImplementedError

    def _accept(self, action: Any) -> Any:
        """The action as the world takes it, or `ActionError`."""
        return plain(action)

    def _name(self) -> str:
        """How errors call this environment."""
        return type(self).__name__

    # ------------------------------------------------------------------ verbs

    @property
    def turn(self) -> int:
        """Steps taken since the reset (0 before it)."""
        return self._journal.turn if self._journal is not None else 0

    @property
    def luck(self) -> KeyedLuck:
        """Keyed randomness for the environment's author."""
        return self._luck

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Seed of the episode; None draws one from the environment's own generator (and records it).
            options: Environment options; plain data, recorded in the handle.

        Returns:
            (observation, info).
        """
        self._require_open("reset")
        if seed is None:
            seed = self._draw_seed()
        _check_seed(seed)
        recorded = to_portable(dict(options or {}), "the reset options")
        self._journal = None  # a reset that raises leaves an environment that needs a reset
        self._luck = KeyedLuck(episode_of_seed(int(seed)))
        observation, info = self._begin(int(seed), from_portable(recorded))
        journal = Journal(seed=int(seed), options=recorded)
        exchange = ("reset", journal.seed, recorded, observation)
        journal.note(exchange)
        self._journal = journal
        journal.link(exchange, self.state_hash())
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one action.

        Returns:
            (observation, reward, terminated, truncated, info).

        Raises:
            ResetNeededError, EpisodeEndedError, ClosedEnvironmentError: Called at the wrong moment.
            ActionError: The action has a wrong type; nothing has happened.
        """
        journal = self._require_episode("step")
        if journal.failed:
            raise EpisodeEndedError(
                f"The last step of {self._name()} raised an error half-way, so its state is not to be trusted. Call "
                "env.reset(), or env.restore(snapshot) to go back."
            )
        if journal.ended:
            raise EpisodeEndedError(
                f"The episode of {self._name()} has ended after {journal.turn} steps. Call env.reset() for a new one, "
                "or env.restore(snapshot) to go back."
            )
        action = self._accept(action)
        recorded = to_portable(action)
        self._luck.start_turn(journal.turn + 1, journal.stream)
        journal.failed = True
        observation, reward, terminated, truncated, info = self._advance(action)
        exchange = ("step", recorded, observation, reward, terminated, truncated)
        journal.note(exchange)
        journal.actions.append(recorded)
        journal.ended = bool(terminated or truncated)
        journal.failed = False
        journal.link(exchange, self.state_hash())
        return observation, reward, terminated, truncated, info

    def fork(self, *, luck: Luck = SAME) -> Self:
        """An independent environment at this very state; both may be stepped, forked and closed in any order.

        Args:
            luck: `SAME` to meet the same draws as this environment, `Luck.fresh(stream)` for draws of its own.

        Raises:
            ForkUnsupportedError: This environment cannot be forked; the text says why.
        """
        journal = self._require_forkable("fork")
        _check_luck(luck)
        child = self._rebuild(journal) if self.fork_support == "replay" else self._branch()
        child._journal = journal.copy()
        child._luck = self._luck.copy()
        if luck.stream is not None:
            child._refresh_luck(luck.stream)
        return child

    def fork_many(self, count: int, *, luck: Luck = SAME) -> list[Self]:
        """`count` forks at this state.

        Args:
            count: How many, at least 0.
            luck: `SAME` for all, or `Luck.fresh(stream)`: the i-th fork then reads the stream derived from
                `stream` and i (the first reads `stream` itself), so that their lucks are independent.
        """
        _check_count(count)
        _check_luck(luck)
        lucks = [luck] * count
        if luck.stream is not None:
            stream, turn = luck.stream, self.turn
            lucks[1:] = [
                Luck.fresh(noise.stream_id(stream, turn, "fork_many", index) or 1) for index in range(1, count)
            ]
        return [self.fork(luck=chosen) for chosen in lucks]

    def snapshot(self) -> Snapshot:
        """A cheap, reference-counted reference to this state on this machine, for `restore`."""
        journal = self._require_forkable("snapshot").copy()
        by_replay = self.fork_support == "replay"
        world = None if by_replay else self._capture()
        return Snapshot(
            (journal, self._luck.copy(), world),
            family=self._family(),
            turn=journal.turn,
            state_hash=self.state_hash(),
            release=None if by_replay else _releaser(type(self)._release),
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Rewind this environment in place: state, recorded actions, hash chain, luck and time limit.

        Raises:
            SnapshotError: The snapshot is closed, or of another environment.
        """
        self._require_open("restore")
        if not isinstance(snapshot, Snapshot):
            raise SnapshotError(f"restore takes what env.snapshot() gave, not {_short(snapshot)}.")
        journal, luck, world = snapshot.payload_for(self._family())
        self._journal = None  # a restore that raises leaves an environment that needs a reset
        if world is None:
            self._rerun(journal)
        else:
            self._install(world)
        self._journal = journal.copy()
        self._luck = luck.copy()

    def state_hash(self) -> str:
        """BLAKE2b-256 of the canonical state: world, turn, end, time limit and place in the luck (64 hex digits).

        Two environments with equal hashes answer equal actions alike. Where an environment declares no state, the
        hash is that of the interaction so far.
        """
        journal = self._require_episode("state_hash")
        world = self._world_state()
        generator = self._generator()
        return digest(
            (
                journal.interaction if world is None else world,
                None if generator is None else generator,
                journal.turn,
                journal.ended,
                self._time_limit_state(),
                (self._luck.episode, journal.segments if world is None else journal.stream),
            )
        )

    def handle(self) -> handles.Handle:
        """The portable record of this episode: `forkgym.replay(handle)` rebuilds the state on any machine."""
        journal = self._require_episode("handle")
        return handles.Handle(
            **self._recipe(),
            seed=journal.seed,
            options=journal.options,
            luck=list(journal.segments),
            actions=list(journal.actions),
            chain=b"".join(journal.chain),
        )

    def close(self) -> None:
        """Free what the environment holds; allowed more than once."""
        if not self._closed:
            self._closed = True
            self._shut()

    def _shut(self) -> None:
        """Free what the world holds (called once)."""

    # ------------------------------------------------------------------ rules

    def _time_limit_state(self) -> Any:
        """The time limit as part of the state."""
        return None

    def _refresh_luck(self, stream: int) -> None:
        """Draws come from `stream` from here on, the numpy generator's too (keyed by the stream and the turn)."""
        journal = self._require_episode("fork")
        journal.refresh_luck(stream)
        self._luck.start_turn(journal.turn, stream)
        generator = self._generator()
        if generator is not None:
            key = noise.luck_key(self._luck.episode, stream, journal.turn, "np_random", 0)
            generator.bit_generator.state = type(generator.bit_generator)(key).state

    def _rebuild(self, journal: Journal) -> Self:
        """A new environment brought to `journal`'s state by re-execution."""
        child = self._spawn()
        try:
            child._rerun(journal)
        except BaseException:
            child.close()
            raise
        return child

    def _rerun(self, journal: Journal, verify: str = "every") -> None:
        """Re-execute a journal on this object.

        Args:
            journal: What to do, and what had come of it.
            verify: "every" checks each link, "final" the last, "off" none.

        Raises:
            ReplayDivergence: At the first turn that does not come out as recorded.
        """
        segments = dict(journal.segments)
        result: Any = self.reset(seed=journal.seed, options=from_portable(journal.options))
        for turn in range(len(journal.actions) + 1):
            if turn > 0:
                if self._require_episode("replay").ended:
                    raise ReplayDivergence(
                        turn, _link(journal, turn), "nothing", "The episode was already over before this turn."
                    )
                result = self.step(from_portable(journal.actions[turn - 1]))
            if verify == "every" or (verify == "final" and turn == len(journal.actions)):
                self._compare(journal, turn, result)
            if turn in segments:
                self._refresh_luck(segments[turn])

    def _compare(self, journal: Journal, turn: int, result: Any) -> None:
        got = self._require_episode("replay").chain[turn]
        if turn < len(journal.chain) and journal.chain[turn] == got:
            return
        action = "" if turn == 0 else f"Its action was {_short(journal.actions[turn - 1])}. "
        raise ReplayDivergence(turn, _link(journal, turn), got.hex(), f"{action}This run answered {_short(result)}.")

    def _require_open(self, verb: str) -> None:
        if self._closed:
            raise ClosedEnvironmentError(
                f"Cannot {verb} {self._name()}: it is closed. Make a new one with forkgym.make, or close it later; "
                "forks and snapshots taken before stay usable."
            )

    def _require_episode(self, verb: str) -> Journal:
        self._require_open(verb)
        if self._journal is None:
            raise ResetNeededError(
                f"Cannot {verb} {self._name()} before its first reset. Call env.reset(seed=...) once, then {verb}."
            )
        return self._journal

    def _require_forkable(self, verb: str) -> Journal:
        journal = self._require_episode(verb)
        if journal.failed:
            raise EpisodeEndedError(
                f"Cannot {verb} {self._name()}: its last step raised an error half-way. Call env.reset(), or "
                "env.restore(snapshot) to go back."
            )
        if self.fork_support == "none":
            raise ForkUnsupportedError(
                f"Cannot {verb} {self._name()}: it declares no state, has no _fork of its own, and is registered as "
                "nondeterministic, so re-execution would not give the same state. Write _get_state and _set_state."
            )
        return journal


def _releaser(release: Callable[[Any], None]) -> Callable[[Any], None]:
    """Frees a snapshot's world; holds no environment, so a snapshot does not keep its maker alive."""

    def free(payload: Any) -> None:
        release(payload[2])

    return free


def _check_luck(luck: Any) -> None:
    if not isinstance(luck, Luck):
        raise MisuseError(f"luck is forkgym.SAME or forkgym.Luck.fresh(stream), not {_short(luck)}.")


def _check_count(count: Any) -> None:
    if not isinstance(count, int) or count < 0:
        raise ValueError(f"fork_many needs a count, an integer of at least 0, not {_short(count)}")


def _check_seed(seed: Any) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**64:
        raise MisuseError(f"reset(seed=...) takes an integer from 0 to 2**64 - 1, not {_short(seed)}.")


def _link(journal: Journal, turn: int) -> str:
    return journal.chain[turn].hex() if turn < len(journal.chain) else "nothing"


def _short(value: Any, limit: int = 300) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "…"
