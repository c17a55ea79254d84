"""The verbs for environments that were not written for forkgym: `wrap(env)` and `fork(env)`.

The ways to copy stand in `cloning.py`, the test that a way must pass before it is used in `probing.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Self

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from forkgym import noise
from forkgym.core.cloning import AnyEnv, Way, clone_chain, links_of
from forkgym.core.env import Family
from forkgym.core.errors import ForkUnsupportedError
from forkgym.core.luck import SAME, KeyedLuck, Luck
from forkgym.core.portable import to_portable
from forkgym.core.probing import choose
from forkgym.core.verbs import ForkVerbs

__all__ = ["ForkableWrapper", "fork", "wrap"]


def fork(env: AnyEnv, *, luck: Luck = SAME) -> Any:
    """An independent copy of any Gymnasium environment at the state where it stands.

    Args:
        env: With verbs (then `env.fork()`), or whatever `gymnasium.make` returned: the base and every wrapper
            (TimeLimit, OrderEnforcing, …) are copied.
        luck: `SAME`, or `Luck.fresh(stream)`.

    Raises:
        ForkUnsupportedError: Says for each way why it does not work here, and what to do instead.
    """
    if isinstance(env, ForkVerbs):
        return env.fork(luck=luck)
    if not isinstance(env, gymnasium.Env):
        raise ForkUnsupportedError(f"fork takes a Gymnasium environment, not a {type(env).__name__}.")
    choice = choose(env, None, lambda: _made_again(env))
    if choice.way is None:
        raise ForkUnsupportedError(
            f"{env} cannot be copied. Tried {'; '.join(choice.reasons)}. Make it with forkgym.make, or call "
            "env = forkgym.wrap(env) before the first reset: then it can be forked by re-execution."
        )
    child = clone_chain(env, choice.way)
    if luck.stream is not None:
        _refresh_plain(child, luck.stream)
    return child


def wrap(
    env: AnyEnv,
    *,
    rebuild: Callable[[], AnyEnv] | None = None,
    limit_given: int | None = None,
) -> Any:
    """Give any Gymnasium environment the verbs.

    Args:
        env: The environment with its wrappers; reset it through the result.
        rebuild: Makes the same chain again, where its spec cannot (wrappers that do not record their arguments).
        limit_given: `max_episode_steps` that was given to `make`, for the handle.

    Returns:
        `env` itself if it has the verbs, else a `ForkableWrapper`.
    """
    if isinstance(env, ForkVerbs):
        return env
    return ForkableWrapper(env, rebuild=rebuild, limit_given=limit_given)


class ForkableWrapper(ForkVerbs, gymnasium.Wrapper[Any, Any, Any, Any]):
    """The verbs around a chain of Gymnasium wrappers; made by `wrap`.

    The chain declares no state, so `state_hash` is that of the interaction so far (seed, options, luck, actions,
    observations, rewards) and of the base's numpy generator. After `restore`, `env.env` is another object.
    """

    def __init__(
        self,
        env: AnyEnv,
        *,
        rebuild: Callable[[], AnyEnv] | None = None,
        limit_given: int | None = None,
    ) -> None:
        gymnasium.Wrapper.__init__(self, env)
        self._luck = KeyedLuck()
        self._rebuild_chain = rebuild
        self._limit_given = limit_given

    # ------------------------------------------------------------------ Gymnasium

    @property
    def spec(self) -> EnvSpec | None:  # type: ignore[override]
        """The wrapped chain's spec."""
        return self.env.spec

    @property
    def version(self) -> str:
        """The base's own version, or that of the package it comes from."""
        base = self.env.unwrapped
        package = type(base).__module__.split(".")[0]
        known = gymnasium.__version__ if package == "gymnasium" else ""
        return str(getattr(base, "version", known))

    @property
    def way(self) -> str:
        """How this chain is copied: "verbs", "clone_state", "get_state", "mujoco", "table", "deepcopy" or "replay"."""
        way = self._way()
        return way.name if way is not None else "replay"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; see `ForkVerbs.reset`."""
        return ForkVerbs.reset(self, seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take one action; see `ForkVerbs.step`."""
        return ForkVerbs.step(self, action)

    def close(self) -> None:
        """Close the whole chain; allowed more than once."""
        ForkVerbs.close(self)

    def sample_action(self, rng: np.random.Generator) -> Any:
        """A random action of the chain's action space; the space's own generator is not touched."""
        space = copy.deepcopy(self.action_space)
        space.seed(int(rng.integers(2**31)))
        return space.sample()

    # ------------------------------------------------------------------ hooks of ForkVerbs

    @property
    def fork_support(self) -> str:
        """How this environment forks: "state" (a verified copy), "replay" or "none"."""
        try:
            return "replay" if self._way() is None else "state"
        except ForkUnsupportedError:
            return "none"

    def _begin(self, seed: int, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options or None)
        return copy.deepcopy(observation), info  # some return the very array that is their state

    def _advance(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(copy.deepcopy(action))
        return copy.deepcopy(observation), reward, terminated, truncated, info

    def _capture(self) -> AnyEnv:
        return clone_chain(self.env, self._chosen())

    def _install(self, payload: AnyEnv) -> None:
        fresh = clone_chain(payload, self._chosen())
        self.env.close()
        self.env = fresh

    @staticmethod
    def _release(payload: AnyEnv) -> None:
        payload.close()

    def _branch(self) -> Self:
        return self._around(clone_chain(self.env, self._chosen()))

    def _spawn(self) -> Self:
        return self._around(self._new_chain())

    def _new_chain(self) -> AnyEnv:
        if self._rebuild_chain is not None:
            return self._rebuild_chain()
        return _made_again(self.env)

    def _around(self, chain: AnyEnv) -> Self:
        return type(self)(chain, rebuild=self._rebuild_chain, limit_given=self._limit_given)

    def _draw_seed(self) -> int:
        base = self.env.unwrapped
        return base._draw_seed() if isinstance(base, ForkVerbs) else int(base.np_random.integers(2**31 - 1))

    def _generator(self) -> np.random.Generator | None:
        base = self.env.unwrapped
        return base._generator() if isinstance(base, ForkVerbs) else base._np_random

    def _refresh_luck(self, stream: int) -> None:
        super()._refresh_luck(stream)
        base = self.env.unwrapped
        if isinstance(base, ForkVerbs):
            base._refresh_luck(stream)

    def _family(self) -> object:
        spec = self.env.spec
        kwargs = {} if spec is None else dict(spec.kwargs)
        limit = None if spec is None else spec.max_episode_steps
        return Family(type(self.env.unwrapped), {**kwargs, "wrappers": self._wrappers()}, limit)

    def _wrappers(self) -> list[str]:
        return [type(link).__name__ for link in links_of(self.env)[:-1]]

    def _recipe(self) -> dict[str, Any]:
        spec = self.env.spec
        kwargs = {} if spec is None else spec.kwargs
        return {
            "env": f"unregistered/{type(self.env.unwrapped).__name__}" if spec is None else spec.id,
            "env_version": self.version,
            "kwargs": to_portable(dict(kwargs), f"a constructor argument of {self._name()}"),
            "max_episode_steps": self._limit_given,
            "wrappers": self._wrappers(),
        }

    def _shut(self) -> None:
        self.env.close()

    def _name(self) -> str:
        return self.env.spec.id if self.env.spec is not None else type(self.env.unwrapped).__name__

    # ------------------------------------------------------------------ the choice of a way

    def _chosen(self) -> Way:
        way = self._way()
        if way is None:
            raise ForkUnsupportedError(f"{self._name()} is forked by re-execution, not by a copy.")
        return way

    def _way(self) -> Way | None:
        """The verified way to copy this chain; None means re-execution.

        Raises:
            ForkUnsupportedError: Neither a copy nor re-execution is faithful.
        """
        if self._journal is None:
            scratch = self._spawn()
            try:
                scratch.reset(seed=0)
                return scratch._way()
            finally:
                scratch.close()
        choice = choose(self.env, self._reexecuted, self._new_chain)
        if choice.name is None:
            raise ForkUnsupportedError(
                f"{self._name()} cannot be forked faithfully. Tried {'; '.join(choice.reasons)}. Give the environment "
                "_get_state and _set_state (forkgym.Env), or take the source of its randomness from the seed."
            )
        return choice.way

    def _reexecuted(self) -> AnyEnv:
        """The chain brought to this state once more, from the seed."""
        return self._rebuild(self._require_episode("fork")).env


def _made_again(env: AnyEnv) -> AnyEnv:
    """The same chain from its spec, not yet reset."""
    name = type(env.unwrapped).__name__
    if env.spec is None:
        raise ForkUnsupportedError(
            f"{name} has no spec, so it cannot be made again for a replay. Make it with gymnasium.make, or pass "
            "forkgym.wrap(env, rebuild=function_that_makes_it)."
        )
    try:
        return gymnasium.make(env.spec)
    except (ValueError, TypeError) as error:
        raise ForkUnsupportedError(
            f"{name} cannot be made again from its spec: {error} Pass "
            "forkgym.wrap(env, rebuild=function_that_makes_it)."
        ) from error


def _refresh_plain(child: AnyEnv, stream: int) -> None:
    """Fresh luck for a chain without a journal: keyed by the stream and the generator's present state."""
    base = child.unwrapped
    if isinstance(base, ForkVerbs):
        base._refresh_luck(stream)
        return
    generator = base.np_random
    key = noise.luck_key(int(generator.integers(2**63)), stream, 0, "np_random", 0)
    generator.bit_generator.state = type(generator.bit_generator)(key).state
