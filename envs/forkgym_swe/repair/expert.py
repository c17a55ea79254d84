"""The teacher of ``swe/Repair-v0``: it knows which edits repair a task, goes the way to them, and errs on demand.

It reads before it edits, tests what it edited, and submits what passed: the behaviour to be imitated. Which line and
which edit to take, a pupil can only learn from what stands in the observations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from forkgym.core import Demonstration, Message
from forkgym.noise import generator, stream_id
from forkgym_swe.repair.words import LETTERS

if TYPE_CHECKING:
    from forkgym_swe.repair.env import RepairEnv

__all__ = ["ERRORS", "REHEARSALS", "demonstrations", "expert_action"]

REHEARSALS: Final = "rehearsals"
"""Name of the split that rehearsals are."""
ERRORS: Final = {"line": 0.75, "premature": 0.1, "untested": 0.1, "malformed": 0.05}
"""Share of each kind of error among the expert's errors: another line is inspected, an edit is submitted that did not
pass (or was not tested), an edit is replaced before it was tested, a line that is no action."""
WRONG_EDIT: Final = 2.0
"""A wrong edit is made with this multiple of the error rate. A pupil guesses wrong more often than not, and has to have
seen what is done then: another edit, never the same again."""


def expert_action(env: RepairEnv, rng: np.random.Generator, error_rate: float) -> str:
    """The expert's next line.

    Args:
        env: After its reset.
        rng: Source of errors and of the choice among several repairs.
        error_rate: Probability that this turn holds an error, in [0, 1].
    """
    state = env.position
    error = _error(rng) if rng.random() < error_rate else ""
    if error == "malformed":
        return ("inspect", "edit", "line", "test 1")[int(rng.integers(4))]
    if 0 not in state.seen and -1 not in state.seen:
        return "look" if rng.random() < 0.9 else "rank"
    if -1 not in state.seen:
        return "rank"
    if state.edit is not None:
        if error == "premature":
            return "submit"
        if not state.tested and error != "untested":
            return "test"
        if state.tested == "passes":
            return "submit"
    if env.turns_left <= 2 and state.edit is None and error == "premature":
        return "submit"
    return _onwards(env, rng, error, error_rate)


def _onwards(env: RepairEnv, rng: np.random.Generator, error: str, error_rate: float) -> str:
    """Inspect a line or make one of its edits."""
    state, study = env.position, env.task.study
    repairs = study.repairs
    lines = sorted({line for line, _ in repairs})
    inspected = list(dict.fromkeys(number - 1 for number in state.seen if 1 <= number <= len(study.lines)))
    known = [line for line in lines if line in inspected]
    if error == "line":
        others = [line for line in range(len(study.lines)) if line not in lines and line not in inspected]
        if others:
            return f"inspect {_biased(rng, others) + 1}"
    if inspected and rng.random() < WRONG_EDIT * error_rate:
        line = inspected[-1]
        used = {*repairs, *state.tried}
        wrong = [number for number in range(len(study.lines[line].edits)) if (line, number) not in used]
        if wrong:
            return f"edit {line + 1} {LETTERS[wrong[int(rng.integers(len(wrong)))]]}"
    if not known:
        return f"inspect {lines[0] + 1}"
    edits = [number for line, number in repairs if line == known[0]]
    return f"edit {known[0] + 1} {LETTERS[edits[int(rng.integers(len(edits)))]]}"


def _biased(rng: np.random.Generator, lines: Sequence[int]) -> int:
    """One of some lines, the more suspicious ones likelier."""
    weights = 1.0 / np.arange(1, len(lines) + 1)
    return lines[int(rng.choice(len(lines), p=weights / weights.sum()))]


def _error(rng: np.random.Generator) -> str:
    return str(tuple(ERRORS)[int(np.searchsorted(np.cumsum(tuple(ERRORS.values())), rng.random(), side="right"))])


def demonstrations(env: RepairEnv, count: int, *, seed: int, split: str, error_rate: float) -> list[Demonstration]:
    """Episodes of the expert; tasks (or rehearsals, where there are any) come in turns, each equally often.

    Args:
        env: Its copy plays; it is not changed itself.
        count: How many episodes.
        seed: The same seed gives the same episodes.
        split: Where the tasks come from if there are no rehearsals.
        error_rate: Probability of an error in each turn, in [0, 1].
    """
    rng = generator(stream_id(0, 0, "repair expert", seed))
    found: list[Demonstration] = []
    player = env.rehearsing()
    name = REHEARSALS if REHEARSALS in player.splits else split
    order: list[int] = []
    try:
        for number in range(count):
            order = order or rng.permutation(player.splits[name]).tolist()
            found.append(_play(player, rng, number, name, order.pop(), error_rate))
    finally:
        player.close()
    return found


def _play(
    env: RepairEnv, rng: np.random.Generator, seed: int, split: str, task: int, error_rate: float
) -> Demonstration:
    env.reset(seed=seed, options={"split": split, "task": task})
    prompt: list[Message] = env.messages()
    turns: list[tuple[str, str]] = []
    while True:
        text = expert_action(env, rng, error_rate)
        observation, reward, terminated, truncated, _ = env.step(text)
        turns.append((text, "" if terminated or truncated else observation))
        if terminated or truncated:
            return Demonstration(prompt=prompt, turns=turns, utility=float(reward))
