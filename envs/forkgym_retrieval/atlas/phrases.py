"""All English of the Atlas world: passage templates, question phrases, hints and the expert's filler words.

``WORDS`` is every word that is not an entity's name, collected from the templates so that none can be forgotten.
"""

from __future__ import annotations

from typing import Final

SUBJECT: Final = "{s}"
OBJECT: Final = "{o}"

PASSAGES: Final = {
    "capital": "{o} is the capital of {s} .",
    "currency": "{o} is the currency of {s} .",
    "language": "{o} is the language of {s} .",
    "continent": "{s} is on the continent {o} .",
    "region": "{s} is in the region {o} .",
    "code": "{o} is the dialling code of {s} .",
    "neighbour": "{s} has the neighbour {o} .",
    "population": "{s} has a population of {o} .",
    "largest": "{o} is the largest provincial city of {s} .",
    "city": "{s} is a city in {o} .",
}
"""Relation to the sentence that states it; ``{o}`` becomes a list where there are several objects."""

FORWARD: Final = {
    "capital": ("the capital of {x}", "the capital city of {x}", "the seat of government of {x}"),
    "currency": ("the currency of {x}", "the money of {x}", "the currency used in {x}"),
    "language": ("the language of {x}", "the language spoken in {x}", "the main language of {x}"),
    "code": ("the dialling code of {x}", "the code for calling {x}", "the phone code of {x}"),
    "population": ("the population of {x}", "the number of people in {x}", "the number of inhabitants of {x}"),
    "neighbour": ("a neighbour of {x}", "a country next to {x}", "a country that borders {x}"),
    "largest": ("the largest provincial city of {x}", "the biggest provincial city of {x}"),
}
"""Relation to phrases for "the object that stands in the relation to x"."""

TO_COUNTRY: Final = {
    "capital": (
        "the country with the capital {x}",
        "the country whose capital is {x}",
        "the country governed from {x}",
    ),
    "currency": (
        "the country that uses {x}",
        "the country whose currency is {x}",
        "the country where people pay with {x}",
    ),
    "language": ("the country where {x} is spoken", "the country whose language is {x}", "the country that speaks {x}"),
    "code": ("the country with the dialling code {x}", "the country whose phone code is {x}"),
    "city": ("the country of {x}", "the country where {x} lies", "the country that has the city {x}"),
}
"""Type of x to phrases for "the country that x belongs to"."""

FRAMES: Final = ("what is {x} ?", "name {x} .", "tell me {x} .")
"""Questions around a phrase."""

FILLERS: Final = ("", "so", "ok", "hmm", "now", "then", "next", "let me see", "ok so", "first")
"""What the expert says before it thinks; only the last is kept for a first turn."""

SEARCH: Final = "search"
ANSWER: Final = "answer"
HINT: Final = "that is not an action . search for something or answer ."
NOTHING: Final = "nothing found ."
DISTRACTORS: Final = "{x} has more people than {x} . {x} is a {x} and so is {x} ."

INDEX_WORDS: Final = frozenset({*PASSAGES, "country"})
"""Words besides names that the search index holds."""


def passage(relation: str, subject: str, objects: tuple[str, ...]) -> tuple[str, ...]:
    """Writes the sentence of a fact.

    Args:
        relation: A key of :data:`PASSAGES`.
        subject: Entity name.
        objects: One or more entity names, listed with commas.

    Returns:
        Tokens, one per word or name.
    """
    listed = [token for name in objects for token in (",", name)][1:]
    tokens: list[str] = []
    for word in PASSAGES[relation].split():
        tokens.extend((subject,) if word == SUBJECT else listed if word == OBJECT else (word,))
    return tuple(tokens)


def fill(template: str, inner: tuple[str, ...]) -> tuple[str, ...]:
    """Puts tokens in the place of ``{x}`` in a template."""
    tokens: list[str] = []
    for word in template.split():
        tokens.extend(inner if word == "{x}" else (word,))
    return tuple(tokens)


def _all_words() -> tuple[str, ...]:
    texts = [SEARCH, ANSWER, ", . ? :", *PASSAGES.values(), *PASSAGES]
    for phrases in (*FORWARD.values(), *TO_COUNTRY.values()):
        texts.extend(phrases)
    texts.extend((*FRAMES, *FILLERS, HINT, NOTHING, DISTRACTORS))
    words = dict.fromkeys(word for text in texts for word in text.split() if not word.startswith("{"))
    return tuple(words)


WORDS: Final = _all_words()
"""Every word of the world that is not a name, in a fixed order, the two action words first."""
