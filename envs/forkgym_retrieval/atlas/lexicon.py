"""Words of the Atlas world: cuts text into vocabulary tokens, one token per entity however many words its name has.

Knows no facts; the world hands it its names.
"""

from __future__ import annotations

from collections.abc import Iterable

_TRAILING = ".,?!;:\"'”»)"


class Lexicon:
    """Cuts text into tokens by leftmost-longest match, ignoring case.

    Args:
        words: Single function words.
        names: Entity names; they may hold spaces.

    Raises:
        ValueError: If two tokens differ only in case, since they could not be told apart.
    """

    def __init__(self, words: Iterable[str], names: Iterable[str]) -> None:
        self._by_words: dict[tuple[str, ...], str] = {}
        for token in (*words, *names):
            key = tuple(token.casefold().split())
            if self._by_words.setdefault(key, token) != token:
                raise ValueError(f"the tokens {token!r} and {self._by_words[key]!r} differ only in case")
        # Lengths (in words) that occur for each first word, longest first: the only matches worth trying.
        lengths: dict[str, set[int]] = {}
        for key in self._by_words:
            lengths.setdefault(key[0], set()).add(len(key))
        self._lengths = {first: tuple(sorted(found, reverse=True)) for first, found in lengths.items()}

    def tokens(self, text: str) -> list[str]:
        """Cuts text into tokens.

        Lines are cut one by one, so no name is matched across a line break. A word that is no token is tried again
        without its trailing punctuation, and otherwise kept as it stands.

        Args:
            text: Any text.

        Returns:
            Tokens in their own spelling, unknown words as written.
        """
        found: list[str] = []
        for line in text.splitlines():
            words = line.split()
            folded = [word.casefold() for word in words]
            position = 0
            while position < len(words):
                token, length = self._match(folded, position)
                found.append(words[position] if token is None else token)
                position += length
        return found

    def _match(self, folded: list[str], start: int) -> tuple[str | None, int]:
        first = folded[start]
        for length in self._lengths.get(first, ()) or self._lengths.get(first.rstrip(_TRAILING), ()):
            if start + length > len(folded):
                continue
            key = tuple(folded[start : start + length])
            token = self._by_words.get(key) or self._by_words.get((*key[:-1], key[-1].rstrip(_TRAILING)))
            if token is not None:
                return token, length
        return None, 1
