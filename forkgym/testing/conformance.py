"""`check_env`: the promises of the environment contract, tried on one environment, with the likely cause of a failure.

Everything is compared bit for bit through canonical forms. The causes are told apart by experiments that stand in
`diagnosis.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import numpy as np

from forkgym import noise
from forkgym.core.errors import (
    ClosedEnvironmentError,
    EpisodeEndedError,
    ForkgymError,
    ReplayDivergence,
    ResetNeededError,
    SnapshotError,
)
from forkgym.core.handle import Handle
from forkgym.core.luck import Luck
from forkgym.core.registry import creator_of, make, replay
from forkgym.core.verbs import ForkVerbs
from forkgym.testing import diagnosis
from forkgym.testing.diagnosis import Answer, Factory, Script, Story, tell

__all__ = ["ConformanceError", "Finding", "check_env", "environment_factory", "example_kwargs"]

_HANDLE_OVERHEAD = 1024
_SHORT = 5


class Finding(msgspec.Struct, frozen=True):
    """One promise that an environment does not keep.

    Attributes:
        promise: "api", "determinism", "fork", "isolation", "snapshot", "replay", "luck" or "misuse".
        detail: What was seen, where.
        reason: The likely cause and what to do about it.
    """

    promise: str
    detail: str
    reason: str = ""

    def __str__(self) -> str:
        return f"[{self.promise}] {self.detail}" + (f"\n    {self.reason}" if self.reason else "")


class ConformanceError(ForkgymError, AssertionError):
    """An environment breaks a promise.

    Attributes:
        findings: Every promise that failed.
    """

    def __init__(self, name: str, findings: list[Finding]) -> None:
        self.findings = findings
        lines = "\n".join(f"- {finding}" for finding in findings)
        super().__init__(f"{name} breaks {len(findings)} promise(s) of the environment contract:\n{lines}")


def environment_factory(env: Any, **kwargs: Any) -> Factory:
    """A function that makes a fresh environment.

    Args:
        env: A registered id, a class or function that makes environments, or an environment (then others of the
            same arguments are made; it is not touched).
        **kwargs: Constructor arguments for an id or a class; an id's `example_kwargs` are the default.
    """
    if isinstance(env, str):
        arguments = {**example_kwargs(env), **kwargs}
        return lambda: make(env, **arguments)
    if isinstance(env, ForkVerbs):
        return env._spawn
    if callable(env):
        return lambda: env(**kwargs)
    raise TypeError(f"check an id, a class, a function or an environment with verbs, not a {type(env).__name__}")


def example_kwargs(env_id: str) -> dict[str, Any]:
    """Constructor arguments with which tests can make a registered environment (`Env.example_kwargs`).

    Raises:
        LookupError: The environment needs something that this machine lacks.
    """
    examples = getattr(creator_of(env_id), "example_kwargs", None)
    return dict(examples()) if callable(examples) else {}


def check_env(env: Any, *, seeds: int = 4, steps: int = 24, **kwargs: Any) -> None:
    """Try the promises of the environment contract on an environment.

    Args:
        env: A registered id, an environment class or factory, or an environment (which is not touched).
        seeds: Episodes to try.
        steps: Longest episode to try. A source of chance that shows up as a fair coin once a step stays unseen with
            a probability of about 2^-(seeds · steps / 2).
        **kwargs: Constructor arguments, for an id or a class.

    Raises:
        ConformanceError: Lists each promise that failed, how, and the likely cause.
    """
    checker = _Checker(environment_factory(env, **kwargs), seeds, steps)
    findings = checker.run()
    if isinstance(env, str) and not findings and "max_episode_steps" not in kwargs:
        short = environment_factory(env, max_episode_steps=_SHORT, **kwargs)  # so that the time limit is met
        findings = _Checker(short, min(seeds, 2), steps).run()
    if findings:
        raise ConformanceError(checker.name, findings)


class _Checker:
    """Runs the checks in order; stops where later ones would only repeat the cause."""

    def __init__(self, factory: Factory, seeds: int, steps: int) -> None:
        self.factory = factory
        self.findings: list[Finding] = []
        first = factory()
        if not isinstance(first, ForkVerbs):
            raise TypeError(f"{first} has no verbs; check forkgym.wrap(env) instead")
        self.name = first._name()
        first.reset(seed=0)
        self.support = first.fork_support
        first.close()
        self.seeds = seeds
        self.steps = steps
        self.scripts: list[Script] = []

    def _script(self, seed: int, steps: int) -> Script:
        """A random episode: seed and actions, as long as it lasts; its answers are not used."""
        rng = noise.generator(seed + 1)
        env = self.factory()
        actions: list[Any] = []
        env.reset(seed=seed)
        for _ in range(steps):
            actions.append(env.sample_action(rng))
            _, _, terminated, truncated, _ = env.step(actions[-1])
            if terminated or truncated:
                break
        env.close()
        return Script(seed, tuple(actions))

    def _maker(self, **_: Any) -> Any:
        """A fresh environment for `replay`; the arguments are the factory's affair."""
        return self.factory()

    def run(self) -> list[Finding]:
        """All findings. An environment that says it cannot be forked is only asked for Gymnasium's interface."""
        self._guarded(self.check_actions)
        if not self.findings:
            self._guarded(self.check_api)
        if self.support == "none" or not self.scripts:
            return self.findings
        self._guarded(self.check_determinism)
        if not self.findings:
            for check in (
                self.check_aliasing,
                self.check_fork,
                self.check_snapshot,
                self.check_replay,
                self.check_luck,
                self.check_misuse,
            ):
                self._guarded(check)
        return self.findings

    def _guarded(self, check: Callable[[], None]) -> None:
        promise = check.__name__.removeprefix("check_")
        try:
            check()
        except Exception as error:  # the environment's own code may raise anything; it becomes the finding
            self.findings.append(Finding(promise, f"raised {type(error).__name__}: {error}", diagnosis.where(error)))

    def _fail(self, promise: str, detail: str, reason: str = "") -> None:
        self.findings.append(Finding(promise, detail, reason))

    # ------------------------------------------------------------------ promises

    def check_actions(self) -> None:
        """`sample_action` gives actions that the environment takes, legal or not."""
        self.scripts = [self._script(seed, self.steps) for seed in range(self.seeds)]

    def check_api(self) -> None:
        """Gymnasium's types, spaces and order."""
        script = self.scripts[0]
        env = self.factory()
        observation, info = env.reset(seed=script.seed)
        answers: list[Any] = [(observation, 0.0, False, False, info)]
        answers += [env.step(action) for action in script.actions]
        for turn, (observation, reward, terminated, truncated, info) in enumerate(answers):
            if not env.observation_space.contains(observation):
                self._fail("api", f"the observation of turn {turn} is not in {env.observation_space}: {observation!r}")
            if not isinstance(reward, float | int | np.floating | np.integer):
                self._fail("api", f"the reward of turn {turn} is a {type(reward).__name__}, not a number")
            if not isinstance(info, dict):
                self._fail("api", f"the info of turn {turn} is a {type(info).__name__}, not a dict")
            if not all(isinstance(flag, bool | np.bool_) for flag in (terminated, truncated)):
                self._fail("api", f"terminated and truncated of turn {turn} are not booleans")
        env.close()
        env.close()

    def check_determinism(self) -> None:
        """The same seed and actions give the same answers and hashes in two fresh environments."""
        for script in self.scripts:
            first = tell(self.factory(), script)
            with diagnosis.another_time():
                second = tell(self.factory(), script)
            turn = first.differs_from(second)
            if turn is not None:
                self._fail(
                    "determinism",
                    f"seed {script.seed}: two fresh environments answer the same actions differently at turn {turn} "
                    f"({first.difference(second)})",
                    diagnosis.why_not_deterministic(self.factory, script),
                )
                return

    def check_aliasing(self) -> None:
        """Writing into what an environment returned, or was given, does not change it."""
        for script in self.scripts:
            truth, scribbled = tell(self.factory(), script), diagnosis.tell_scribbling(self.factory(), script)
            turn = truth.differs_from(scribbled)
            if turn is not None:
                self._fail(
                    "isolation",
                    f"seed {script.seed}: writing into observations, infos and actions changes the environment; "
                    f"seen at turn {turn} ({truth.difference(scribbled)})",
                    "Return copies of what you keep, and copy what you keep of an action.",
                )
                return

    def check_fork(self) -> None:
        """A fork answers as its parent, neither sees the other, forks of forks too, in any closing order."""
        for script in self.scripts:
            truth = tell(self.factory(), script)
            for turn in diagnosis.fork_points(len(script.actions)):
                if not self._check_fork_at(script, turn, truth):
                    return

    def _check_fork_at(self, script: Script, turn: int, truth: Story) -> bool:
        parent = self.factory()
        diagnosis.play(parent, script, turn)
        before = parent.state_hash()
        child = parent.fork()
        grandchild = child.fork()
        for name, fork in (("fork", child), ("fork of a fork", grandchild)):
            if fork.state_hash() != before:
                self._fail("fork", *self._fork_failure(script, turn, f"the {name} has another state hash"))
                return False
        rest = script.actions[turn:]
        stories: list[list[Answer]] = [[], [], []]
        for index, action in enumerate(rest):  # a different order at each turn
            order = [0, 1, 2] if index % 2 == 0 else [2, 0, 1]
            envs = (child, parent, grandchild)
            for which in order:
                stories[which].append(diagnosis.answer_or_error(envs[which], action))
        expected = truth.forms[turn + 1 :]
        for name, story in zip(("fork", "parent", "fork of a fork"), stories, strict=True):
            if story != expected:
                at = next(i for i, form in enumerate(story) if form != expected[i])
                detail = (
                    f"the {name} (forked at turn {turn}) answers turn {turn + at + 1} otherwise than without a fork"
                )
                self._fail(*self._attribute(script, turn, detail))
                return False
        child.close()
        grandchild_hash = grandchild.state_hash()
        parent.close()
        if grandchild.state_hash() != grandchild_hash:
            self._fail("isolation", f"closing a parent changed its fork (seed {script.seed}, turn {turn})")
            return False
        grandchild.close()
        return True

    def _fork_failure(self, script: Script, turn: int, detail: str) -> tuple[str, str]:
        return f"seed {script.seed}, turn {turn}: {detail}", diagnosis.why_not_forked(self.factory, script, turn)[1]

    def _attribute(self, script: Script, turn: int, detail: str) -> tuple[str, str, str]:
        promise, reason = diagnosis.why_not_forked(self.factory, script, turn)
        return promise, f"seed {script.seed}: {detail}", reason

    def check_snapshot(self) -> None:
        """`restore` rewinds everything, as often as asked; closed and foreign snapshots are refused."""
        for script in self.scripts:
            truth = tell(self.factory(), script)
            turn = len(script.actions) // 2
            env = self.factory()
            diagnosis.play(env, script, turn)
            snapshot = env.snapshot()
            for round_ in range(2):
                story = [diagnosis.answer_or_error(env, action) for action in script.actions[turn:]]
                if story != truth.forms[turn + 1 :]:
                    self._fail(
                        "snapshot",
                        f"seed {script.seed}: after {round_} restore(s) to turn {turn} the episode goes on otherwise",
                        diagnosis.why_not_forked(self.factory, script, turn)[1],
                    )
                    return
                env.restore(snapshot)
                if env.state_hash() != snapshot.state_hash or env.turn != turn:
                    self._fail("snapshot", f"seed {script.seed}: restore does not bring back turn {turn}'s state hash")
                    return
            other = self.factory()
            other.restore(snapshot)
            env.close()
            if [diagnosis.answer_or_error(other, a) for a in script.actions[turn:]] != truth.forms[turn + 1 :]:
                self._fail("snapshot", f"seed {script.seed}: restored elsewhere, turn {turn} goes on otherwise")
            snapshot.close()
            self._expect(SnapshotError, partial(other.restore, snapshot), "restore of a closed snapshot")
            other.close()

    def check_replay(self) -> None:
        """A handle rebuilds the state from JSON and from MessagePack, is small, and notices a changed chain."""
        for script in self.scripts:
            env = self.factory()
            diagnosis.play(env, script, len(script.actions))
            handle = env.handle()
            for read in (Handle.from_json(handle.to_json()), Handle.from_bytes(handle.to_bytes())):
                again = replay(read, maker=self._maker)
                if again.state_hash() != env.state_hash():
                    self._fail("replay", f"seed {script.seed}: the replayed handle has another state hash")
                again.close()
            own = len(msgspec.msgpack.encode((handle.actions, handle.kwargs, handle.options)))
            size = len(handle.to_bytes())
            if size > own + _HANDLE_OVERHEAD + 16 * len(handle.actions):
                self._fail("replay", f"seed {script.seed}: the handle takes {size} bytes for {own} bytes of actions")
            broken = msgspec.structs.replace(handle, chain=bytes(16) + handle.chain[16:])
            self._expect(ReplayDivergence, partial(replay, broken, maker=self._maker), "a changed chain")
            env.close()

    def check_luck(self) -> None:
        """A fork with fresh luck is reproducible, and its handle says so."""
        script = self.scripts[0]
        turn = len(script.actions) // 2
        env = self.factory()
        diagnosis.play(env, script, turn)
        before = env.state_hash()
        twins = [env.fork(luck=Luck.fresh(7)) for _ in range(2)]
        rest = script.actions[turn:]
        stories = [[diagnosis.answer_or_error(twin, action) for action in rest] for twin in twins]
        if stories[0] != stories[1]:
            self._fail("luck", "two forks with the same fresh luck answer differently", _LUCK)
        if env.state_hash() != before:
            self._fail("isolation", "a fork with fresh luck changed its parent")
        again = replay(twins[0].handle(), maker=self._maker)
        if again.state_hash() != twins[0].state_hash():
            self._fail("luck", "the handle of a fork with fresh luck does not lead to its state", _LUCK)
        for used in (env, again, *twins):
            used.close()

    def check_misuse(self) -> None:
        """Verbs at the wrong moment are errors of forkgym's own, which name the remedy."""
        env = self.factory()
        action = self.scripts[0].actions[0]
        self._expect(ResetNeededError, lambda: env.step(action), "step before reset")
        self._expect(ResetNeededError, env.fork, "fork before reset")
        ended = next((script for script in self.scripts if script.ends_in(self.factory)), None)
        if ended is not None:
            diagnosis.play(env, ended, len(ended.actions))
            self._expect(EpisodeEndedError, lambda: env.step(action), "step after the end")
        env.close()
        self._expect(ClosedEnvironmentError, env.fork, "fork of a closed environment")
        self._expect(ClosedEnvironmentError, lambda: env.reset(seed=0), "reset of a closed environment")

    def _expect(self, kind: type[Exception], act: Callable[[], Any], what: str) -> None:
        try:
            act()
        except kind:
            return
        self._fail("misuse", f"{what} is not refused with {kind.__name__}", "Do not override the public verbs.")


_LUCK = "Take randomness from self.luck or self.np_random, and keep nothing drawn outside of the declared state."
