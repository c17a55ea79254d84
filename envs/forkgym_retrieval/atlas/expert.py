"""A scripted expert that answers Atlas questions by search, with errors on demand, and demonstrations made by it.

The expert uses no fact that it has not read: it knows the question's chain and the passages shown so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from forkgym.core import Demonstration, Message
from forkgym_retrieval.atlas import phrases
from forkgym_retrieval.atlas.actions import INVALID, parse_action
from forkgym_retrieval.atlas.questions import COUNTRY, Question, load_questions
from forkgym_retrieval.atlas.world import World, keyed_rank, load_world
from forkgym_retrieval.metrics import exact_match

ERRORS: Final = {"slip": 0.35, "relation": 0.2, "premature": 0.2, "waste": 0.2, "malformed": 0.05}
"""Share of each kind of error among the expert's errors: another entity than the right one, another relation,
an answer before the last hop, a search for something read earlier, a line that is no action."""

RELATION_WORDS: Final = tuple(sorted({*phrases.FORWARD, *phrases.TO_COUNTRY}))


class Plan:
    """Where the expert stands after reading some passages.

    Attributes:
        done: Facts used so far, each (entity, relation word, what it led to).
        entity: The entity reached.
        search: (relation word, entity) to look up next; None when the answer is reached or nothing is left to try.
    """

    __slots__ = ("done", "entity", "search")

    def __init__(self, done: list[tuple[str, str, str]], entity: str, search: tuple[str, str] | None) -> None:
        self.done = done
        self.entity = entity
        self.search = search


def make_plan(
    world: World, question: Question, seen: Sequence[int], searched: set[tuple[str, str]] | frozenset[tuple[str, str]]
) -> Plan:
    """Follows the question's chain through the passages seen, as far as they lead.

    Where one of several objects leads nowhere (a neighbour without the wanted fact), the next one is tried.

    Args:
        world: Where.
        question: Which chain from which start.
        seen: Numbers of the passages read, in order.
        searched: (relation word, entity) pairs looked up already; a fact not found then counts as missing.
    """
    facts: dict[tuple[str, str], list[str]] = {}
    for number in seen:
        sentence = world.sentences[number]
        for name in sentence.objects:
            facts.setdefault((sentence.relation, sentence.subject), []).append(name)
            facts.setdefault((sentence.relation + "^", name), []).append(sentence.subject)
    steps = question.steps
    furthest = Plan([], question.start, None)

    def walk(place: int, kind: str, entity: str, done: list[tuple[str, str, str]]) -> Plan | None:
        nonlocal furthest
        if len(done) > len(furthest.done):
            furthest = Plan(done, entity, None)
        if place == len(steps):
            return Plan(done, entity, None)
        word, backwards = relation_word(kind, steps[place])
        found = facts.get((word + "^" * backwards, entity), [])
        if not found:
            return None if (word, entity) in searched else Plan(done, entity, (word, entity))
        for name in dict.fromkeys(found):
            plan = walk(place + 1, steps[place], name, [*done, (entity, word, name)])
            if plan is not None:
                return plan
        return None

    return walk(0, question.kind, question.start, []) or furthest


def relation_word(kind: str, step: str) -> tuple[str, bool]:
    """The relation to look up for a step from an entity of a type, and whether it is read from object to subject."""
    if step != COUNTRY:
        return step, False
    return kind, kind != "city"


def expert_turn(
    world: World,
    question: Question,
    seen: Sequence[int],
    searched: set[tuple[str, str]],
    *,
    rng: np.random.Generator,
    error_rate: float,
    first: bool,
) -> list[str]:
    """The expert's next turn as tokens: filler, the fact just used, a line break, the action.

    Args:
        world: Where.
        question: The question.
        seen: Numbers of the passages read so far, in order.
        searched: What was looked up so far.
        rng: Source of fillers and errors.
        error_rate: Probability that this turn holds an error, in [0, 1].
        first: Whether this is the first turn.
    """
    plan = make_plan(world, question, seen, searched)
    filler = phrases.FILLERS[int(rng.integers(len(phrases.FILLERS) if first else len(phrases.FILLERS) - 1))].split()
    error = _error(rng) if rng.random() < error_rate else ""
    target = plan.entity
    if error == "slip":
        target = _pick(rng, _visible(world, question, seen))
    thought = [*filler, *((plan.done[-1][0], plan.done[-1][1], ":", target) if plan.done else ())]
    if error == "malformed":
        return [*thought, "\n", target]
    if error == "waste":
        relation, name = _pick(rng, RELATION_WORDS), _pick(rng, _visible(world, question, seen))
        return [*thought, "\n", phrases.SEARCH, relation, name]
    if plan.search is None or (error == "premature" and plan.done):
        return [*thought, "\n", phrases.ANSWER, target]
    relation = _pick(rng, RELATION_WORDS) if error == "relation" else plan.search[0]
    return [*thought, "\n", phrases.SEARCH, relation, target]


def _error(rng: np.random.Generator) -> str:
    return str(tuple(ERRORS)[int(np.searchsorted(np.cumsum(tuple(ERRORS.values())), rng.random()))])


def _pick(rng: np.random.Generator, choices: Sequence[str]) -> str:
    return choices[int(rng.integers(len(choices)))]


def _visible(world: World, question: Question, seen: Sequence[int]) -> list[str]:
    sentences = [world.sentences[number] for number in seen]
    return [question.start, *(name for s in sentences for name in (s.subject, *s.objects) if name)]


def demonstrate(
    world: World,
    question: Question,
    *,
    rng: np.random.Generator,
    error_rate: float,
    max_turns: int,
    end_on_invalid: bool,
) -> Demonstration:
    """Plays one episode with the expert, without an environment object (a test holds the two together)."""
    turns: list[tuple[str, str]] = []
    seen: list[int] = []
    searched: set[tuple[str, str]] = set()
    utility = 0.0
    for turn in range(max_turns):
        tokens = expert_turn(world, question, seen, searched, rng=rng, error_rate=error_rate, first=turn == 0)
        text = " ".join(tokens)
        action = parse_action(text)
        observation = ""
        if action["tool"] == phrases.ANSWER:
            utility = exact_match(action["arguments"]["answer"], question.golds)
        elif action["tool"] == phrases.SEARCH:
            if turn + 1 < max_turns:
                numbers = world.search(action["arguments"]["query"])
                seen.extend(numbers)
                observation = world.observation(numbers)
            searched.add((tokens[-2], tokens[-1]))
        elif not end_on_invalid and turn + 1 < max_turns:
            observation = phrases.HINT
        over = (
            action["tool"] == phrases.ANSWER or turn + 1 == max_turns or (action["tool"] == INVALID and end_on_invalid)
        )
        turns.append((text, observation))
        if over:
            break
    return Demonstration(prompt=[Message(role="user", content=question.text)], turns=turns, utility=utility)


def demonstrations(
    world: World,
    questions: Sequence[Question],
    count: int,
    *,
    seed: int,
    error_rate: float,
    max_turns: int = 5,
    end_on_invalid: bool = False,
) -> list[Demonstration]:
    """Episodes of the noisy expert; the numbers of hops are equally likely, then the questions.

    Args:
        world: Where.
        questions: What to ask.
        count: How many episodes.
        seed: The same seed gives the same episodes.
        error_rate: Probability of an error in each turn, in [0, 1].
        max_turns: Turns after which an episode ends without an answer.
        end_on_invalid: Whether a line that is no action ends the episode.

    Raises:
        ValueError: If ``error_rate`` is outside [0, 1], ``count`` is negative or there are no questions.
    """
    if not 0 <= error_rate <= 1:
        raise ValueError(f"error_rate must be in [0, 1], got {error_rate}")
    if count < 0 or not questions:
        raise ValueError(f"need questions and a count of 0 or more, got {len(questions)} questions and count {count}")
    by_hops: dict[int, list[Question]] = {}
    for question in questions:
        by_hops.setdefault(question.hops, []).append(question)
    pools = [by_hops[hops] for hops in sorted(by_hops)]
    rng = np.random.Generator(np.random.Philox(key=keyed_rank("demonstrations", str(seed))))
    made = []
    for _ in range(count):
        pool = pools[int(rng.integers(len(pools)))]
        question = pool[int(rng.integers(len(pool)))]
        made.append(
            demonstrate(
                world,
                question,
                rng=rng,
                error_rate=error_rate,
                max_turns=max_turns,
                end_on_invalid=end_on_invalid,
            )
        )
    return made


class ExpertPolicy:
    """The expert as a policy: reads a conversation and writes the next turn.

    A turn depends on the conversation and the seed alone, so forked conversations meet the same expert.

    Args:
        world: Name of the world.
        relabel: Seed of a false world, or None.
        error_rate: Probability of an error in each turn.
        seed: Seed of fillers and errors.
    """

    def __init__(
        self, world: str = "default", *, relabel: int | None = None, error_rate: float = 0.0, seed: int = 0
    ) -> None:
        self._world = load_world(world, relabel)
        found = (q for questions in load_questions(world, relabel).values() for q in questions)
        self._questions = {question.text: question for question in found}
        self._numbers: dict[str, int] = {s.text: number for number, s in enumerate(self._world.sentences)}
        self._error_rate = error_rate
        self._seed = seed

    def act(self, messages: Sequence[Message]) -> str:
        """Writes the next turn.

        Args:
            messages: The conversation so far, as ``AtlasEnv.messages()`` gives it.

        Raises:
            ValueError: If no message holds a question of this world.
        """
        asked = next((i for i, m in enumerate(messages) if m["content"] in self._questions), None)
        if asked is None:
            raise ValueError("the conversation holds no question of this Atlas world; check `world` and `relabel`")
        question = self._questions[messages[asked]["content"]]
        seen: list[int] = []
        searched: set[tuple[str, str]] = set()
        own = 0
        for message in messages[asked + 1 :]:
            if message["role"] == "assistant":
                own += 1
                terms = self._world.lexicon.tokens(message["content"])
                if len(terms) >= 3 and terms[-3] == phrases.SEARCH:
                    searched.add((terms[-2], terms[-1]))
            else:
                seen.extend(self._read(message["content"]))
        key = keyed_rank("expert", str(self._seed), question.id, *(m["content"] for m in messages[asked + 1 :]))
        rng = np.random.Generator(np.random.Philox(key=key))
        tokens = expert_turn(
            self._world, question, seen, searched, rng=rng, error_rate=self._error_rate, first=own == 0
        )
        return " ".join(tokens)

    def _read(self, observation: str) -> list[int]:
        parts = (part + " ." for part in observation.removesuffix(" .").split(" . "))
        return [self._numbers[part] for part in parts if part in self._numbers]
