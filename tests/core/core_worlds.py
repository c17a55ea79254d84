"""Small sound environments, one for each way of forking, for the tests of the contract."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from forkgym import Env, TextEnv


class Dice(Env):
    """Forks by state. Keyed luck and, if asked, the numpy generator; observation: the sum so far."""

    action_space = gymnasium.spaces.Discrete(4)
    observation_space = gymnasium.spaces.Discrete(100_000)

    def __init__(self, sides: int = 6, numpy_too: bool = False, horizon: int = 20) -> None:
        self.sides = sides
        self.numpy_too = numpy_too
        self.horizon = horizon

    def _reset(self, *, seed: int, options: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.rolls: list[int] = list(options.get("rolls", []))
        return sum(self.rolls), {}

    def _step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        roll = self.luck.integers("die", 1, self.sides + 1)
        if self.numpy_too:
            roll += int(self.np_random.integers(0, 1000))
        self.rolls.append(roll * (action + 1))
        return sum(self.rolls), float(roll), len(self.rolls) >= self.horizon, False, {}

    def _get_state(self) -> Any:
        return {"rolls": self.rolls}

    def _set_state(self, state: Any) -> None:
        self.rolls = state["rolls"]


class ReplayedDice(Env):
    """The same, without a declared state: forks by re-execution."""

    action_space = Dice.action_space
    observation_space = Dice.observation_space

    def __init__(self, sides: int = 6) -> None:
        self.inner = Dice(sides)

    def _reset(self, *, seed: int, options: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.total = 0
        return 0, {}

    def _step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        roll = self.luck.integers("die", 1, 7) + int(self.np_random.integers(0, 1000))
        self.total += roll * (action + 1)
        return self.total, float(roll), False, False, {}


class NativeDice(Env):
    """The same, with a native fork and a resource that must be closed."""

    action_space = Dice.action_space
    observation_space = Dice.observation_space
    open_resources: set[int] = set()  # noqa: RUF012 - counts over all instances on purpose
    numbers = iter(range(10**9))

    def __init__(self) -> None:
        self.resource = next(self.numbers)
        self.open_resources.add(self.resource)
        self.total = np.zeros(1, dtype=np.int64)

    def _reset(self, *, seed: int, options: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.total = np.zeros(1, dtype=np.int64)
        return 0, {}

    def _step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        roll = self.luck.integers("die", 1, 7) + int(self.np_random.integers(0, 1000))
        self.total += roll * (action + 1)
        return int(self.total[0]), float(roll), False, False, {}

    def _fork(self) -> NativeDice:
        child = NativeDice()
        child.total = self.total.copy()
        return child

    def _close(self) -> None:
        self.open_resources.discard(self.resource)


class Guess(TextEnv):
    """A text environment: guess a number that is drawn from the luck; hints cost nothing."""

    tools = [  # noqa: RUF012
        {
            "name": "guess",
            "description": "Guess the number.",
            "parameters": {
                "type": "object",
                "properties": {"number": {"type": "integer", "minimum": 0, "maximum": 9}},
            },
        }
    ]
    max_turns = 4
    system_prompt = "You guess numbers."

    @property
    def splits(self) -> dict[str, int]:
        return {"train": 10, "test": 3}

    def _reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self.split, self.task = self.pick_task(seed, options)
        self.secret = self.luck.integers("secret", 0, 10)
        return f"Which number is it? (task {self.task} of {self.split})", {}

    def _step(self, action: dict[str, Any]) -> tuple[str, float, bool, bool, dict[str, Any]]:
        number = action["arguments"].get("number")
        if action["tool"] != "guess" or not isinstance(number, int):
            return "Please call guess.", 0.0, False, False, {"action_kind": "invalid"}
        right = number == self.secret
        hint = "right" if right else "higher" if number < self.secret else "lower"
        return hint, float(right), right, False, {"action_kind": "guess", "evidence": hint, "success": right}

    def _get_state(self) -> Any:
        return [self.split, self.task, self.secret]

    def _set_state(self, state: Any) -> None:
        self.split, self.task, self.secret = state
