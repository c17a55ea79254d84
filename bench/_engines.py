"""How an environment's own engine would copy itself, for comparison in the environment benchmarks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

__all__ = ["own_copy"]


def own_copy(env: Any) -> Callable[[], Any] | None:
    """A function that makes and closes one copy by the means of the engine, at the environment's state.

    None where the engine has no copy of its own, or forkgym's fork already is that copy.
    """
    if type(env).__name__ == "TextWorldEnv":
        return _textworld_copy(env)
    return None


def _textworld_copy(env: Any) -> Callable[[], Any]:
    import textworld
    from forkgym_text.making import STORY, game_of_task

    handle = env.handle()
    place = game_of_task(env.family, env.level, *env.pick_task(handle.seed, handle.options))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        original = textworld.start(str(place / STORY), textworld.EnvInfos(admissible_commands=True))
        original.reset()

    def copy() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            original.copy().close()

    return copy
