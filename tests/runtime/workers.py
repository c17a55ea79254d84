"""Functions that the pools of the tests run."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

import forkgym


class _Serving:
    def __init__(self, factor: int, closed_file: str) -> None:
        self.factor = factor
        self.closed_file = closed_file
        self.memory = 0

    def __call__(self, message: Any) -> Any:
        verb, argument = message
        if verb == "times":
            return self.factor * argument
        if verb == "remember":
            self.memory += argument
            return self.memory
        if verb == "raise":
            raise {"value": ValueError, "key": KeyError, "own": OwnError}[argument]("as asked")
        if verb == "sleep":
            time.sleep(argument)
            return "slept"
        if verb == "hang":
            ctypes.PyDLL(None).sleep(argument)  # keeps the interpreter's lock: no thread of this process can run
            return "hung"
        if verb == "who":
            return [os.getpid(), threading.current_thread() is threading.main_thread()]
        if verb == "print":
            print(argument)
            return None
        if verb == "exit":
            os._exit(argument)
        if verb == "unsendable":
            return object()
        if verb == "spawn":
            return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"]).pid
        raise LookupError(verb)

    def close(self) -> None:
        if self.closed_file:
            with open(self.closed_file, "a", encoding="utf-8") as file:
                file.write("closed\n")


class OwnError(Exception):
    """Known in the worker only."""


def serving(factor: int = 2, closed_file: str = "") -> Callable[[Any], Any]:
    return _Serving(factor, closed_file)


def failing() -> Callable[[Any], Any]:
    raise ValueError("this worker cannot start")


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pids: list[int], within: float = 5.0) -> bool:
    """Whether all these processes end within so many seconds."""
    deadline = time.monotonic() + within
    while any(alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class Computing(forkgym.Env):
    """An environment that says where it should run."""

    runs_in = "thread"
    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Discrete(2)

    def _reset(self, *, seed: int, options: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return seed, {"thread": threading.current_thread().name, "array": np.arange(3), "tuple": (1, 2)}

    def _step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return action, 0.0, False, False, {"bad": object()}


forkgym.register("tests/Computing-v0", Computing)
