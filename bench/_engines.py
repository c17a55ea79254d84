"""How an environment's own engine would come to a state again, for comparison in the environment benchmarks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

__all__ = ["own_way"]


def own_way(env: Any) -> tuple[str, Callable[[], Any]] | None:
    """What the engine itself offers to come to the environment's state: its name, and a function that does it once.

    None where the engine offers nothing, or where forkgym's fork already is that.
    """
    if type(env).__name__ == "TextWorldEnv":
        return "engine's copy", _textworld_copy(env)
    if type(env).__name__ == "ALFWorldEnv":
        return "engine's replay", _alfworld_replay(env)
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


def _alfworld_replay(env: Any) -> Callable[[], Any]:
    import textworld
    from forkgym_text.household import plain_names
    from textworld.envs.pddl.pddl import PddlEnv

    game = env.situation.house.game
    commands = [
        env.parse(env.render_action(action)) if isinstance(action, dict) else env.parse(action)
        for action in env.handle().actions
    ]
    engine = PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True))
    engine.load({"pddl_domain": game.domain, "grammar": game.grammar, "pddl_problem": game.problem})
    for name, plain in plain_names(engine._entity_infos).items():
        engine._entity_infos[name].name = plain

    def replay() -> None:
        engine.reset()
        for command in commands:
            engine.step(command["arguments"].get("command", ""))

    return replay
