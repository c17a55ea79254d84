"""The Atlas world: sentences over the facts, their index, and false twins of the world with names permuted.

Worlds are immutable, built once per process and shared by every environment; nothing here knows about episodes.
"""

from __future__ import annotations

import hashlib
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np

from forkgym.core import Vocabulary
from forkgym_retrieval.atlas import phrases
from forkgym_retrieval.atlas.facts import ENTITY_TYPES, Facts, load_facts
from forkgym_retrieval.atlas.lexicon import Lexicon
from forkgym_retrieval.retrievers import BM25Retriever, Passage

WORLDS: Final = {"small": 2, "default": 5, "large": 10}
"""Name of a world to the number of cities that it keeps in each country besides the capital."""

TOP_K: Final = 3
MAX_QUERY_TERMS: Final = 16


def keyed_rank(*parts: str) -> int:
    """A 64-bit number that depends on the strings alone: the order of shuffles and choices in this package."""
    return int.from_bytes(hashlib.blake2b("\x1f".join(parts).encode(), digest_size=8).digest(), "big")


class Sentence(msgspec.Struct, frozen=True):
    """One passage.

    Attributes:
        subject: The entity that the passage is about, also its title; empty for a distractor.
        relation: A relation's name, or ``"more"`` / ``"also"`` for a distractor.
        objects: The entities that stand in the relation to the subject, in the order of the text.
        tokens: The text, one token per word or entity.
    """

    subject: str
    relation: str
    objects: tuple[str, ...]
    tokens: tuple[str, ...]

    @property
    def text(self) -> str:
        """The sentence, words separated by single spaces."""
        return " ".join(self.tokens)


