"""``retrieval/Atlas-v0``: an agent answers multi-hop questions about countries and cities by searching a corpus.

The world and its questions are shared by all environments of a process; an environment itself is a few numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np

from forkgym.core import Demonstration, ResetNeededError, TextEnv, Vocabulary
from forkgym_retrieval.atlas import phrases
from forkgym_retrieval.atlas.actions import ARGUMENT, INVALID, check_action, make_action, parse_action
from forkgym_retrieval.atlas.expert import RELATION_WORDS, demonstrations
from forkgym_retrieval.atlas.questions import SPLITS, Question, load_questions
from forkgym_retrieval.atlas.world import WORLDS, load_world, passage_id
from forkgym_retrieval.metrics import exact_match

HOPS = (1, 2, 3, 4)

INSTRUCTIONS = (
    "Answer the question about countries and cities. In each turn you may think, and you end the turn with one line:\n"
    "search RELATION NAME   to read up to three passages, for instance: search capital France\n"
    "answer NAME            to give your answer, as short as it stands in the passages, for instance: answer Paris\n"
    "Relations: " + ", ".join(RELATION_WORDS) + ". Use what the passages say, not what you remember."
)
"""System message for agents that were not trained on this environment (``instructions=True``)."""


class AtlasEnv(TextEnv):
    """Multi-hop question answering by search over a corpus of short sentences.

    An action is a text whose last line is ``search …`` or ``answer …`` (or the same as a tool call). A search shows
    the three best passages, an answer ends the episode with ``max(0, exact match − search_cost · searches)``. In the
    last turn a search shows nothing. Running out of turns truncates the episode with reward 0.

    ``info`` holds ``action_kind`` ("search", "answer" or "invalid"), ``evidence`` (sorted ids of the passages shown
    in this turn) and, at the end, ``success`` (whether the answer was right, whatever it cost).

    Args:
        world: "small", "default" or "large": how many cities there are (see ``docs/atlas.md`` for sizes).
        hops: Numbers of facts that questions may need; a subset of 1 to 4. Tasks are numbered after the choice.
        max_turns: Turns of an episode, at least 1. A question of h hops needs h + 1.
        invalid: What a text that is no action does: "hint" shows a hint and costs the turn, "end" ends the episode.
        retrieval_noise: Probability that a passage found is swapped for a random one, in [0, 1]; keyed by the
            environment's luck.
        search_cost: Taken from the reward for each search, in [0, 1].
        relabel: Seed of a false world, in which the names of each type are permuted everywhere; None for the truth.
        instructions: Whether a system message explains the actions.

    Raises:
        ValueError: If an argument is out of range.
        ImportError: If a package of the ``retrieval`` extra is missing.
    """

    version: ClassVar[str] = "1"
    tools: ClassVar[list[dict[str, Any]]] = [
        {
            "name": phrases.SEARCH,
            "description": "Shows the three passages that fit a query best.",
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string", "description": "A relation word and a name."}},
                "required": ["query"],
            },
        },
        {
            "name": phrases.ANSWER,
            "description": "Gives the answer and ends the episode.",
            "parameters": {
                "type": "object",
                "properties": {"answer": {"type": "string", "description": "A name as it stands in the passages."}},
                "required": ["answer"],
            },
        },
    ]

    def __init__(
        self,
        *,
        world: str = "default",
        hops: Sequence[int] = HOPS,
        max_turns: int = 5,
        invalid: Literal["hint", "end"] = "hint",
        retrieval_noise: float = 0.0,
        search_cost: float = 0.0,
        relabel: int | None = None,
        instructions: bool = False,
    ) -> None:
        _check_arguments(world, hops, max_turns, invalid, relabel)
        _check_share("retrieval_noise", retrieval_noise)
        _check_share("search_cost", search_cost)
        self.max_turns = max_turns
        self.system_prompt = INSTRUCTIONS if instructions else ""
        self._world = load_world(world, relabel)
        self._tasks = _tasks(world, relabel, tuple(sorted(set(hops))))
        self._ends_on_invalid = invalid == "end"
        self._noise = float(retrieval_noise)
        self._cost = float(search_cost)
        self._split = "train"
        self._task: int | None = None
        self._searches = 0

    # ------------------------------------------------------------------ tasks

    @property
    def splits(self) -> dict[str, int]:
        """Number of questions in each split, after the choice of hops."""
        return {split: len(found) for split, found in self._tasks.items()}

    @property
    def question(self) -> Question:
        """The question of this episode with its gold answers, for graders and experts; agents must not see it.

        Raises:
            ResetNeededError: Before the first reset.
        """
        if self._task is None:
            raise ResetNeededError("There is no question before the first reset. Call env.reset(seed=...) once.")
        return self._tasks[self._split][self._task]

    def vocabulary(self) -> Vocabulary:
        """Function words, and entity names by type; a relabelled world has the same."""
        return self._world.vocabulary

    def demonstrations(
        self, count: int, *, seed: int, split: str = "train", error_rate: float = 0.0
    ) -> list[Demonstration]:
        """Episodes of the scripted expert in this world; numbers of hops are equally likely.

        The expert meets this environment's turns and handling of invalid actions, but neither ``retrieval_noise`` nor
        ``search_cost``.

        Args:
            count: How many.
            seed: The same seed gives the same episodes.
            split: Where the questions come from.
            error_rate: Probability of an error in each turn, in [0, 1].

        Raises:
            ValueError: If the split does not exist or is empty, or an argument is out of range.
        """
        if split not in self._tasks:
            raise ValueError(f"there is no split {split!r}; choose one of {', '.join(self._tasks)}")
        return demonstrations(
            self._world,
            self._tasks[split],
            count,
            seed=seed,
            error_rate=error_rate,
            max_turns=self.max_turns,
            end_on_invalid=self._ends_on_invalid,
        )

    # ------------------------------------------------------------------ episode

    def _reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self._split, self._task = self.pick_task(seed, options)
        self._searches = 0
        question = self.question
        info = {
            "split": self._split,
            "task": self._task,
            "question_id": question.id,
            "chain": question.chain,
            "hops": question.hops,
        }
        return question.text, info

    def _step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        call = check_action(action)
        kind = call["tool"]
        limit = self._limit()
        last = limit is not None and self.turn + 1 >= limit
        observation, utility, success = "", 0.0, False
        shown: tuple[int, ...] = ()
        if kind == phrases.ANSWER:
            success = exact_match(call["arguments"]["answer"], self.question.golds) == 1.0
            utility = max(0.0, success - self._cost * self._searches)
        elif kind == phrases.SEARCH:
            self._searches += 1
            if not last:
                shown = self._noisy(self._world.search(call["arguments"]["query"]))
                observation = self._world.observation(shown)
        elif not last and not self._ends_on_invalid:
            observation = phrases.HINT
        terminated = kind == phrases.ANSWER or (kind == INVALID and self._ends_on_invalid)
        info: dict[str, Any] = {"action_kind": kind, "evidence": sorted(passage_id(number) for number in shown)}
        if terminated or last:
            info["success"] = success
        return observation, utility, terminated, False, info

    def _noisy(self, found: tuple[int, ...]) -> tuple[int, ...]:
        """Swaps each passage for a random one with the noise's probability."""
        if self._noise == 0:
            return found
        shown = list(found)
        for place in range(len(shown)):
            if self.luck.random("retrieval noise") < self._noise:
                other = self.luck.choice("retrieval noise passage", len(self._world.sentences))
                if other not in shown:
                    shown[place] = other
        return tuple(shown)

    def _get_state(self) -> dict[str, Any]:
        # The fingerprint lets a replay with other versions of the source packages fail at once, not by chance later.
        return {
            "world": self._world.fingerprint,
            "split": self._split,
            "task": self._task,
            "searches": self._searches,
        }

    def _set_state(self, state: dict[str, Any]) -> None:
        self._split, self._task, self._searches = state["split"], state["task"], state["searches"]

    # ------------------------------------------------------------------ texts and actions

    def parse(self, text: str) -> dict[str, Any]:
        """Reads a text as an action; see :func:`~forkgym_retrieval.atlas.actions.parse_action`."""
        return parse_action(text)

    def render_action(self, action: dict[str, Any]) -> str:
        """The line that means a tool call."""
        call = check_action(action)
        argument: str = call["arguments"][ARGUMENT[call["tool"]]]
        return argument if call["tool"] == INVALID else f"{call['tool']} {argument}"

    def sample_action(self, rng: np.random.Generator) -> Any:
        """A search for a random relation of a random or the question's name, an answer, or now and then nonsense."""
        names = self._world.vocabulary.entities
        kinds = tuple(names)
        pool = names[kinds[int(rng.integers(len(kinds)))]]
        name = pool[int(rng.integers(len(pool)))]
        if self._task is not None and rng.random() < 0.5:
            name = self.question.start
        draw = rng.random()
        if draw < 0.7:
            relation = RELATION_WORDS[int(rng.integers(len(RELATION_WORDS)))]
            text = f"{phrases.SEARCH} {relation} {name}"
            return text if rng.random() < 0.5 else make_action(phrases.SEARCH, f"{relation} {name}")
        if draw < 0.9:
            return f"{phrases.ANSWER} {name}"
        return ("", "hmm \n", name, "search", "SEARCH nothing known")[int(rng.integers(5))]

    @classmethod
    def example_kwargs(cls) -> dict[str, Any]:
        """The small world, if its sources are installed."""
        try:
            load_world("small").retriever  # noqa: B018 - loads what an episode needs
        except ImportError as error:
            raise LookupError(str(error)) from error
        return {"world": "small"}


@lru_cache(maxsize=64)
def _tasks(world: str, relabel: int | None, hops: tuple[int, ...]) -> dict[str, tuple[Question, ...]]:
    questions = load_questions(world, relabel)
    return {split: tuple(q for q in questions[split] if q.hops in hops) for split in SPLITS}


# The arguments come from configurations and handles, so their types are not to be trusted.
def _check_arguments(world: Any, hops: Any, max_turns: Any, invalid: Any, relabel: Any) -> None:
    if world not in WORLDS:
        raise ValueError(f"world must be one of {', '.join(WORLDS)}, got {world!r}")
    if not isinstance(hops, Sequence) or not hops or any(h not in HOPS for h in hops):
        raise ValueError(f"hops must be a list of some of 1, 2, 3, 4, got {hops!r}")
    if type(max_turns) is not int or max_turns < 1:
        raise ValueError(f"max_turns must be a whole number of at least 1, got {max_turns!r}")
    if invalid not in ("hint", "end"):
        raise ValueError(f"invalid must be 'hint' or 'end', got {invalid!r}")
    if relabel is not None and type(relabel) is not int:
        raise ValueError(f"relabel must be None or an integer seed, got {relabel!r}")


def _check_share(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{name} must be a number in [0, 1], got {value!r}")
