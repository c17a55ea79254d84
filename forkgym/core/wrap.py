"""The verbs for environments that were not written for forkgym: `wrap(env)` and `fork(env)`.

The ways to copy stand in `cloning.py`. A way is chosen and verified at the first fork: two copies that get the same
actions must answer alike, the original must not notice, and re-execution from the seed must tell the same story.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from typing_extensions import Self

from forkgym import noise
from forkgym.core.cloning import AnyEnv, Way, candidate_ways, clone_chain, links_of
from forkgym.core.env import Family
from forkgym.core.errors import ForkUnsupportedError, ReplayDivergence, StateError
from forkgym.core.hashing import canonical
from forkgym.core.journal import Journal
from forkgym.core.luck import SAME, KeyedLuck, Luck
from forkgym.core.portable import to_portable
from forkgym.core.verbs import ForkVerbs

__all__ = ["ForkableWrapper", "fork", "wrap"]

_PROBE_STEPS = 8
_verified: dict[tuple[Any, ...], str] = {}
"""Chain description → name of the way that passed its test in this process ("replay" included)."""


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
    reasons: list[str] = []
    way = _choose(env, None, reasons)
    if way is None:
        raise ForkUnsupportedError(
            f"{env} cannot be copied. Tried {'; '.join(reasons)}. Make it with forkgym.make, or call "
            "env = forkgym.wrap(env) before the first reset: then it can be forked by re-execution."
        )
    child = clone_chain(env, way)
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
    def spec(self) -> EnvSpec | None:
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
        import copy

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
        result: tuple[Any, dict[str, Any]] = self.env.reset(seed=seed, options=options or None)
        return result

    def _advance(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        result: tuple[Any, Any, bool, bool, dict[str, Any]] = self.env.step(action)  # type: ignore[assignment]
        return result

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
        spec = self.env.spec
        if spec is None:
            raise ForkUnsupportedError(
                f"{self._name()} has no spec, so it cannot be made again for a replay. Make it with gymnasium.make, or "
                "pass forkgym.wrap(env, rebuild=function_that_makes_it)."
            )
        try:
            return gymnasium.make(spec)
        except (ValueError, TypeError) as error:
            raise ForkUnsupportedError(
                f"{self._name()} cannot be made again from its spec: {error} Pass "
                "forkgym.wrap(env, rebuild=function_that_makes_it)."
            ) from error

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
        reasons: list[str] = []
        way = _choose(self.env, self, reasons)
        if way is None and _verified.get(_description(self.env)) != "replay":
            raise ForkUnsupportedError(
                f"{self._name()} cannot be forked faithfully. Tried {'; '.join(reasons)}. Give the environment "
                "_get_state and _set_state (forkgym.Env), or take the source of its randomness from the seed."
            )
        return way


def _description(env: AnyEnv) -> tuple[Any, ...]:
    spec = env.spec
    kwargs = "" if spec is None else repr(sorted(spec.kwargs.items(), key=lambda pair: pair[0]))
    return (*(type(link) for link in links_of(env)), None if spec is None else spec.id, kwargs)


def _choose(env: AnyEnv, recorded: ForkableWrapper | None, reasons: list[str]) -> Way | None:
    """The first way that passes its test; remembered for chains of the same description.

    Args:
        env: The chain, in an episode.
        recorded: The wrapper that recorded the episode, where there is one: its re-execution is the reference.
        reasons: Receives why each way failed.
    """
    known = _verified.get(_description(env))
    ways = list(candidate_ways(env))
    for way in ways:
        if way.name == known:
            return way
    if known == "replay" and recorded is not None:
        return None
    reference = None
    if recorded is not None:
        try:
            reference = recorded._rebuild(_open_journal(recorded))
        except (ReplayDivergence, ForkUnsupportedError) as error:
            reasons.append(f"replay: {error}")
    try:
        for way in ways:
            reason = _test(env, way, None if reference is None else reference.env)
            if reason is None:
                _verified[_description(env)] = way.name
                return way
            reasons.append(f"{way.name}: {reason}")
        if reference is not None:
            _verified[_description(env)] = "replay"
    finally:
        if reference is not None:
            reference.close()
    return None


def _open_journal(recorded: ForkableWrapper) -> Journal:
    return recorded._require_episode("fork")


def _test(env: AnyEnv, way: Way, reference: AnyEnv | None) -> str | None:
    """Why a way is not faithful here, or None if it passed.

    Three stories under the same random actions must agree: of a copy, of a second copy taken after the first was
    used (the original did not notice), and of a third copy of a copy, or of the re-executed reference.
    """
    try:
        first = clone_chain(env, way)
        story = _story(first)
        second = clone_chain(env, way)
        third = clone_chain(second, way)
        again = _story(second)
        if again != story:
            return "a copy changed the original, or two copies of one state answer the same actions differently"
        if _story(third) != story:
            return "a copy of a copy answers the same actions differently"
        for used in (first, second, third):
            used.close()
        if reference is not None and _story_of_reference(reference, way) != story:
            return "the copy answers the same actions otherwise than the environment re-executed from its seed"
    except ForkUnsupportedError as error:
        return str(error)
    except Exception as error:  # anybody's code may raise anything in a copy that is not sound
        return f"a copy raised {type(error).__name__}: {error}"
    return None


def _story_of_reference(reference: AnyEnv, way: Way) -> list[bytes]:
    """The reference's answers; it serves several ways, so a copy of it is asked where one can be had."""
    del way
    if _is_spent(reference):
        return _told[id(reference)]
    story = _story(reference)
    _told[id(reference)] = story
    return story


_told: dict[int, list[bytes]] = {}


def _is_spent(reference: AnyEnv) -> bool:
    return id(reference) in _told


def _story(env: AnyEnv) -> list[bytes]:
    """What the environment answers to a few keyed random actions, and where its generator stands then."""
    rng = noise.generator(0x70726F6265)
    space = env.action_space
    story: list[bytes] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the environment's own warnings were shown when it was really stepped
        for _ in range(_PROBE_STEPS):
            space.seed(int(rng.integers(2**31)))
            observation, reward, terminated, truncated, _info = env.step(space.sample())
            story.append(_form((observation, reward, terminated, truncated)))
            if terminated or truncated:
                break
    generator = env.unwrapped._np_random
    story.append(b"" if generator is None else canonical(generator))
    return story


def _form(answer: Any) -> bytes:
    try:
        return canonical(answer)
    except StateError:
        return repr(answer).encode()


def _refresh_plain(child: AnyEnv, stream: int) -> None:
    """Fresh luck for a chain without a journal: keyed by the stream and the generator's present state."""
    base = child.unwrapped
    if isinstance(base, ForkVerbs):
        base._refresh_luck(stream)
        return
    generator = base.np_random
    mixed = int(generator.integers(2**63))
    generator.bit_generator.state = type(generator.bit_generator)(noise.luck_key(mixed, stream, 0, "np_random", 0)).state
