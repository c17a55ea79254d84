"""Ways to copy an environment that knows nothing of forkgym, base and wrappers, at the state where it stands.

Each way is a guess about somebody else's class; `wrap.py` tests a guess before it relies on it.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs import registration
from gymnasium.utils import EzPickle

from forkgym.core.errors import ForkUnsupportedError
from forkgym.core.verbs import ForkVerbs

__all__ = ["Way", "candidate_ways", "clone_chain", "links_of"]

AnyEnv = gymnasium.Env[Any, Any]


class Way(NamedTuple):
    """One way to copy a base environment.

    Attributes:
        name: What it is called in reports and errors.
        clone: Base environment → an independent one at the same state; raises if this way does not apply.
    """

    name: str
    clone: Callable[[AnyEnv], AnyEnv]


def links_of(env: AnyEnv) -> list[AnyEnv]:
    """The wrapper chain as a list, outermost first, base last."""
    chain = [env]
    while isinstance(chain[-1], gymnasium.Wrapper):
        chain.append(chain[-1].env)
    return chain


def candidate_ways(env: AnyEnv) -> Iterator[Way]:
    """The ways that may work for this chain's base, the most faithful first."""
    base = env.unwrapped
    if isinstance(base, ForkVerbs):
        yield Way("verbs", _clone_verbs)
        return
    if _has_methods(base, "clone_state", "restore_state"):
        yield Way("clone_state", _clone_ale)
    if _has_methods(base, "get_state", "set_state"):
        yield Way("get_state", _clone_get_state)
    if hasattr(base, "model") and hasattr(getattr(base, "data", None), "qpos"):
        yield Way("mujoco", _clone_mujoco)
    if hasattr(base, "s") and isinstance(getattr(base, "P", None), dict):
        yield Way("table", _clone_table)
    yield Way("deepcopy", _clone_deep)


def clone_chain(env: AnyEnv, way: Way) -> AnyEnv:
    """A copy of the whole chain: the base by `way`, each wrapper by its attributes.

    Raises:
        ForkUnsupportedError: Names the link of the chain that cannot be copied, and why.
    """
    *wrappers, base = links_of(env)
    try:
        inner = way.clone(base)
    except ForkUnsupportedError:
        raise
    except Exception as error:  # anybody's code may raise anything here; it is reported, with its cause
        raise ForkUnsupportedError(f"{type(base).__name__} cannot be copied by {way.name}: {_brief(error)}") from error
    memo: dict[int, Any] = {id(base): inner}
    for wrapper in reversed(wrappers):
        inner = _clone_wrapper(wrapper, inner, memo)
        memo[id(wrapper)] = inner
    return inner


def _clone_wrapper(wrapper: AnyEnv, inner: AnyEnv, memo: dict[int, Any]) -> AnyEnv:
    """A wrapper of the same class around `inner`; its attributes are copied, never re-made by a constructor."""
    try:
        return _copy_attributes(wrapper, {"env": inner}, memo)
    except ForkUnsupportedError:
        raise
    except Exception as error:
        raise ForkUnsupportedError(
            f"the wrapper {type(wrapper).__name__} cannot be copied: {_brief(error)}. Put it around the fork instead, "
            "or give it attributes that copy.deepcopy can copy."
        ) from error


def _copy_attributes(source: AnyEnv, given: dict[str, Any], memo: dict[int, Any]) -> AnyEnv:
    """A new object of the same class whose attributes are `given` or deep copies.

    `copy.deepcopy(source)` is not used: a class that inherits from `EzPickle` would be constructed anew, and its
    state lost. Attributes that do so are refused for the same reason.
    """
    fresh: AnyEnv = object.__new__(type(source))
    memo[id(source)] = fresh
    for name, value in source.__dict__.items():
        if name in given:
            copied = given[name]
        elif isinstance(value, EzPickle) and id(value) not in memo:
            raise ForkUnsupportedError(
                f"{type(source).__name__}.{name} is an EzPickle object, whose copy is re-created from its constructor "
                "and loses its state"
            )
        elif name in _SHARED or isinstance(value, types.ModuleType):
            copied = value
        else:
            copied = copy.deepcopy(value, memo)
        fresh.__dict__[name] = copied
    return fresh


_SHARED = frozenset({"spec", "_cached_spec", "metadata", "_metadata"})
"""Attributes that are never changed in place and may hold functions."""


def _construct(base: AnyEnv) -> AnyEnv:
    """A new base environment from its spec."""
    spec = base.spec
    if spec is None or spec.entry_point is None:
        raise ForkUnsupportedError(
            f"{type(base).__name__} has no spec to construct it from (make it by gymnasium.make)"
        )
    creator: Any = spec.entry_point if callable(spec.entry_point) else registration.load_env_creator(spec.entry_point)
    fresh: AnyEnv = creator(**copy.deepcopy(spec.kwargs)).unwrapped
    fresh.spec = spec
    if base._np_random is not None:
        fresh._np_random = copy.deepcopy(base._np_random)
        fresh._np_random_seed = base._np_random_seed
    return fresh


def _copy_plain(source: AnyEnv, target: AnyEnv, skip: frozenset[str]) -> None:
    """Counters and arrays that an environment keeps in Python beside its simulator's state."""
    for name, value in source.__dict__.items():
        if name not in skip and isinstance(value, bool | int | float | str | tuple | list | dict | np.ndarray | None):
            target.__dict__[name] = copy.deepcopy(value)


def _clone_verbs(base: AnyEnv) -> AnyEnv:
    if not isinstance(base, ForkVerbs):
        raise TypeError(f"{type(base).__name__} has no verbs")
    child: Any = base.fork()
    return child  # type: ignore[no-any-return]


def _clone_ale(base: Any) -> AnyEnv:
    fresh: Any = _construct(base)
    fresh.reset()
    fresh.restore_state(base.clone_state(include_rng=True))
    _copy_plain(base, fresh, frozenset({"ale", "spec"}))
    fresh._np_random = copy.deepcopy(base._np_random)
    return fresh  # type: ignore[no-any-return]


def _clone_get_state(base: Any) -> AnyEnv:
    fresh: Any = _construct(base)
    fresh.reset()
    fresh.set_state(copy.deepcopy(base.get_state()))
    fresh._np_random = copy.deepcopy(base._np_random)
    return fresh  # type: ignore[no-any-return]


def _clone_mujoco(base: Any) -> AnyEnv:
    import mujoco

    fresh: Any = _construct(base)
    fresh.reset()
    what = mujoco.mjtState.mjSTATE_INTEGRATION  # everything that decides the next step, warm start included
    state = np.empty(mujoco.mj_stateSize(base.model, what))
    mujoco.mj_getState(base.model, base.data, state, what)
    mujoco.mj_setState(fresh.model, fresh.data, state, what)
    mujoco.mj_forward(fresh.model, fresh.data)
    mujoco.mj_setState(fresh.model, fresh.data, state, what)
    _copy_plain(base, fresh, frozenset({"model", "data", "spec"}))
    fresh._np_random = copy.deepcopy(base._np_random)
    return fresh  # type: ignore[no-any-return]


def _clone_table(base: Any) -> AnyEnv:
    """As deepcopy, but the transition table is shared: it is constant and large (20 ms for Taxi)."""
    return _copy_attributes(base, {"P": base.P}, {})


def _clone_deep(base: AnyEnv) -> AnyEnv:
    return _copy_attributes(base, {}, {})


def _has_methods(env: Any, *names: str) -> bool:
    return all(callable(getattr(env, name, None)) for name in names)


def _brief(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= 300 else text[:300] + "…"
