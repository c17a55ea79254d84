"""`Env`: a Gymnasium environment with the verbs. An author writes `_reset`, `_step` and a way to carry state.

Text environments stand in `text.py`, other people's environments in `wrap.py`.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any, ClassVar, Self, cast

import gymnasium
import numpy as np

from forkgym.core.errors import ActionError, ForkUnsupportedError, StateError, TaskError
from forkgym.core.hashing import canonical, copy_state, generator_state
from forkgym.core.luck import KeyedLuck, episode_of_seed
from forkgym.core.portable import plain, to_portable
from forkgym.core.verbs import ForkVerbs
from forkgym.noise import generator as keyed_generator
from forkgym.noise import luck_key

__all__ = ["Env"]


class Env(ForkVerbs, gymnasium.Env[Any, Any]):
    """A synchronous environment that forks, rewinds and replays.

    A subclass sets `action_space` and `observation_space` and writes

    - `_reset(*, seed, options) -> (observation, info)`,
    - `_step(action) -> (observation, reward, terminated, truncated, info)`,
    - and the cheapest of: `_get_state()` with `_set_state(state)`; `_fork()`; or nothing (then forks re-execute
      the recorded actions from the seed).

    Randomness comes from `self.luck` (keyed) or from `self.np_random` (its state is carried and hashed once it was
    used). Constructor arguments are recorded, so that forks and handles can construct the environment again; heavy
    read-only data belongs into a cache at module level.

    Class attributes:
        version: The environment's own version, recorded in handles; change it when behaviour changes.
        time_limit: Steps after which an episode is truncated; `make(..., max_episode_steps=)` overrides it.
        replayable: False if the same seed and actions may not lead to the same state.
        runs_in: Where `forkgym.aio.make` runs it unless told otherwise: "inline" (steps of microseconds), "thread"
            (steps that wait) or "process" (steps that compute for long, or may crash).
    """

    version: ClassVar[str] = "1"
    time_limit: int | None = None
    replayable: ClassVar[bool] = True
    runs_in: ClassVar[str] = "inline"

    _init_args: tuple[tuple[Any, ...], dict[str, Any]]
    _limit_given: int | None = None
    _np_random_used: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a subclass that replaces the verbs, the likeliest mistake of somebody who comes from Gymnasium."""
        super().__init_subclass__(**kwargs)
        for verb in ("reset", "step", "close"):
            if verb in cls.__dict__:
                raise TypeError(
                    f"{cls.__name__} defines {verb}: define _{verb} instead. {verb} itself belongs to forkgym.Env, "
                    "which records the episode in it."
                )

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Remember the constructor arguments, so that the same environment can be constructed again."""
        self = super().__new__(cls)
        self._init_args = (args, kwargs)
        self._luck = KeyedLuck()
        return self

    # ------------------------------------------------------------------ what an author writes

    def _reset(self, *, seed: int, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; `seed` is never None here."""
        raise NotImplementedError(f"{type(self).__name__} must define _reset(self, *, seed, options)")

    def _step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one action."""
        raise NotImplementedError(f"{type(self).__name__} must define _step(self, action)")

    def _get_state(self) -> Any:
        """Everything that decides the future, as plain data (see `forkgym.core.hashing.canonical`)."""
        raise NotImplementedError

    def _set_state(self, state: Any) -> None:
        """Become the state that `_get_state` returned (it is a copy: keep it, nothing else refers to it)."""
        raise NotImplementedError

    def _fork(self) -> Self:
        """A native fork: an independent environment at this state, made faster than by state or replay."""
        raise NotImplementedError

    def _adopt(self, other: Self) -> None:
        """Become `other`, a fork that nobody else uses; override if objects of yours refer back to `self`."""
        keep = {name: self.__dict__[name] for name in _OWN_FIELDS if name in self.__dict__}
        self._close()
        self.__dict__.clear()
        self.__dict__.update(other.__dict__)
        self.__dict__.update(keep)

    def _close(self) -> None:
        """Free what the environment holds; called once."""

    @property
    def splits(self) -> dict[str, int]:
        """Number of tasks in each split; empty for an environment without numbered tasks."""
        return {}

    def sample_action(self, rng: np.random.Generator) -> Any:
        """A plausible random action, legal or not, for tests and the random policy.

        Args:
            rng: Where the randomness comes from; the environment's own generators are not touched.
        """
        space = self.__dict__.get("_sampling_space")
        if space is None:
            space = self.__dict__["_sampling_space"] = copy.deepcopy(self.action_space)
        space.seed(int(rng.integers(2**31)))
        return space.sample()

    @classmethod
    def example_kwargs(cls) -> dict[str, Any]:
        """Constructor arguments with which tests can make this environment (default: none needed).

        Raises:
            LookupError: Something this machine lacks is needed (tests skip, with the error's text).
        """
        return {}

    def pick_task(self, seed: int, options: dict[str, Any], default_split: str = "train") -> tuple[str, int]:
        """The split and the number of the task that the reset options ask for.

        Args:
            seed: Seed of the reset; a missing task is drawn from it by a keyed draw.
            options: May hold "split" and "task".
            default_split: Split when the options name none.

        Raises:
            TaskError: No such split or task.
        """
        split = options.get("split", default_split)
        if split not in self.splits:
            raise TaskError(f"There is no split {split!r}; this environment has {sorted(self.splits)}.")
        count = self.splits[split]
        task = options.get("task")
        if task is None:
            key = luck_key(episode_of_seed(seed), 0, 0, f"task of {split}", 0)
            return split, int(keyed_generator(key).integers(count))
        if isinstance(task, bool) or not isinstance(task, int) or not 0 <= task < count:
            raise TaskError(f"Task {task!r} is not one of the {count} tasks of split {split!r} (0 to {count - 1}).")
        return split, task

    # ------------------------------------------------------------------ Gymnasium

    @property
    def np_random(self) -> np.random.Generator:
        """The environment's numpy generator; from its first use on it is part of the state."""
        self._np_random_used = True
        if self._np_random is None:
            self._seed_from_entropy()
        return cast(np.random.Generator, self._np_random)

    @np_random.setter
    def np_random(self, value: np.random.Generator) -> None:
        self._np_random_used = True
        self._np_random = value
        self._np_random_seed = -1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; see `ForkVerbs.reset`."""
        return ForkVerbs.reset(self, seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one action; see `ForkVerbs.step`."""
        return ForkVerbs.step(self, action)

    def close(self) -> None:
        """Free what the environment holds; allowed more than once."""
        ForkVerbs.close(self)

    def __repr__(self) -> str:
        where = "closed" if self._closed else "not reset" if self._journal is None else f"turn {self.turn}"
        return f"<{self._name()}: {where}>"

    __str__ = __repr__

    # ------------------------------------------------------------------ hooks of ForkVerbs

    @property
    def fork_support(self) -> str:
        """How this environment forks: "native", "state", "replay" or "none"."""
        kind = type(self)
        if kind._fork is not Env._fork:
            return "native"
        if kind._get_state is not Env._get_state and kind._set_state is not Env._set_state:
            return "state"
        nondeterministic = self.spec is not None and self.spec.nondeterministic
        return "replay" if self.replayable and not nondeterministic else "none"

    def _begin(self, seed: int, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        gymnasium.Env.reset(self, seed=seed)
        self._np_random_used = False
        return self._reset(seed=seed, options=options)

    def _advance(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self._step(action)
        limit = self._limit()
        if limit is not None and self.turn + 1 >= limit:
            truncated = True
        return observation, float(reward), bool(terminated), bool(truncated), info

    def _limit(self) -> int | None:
        """Steps after which an episode is truncated, or None."""
        if self._limit_given is not None:
            return self._limit_given if self._limit_given > 0 else None
        return self.time_limit

    def _time_limit_state(self) -> Any:
        return self._limit()

    def _draw_seed(self) -> int:
        if self._np_random is None:
            self._seed_from_entropy()
        return int(cast(np.random.Generator, self._np_random).integers(2**31 - 1))

    def _seed_from_entropy(self) -> None:
        """Gymnasium's rule for an environment that was never seeded; the episode's own seed is recorded anyway."""
        gymnasium.Env.reset(self, seed=int(np.random.SeedSequence().generate_state(1)[0]))

    def _generator(self) -> np.random.Generator | None:
        return self._np_random if self._np_random_used else None

    def _capture(self) -> Any:
        if self.fork_support == "native":
            return self._native_fork()
        return (*self._generator_capture(), copy_state(self._get_state()), self._extra())

    def _install(self, payload: Any) -> None:
        if isinstance(payload, Env):
            self._adopt(payload._native_fork())
            return
        *randomness, state, extra = payload
        self._generator_install(*randomness)
        self._set_state(copy_state(state))
        self._set_extra(extra)

    @staticmethod
    def _release(payload: Any) -> None:
        if isinstance(payload, Env):
            payload.close()

    def _branch(self) -> Self:
        if self.fork_support == "native":
            return self._native_fork()
        child = self._spawn()
        child._generator_install(*self._generator_capture())
        child._set_state(copy_state(self._get_state()))
        child._set_extra(self._extra())
        return child

    def _native_fork(self) -> Self:
        child = self._fork()
        if child is self or not isinstance(child, type(self)):
            raise ForkUnsupportedError(
                f"{type(self).__name__}._fork() returned {child!r}; it must return a new {type(self).__name__}."
            )
        child.spec = self.spec
        child._closed = False
        child._limit_given = self._limit_given
        child._init_args = self._init_args
        child._np_random = None  # an author who copies __dict__ would share the generator
        child._luck = self._luck.copy()
        child._journal = self._journal.copy() if self._journal is not None else None
        child._generator_install(*self._generator_capture())
        child._set_extra(self._extra())
        return child

    def _generator_capture(self) -> tuple[dict[str, Any] | None, int | None, bool]:
        state = None if self._np_random is None else generator_state(self._np_random)
        return state, self._np_random_seed, self._np_random_used

    def _generator_install(self, state: dict[str, Any] | None, seed: int | None, used: bool) -> None:
        if state is not None:
            kind = getattr(np.random, state["bit_generator"])
            if self._np_random is None or not isinstance(self._np_random.bit_generator, kind):
                self._np_random = np.random.Generator(kind())
            self._np_random.bit_generator.state = state
        self._np_random_seed = seed
        self._np_random_used = used

    def _extra(self) -> Any:
        """State that a base class of forkgym keeps besides the author's (the conversation of a text environment)."""
        return None

    def _set_extra(self, extra: Any) -> None:
        """Become what `_extra` returned."""

    def _spawn(self) -> Self:
        args, kwargs = self._init_args
        child = type(self)(*args, **kwargs)
        child.spec = self.spec
        child._limit_given = self._limit_given
        return child

    def _world_state(self) -> Any:
        if type(self)._get_state is Env._get_state:
            return None
        return ("state", self._get_state())

    def _family(self) -> object:
        return Family(type(self), self._arguments(), self._limit())

    def _arguments(self) -> dict[str, Any]:
        """The constructor arguments by name."""
        args, kwargs = self._init_args
        if not args:
            return dict(kwargs)
        bound = inspect.signature(type(self).__init__).bind(self, *args, **kwargs)
        named = dict(bound.arguments)
        named.pop(next(iter(named)))
        for name, parameter in inspect.signature(type(self).__init__).parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD and name in named:
                named.update(named.pop(name))
        return named

    def _recipe(self) -> dict[str, Any]:
        from forkgym.core.registry import id_of

        kwargs = to_portable(self._arguments(), f"a constructor argument of {self._name()}")
        return {
            "env": id_of(self),
            "env_version": self.version,
            "kwargs": kwargs,
            "max_episode_steps": self._limit_given,
        }

    def _shut(self) -> None:
        self._close()

    def _accept(self, action: Any) -> Any:
        action = plain(action)
        if not self.action_space.contains(action):
            raise ActionError(
                f"{self._name()} takes actions in {self.action_space}, not {action!r} "
                f"({type(action).__name__}). env.sample_action(rng) shows one."
            )
        return action

    def _name(self) -> str:
        return self.spec.id if self.spec is not None else type(self).__name__


_OWN_FIELDS = ("spec", "_limit_given", "_init_args")


class Family:
    """Environments whose snapshots may be exchanged: the same class, arguments and time limit."""

    def __init__(self, kind: type, arguments: dict[str, Any], limit: int | None) -> None:
        self._kind = kind
        self._limit = limit
        self._arguments = {name: _Argument(value) for name, value in arguments.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Family) and (self._kind, self._limit, self._arguments) == (
            other._kind,
            other._limit,
            other._arguments,
        )

    def __hash__(self) -> int:
        return hash((self._kind, self._limit))

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={argument.text}" for name, argument in self._arguments.items())
        return f"{self._kind.__name__}({inside})" + (f" limited to {self._limit} steps" if self._limit else "")


class _Argument:
    """An argument compared by value where it has a canonical form, by identity where it has none."""

    def __init__(self, value: Any) -> None:
        text = repr(value)
        self.text = text if len(text) <= 60 else text[:60] + "…"
        self._value = value
        try:
            self._form: bytes | None = canonical(value)
        except StateError:
            self._form = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Argument):
            return NotImplemented
        if self._form is None or other._form is None:
            return self._value is other._value
        return self._form == other._form

    __hash__ = None  # type: ignore[assignment]
