"""Names to environments: discovery, `register`, `make`, `replay`. Registered ids work with `gymnasium.make` as well.

Installed packages announce environments by entry points of the group `forkgym.envs` (`id = "module:Class"`), which
are read without importing anything.
"""

from __future__ import annotations

import copy
import importlib
import importlib.metadata
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import gymnasium
from gymnasium.envs import registration
from gymnasium.envs.registration import EnvSpec, WrapperSpec

from forkgym.core.env import Env
from forkgym.core.errors import (
    ForkgymError,
    HandleError,
    MisuseError,
    ReplayDivergence,
    UnknownArgumentError,
    UnknownEnvironmentError,
    nearest,
)
from forkgym.core.handle import Handle, forkgym_version
from forkgym.core.journal import Journal
from forkgym.core.portable import from_portable
from forkgym.core.verbs import ForkVerbs

__all__ = ["creator_of", "discover", "id_of", "list_envs", "make", "register", "replay"]

ENTRY_POINT_GROUP = "forkgym.envs"
_ours: set[str] = set()


def register(
    id: str,
    entry_point: str | Callable[..., gymnasium.Env[Any, Any]],
    *,
    max_episode_steps: int | None = None,
    kwargs: Mapping[str, Any] | None = None,
    additional_wrappers: Iterable[WrapperSpec] = (),
    nondeterministic: bool = False,
    reward_threshold: float | None = None,
) -> None:
    """Register an environment with forkgym and with Gymnasium.

    Args:
        id: Gymnasium id, such as "toy/Coin-v0".
        entry_point: "module:Class", or the class itself.
        max_episode_steps: Steps after which an episode is truncated.
        kwargs: Constructor arguments.
        additional_wrappers: Gymnasium wrapper specs to apply.
        nondeterministic: The same seed and actions may not lead to the same state.
        reward_threshold: Gymnasium's mark of a solved task.

    Raises:
        ForkgymError: The id is already that of another environment.
    """
    known = registration.registry.get(id)
    if known is not None and known.entry_point != entry_point:
        raise ForkgymError(
            f"The id {id!r} is already registered for {known.entry_point}; choose another version or namespace."
        )
    if known is not None:
        del registration.registry[id]
    gymnasium.register(
        id,
        entry_point=entry_point,
        max_episode_steps=max_episode_steps,
        kwargs=dict(kwargs or {}),
        additional_wrappers=tuple(additional_wrappers),
        nondeterministic=nondeterministic,
        reward_threshold=reward_threshold,
    )
    _ours.add(id)


def discover() -> None:
    """Register every environment that installed packages announce; imports none of them."""
    for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        if point.name not in registration.registry:
            register(point.name, point.value)


def list_envs() -> list[str]:
    """The ids of all environments registered with forkgym, sorted."""
    return sorted(_ours)


def id_of(env: Env) -> str:
    """The registered id of an environment: its spec's, else that of its class, else the class's name."""
    if env.spec is not None:
        return env.spec.id
    place = f"{type(env).__module__}:{type(env).__qualname__}"
    for env_id in list_envs():
        if registration.registry[env_id].entry_point in (place, type(env)):
            return env_id
    return f"unregistered/{type(env).__name__}"


def make(
    id: str | EnvSpec | Handle,
    *,
    max_episode_steps: int | None = None,
    **kwargs: Any,
) -> Any:
    """An environment that has every verb, its whole wrapper chain included.

    Args:
        id: A registered id (forkgym's or Gymnasium's), a Gymnasium spec, or a handle (then the environment stands
            at the handle's state, verified).
        max_episode_steps: Time limit instead of the registered one; -1 for none.
        **kwargs: Constructor arguments.

    Returns:
        An `Env`, or a `forkgym.core.wrap.ForkableWrapper` around a chain of Gymnasium wrappers.

    Raises:
        UnknownEnvironmentError: No such id; names the nearest.
        UnknownArgumentError: No such constructor argument; names the nearest.
    """
    if isinstance(id, Handle):
        if kwargs or max_episode_steps is not None:
            raise UnknownArgumentError("make(handle) takes no further arguments: the handle holds them all.")
        return replay(id)
    if max_episode_steps is not None and max_episode_steps < 1 and max_episode_steps != -1:
        raise MisuseError(f"max_episode_steps is a positive number, or -1 for no limit; not {max_episode_steps}.")
    spec = _spec(id)
    creator = _creator(spec)
    _check_arguments(spec, creator, {**spec.kwargs, **kwargs})
    if isinstance(creator, type) and issubclass(creator, Env):
        return _make_native(spec, creator, max_episode_steps, kwargs)
    from forkgym.core.wrap import wrap

    return wrap(gymnasium.make(spec, max_episode_steps=max_episode_steps, **kwargs), limit_given=max_episode_steps)


