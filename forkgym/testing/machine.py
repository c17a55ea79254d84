"""`fork_machine`: a hypothesis state machine over a population of forks of one environment.

The model is the environment itself, re-executed: whatever was forked, rewound and closed in between, an environment
must answer as a fresh one that was given the same seed, luck and actions from the start.
"""

from __future__ import annotations

from typing import Any, ClassVar

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forkgym import noise
from forkgym.core.errors import EpisodeEndedError
from forkgym.core.handle import Handle
from forkgym.core.luck import Luck
from forkgym.core.registry import replay
from forkgym.testing.conformance import environment_factory
from forkgym.testing.diagnosis import (
    Answer,
    Factory,
    Script,
    another_time,
    answer_form,
    answer_or_error,
    independent,
    tell,
    why_not_deterministic,
    why_not_forked,
)

__all__ = ["ForkMachine", "fork_machine"]

_POPULATION = 5
_EPISODE = 24
_AFTERWARDS = 2
_HASH = "_get_state leaves out something that decides the future, though the fork carries it."
_PICK = st.integers(0, 2**16)


class _Track:
    """What the model knows of one live environment: how it came to its state, and what it answered."""

    def __init__(self, env: Any, start: tuple[Any, ...]) -> None:
        self.env = env
        self.start = start
        self.events: list[tuple[str, Any]] = []
        self.answers: list[Answer] = []
        self.ended = False
        self.hash = ""

    def copy_to(self, env: Any) -> _Track:
        track = _Track(env, self.start)
        track.become(self)
        return track

    def become(self, other: _Track) -> None:
        self.start = other.start
        self.events = list(other.events)
        self.answers = list(other.answers)
        self.ended = other.ended
        self.hash = other.hash


