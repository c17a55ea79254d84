"""`retrieval/QA-v0`: answer a question by searching a corpus, in Search-R1's protocol. The rules live here.

Files are read in `data.py`, ranked in `retrievers.py`, shown by `protocol.py` and graded by `metrics.py`.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import msgspec
import numpy as np

from forkgym.core import Action, ForkgymError, Handle, TaskError, TextEnv, nearest
from forkgym_retrieval import metrics, protocol
from forkgym_retrieval.cache import Dataset, open_dataset
from forkgym_retrieval.data import DataError, Question
from forkgym_retrieval.retrievers import Passage

__all__ = ["QAEnv", "SettingError"]

_EXAMPLES = Path(__file__).parent / "examples"


class SettingError(ForkgymError, ValueError):
    """A constructor argument is out of range; the text names it and says what it may be."""


class _Rules(msgspec.Struct, frozen=True):
    """The constructor's settings, checked."""

    max_searches: int
    top_k: int
    reward: str
    search_cost: float
    retrieval_noise: float
    observation_tokens: int


class _State(msgspec.Struct, frozen=True):
    """Everything that decides the future besides the rules and what the base class keeps (turn, luck)."""

    content: str
    split: str
    task: int
    searches: int


def _tool(name: str, argument: str, description: str) -> dict[str, Any]:
    properties = {argument: {"type": "string"}}
    parameters = {"type": "object", "properties": properties, "required": [argument]}
    return {"name": name, "description": description, "parameters": parameters}


