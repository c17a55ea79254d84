"""Stories of episodes, compared bit for bit, and experiments that tell the causes of a broken promise apart."""

from __future__ import annotations

import contextlib
import copy
import random
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from gymnasium.utils import EzPickle

from forkgym.core.cloning import links_of
from forkgym.core.errors import StateError
from forkgym.core.hashing import canonical

__all__ = [
    "Answer",
    "Factory",
    "Script",
    "Story",
    "another_time",
    "answer_form",
    "answer_or_error",
    "fork_points",
    "independent",
    "play",
    "tell",
    "tell_scribbling",
    "where",
    "why_not_deterministic",
    "why_not_forked",
]

Factory = Callable[[], Any]


_ATTEMPTS = 16
"""Episodes that must agree before a cause is named: two agree by chance when a die decides one thing of two."""


class Answer(NamedTuple):
    """One answer of an environment in canonical forms, so that equality is bit for bit."""

    observation: bytes
    reward: bytes
    terminated: bool
    truncated: bool
    state_hash: str
    error: str = ""

    def differing(self, other: Answer) -> list[str]:
        """Names of the fields that differ."""
        return [name for name in self._fields if getattr(self, name) != getattr(other, name)]


class Script(NamedTuple):
    """A seed and the actions to take."""

    seed: int
    actions: tuple[Any, ...]

    def ends_in(self, factory: Factory) -> bool:
        """Whether the episode is over after these actions."""
        env = factory()
        result: Any = (None, 0.0, False, False, {})
        env.reset(seed=self.seed)
        for action in self.actions:
            result = env.step(action)
        env.close()
        return bool(result[2] or result[3])


class Story(NamedTuple):
    """The answers to a script: the reset's, then one for each action."""

    forms: list[Answer]

    def differs_from(self, other: Story) -> int | None:
        """The first turn at which two stories differ, or None."""
        for turn, (mine, theirs) in enumerate(zip(self.forms, other.forms, strict=False)):
            if mine != theirs:
                return turn
        return None if len(self.forms) == len(other.forms) else min(len(self.forms), len(other.forms))

    def difference(self, other: Story) -> str:
        """What differs at that turn."""
        turn = self.differs_from(other)
        if turn is None or turn >= min(len(self.forms), len(other.forms)):
            return "the length"
        return "the " + " and the ".join(self.forms[turn].differing(other.forms[turn])).replace("_", " ")


def answer_form(value: Any) -> bytes:
    """The canonical form of an answer, or its text where a value of it has no canonical form."""
    try:
        return canonical(value)
    except StateError:
        return repr(value).encode()


def answer_or_error(env: Any, action: Any) -> Answer:
    """Step, and the answer; an error is an answer too."""
    try:
        observation, reward, terminated, truncated, _ = env.step(action)
        return Answer(
            answer_form(observation), answer_form(float(reward)), bool(terminated), bool(truncated), env.state_hash()
        )
    except Exception as error:  # the environment's own code may raise anything; two runs are compared by it
        return _error_answer(error)


def _error_answer(error: Exception) -> Answer:
    return Answer(b"", b"", False, False, "", f"{type(error).__name__}: {error}")


def tell(env: Any, script: Script) -> Story:
    """Play a script on a fresh environment, close it, and give its answers."""
    observation, _ = env.reset(seed=script.seed)
    forms = [Answer(answer_form(observation), b"", False, False, env.state_hash())]
    forms += [answer_or_error(env, action) for action in script.actions]
    env.close()
    return Story(forms)


def tell_scribbling(env: Any, script: Script) -> Story:
    """As `tell`, but write into every observation, info and action as soon as the environment has let go of it."""
    observation, info = env.reset(seed=script.seed)
    form = answer_form(observation)
    _scribble(observation)
    _scribble(info)
    forms = [Answer(form, b"", False, False, env.state_hash())]
    for action in script.actions:
        mine = copy.deepcopy(action)
        try:
            observation, reward, terminated, truncated, info = env.step(mine)
        except Exception as error:  # as in answer_or_error
            forms.append(_error_answer(error))
            continue
        form = answer_form(observation)
        for value in (observation, info, mine):
            _scribble(value)
        state_hash = env.state_hash()
        forms.append(Answer(form, answer_form(float(reward)), bool(terminated), bool(truncated), state_hash))
    env.close()
    return Story(forms)


def _scribble(value: Any) -> None:
    """Write into whatever can be written."""
    if isinstance(value, np.ndarray):
        if value.flags.writeable and value.dtype.kind in "biuf":
            value[...] = 1
    elif isinstance(value, dict):
        for inner in value.values():
            _scribble(inner)
        value.clear()
    elif isinstance(value, list):
        for inner in value:
            _scribble(inner)
        value.clear()
    elif isinstance(value, tuple):
        for inner in value:
            _scribble(inner)


def play(env: Any, script: Script, turns: int) -> None:
    """Reset, and take the first `turns` actions of a script."""
    env.reset(seed=script.seed)
    for action in script.actions[:turns]:
        env.step(action)