def _make_native(spec: EnvSpec, kind: type[Env], limit: int | None, kwargs: dict[str, Any]) -> Any:
    """One of our own: it enforces order and time limit itself, so only additional wrappers go around it."""
    arguments = {**copy.deepcopy(spec.kwargs), **kwargs}
    env = kind(**arguments)
    env.spec = EnvSpec(
        id=spec.id,
        entry_point=spec.entry_point,
        reward_threshold=spec.reward_threshold,
        nondeterministic=spec.nondeterministic,
        max_episode_steps=spec.max_episode_steps if limit is None else limit,
        order_enforce=False,
        disable_env_checker=True,
        kwargs=arguments,
    )
    env._limit_given = limit if limit is not None else spec.max_episode_steps
    if not spec.additional_wrappers:
        return env
    from forkgym.core.wrap import wrap

    return wrap(_put_around(env, spec), rebuild=lambda: _put_around(env._spawn(), spec), limit_given=limit)


def _put_around(env: Env, spec: EnvSpec) -> gymnasium.Env[Any, Any]:
    """The spec's additional wrappers around one of our own environments."""
    chain: gymnasium.Env[Any, Any] = env
    for wrapper in spec.additional_wrappers:
        if wrapper.kwargs is None:
            raise ForkgymError(
                f"{wrapper.name} does not record its arguments (gymnasium.utils.RecordConstructorArgs), so "
                "it cannot be made from a spec."
            )
        make_wrapper: Callable[..., Any] = registration.load_env_creator(wrapper.entry_point)
        chain = make_wrapper(env=chain, **wrapper.kwargs)
    return chain


def _spec(id: str | EnvSpec) -> EnvSpec:
    if isinstance(id, EnvSpec):
        return id
    if not isinstance(id, str):
        raise UnknownEnvironmentError(f"make takes an id, an EnvSpec or a Handle, not a {type(id).__name__}.")
    if id in registration.registry:
        return registration.registry[id]
    discover()
    if id in registration.registry:
        return registration.registry[id]
    module, _, name = id.rpartition(":")
    if module and name:
        importlib.import_module(module)
        if name in registration.registry:
            return registration.registry[name]
    raise UnknownEnvironmentError(
        f"No environment is registered as {id!r}.{nearest(id, list_envs() + list(registration.registry))} "
        "forkgym.list_envs() names forkgym's own; a third party's package must be installed or imported first."
    )


def creator_of(env_id: str) -> Callable[..., Any]:
    """The class or function behind a registered id (imports it).

    Raises:
        UnknownEnvironmentError: No such id.
    """
    return _creator(_spec(env_id))


def _creator(spec: EnvSpec) -> Callable[..., Any]:
    if callable(spec.entry_point):
        return spec.entry_point
    if not isinstance(spec.entry_point, str):
        raise ForkgymError(f"{spec.id} is registered without an entry point, so it cannot be made.")
    try:
        creator: Callable[..., Any] = registration.load_env_creator(spec.entry_point)
    except (ImportError, AttributeError) as error:
        raise ForkgymError(
            f"{spec.id} is registered as {spec.entry_point}, which cannot be imported: {error}. Install the package "
            "(or the extra) that provides it, or register the right place."
        ) from error
    return creator