class World:
    """Facts, passages and search. Use :func:`load_world`, which shares one instance per process.

    Args:
        name: One of :data:`WORLDS`.
        facts: The facts.
        sentences: The passages; a passage's number is its place.
        names: Original entity name to its name in this world (the identity in the true world).
        base: The true world that a false world permutes; None in the true world.
    """

    def __init__(
        self,
        name: str,
        facts: Facts,
        sentences: tuple[Sentence, ...],
        names: dict[str, str],
        base: World | None = None,
    ) -> None:
        self.name = name
        self.facts = facts
        self.sentences = sentences
        self.names = names
        self.base = base
        self._original = {new: old for old, new in names.items()}

    # -- vocabulary -------------------------------------------------------------------------------------------

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """All words and, by type, all entity names; the same in a false world."""
        if self.base is not None:
            return self.base.vocabulary
        entities = {kind: tuple(name for name, of in self.facts.types.items() if of == kind) for kind in ENTITY_TYPES}
        return Vocabulary(words=phrases.WORDS, entities=entities)

    @cached_property
    def lexicon(self) -> Lexicon:
        """Cuts text of this world into tokens."""
        return Lexicon(phrases.WORDS, self.facts.types) if self.base is None else self.base.lexicon

    # -- search -----------------------------------------------------------------------------------------------

    def terms(self, text: str) -> list[str]:
        """Index terms of a text: relation words and entities; all other words carry no information here."""
        return [token for token in self.lexicon.tokens(text) if token in self._original or token in phrases.INDEX_WORDS]

    def search(self, query: str) -> tuple[int, ...]:
        """The best passages for a query, by BM25 over its terms, ties by number.

        Args:
            query: Free text; at most ``MAX_QUERY_TERMS`` terms count.

        Returns:
            Up to ``TOP_K`` passage numbers, best first; empty when no term is known.
        """
        terms = sorted(self._original.get(term, term) for term in self.terms(query)[:MAX_QUERY_TERMS])
        return (self.base or self)._ranked(tuple(terms))

    @cached_property
    def retriever(self) -> BM25Retriever:
        """BM25 over ``[subject] + passage`` (without the subject, short passages of neighbours win)."""
        return BM25Retriever(self.passages, tokenizer=self.terms, tokenizer_name=f"atlas-{self.name}")

    @cached_property
    def passages(self) -> tuple[Passage, ...]:
        """The corpus as the retrievers of this package take it."""
        return tuple(
            Passage(id=passage_id(number), title=sentence.subject, text=sentence.text)
            for number, sentence in enumerate(self.sentences)
        )

    @cached_property
    def _ranked(self) -> _Ranked:
        return _Ranked(self)

    def observation(self, numbers: tuple[int, ...]) -> str:
        """What the agent reads when these passages were found."""
        return " ".join(self.sentences[number].text for number in numbers) if numbers else phrases.NOTHING

    # -- facts ------------------------------------------------------------------------------------------------

    @cached_property
    def inverse(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """Relation to {object: subjects}, subjects in sorted order."""
        found: dict[str, dict[str, tuple[str, ...]]] = {}
        for relation, facts in self.facts.relations.items():
            back: dict[str, list[str]] = {}
            for subject, objects in facts.items():
                for name in objects:
                    back.setdefault(name, []).append(subject)
            found[relation] = {name: tuple(sorted(subjects)) for name, subjects in sorted(back.items())}
        return found

    @cached_property
    def fingerprint(self) -> str:
        """Digest of all passages: worlds made from other versions of the source packages differ in it."""
        text = "\n".join(f"{sentence.subject}\t{sentence.text}" for sentence in self.sentences)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    # -- false worlds -----------------------------------------------------------------------------------------

    def relabelled(self, seed: int) -> World:
        """A false world: the same structure with entity names permuted within each type.

        Args:
            seed: Chooses the permutation; any integer.

        Returns:
            A world whose passages, facts and search results are this world's under one renaming. Shares the index.

        Raises:
            ValueError: If this world is false already.
        """
        if self.base is not None:
            raise ValueError("this world is relabelled already; relabel the true world")
        names: dict[str, str] = {}
        for kind, old in self.vocabulary.entities.items():
            key = keyed_rank("relabel", str(seed), kind)
            order = np.random.Generator(np.random.Philox(key=key)).permutation(len(old))
            names.update(zip(old, (old[i] for i in order), strict=True))
        sentences = tuple(_renamed(sentence, names) for sentence in self.sentences)
        return World(self.name, _renamed_facts(self.facts, names), sentences, names, base=self)


class _Ranked:
    """Search results of the true world, remembered per set of terms."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._cached = lru_cache(maxsize=1 << 16)(self._search)

    def __call__(self, terms: tuple[str, ...]) -> tuple[int, ...]:
        return self._cached(terms)

    def _search(self, terms: tuple[str, ...]) -> tuple[int, ...]:
        # One term a line: two names side by side must not be read as a third.
        hits = self._world.retriever.search("\n".join(terms), TOP_K)
        return tuple(int(hit.passage.id) for hit in hits)


def passage_id(number: int) -> str:
    """The id of a passage; ids sort as numbers do."""
    return f"{number:05d}"


def load_world(name: str = "default", relabel: int | None = None) -> World:
    """Builds a world, or returns the one that this process already has.

    Args:
        name: One of :data:`WORLDS`.
        relabel: None for the true world, else the seed of a false one.

    Raises:
        ValueError: If there is no world of that name.
        ImportError: If a package of the ``retrieval`` extra is missing.
    """
    if name not in WORLDS:
        raise ValueError(f"no Atlas world is called {name!r}; choose one of {', '.join(WORLDS)}")
    return _true_world(name) if relabel is None else _false_world(name, relabel)


@cache
def _true_world(name: str) -> World:
    facts = load_facts(WORLDS[name])
    return World(name, facts, _sentences(facts), {entity: entity for entity in facts.types})


@lru_cache(maxsize=16)
def _false_world(name: str, seed: int) -> World:
    return _true_world(name).relabelled(seed)


def _sentences(facts: Facts) -> tuple[Sentence, ...]:
    found: list[Sentence] = []
    for relation, by_subject in facts.relations.items():
        for subject, objects in by_subject.items():
            for part in _chunks(objects):
                tokens = phrases.passage(relation, subject, part)
                found.append(Sentence(subject=subject, relation=relation, objects=part, tokens=tokens))
    for rivals in facts.rivals.values():
        for bigger, smaller in pairwise(rivals):
            tokens = (bigger, "has", "more", "people", "than", smaller, ".")
            found.append(Sentence(subject="", relation="more", objects=(bigger, smaller), tokens=tokens))
    for kind in ("country", "capital", "currency", "language", "city"):
        names = sorted((n for n, of in facts.types.items() if of == kind), key=lambda n: keyed_rank("pair", n))
        for first, second in zip(names[::2], names[1::2], strict=False):
            tokens = (first, "is", "a", kind, "and", "so", "is", second, ".")
            found.append(Sentence(subject="", relation="also", objects=(first, second), tokens=tokens))
    return tuple(found)


def _chunks(objects: tuple[str, ...]) -> list[tuple[str, ...]]:
    # Germany has nine neighbours: lists of three keep passages short and make some answers need a second look.
    return [objects[i : i + 3] for i in range(0, len(objects), 3)]


def _renamed(sentence: Sentence, names: dict[str, str]) -> Sentence:
    return Sentence(
        subject=names.get(sentence.subject, ""),
        relation=sentence.relation,
        objects=tuple(names[name] for name in sentence.objects),
        tokens=tuple(names.get(token, token) for token in sentence.tokens),
    )


def _renamed_facts(facts: Facts, names: dict[str, str]) -> Facts:
    relations = {
        relation: {names[subject]: tuple(names[name] for name in objects) for subject, objects in found.items()}
        for relation, found in facts.relations.items()
    }
    rivals = {names[country]: tuple(names[city] for city in found) for country, found in facts.rivals.items()}
    return Facts(types=facts.types, relations=relations, rivals=rivals)
