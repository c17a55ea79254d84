"""Deliberately broken environments, one for each classic defect. Each would look right to a casual eye."""

from __future__ import annotations

import copy
import random
import secrets
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import EzPickle

from forkgym import Env
from forkgym.core.wrap import ForkableWrapper


class Sound(Env):
    """The sound environment that the broken ones deviate from: a counter with keyed luck."""

    action_space = gymnasium.spaces.Discrete(3)
    observation_space = gymnasium.spaces.Discrete(10_000)
    horizon = 12

    def _reset(self, *, seed: int, options: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.total = 0
        self.steps = 0
        return 0, {}

    def _chance(self) -> int:
        return self.luck.integers("chance", 0, 16)

    def _step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.total += int(action) + self._chance()
        return self.total, float(action), self.steps >= self.horizon, False, {}

    def _get_state(self) -> Any:
        return {"total": self.total, "steps": self.steps}

    def _set_state(self, state: Any) -> None:
        self.total = state["total"]
        self.steps = state["steps"]


class GlobalGenerator(Sound):
    """Draws from Python's module-global generator."""

    def _chance(self) -> int:
        return random.randrange(16)


class GlobalCoin(Sound):
    """Draws from Python's module-global generator, and half of the time nothing comes of it."""

    def _chance(self) -> int:
        return int(self.steps == 1 and random.random() < 0.5)


class NumpyGlobalGenerator(Sound):
    """Draws from numpy's module-global generator."""

    def _chance(self) -> int:
        return int(np.random.randint(16))  # noqa: NPY002


class SystemEntropy(Sound):
    """Draws from the operating system."""

    def _chance(self) -> int:
        return secrets.randbelow(16)


class UndeclaredGenerator(Sound):
    """Has a seeded generator of its own, and forgets to carry it."""

    def _reset(self, *, seed: int, options: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.rng = np.random.default_rng(seed)
        return super()._reset(seed=seed, options=options)

    def _chance(self) -> int:
        return int(self.rng.integers(16))

    def _set_state(self, state: Any) -> None:
        super()._set_state(state)
        self.rng = np.random.default_rng(0)


class SharedList(Sound):
    """A native fork that copies the object but not its list."""

    def _reset(self, *, seed: int, options: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.history: list[int] = []
        return super()._reset(seed=seed, options=options)

    def _step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.history.append(int(action))
        _, reward, terminated, truncated, info = super()._step(action)
        return sum(self.history) + len(self.history), reward, terminated, truncated, info

    def _fork(self) -> SharedList:
        return copy.copy(self)


class UnforkedTimeLimit(ForkableWrapper):
    """Forks the base and puts a new TimeLimit around it, whose counter starts from zero."""

    limit = 4

    @classmethod
    def make(cls) -> UnforkedTimeLimit:
        return cls(gymnasium.wrappers.TimeLimit(Sound(), cls.limit), rebuild=cls._chain)

    @classmethod
    def _chain(cls) -> gymnasium.Env[Any, Any]:
        return gymnasium.wrappers.TimeLimit(Sound(), cls.limit)

    def _branch(self) -> UnforkedTimeLimit:
        base: Any = self.env.unwrapped
        chain = gymnasium.wrappers.TimeLimit(base.fork(), self.limit)
        chain._elapsed_steps = 0
        return self._around(chain)


class Recreated(Sound, EzPickle):
    """Forks by copy.deepcopy, which EzPickle turns into a call of the constructor."""

    def __init__(self, start: int = 5) -> None:
        EzPickle.__init__(self, start)
        self.start = start
        self.total = start
        self.steps = 0

    def _fork(self) -> Recreated:
        return copy.deepcopy(self)


class HiddenClock(Sound):
    """Its answer depends on the time of day."""

    def _chance(self) -> int:
        return time.perf_counter_ns() % 16


class CoarseClock(Sound):
    """Depends on the hour only, so that nothing differs while a test runs."""

    def _chance(self) -> int:
        return int(time.time()) // 3600 % 16


class ForgottenField(Sound):
    """Leaves a field out of its state."""

    def _get_state(self) -> Any:
        return {"steps": self.steps}

    def _set_state(self, state: Any) -> None:
        self.steps = state["steps"]
        self.total = 0


class ClassVariable(Sound):
    """Keeps its state in a class variable, so that all environments share it."""

    seen: list[int] = []  # noqa: RUF012 - the defect

    def _step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.seen.append(int(action))
        answer = super()._step(action)
        return (answer[0] + len(self.seen) % 7, *answer[1:])


class OutsideItsSpace(Sound):
    """Shows an observation that its space does not hold."""

    observation_space = gymnasium.spaces.Discrete(4)


class BlindHash(Sound):
    """Forks rightly by itself, but declares only a part of its state, so that different states share a hash."""

    def _fork(self) -> BlindHash:
        child = BlindHash()
        child.total, child.steps = self.total, self.steps
        return child

    def _get_state(self) -> Any:
        return {"steps": self.steps}


class ReturnsItsState(Sound):
    """Returns the very array that is its state."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def _reset(self, *, seed: int, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        self.vector = np.zeros(2)
        return self.vector, {}

    def _step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.vector += action
        return self.vector, 0.0, False, False, {}

    def _get_state(self) -> Any:
        return self.vector

    def _set_state(self, state: Any) -> None:
        self.vector = state


class RefusesItsOwnSamples(Sound):
    """sample_action gives something that step refuses."""

    def sample_action(self, rng: np.random.Generator) -> Any:
        return "north"