def fork_points(length: int) -> list[int]:
    """Turns at which to fork an episode of this length: the start, the middle, and just before the end."""
    return sorted({0, length // 2, max(length - 1, 0)})


def where(error: BaseException) -> str:
    """File and line in which an error arose."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"It arose in {frames[-1].name} ({frames[-1].filename}:{frames[-1].lineno})." if frames else ""


# ---------------------------------------------------------------------- experiments


@contextlib.contextmanager
def another_time(shift: float | None = 123_456.789) -> Iterator[None]:
    """Let the `time` module tell another time; `shift=None` stops its clocks altogether."""
    names = ("time", "monotonic", "perf_counter", "time_ns", "monotonic_ns", "perf_counter_ns")
    real = {name: getattr(time, name) for name in names}

    def fake(name: str) -> Callable[[], Any]:
        scale = 10**9 if name.endswith("_ns") else 1
        if shift is None:
            return lambda: 1_700_000_000 * scale
        return lambda: real[name]() + (int(shift * scale) if scale > 1 else shift)

    try:
        for name in names:
            setattr(time, name, fake(name))
        yield
    finally:
        for name in names:
            setattr(time, name, real[name])


@contextlib.contextmanager
def _global_generators(seed: int) -> Iterator[None]:
    """Seed Python's and numpy's module-global generators, and put them back afterwards."""
    python_state = random.getstate()
    numpy_state = np.random.get_state()  # noqa: NPY002 - the very generator that environments must not use
    try:
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002


def why_not_deterministic(factory: Factory, script: Script) -> str:
    """The likely cause when two fresh environments answer the same seed and actions differently."""

    def always_alike(experiment: Callable[[], contextlib.AbstractContextManager[None]]) -> bool:
        stories = []
        for _ in range(_ATTEMPTS):
            with experiment():
                stories.append(tell(factory(), script))
        return all(stories[0].differs_from(story) is None for story in stories[1:])

    if always_alike(lambda: another_time(None)):
        return "It depends on the clock: with a stopped clock it is deterministic. Count turns, or draw from self.luck."
    if always_alike(lambda: _global_generators(0)):
        return (
            "It draws from a module-global generator (random or numpy.random): with those seeded it is deterministic. "
            "Draw from self.luck or self.np_random."
        )
    return (
        "It draws from the operating system's entropy (a generator without a seed), or keeps state in class or module "
        "variables. Draw from self.luck or self.np_random, and keep state in the instance."
    )


def independent(factory: Factory, script: Script, turn: int) -> bool:
    """Whether a parent and its fork, stepped by turns, both answer as an environment that was never forked."""
    truth = tell(factory(), script).forms[turn + 1 :]
    parent = factory()
    play(parent, script, turn)
    child = parent.fork()
    pairs = [(answer_or_error(child, action), answer_or_error(parent, action)) for action in script.actions[turn:]]
    return all(pair == (right, right) for pair, right in zip(pairs, truth, strict=True))


def why_not_forked(factory: Factory, script: Script, turn: int) -> tuple[str, str]:
    """The promise that broke ("fork" or "isolation") and the likely cause, for a deterministic environment."""
    told = tell(factory(), script).forms
    truth = told[turn + 1 :]
    rest = script.actions[turn:]
    alone = factory()
    play(alone, script, turn)
    child = alone.fork()
    at_once = child.state_hash()
    story = [answer_or_error(child, action) for action in rest]
    if story == truth and at_once == told[turn].state_hash:
        return (
            "isolation",
            "A fork that is left alone is right, so parent and fork write to the same object (a list, a dict, an array "
            "or a generator). _set_state must keep the copy it is given, _fork must copy what changes, and nothing "
            "that changes may live in class or module variables.",
        )
    differing = {name for mine, right in zip(story, truth, strict=True) for name in mine.differing(right)}
    if differing <= {"truncated", "state_hash", "error"} and any(
        mine.truncated != right.truncated for mine, right in zip(story, truth, strict=True)
    ):
        return (
            "fork",
            "Only the truncation differs: a step counter (a TimeLimit wrapper, or a counter of your own) is not "
            "carried by the fork. Let forkgym.make or forkgym.wrap copy the whole wrapper chain, and put counters "
            "into _get_state.",
        )
    return "fork", _why_state_is_lost(factory)


def _why_state_is_lost(factory: Factory) -> str:
    env = factory()
    made_anew = [type(link).__name__ for link in links_of(env) if isinstance(link, EzPickle)]
    env.close()
    if made_anew:
        return (
            f"{', '.join(made_anew)} inherits from EzPickle: copy.deepcopy and pickle construct it anew and "
            "drop its state. Write _get_state and _set_state, or copy its attributes."
        )
    return (
        "The state is incomplete: something that decides the future is not in _get_state (or not set by _set_state, "
        "or not copied by _fork)."
    )
