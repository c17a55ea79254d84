"""Scripted policies of ``swe/Repair-v0``: what each does in the environment's present state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from forkgym_swe.repair import texts
from forkgym_swe.repair.expert import expert_action
from forkgym_swe.repair.words import LETTERS

if TYPE_CHECKING:
    from forkgym_swe.repair.env import RepairEnv

__all__ = ["POLICIES", "scripted"]

POLICIES: Final = ("random", "first", "search", "expert", "gold", "empty")
EXPERT_ERRORS: Final = 0.25
"""Probability of an error in each turn of the scripted policy ``expert``."""


def scripted(env: RepairEnv, name: str, rng: np.random.Generator) -> Any:
    """The action of a scripted policy.

    - ``random``: any action; lines and edits that exist, now and then nonsense.
    - ``first``: the first edit of the first suspicious line, then ``submit``.
    - ``search``: edits in the order of the lists, each tested, until the tests pass or no turn is left for another.
    - ``expert``: see `expert`; it errs as in the warm start.
    - ``gold``: an edit that is known to repair, then ``submit``.
    - ``empty``: ``submit``.

    Args:
        env: After its reset.
        name: One of `POLICIES`.
        rng: Source of draws.

    Raises:
        ValueError: There is no such policy.
    """
    if name == "random":
        return _random(env, rng)
    if name == "first":
        return _edit(0, 0) if env.position.edit is None else _call("submit")
    if name == "search":
        return _search(env)
    if name == "expert":
        return texts.parse_action(expert_action(env, rng, EXPERT_ERRORS))
    if name == "gold":
        return _edit(*env.task.study.repairs[0]) if env.position.edit is None else _call("submit")
    if name == "empty":
        return _call("submit")
    raise ValueError(f"there is no scripted policy {name!r}; choose one of {', '.join(POLICIES)}")


def _call(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"tool": tool, "arguments": arguments}


def _edit(line: int, number: int) -> dict[str, Any]:
    return _call("edit", line=line + 1, edit=LETTERS[number])


def _random(env: RepairEnv, rng: np.random.Generator) -> Any:
    """Kinds of actions are equally likely, then lines, then edits."""
    tool = (*texts.ACTIONS, texts.INVALID)[int(rng.integers(len(texts.ACTIONS) + 1))]
    lines = env.task.study.lines
    line = int(rng.integers(len(lines)))
    if tool == "inspect":
        return _call(tool, line=line + 1)
    if tool == "edit":
        return _edit(line, int(rng.integers(len(lines[line].edits))))
    if tool == texts.INVALID:
        return ("", "hmm \n", "edit", "inspect 0", "edit 3", "LOOK around")[int(rng.integers(6))]
    return _call(tool)


def _search(env: RepairEnv) -> dict[str, Any]:
    state = env.position
    if state.tested == "passes" or (state.edit is not None and env.turns_left == 1):
        return _call("submit")
    if state.edit is not None and not state.tested:
        return _call("test")
    order = [(line, number) for line, found in enumerate(env.task.study.lines) for number in range(len(found.edits))]
    following = 0 if state.edit is None else order.index(state.edit) + 1
    return _edit(*order[following]) if following < len(order) else _call("submit")