def _check_arguments(spec: EnvSpec, creator: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Refuse an argument that the constructor does not take, with the nearest that it does."""
    # A class without __init__ takes nothing, although Env.__new__, which records arguments, looks as if it did.
    takes_nothing = isinstance(creator, type) and issubclass(creator, Env) and creator.__init__ is object.__init__
    try:
        parameters: Mapping[str, inspect.Parameter] = {} if takes_nothing else inspect.signature(creator).parameters
    except (TypeError, ValueError):  # a built-in without a signature: its own error will do
        return
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for name in arguments:
        if name not in parameters:
            known = ", ".join(parameters) or "none"
            raise UnknownArgumentError(
                f"{spec.id} takes no argument {name!r}.{nearest(name, parameters)} It takes: {known}."
            )


def replay(
    handle: Handle,
    verify: str = "every",
    *,
    maker: Callable[..., Any] | None = None,
) -> Any:
    """Rebuild the state that a handle records, and prove it by the hash chain.

    Args:
        handle: From `env.handle()`, `Handle.from_json` or `Handle.from_bytes`.
        verify: "every" compares each turn, "final" only the last, "off" nothing.
        maker: Makes the environment from its constructor arguments instead of the registry (for a class that is not
            registered, or wrappers put around by hand).

    Returns:
        The environment at the recorded state.

    Raises:
        ReplayDivergence: At the first turn that comes out otherwise.
        HandleError: The handle's fields do not fit its environment.
        UnknownEnvironmentError: The environment is not registered here.
    """
    if verify not in ("every", "final", "off"):
        raise ValueError(f"verify is 'every', 'final' or 'off', not {verify!r}")
    if not isinstance(handle, Handle):
        raise HandleError(f"replay takes a Handle, not a {type(handle).__name__}; read one with Handle.from_json.")
    env = _made_for(handle, maker)
    try:
        _check_recipe(handle, env)
        journal = Journal(
            seed=handle.seed,
            options=handle.options,
            segments=[(turn, stream) for turn, stream in handle.luck],
            actions=handle.actions,
            chain=handle.links,
        )
        env._rerun(journal, verify if handle.chain else "off")
    except ReplayDivergence as divergence:
        env.close()
        raise _explained(divergence, handle, env) from None
    except BaseException as error:
        turns = env.turn
        env.close()
        if isinstance(error, ForkgymError | ImportError) or not isinstance(error, Exception):
            raise
        # What a handle records went through once, so data that makes the environment raise was not recorded here.
        raise HandleError(
            f"{handle.env} raised {type(error).__name__} after {turns} turns of this handle: {error}. Its options or "
            "actions do not fit the environment that is installed here."
        ) from error
    return env


def _made_for(handle: Handle, maker: Callable[..., Any] | None) -> Any:
    """The environment that a handle asks for, not yet reset; its arguments are data from anybody."""
    kwargs, options = from_portable(handle.kwargs), from_portable(handle.options)
    if not isinstance(kwargs, dict) or not all(type(name) is str for name in kwargs):
        raise HandleError("the field kwargs of this handle is not a mapping from names to values.")
    if not isinstance(options, dict):
        raise HandleError("the field options of this handle is not a mapping.")
    if maker is None and handle.env not in registration.registry and handle.env.startswith("unregistered/"):
        raise UnknownEnvironmentError(
            f"This handle was taken from a {handle.env.removeprefix('unregistered/')} that had no id. Register the "
            "class with forkgym.register, or pass replay(handle, maker=TheClass)."
        )
    reserved = sorted({"id", "max_episode_steps"} & kwargs.keys()) if maker is None else []
    if reserved:
        raise HandleError(f"the field kwargs of this handle holds {reserved[0]!r}, which has a field of its own.")
    try:
        env = maker(**kwargs) if maker else make(handle.env, max_episode_steps=handle.max_episode_steps, **kwargs)
    except (ForkgymError, ImportError):
        raise
    except Exception as error:  # a constructor may raise anything; it is told with its cause
        raise HandleError(
            f"{handle.env} cannot be made with this handle's arguments: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(env, ForkVerbs):
        raise HandleError(f"the maker returned {env!r}, which has no verbs; return forkgym.wrap(env).")
    return env


def _check_recipe(handle: Handle, env: Any) -> None:
    wrappers = env._recipe().get("wrappers", [])
    if handle.wrappers != wrappers:
        raise HandleError(
            f"this handle was recorded under the wrappers {handle.wrappers}, but {handle.env} is made with {wrappers}. "
            "Pass replay(handle, maker=...) with a function that puts the same wrappers around."
        )


def _explained(divergence: ReplayDivergence, handle: Handle, env: Any) -> ReplayDivergence:
    """The same divergence with the versions that differ, the likeliest cause, said first."""
    notes = []
    version = env._recipe()["env_version"]
    if handle.env_version != version:
        notes.append(f"The handle was recorded with {handle.env} version {handle.env_version!r}, here is {version!r}.")
    if handle.forkgym != forkgym_version():
        notes.append(f"It was written by forkgym {handle.forkgym}, here is {forkgym_version()}.")
    diff = " ".join([*notes, divergence.diff])
    return ReplayDivergence(divergence.turn, divergence.expected, divergence.got, diff)
