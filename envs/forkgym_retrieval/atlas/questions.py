"""Questions of one to four hops over an Atlas world, their gold answers, and the splits.

Everything is derived from the facts by keyed hashes: the same world gives the same questions everywhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import combinations
from math import ceil
from typing import Final

import msgspec

from forkgym_retrieval.atlas import phrases
from forkgym_retrieval.atlas.world import TOP_K, World, keyed_rank, load_world

SPLITS: Final = ("train", "dev", "test", "test_chain", "test_both")

COUNTRY: Final = "country"
_DETAILS: Final = ("capital", "currency", "language", "code", "population", "largest")
_STARTS: Final = ("city", "capital", "currency", "language", "code")

HELD_OUT_CHAINS: Final = frozenset(
    {
        "capital>country>currency",
        "code>country>language",
        "currency>country>population",
        "country>neighbour>code",
        "city>country>neighbour>currency",
        "capital>country>neighbour>largest",
        "code>country>neighbour>capital",
        "language>country>capital>population",
        "currency>country>neighbour>capital>population",
        "city>country>neighbour>largest>population",
    }
)
"""Chains that no training question uses; each of their pairs of neighbouring steps occurs in some training chain."""

DEV_SHARE: Final = 0.08
TEST_SHARE: Final = 0.22
"""Shares of the countries whose questions (by the start entity's own country) are held out."""

MAX_GOLDS: Final = 6
"""Questions with more right answers (a neighbour of China has fourteen) are left out: too easy to guess."""

MAX_ANSWER_SHARE: Final = 0.035
"""Largest share of a chain's questions, in a split, that one answer may serve: guessing must not pay."""

CHAIN_QUOTA: Final = {1: 120, 2: 120, 3: 150, 4: 500}
"""Hops to the most questions of one chain in a split: otherwise questions about cities crowd out the rest."""


class Question(msgspec.Struct, frozen=True):
    """One question.

    Attributes:
        id: Unique within a world, the same in its false twins.
        chain: Type of the start entity and the steps from it, for instance ``"city>country>neighbour>capital"``.
        start: The entity named in the question.
        tokens: The text, one token per word or entity.
        golds: All right answers, in sorted order.
    """

    id: str
    chain: str
    start: str
    tokens: tuple[str, ...]
    golds: tuple[str, ...]

    @property
    def hops(self) -> int:
        """Number of facts that the answer needs."""
        return self.chain.count(">")

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps after the start: ``"country"`` goes from an attribute to its country, others are relations."""
        return tuple(self.chain.split(">")[1:])

    @property
    def kind(self) -> str:
        """Type of the start entity."""
        return self.chain.split(">", 1)[0]

    @property
    def text(self) -> str:
        """The question, words separated by single spaces."""
        return " ".join(self.tokens)


def chains() -> tuple[str, ...]:
    """All chains, by number of hops."""
    one = [f"{COUNTRY}>{relation}" for relation in (*_DETAILS, "neighbour")]
    one += [f"{start}>{COUNTRY}" for start in _STARTS] + ["city>population", "capital>population"]
    inner = [f"neighbour>{relation}" for relation in _DETAILS] + ["capital>population", "largest>population"]
    deep = ["neighbour>capital>population", "neighbour>largest>population"]
    from_country = inner + deep
    from_others = [*_DETAILS, "neighbour", *inner, *deep]
    longer = [f"{COUNTRY}>{path}" for path in from_country]
    longer += [f"{start}>{COUNTRY}>{path}" for start in _STARTS for path in from_others if path.split(">")[0] != start]
    return tuple(sorted(one + longer, key=lambda chain: chain.count(">")))


def follow(world: World, kind: str, entity: str, step: str) -> tuple[str, ...]:
    """Takes one step of a chain.

    Args:
        world: Where.
        kind: Type of ``entity``, which decides what ``"country"`` means.
        entity: From where.
        step: ``"country"`` or a relation.

    Returns:
        The entities reached; empty where there is no such fact, or where an attribute is shared by several countries.
    """
    if step != COUNTRY:
        return world.facts.relations[step].get(entity, ())
    if kind == "city":
        return world.facts.relations["city"].get(entity, ())
    owners = world.inverse[kind].get(entity, ())
    return owners if len(owners) == 1 else ()


def answers(world: World, chain: str, start: str) -> tuple[str, ...]:
    """All entities at the end of a chain, in sorted order; empty if any path along it leads nowhere.

    So whichever neighbour an agent picks, a question of h hops can be answered after h searches.
    """
    kind, *steps = chain.split(">")
    reached: tuple[str, ...] = (start,)
    for step in steps:
        found = [follow(world, kind, entity, step) for entity in reached]
        if not all(found):
            return ()
        reached = tuple(sorted({name for names in found for name in names}))
        kind = step
    return reached


def load_questions(name: str = "default", relabel: int | None = None) -> dict[str, tuple[Question, ...]]:
    """The questions of a world by split, in a fixed shuffled order.

    Args:
        name: Name of the world.
        relabel: Seed of a false world, or None. Its questions are the true world's, renamed, in the same order.

    Returns:
        Split (one of :data:`SPLITS`) to its questions. Do not change it: it is shared.
    """
    return _true_questions(name) if relabel is None else _false_questions(name, relabel)


@cache
def _true_questions(name: str) -> dict[str, tuple[Question, ...]]:
    return _splits(load_world(name))


@lru_cache(maxsize=16)
def _false_questions(name: str, seed: int) -> dict[str, tuple[Question, ...]]:
    names = load_world(name, seed).names
    return {split: tuple(_renamed(q, names) for q in found) for split, found in _true_questions(name).items()}


def split_of(home: str, chain: str) -> str:
    """The split of a question, given the country that its start belongs to and its chain."""
    share = keyed_rank("home", home) / 2**64
    held_out = chain in HELD_OUT_CHAINS
    if share < TEST_SHARE:
        return "test_both" if held_out else "test"
    if held_out:
        return "test_chain"
    return "dev" if share < TEST_SHARE + DEV_SHARE else "train"


def _splits(world: World) -> dict[str, tuple[Question, ...]]:
    together = _shown_together(world)
    by_chain: dict[tuple[str, str], list[Question]] = defaultdict(list)
    for chain in chains():
        for start, home in _starts(world, chain.split(">")[0]):
            golds = answers(world, chain, start)
            hops = chain.count(">")
            # If one search for the start could show an answer, the hops would be for show.
            if 0 < len(golds) <= MAX_GOLDS and start not in golds and (hops == 1 or together[start].isdisjoint(golds)):
                question = _question(chain, start, golds)
                by_chain[split_of(home, chain), chain].append(question)
    found: dict[str, list[Question]] = {split: [] for split in SPLITS}
    for (split, _), candidates in by_chain.items():
        found[split] += _unguessable(candidates, CHAIN_QUOTA[candidates[0].hops])
    return {split: tuple(sorted(qs, key=lambda q: keyed_rank("order", q.id))) for split, qs in found.items()}


def _starts(world: World, kind: str) -> Iterator[tuple[str, str]]:
    """Entities of a type that belong to exactly one country, with that country."""
    for entity, of in world.facts.types.items():
        if of == kind:
            home = (entity,) if kind == COUNTRY else follow(world, kind, entity, COUNTRY)
            if home:
                yield entity, home[0]


def _shown_together(world: World) -> dict[str, set[str]]:
    """Entity to all names that one search for it, with one or two relation words, can show."""
    found: dict[str, set[str]] = defaultdict(set)
    passages: dict[str, int] = defaultdict(int)
    for sentence in world.sentences:
        named = {sentence.subject, *sentence.objects} - {""}
        for name in named:
            found[name] |= named
            passages[name] += 1
    # Where fewer passages name an entity than a search shows, the best ones for the relation words fill up.
    queries = [*phrases.INDEX_WORDS, *map(" ".join, combinations(sorted(phrases.INDEX_WORDS), 2))]
    fillers = {token for query in queries for number in world.search(query) for token in world.sentences[number].tokens}
    for name, count in passages.items():
        if count < TOP_K:
            found[name] |= fillers
    return found


def _unguessable(candidates: list[Question], quota: int) -> list[Question]:
    """Keeps at most ``quota`` questions, none of whose answers serves more than its share."""
    limit = max(1, ceil(MAX_ANSWER_SHARE * min(quota, len(candidates))))
    used: dict[str, int] = defaultdict(int)
    kept: list[Question] = []
    for question in sorted(candidates, key=lambda q: keyed_rank("keep", q.id)):
        if len(kept) < quota and all(used[gold] < limit for gold in question.golds):
            kept.append(question)
            for gold in question.golds:
                used[gold] += 1
    return kept


def _question(chain: str, start: str, golds: tuple[str, ...]) -> Question:
    identity = f"{chain}:{start}"
    kind, *steps = chain.split(">")
    tokens: tuple[str, ...] = (start,)
    for place, step in enumerate(steps):
        variants = phrases.TO_COUNTRY[kind] if step == COUNTRY else phrases.FORWARD[step]
        tokens = phrases.fill(variants[keyed_rank("phrase", identity, str(place)) % len(variants)], tokens)
        kind = step
    frame = phrases.FRAMES[keyed_rank("frame", identity) % len(phrases.FRAMES)]
    return Question(id=identity, chain=chain, start=start, tokens=phrases.fill(frame, tokens), golds=golds)


def _renamed(question: Question, names: dict[str, str]) -> Question:
    return Question(
        id=question.id,
        chain=question.chain,
        start=names[question.start],
        tokens=tuple(names.get(token, token) for token in question.tokens),
        golds=tuple(sorted(names[gold] for gold in question.golds)),
    )