class QAEnv(TextEnv):
    """Question answering over any corpus, with Search-R1's turns.

    Each turn the agent writes text that ends at the first `</search>`, else at the first `</answer>`. The
    first `<search>…</search>` or `<answer>…</answer>` pair is the action. A search is answered by the best
    passages in an information block, a turn without a pair by a fixed hint. An episode has at most
    `max_searches + 1` turns; on the last one search is disabled, so that an agent that searches on has not
    answered.

    The reward is 0 until the end, then the utility: EM or F1 of the answer (0 without one) minus
    `search_cost` for every search that was made. `info` has `action_kind` (`search`, `answer`, `invalid`),
    `evidence` (the sorted ids of the passages shown this turn) and at the end `success` (exact match), `em`,
    `f1`, `answer` and `golden_answers`.

    Tasks: `reset(options={"split": "train", "task": 17})`; a task is a number or a question's id, and is
    drawn from the seed where it is missing.

    Reference: Jin et al., "Search-R1: Training LLMs to Reason and Leverage Search Engines with Reinforcement
    Learning", 2025, section 3.

    Args:
        questions: A question file, several of them, or a mapping from split to such (see
            `data.load_questions`). None takes the example questions and corpus that come with the package.
        corpus: A corpus file, or None where the questions bring their passages.
        max_searches: The most searches an episode may make, at least 0.
        top_k: How many passages a search shows, at least 1.
        reward: `em` or `f1`.
        search_cost: Subtracted from the utility for each search; with a cost the utility may be negative.
        retrieval_noise: Probability, in [0, 1], that a found passage is replaced by a uniformly drawn one
            that was not found; independent for each place and search, keyed by `env.luck`.
        observation_tokens: Limit of one observation; see `split_tokens`.
        content: The `content_hash` that the data must have. Handles carry it, so that a replay against other
            data is refused at once; None accepts any.

    Raises:
        SettingError: An argument is out of range.
        DataError: A file is unusable or holds other data than `content` says.
        ImportError: bm25s is not installed.
    """

    version: ClassVar[str] = "1"
    stop_strings = protocol.STOP_STRINGS
    tools: ClassVar[list[dict[str, Any]]] = [
        _tool("search", "query", "Searches the corpus and returns its best passages."),
        _tool("answer", "answer", "Gives the final answer and ends the episode."),
    ]

    def __init__(
        self,
        questions: str | Sequence[str] | Mapping[str, str | Sequence[str]] | None = None,
        corpus: str | None = None,
        *,
        max_searches: int = 4,
        top_k: int = 3,
        reward: str = "em",
        search_cost: float = 0.0,
        retrieval_noise: float = 0.0,
        observation_tokens: int = protocol.OBSERVATION_TOKENS,
        content: str | None = None,
    ) -> None:
        super().__init__()
        self._rules = _checked(_Rules(max_searches, top_k, reward, search_cost, retrieval_noise, observation_tokens))
        self.max_turns = max_searches + 1
        self._dataset = _open(questions, corpus)
        if content is not None and content != self._dataset.content_hash:
            raise DataError(
                f"these files hold other data (content {self._dataset.content_hash}) than was asked for "
                f"({content}): a question, an answer, a passage or the index's settings differ. Give the files that "
                "the handle was recorded with, or leave `content` out to use these."
            )
        self._state = _State(self._dataset.content_hash, "", 0, 0)

    # ------------------------------------------------------------------ tasks

    @property
    def splits(self) -> dict[str, int]:
        """Number of questions in each split."""
        return {split: len(questions) for split, questions in self._dataset.splits.items()}

    @property
    def content_hash(self) -> str:
        """Identity of the data: 32 hex digits over questions, answers, corpus and index settings, not paths."""
        return self._dataset.content_hash

    @property
    def question(self) -> Question:
        """The current task with its golden answers: for graders and experts, never for the agent."""
        return self._dataset.splits[self._state.split][self._state.task]

    @property
    def passages(self) -> Sequence[Passage]:
        """The whole corpus."""
        return self._dataset.retriever.passages

    @classmethod
    def example_kwargs(cls) -> dict[str, Any]:
        """No arguments: the package's own example questions.

        Raises:
            LookupError: bm25s is not installed.
        """
        if importlib.util.find_spec("bm25s") is None:
            raise LookupError("retrieval needs bm25s; run `pip install 'forkgym[retrieval]'`")
        return {}

    # ------------------------------------------------------------------ turns as text

    def parse(self, text: str) -> Action:
        """The action of a turn: its first (search|answer) pair, else the tool "invalid". Never raises."""
        turn = protocol.parse_turn(text)
        if turn.kind == "search":
            return {"tool": "search", "arguments": {"query": turn.content}}
        if turn.kind == "answer":
            return {"tool": "answer", "arguments": {"answer": turn.content}}
        return {"tool": "invalid", "arguments": {"text": text}}

    def render_action(self, action: Action) -> str:
        """The turn that means this action."""
        tool, content = _read(action)
        return f"<{tool}> {content} </{tool}>" if tool in ("search", "answer") else content

    def sample_action(self, rng: np.random.Generator) -> Any:
        """A turn as an agent might write it: mostly a search for a title of the corpus, else an answer or neither."""
        passage = self.passages[int(rng.integers(len(self.passages)))]
        words = protocol.escape_tags(passage.title or passage.text[:40])
        kind = int(rng.integers(10))
        if kind < 6:
            return f"<think> I look it up. </think> <search> {words} </search>"
        if kind < 7:
            return {"tool": "search", "arguments": {"query": words}}
        if kind < 8:
            return f"<answer> {words} </answer>"
        return f"I think of {words}." if kind < 9 else "<search> no closing tag"

    def split_tokens(self, text: str) -> Sequence[str]:
        """Cuts an observation into tokens that concatenate to it, for the limit; override to use a tokenizer.

        It is a method and not an argument, since a handle carries data and no functions.
        """
        return protocol.split_tokens(text)

    # ------------------------------------------------------------------ the episode

    def _reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        unknown = sorted(set(options) - {"split", "task"})
        if unknown:
            raise TaskError(
                f"The reset option {unknown[0]!r} is not known; there are 'split' and 'task'."
                f"{nearest(unknown[0], ['split', 'task'])}"
            )
        default = "train" if "train" in self.splits else min(self.splits)
        split, task = self.pick_task(seed, self._with_task_number(options, default), default)
        self._state = _State(self._dataset.content_hash, split, task, 0)
        rules = self._rules
        prompt = protocol.format_prompt(self.question.question, max_searches=rules.max_searches, top_k=rules.top_k)
        return prompt, {"split": split, "task": task, "question_id": self.question.id}

    def _with_task_number(self, options: dict[str, Any], default: str) -> dict[str, Any]:
        """The options with a question's id replaced by its number in the split."""
        task, split = options.get("task"), options.get("split", default)
        if not isinstance(task, str) or split not in self.splits:
            return options
        number = self._dataset.task_number(split, task)
        if number is None:
            known = [question.id for question in self._dataset.splits[split]]
            raise TaskError(f"Split {split!r} has no question with the id {task!r}.{nearest(task, known)}")
        return {**options, "task": number}

    def _step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        kind, content = _read(action)
        last = self.turn + 1 >= self.max_turns
        observation = ""
        shown: tuple[Passage, ...] = ()
        # On the last turn search is disabled, and nobody would read a hint.
        if kind == "search" and not last:
            shown = self._search(content)
            observation = protocol.format_information(
                shown, limit=self._rules.observation_tokens, split=self.split_tokens
            )
        elif kind == "invalid" and not last:
            observation = protocol.INVALID_HINT
        searches = self._state.searches
        info: dict[str, Any] = {
            "action_kind": kind,
            "evidence": sorted(passage.id for passage in shown),
            "searches": searches,
        }
        if not last and kind != "answer":
            return observation, 0.0, False, False, info
        verdict = self._grade(protocol.unescape_tags(content) if kind == "answer" else None)
        utility = verdict[self._rules.reward] - self._rules.search_cost * searches
        return observation, utility, True, False, info | verdict

    def _search(self, query: str) -> tuple[Passage, ...]:
        self._state = msgspec.structs.replace(self._state, searches=self._state.searches + 1)
        found = [hit.passage for hit in self._dataset.retriever.search(query, self._rules.top_k)]
        if self._rules.retrieval_noise > 0.0:
            used = {passage.id for passage in found}
            for place in range(len(found)):
                # A name for each place: whether one passage is replaced depends on no other place.
                if self.luck.random(f"noise {place}") < self._rules.retrieval_noise:
                    found[place] = self._another(found[place], used, place)
        return tuple(found)

    def _another(self, passage: Passage, used: set[str], place: int) -> Passage:
        """A uniform draw among the passages that are not used yet; the same one where there is none."""
        passages = self._dataset.retriever.passages
        while len(used) < len(passages):
            candidate = passages[self.luck.choice(f"replacement {place}", len(passages))]
            if candidate.id not in used:
                used.add(candidate.id)
                return candidate
        return passage

    def _grade(self, answer: str | None) -> dict[str, Any]:
        golden = self.question.golden_answers
        em = 0.0 if answer is None else metrics.exact_match(answer, golden)
        f1 = 0.0 if answer is None else metrics.f1(answer, golden)
        return {"success": em == 1.0, "em": em, "f1": f1, "answer": answer, "golden_answers": list(golden)}

    # ------------------------------------------------------------------ state

    def handle(self) -> Handle:
        """The portable record of this episode; it carries the identity of the data, see `content`."""
        handle = super().handle()
        return msgspec.structs.replace(handle, kwargs={**handle.kwargs, "content": self.content_hash})

    def _get_state(self) -> _State:
        return self._state

    def _set_state(self, state: _State) -> None:
        self._state = state

    def _fork(self) -> Self:
        # The constructor would look at the files again, which costs time and might find them changed.
        child = type(self).__new__(type(self))
        child._rules = self._rules
        child._dataset = self._dataset
        child._state = self._state
        child.max_turns = self.max_turns
        return child


