"""The closed vocabulary of ``swe/Repair-v0``: how code, exceptions and counts are said. No episode, no sandbox here."""

from __future__ import annotations

import builtins
import io
import keyword
import tokenize
from collections.abc import Iterable, Sequence
from typing import Final

from forkgym.core import Vocabulary

__all__ = [
    "BANDS",
    "EXCEPTIONS",
    "KINDS",
    "LETTERS",
    "MAX_CODE",
    "VARIABLES",
    "Names",
    "code_words",
    "count_word",
    "exception_word",
    "known_word",
    "type_word",
    "vocabulary",
]


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


VARIABLES: Final = tuple(f"v{number}" for number in range(24))
"""Stand for the identifiers of a task, in the order in which its lines mention them; more are called ``name``."""
LETTERS: Final = ("a", "b", "c", "d", "e", "f")
"""Name the candidate edits of a line."""
MAX_CODE: Final = 26
"""Words of a line's code that are shown; ``more`` says that there are others."""
BANDS: Final = ("top", "high", "middle", "low")
"""Suspicion of a line: the score divided by the best one, at least 1, 0.8, 0.5, or less."""
KINDS: Final = _split(
    "if while for return raise assign augment call expression def with except break continue pass assert del yield"
)
"""Kinds of lines."""
EXCEPTIONS: Final = _split(
    "AssertionError TypeError ValueError KeyError IndexError AttributeError NameError UnboundLocalError RecursionError "
    "ZeroDivisionError StopIteration RuntimeError NotImplementedError ImportError OSError UnicodeError OverflowError "
    "SyntaxError NotRaised Timeout OtherError"
)
"""What a failing test ends with; ``NotRaised``: an exception that the test wants did not come."""

_BUILTINS = frozenset(dir(builtins))
_SHOWN_BUILTINS: Final = _split(
    "len range min max sum any all sorted reversed enumerate zip map filter iter next abs round int float str bytes "
    "bool list tuple dict set frozenset isinstance issubclass hasattr getattr setattr callable type super repr print "
    "self cls object property"
)
_METHODS: Final = _split(
    "append extend insert pop remove index count get items keys values update setdefault add discard clear copy join "
    "split rsplit strip lstrip rstrip startswith endswith find replace lower upper format encode decode isdigit group "
    "match search sub read write close rfind rindex partition rpartition popleft title capitalize union intersection "
    "ceil floor"
)
_OPERATORS: Final = _split(
    "+ - * / // % ** @ & | ^ ~ << >> < <= > >= == != = += -= *= /= //= %= **= &= |= ^= <<= >>= @= -> := "
    "( ) [ ] { } , : . ; ..."
)
_VALUES: Final = ("number", "text", "empty", "name", "more", "star")
_NUMBERS: Final = tuple(str(number) for number in range(11))
_COUNTS: Final = ("none", "many")
_EDIT_WORDS: Final = _split("to add drop swap negate second third slice keyword branches argument default")
_ACTIONS: Final = _split("look rank inspect edit test undo submit")
_RELATIONS: Final = _split("less greater shorter longer same different")
_TYPES: Final = _split("int float str list tuple dict set bool bytes NoneType exception iterator other")
_TALK: Final = _split(
    "repair fails passes of line lines code edits done undone nothing unknown broken fine others before got expected "
    "raised in at error tests outside not none now trace unmoved moved accepted rejected clean"
)


def vocabulary() -> Vocabulary:
    """All words; identifiers are entities, so that a warm start may permute them."""
    words = [
        *_ACTIONS, *_NUMBERS, *_COUNTS, *LETTERS, *BANDS, *KINDS, *EXCEPTIONS, *sorted(keyword.kwlist), "match", "case",
        *_SHOWN_BUILTINS, *_METHODS, *_OPERATORS, *_VALUES, *_EDIT_WORDS, *_RELATIONS, *_TYPES, *_TALK,
    ]  # fmt: skip
    return Vocabulary(words=tuple(dict.fromkeys(words)), entities={"variable": VARIABLES})


_VARIABLE_WORDS = frozenset(VARIABLES)
_KNOWN = frozenset(vocabulary().words)
_AS_THEY_ARE = frozenset([*keyword.kwlist, *_SHOWN_BUILTINS, *_METHODS, *_OPERATORS])


def known_word(word: str) -> str:
    """The word itself where the vocabulary has it, else ``name``."""
    return word if word in _KNOWN or word in _VARIABLE_WORDS else "name"


class Names:
    """Identifiers of one task and what they are called."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._words: dict[str, str] = {}
        for name in known:
            self.word(name)

    def word(self, name: str) -> str:
        """The word for an identifier; the same for the same identifier."""
        if name in _AS_THEY_ARE:
            return name
        if name in _BUILTINS and name.endswith(("Error", "Exception", "Iteration")):
            return "exception"
        if name not in self._words:
            place = len(self._words)
            self._words[name] = VARIABLES[place] if place < len(VARIABLES) else "name"
        return self._words[name]


def code_words(text: str, names: Names, limit: int = MAX_CODE) -> tuple[str, ...]:
    """Python code as words: operators and keywords as they are, names numbered, literals by their kind.

    Args:
        text: A statement, or a part of one.
        names: Of the task.
        limit: Most words.
    """
    found: list[str] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            found += _token_words(token, names)
    except (tokenize.TokenError, IndentationError):
        pass  # a header of a compound statement ends inside of a bracket of the tokenizer's; what came is enough
    return tuple(found) if len(found) <= limit else (*found[: limit - 1], "more")


def _token_words(token: tokenize.TokenInfo, names: Names) -> list[str]:
    text = token.string
    if token.type == tokenize.NAME:
        return [names.word(text)]
    if token.type == tokenize.NUMBER:
        return [text if text in _NUMBERS else "number"]
    if token.type == tokenize.STRING:
        return ["empty" if text.lstrip("rRbBuUfF") in ("''", '""') else "text"]
    if token.type == tokenize.OP:
        return [text if text in _KNOWN else "more"]
    return []


def count_word(count: int) -> str:
    """``none``, 1 to 10, or ``many``."""
    return "none" if count <= 0 else str(count) if count <= 10 else "many"


def exception_word(names: Sequence[str]) -> str:
    """The word for an exception.

    Args:
        names: Names of its class and of the classes that this inherits from, nearest first.
    """
    return next((name for name in names if name in EXCEPTIONS), "OtherError")


def type_word(names: Sequence[str]) -> str:
    """The word for a type.

    Args:
        names: Names of the class and of the classes that it inherits from, nearest first.
    """
    return next((name for name in names if name in _TYPES), "other")
