"""The test that a way to copy somebody else's environment must pass before forkgym relies on it.

Copies are asked a few random actions and must tell the same story: one copy, a second taken after the first was used
(so the original did not notice), a copy of a copy, and the environment re-executed from its seed, which knows nothing
of copies. This happens where the episode stands, and again a few turns into an episode of a chain made for the
purpose, since much goes unnoticed at the start. The verdict is kept for the process, per chain, id and arguments.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from forkgym import noise
from forkgym.core.cloning import AnyEnv, Way, candidate_ways, clone_chain, links_of
from forkgym.core.errors import ForkgymError, ForkUnsupportedError, StateError
from forkgym.core.hashing import canonical

__all__ = ["Choice", "choose"]

_STEPS = 8
_KEY = 0x70726F6265  # "probe": the same actions in every process
_verified: dict[tuple[Any, ...], str] = {}


class Choice(NamedTuple):
    """Which way was found faithful.

    Attributes:
        name: Its name, "replay" for re-execution, None if nothing is faithful.
        way: The way to copy; None for "replay" and for nothing.
        reasons: Why the others failed.
    """

    name: str | None
    way: Way | None
    reasons: list[str]


def choose(env: AnyEnv, reexecuted: Callable[[], AnyEnv] | None, fresh: Callable[[], AnyEnv]) -> Choice:
    """The first way that passes the test for this chain.

    Args:
        env: The chain, in an episode. It is copied, never stepped.
        reexecuted: Makes the chain once more and brings it to the same state from the seed; None if the episode was
            not recorded.
        fresh: Makes the chain once more, not yet reset; may raise `ForkUnsupportedError`.
    """
    description = _description(env)
    known = _verified.get(description)
    ways = list(candidate_ways(env))
    for way in ways:
        if way.name == known:
            return Choice(known, way, [])
    if known == "replay" and reexecuted is not None:
        return Choice(known, None, [])
    reasons: list[str] = []
    reference = None if reexecuted is None else _reference(reexecuted, reasons)
    later = _later_in_an_episode(fresh)
    try:
        for way in ways:
            reason = _test(env, way, reference)
            if reason is None and later is not None:
                reason = _test(later[0], way, later[1])
            if reason is None:
                _verified[description] = way.name
                return Choice(way.name, way, reasons)
            reasons.append(f"{way.name}: {reason}")
    finally:
        if later is not None:
            later[0].close()
    if reference is None:
        return Choice(None, None, reasons)
    _verified[description] = "replay"
    return Choice("replay", None, reasons)


def _later_in_an_episode(fresh: Callable[[], AnyEnv]) -> tuple[AnyEnv, list[bytes] | None] | None:
    """A chain a few turns into an episode, and what another at the same place tells (None if it is not the same).

    None where the chain cannot be made again, or every episode ends at once.
    """
    for turns in range(_STEPS // 2, 0, -1):
        try:
            env, twin = fresh(), fresh()
        except ForkUnsupportedError:
            return None
        answers = [_play(each, turns) for each in (env, twin)]
        if answers[0] is not None and answers[1] is not None:
            story = _story(twin) if answers[0] == answers[1] else None
            twin.close()
            return env, story
        env.close()
        twin.close()
    return None


def _play(env: AnyEnv, turns: int) -> list[bytes] | None:
    """The answers to a few keyed random actions after a reset; None if the episode ends within them."""
    rng = noise.generator(_KEY + 1)
    env.reset(seed=0)
    answers = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(turns):
            env.action_space.seed(int(rng.integers(2**31)))
            observation, reward, terminated, truncated, _info = env.step(env.action_space.sample())
            if terminated or truncated:
                return None
            answers.append(_form((observation, reward)))
    return answers


def _description(env: AnyEnv) -> tuple[Any, ...]:
    spec = env.spec
    kwargs = "" if spec is None else repr(sorted(spec.kwargs.items(), key=lambda pair: pair[0]))
    return (*(type(link) for link in links_of(env)), None if spec is None else spec.id, kwargs)


def _reference(reexecuted: Callable[[], AnyEnv], reasons: list[str]) -> list[bytes] | None:
    """The story of the re-executed environment, if two re-executions tell the same one."""
    stories = []
    for _ in range(2):
        try:
            env = reexecuted()
        except ForkgymError as error:
            reasons.append(f"replay: {error}")
            return None
        stories.append(_story(env))
        env.close()
    if stories[0] != stories[1]:
        reasons.append("replay: two re-executions from one seed answer the same actions differently")
        return None
    return stories[0]


def _test(env: AnyEnv, way: Way, reference: list[bytes] | None) -> str | None:
    """Why a way is not faithful here, or None if it passed."""
    try:
        first = clone_chain(env, way)
        story = _story(first)
        second = clone_chain(env, way)
        third = clone_chain(second, way)
        if _story(second) != story:
            return "a copy changed the original, or two copies of one state answer the same actions differently"
        if _story(third) != story:
            return "a copy and its copy are not independent"
        for used in (first, second, third):
            used.close()
    except ForkUnsupportedError as error:
        return str(error)
    except Exception as error:  # anybody's code may raise anything in a copy that is not sound; it is the reason
        return f"a copy raised {type(error).__name__}: {error}"
    if reference is not None and reference != story:
        return "the copy answers the same actions otherwise than the environment re-executed from its seed"
    return None


def _story(env: AnyEnv) -> list[bytes]:
    """What the environment answers to a few keyed random actions, and where its generator stands then."""
    rng = noise.generator(_KEY)
    space = env.action_space
    story: list[bytes] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the environment's own warnings are shown when it is really stepped
        for _ in range(_STEPS):
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