def _read(action: Action) -> tuple[str, str]:
    """Kind and content of a tool call; anything that is not a proper search or answer is invalid."""
    arguments = action.get("arguments", {})
    field = {"search": "query", "answer": "answer"}.get(action["tool"], "text")
    content = arguments.get(field, "")
    if not isinstance(content, str):
        return "invalid", ""
    if field not in arguments or field == "text":
        return "invalid", content
    return action["tool"], content.strip()


def _open(questions: str | Sequence[str] | Mapping[str, str | Sequence[str]] | None, corpus: str | None) -> Dataset:
    if questions is None:
        if corpus is not None:
            raise SettingError("a corpus needs questions: give questions=FILE, or neither for the examples")
        files = {split: str(_EXAMPLES / f"{split}.jsonl") for split in ("train", "test")}
        return open_dataset(files, str(_EXAMPLES / "corpus.jsonl"))
    return open_dataset(questions, corpus)


def _checked(rules: _Rules) -> _Rules:
    """The same rules, or a `SettingError` that names the first one that is out of range."""
    for name, low in (("max_searches", 0), ("top_k", 1), ("observation_tokens", 1)):
        value = getattr(rules, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            raise SettingError(f"{name} must be an integer of at least {low}, not {value!r}")
    if rules.reward not in ("em", "f1"):
        raise SettingError(f"reward must be 'em' or 'f1', not {rules.reward!r}")
    for name, high in (("search_cost", math.inf), ("retrieval_noise", 1.0)):
        value = getattr(rules, name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or not 0 <= value <= high:
            bound = "" if high == math.inf else f" and at most {high}"
            raise SettingError(f"{name} must be a finite number of at least 0{bound}, not {value!r}")
    try:
        protocol.format_information((), limit=rules.observation_tokens)
    except ValueError as error:
        raise SettingError(f"observation_tokens is too small: {error}") from error
    return rules