class ForkMachine(RuleBasedStateMachine):
    """Steps, forks, rewinds, closes and replays a population of forks, and compares each with its re-execution.

    Subclass it with a `factory`, or call `fork_machine`.

    Class attributes:
        factory: Makes a fresh environment.
    """

    factory: ClassVar[Factory]

    def __init__(self) -> None:
        super().__init__()
        self.live: list[_Track] = []
        self.snapshots: list[tuple[Any, _Track]] = []
        self.known: dict[tuple[str, bytes], Answer] = {}

    # ------------------------------------------------------------------ rules

    @initialize(seed=st.integers(0, 3), task=_PICK)
    def begin(self, seed: int, task: int) -> None:
        """A first environment, in an episode."""
        env = type(self).factory()
        self.live.append(_Track(env, ()))
        self._reset(self.live[0], seed, task)

    @precondition(lambda self: any(track.ended for track in self.live))
    @rule(which=_PICK, seed=st.integers(0, 3), task=_PICK)
    def reset(self, which: int, seed: int, task: int) -> None:
        """Start another episode in one of the environments."""
        self._reset(self._one(which), seed, task)

    @rule(which=_PICK, choices=st.lists(st.integers(0, 7), min_size=1, max_size=4))
    def step(self, which: int, choices: list[int]) -> None:
        """Take random actions; eight possible ones a turn, so that forks often meet the same."""
        for choice in choices:
            self._step(self._one(which), choice)

    @precondition(lambda self: len(self.live) > 1)
    @rule(choices=st.lists(st.integers(0, 7), min_size=1, max_size=3))
    def step_all(self, choices: list[int]) -> None:
        """Take the same random actions in all environments by turns."""
        for choice in choices:
            for track in self.live:
                self._step(track, choice)

    def _step(self, track: _Track, choice: int) -> None:
        action = track.env.sample_action(noise.generator(choice + 1))
        if track.ended:
            try:
                track.env.step(action)
            except EpisodeEndedError:
                return
            raise AssertionError("a step after the end of the episode was not refused")
        before = (track.hash, answer_form(action))
        answer = answer_or_error(track.env, action)
        track.events.append(("step", action))
        track.answers.append(answer)
        track.ended = answer.terminated or answer.truncated
        track.hash = answer.state_hash
        known = self.known.setdefault(before, answer)
        if known != answer:
            raise AssertionError(
                f"two states with the same hash answered the same action differently (the "
                f"{' and the '.join(answer.differing(known))} differs). {self._reason(track, _HASH)}"
            )

    @precondition(lambda self: len(self.live) < _POPULATION)
    @rule(which=_PICK, stream=st.one_of(st.none(), st.integers(1, 3)))
    def fork(self, which: int, stream: int | None) -> None:
        """Fork, with the same luck or fresh."""
        track = self._one(which)
        if stream is None:
            child = track.copy_to(track.env.fork())
        else:
            child = track.copy_to(track.env.fork(luck=Luck.fresh(stream)))
            child.events.append(("luck", stream))
            child.hash = child.env.state_hash()
        self.live.append(child)

    @precondition(lambda self: len(self.snapshots) < _POPULATION)
    @rule(which=_PICK)
    def snapshot(self, which: int) -> None:
        """Remember a state."""
        track = self._one(which)
        taken = track.env.snapshot()
        assert taken.state_hash == track.hash, "a snapshot's hash is not that of the environment it was taken from"  # noqa: S101
        self.snapshots.append((taken, track.copy_to(None)))

    @precondition(lambda self: bool(self.snapshots))
    @rule(which=_PICK, snapshot=_PICK)
    def restore(self, which: int, snapshot: int) -> None:
        """Rewind any environment to any remembered state."""
        track = self._one(which)
        taken, past = self.snapshots[snapshot % len(self.snapshots)]
        track.env.restore(taken)
        track.become(past)

    @precondition(lambda self: bool(self.snapshots))
    @rule(snapshot=_PICK)
    def forget(self, snapshot: int) -> None:
        """Close a snapshot."""
        taken, _ = self.snapshots.pop(snapshot % len(self.snapshots))
        taken.close()

    @precondition(lambda self: len(self.live) > 1)
    @rule(which=_PICK)
    def close(self, which: int) -> None:
        """Close an environment; its relatives live on."""
        self.live.pop(which % len(self.live)).env.close()

    @rule(which=_PICK)
    def replay_handle(self, which: int) -> None:
        """Send the state through a handle; the replayed environment goes on in its place."""
        track = self._one(which)
        handle = Handle.from_json(track.env.handle().to_json())
        again = replay(handle, maker=lambda **_: type(self).factory())
        track.env.close()
        track.env = again

    # ------------------------------------------------------------------ what must hold

    @invariant()
    def hashes_stand(self) -> None:
        """Nobody's state changes by what happens to others."""
        for number, track in enumerate(self.live):
            got = track.env.state_hash()
            if got != track.hash:
                raise AssertionError(
                    f"environment {number} of {len(self.live)} changed its state hash from {track.hash[:12]} to "
                    f"{got[:12]} though nobody stepped it. {self._reason(track)}"
                )

    def teardown(self) -> None:
        """Every live environment answers as its re-execution does, now and for a few more turns."""
        try:
            for choice in range(_AFTERWARDS):
                for track in self.live:
                    self._step(track, choice)
            with another_time():
                for track in self.live:
                    self._compare(track)
        finally:
            for track in self.live:
                track.env.close()
            for taken, _ in self.snapshots:
                taken.close()

    def _compare(self, track: _Track) -> None:
        fresh = self._started(track.start)
        recorded = iter(track.answers)
        turn = 0
        for kind, value in track.events:
            if kind == "luck":
                fresh._refresh_luck(value)
                continue
            turn += 1
            answer, right = next(recorded), answer_or_error(fresh, value)
            if answer != right:
                differing = " and the ".join(answer.differing(right))
                raise AssertionError(
                    f"turn {turn} came out otherwise than in a fresh environment with the same seed, luck and actions: "
                    f"the {differing} differs. {self._reason(track)}"
                )
        if fresh.state_hash() != track.env.state_hash():
            raise AssertionError(f"the state hash differs from that of a re-execution. {self._reason(track)}")
        fresh.close()

    def _reason(self, track: _Track, otherwise: str = "") -> str:
        """The likely cause, found on an episode that begins as this one and is played to its end.

        Args:
            track: The environment that answered wrongly.
            otherwise: What to say if forks of that episode are sound.
        """
        factory = type(self).factory
        script = self._whole_episode(track)
        first = tell(factory(), script)
        with another_time():
            second = tell(factory(), script)
        if first.differs_from(second) is not None:
            return why_not_deterministic(factory, script)
        reasons = [why_not_forked(factory, script, turn) for turn in range(len(script.actions))]
        lost = next((reason for promise, reason in reasons if promise == "fork"), None)
        if (
            lost is None
            and otherwise
            and all(independent(factory, script, turn) for turn in range(len(script.actions)))
        ):
            return otherwise
        return lost or reasons[0][1]

    def _whole_episode(self, track: _Track) -> Script:
        actions = [value for kind, value in track.events if kind == "step"]
        env = type(self).factory()
        env.reset(seed=track.start[0])
        rng = noise.generator(1)
        played = 0
        while played < _EPISODE:
            if played == len(actions):
                actions.append(env.sample_action(rng))
            answer = answer_or_error(env, actions[played])
            played += 1
            if answer.terminated or answer.truncated or answer.error:
                break
        env.close()
        return Script(track.start[0], tuple(actions[:played]))

    # ------------------------------------------------------------------ helpers

    def _one(self, which: int) -> _Track:
        return self.live[which % len(self.live)]

    def _reset(self, track: _Track, seed: int, task: int) -> None:
        options = _options(track.env, task)
        observation, _ = track.env.reset(seed=seed, options=options)
        start = (seed, options)
        track.become(_Track(None, start))
        track.hash = track.env.state_hash()
        track.answers = []
        track.start = (*start, answer_form(observation))

    def _started(self, start: tuple[Any, ...]) -> Any:
        seed, options, first = start
        env = type(self).factory()
        observation, _ = env.reset(seed=seed, options=options)
        if answer_form(observation) != first:
            raise AssertionError(f"the reset with seed {seed} and options {options} gives another observation now")
        return env


def _options(env: Any, task: int) -> dict[str, Any] | None:
    """Reset options that name a task, where the environment has numbered tasks; every third leaves the choice to it."""
    splits = dict(getattr(env, "splits", {}) or {})
    if not splits or task % 3 == 0:
        return None
    name = sorted(splits)[task % len(splits)]
    return {"split": name, "task": task % splits[name]} if splits[name] else None


def fork_machine(env: Any, *, max_examples: int = 50, steps: int = 30, **kwargs: Any) -> type[ForkMachine]:
    """A state machine for an environment; its `TestCase` is what pytest and unittest collect.

    Args:
        env: A registered id, a class, a factory, or an environment (see `environment_factory`).
        max_examples: Random programs to try.
        steps: Longest program.
        **kwargs: Constructor arguments for an id or a class.
    """
    factory = environment_factory(env, **kwargs)
    machine: type[ForkMachine] = type("ForkMachine", (ForkMachine,), {"factory": staticmethod(factory)})
    machine.TestCase.settings = settings(
        max_examples=max_examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    return machine
