"""Passages and the retrievers that rank them: the `Retriever` protocol and BM25 with a fixed order.

Loading corpora lives in `data.py`, caching in `cache.py`; nothing here knows about episodes.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "BM25Retriever",
    "EnglishTokenizer",
    "Hit",
    "Passage",
    "Retriever",
    "Tokenizer",
    "content_hash",
]

Tokenizer = Callable[[str], Sequence[str]]
"""Turns a passage or a query into index terms, in order, repeats kept."""

SCORE_DIGITS = 6
"""Decimals that count when two scores are compared; smaller differences are ties, which the id breaks."""


class Passage(msgspec.Struct, frozen=True):
    """One unit of retrieval.

    Attributes:
        id: Unique in its corpus; breaks ties between equal scores (code-point order).
        title: May be empty.
        text: The body, without the title.
    """

    id: str
    title: str
    text: str

    @property
    def contents(self) -> str:
        """The text that is indexed: title and body, or the body alone where there is no title."""
        return f"{self.title}\n{self.text}" if self.title else self.text


class Hit(msgspec.Struct, frozen=True):
    """A passage that a search returned, with its score (higher is better, rounded to 6 decimals)."""

    passage: Passage
    score: float


@runtime_checkable
class Retriever(Protocol):
    """What an environment asks of a retriever.

    An implementation is a pure function of `(query, k)`: the same call gives the same hits in the same order
    in every process, or replay breaks. `content_hash` names everything that the answer depends on.
    """

    @property
    def content_hash(self) -> str:
        """Hex digest of the passages and of every setting that changes a ranking."""
        ...

    @property
    def passages(self) -> Sequence[Passage]:
        """The whole corpus, in the order it was given."""
        ...

    def search(self, query: str, k: int) -> list[Hit]:
        """Returns at most `k` hits, best first; fewer (or none) where fewer passages match."""
        ...


def content_hash(passages: Sequence[Passage], settings: str = "") -> str:
    """Hashes a corpus and the settings of its index.

    Args:
        passages: The corpus. Its order does not change a ranking (ids break ties), so it does not count here.
        settings: Anything else that a ranking depends on, as text.

    Returns:
        32 hexadecimal digits (BLAKE2b-128 over length-prefixed fields, so no two corpora share an encoding).
    """
    digest = hashlib.blake2b(digest_size=16)
    for field in (settings, *(f for p in sorted(passages, key=_id) for f in (p.id, p.title, p.text))):
        data = field.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def _id(passage: Passage) -> str:
    return passage.id


class EnglishTokenizer:
    """Lower-cased words of two or more characters without stop words, stemmed where PyStemmer is installed.

    `name` says which variant this is: stemming changes rankings, so the name is part of the content hash.

    Args:
        stem: True demands PyStemmer, False never stems, None (default) stems if PyStemmer is installed.

    Raises:
        ImportError: bm25s (for its stop-word list), or PyStemmer with `stem=True`, is not installed.
    """

    _WORD = re.compile(r"\b\w\w+\b")

    def __init__(self, stem: bool | None = None) -> None:
        self._stop_words = frozenset(_import_bm25s().stopwords.STOPWORDS_EN)
        self._stem_words: Callable[[list[str]], list[str]] | None = None
        if stem is not False:
            try:
                import Stemmer
            except ImportError as error:
                if stem:
                    raise ImportError(
                        "stemming was asked for and PyStemmer is not installed; "
                        "run `pip install 'forkgym[retrieval]'` or pass stem=False"
                    ) from error
            else:
                self._stem_words = Stemmer.Stemmer("english").stemWords
        # A Stemmer holds a mutable word cache that is not safe to share between threads.
        self._lock = threading.Lock()
        self.name = "english-stopwords" if self._stem_words is None else "english-stopwords-snowball"

    def __call__(self, text: str) -> list[str]:
        """Returns the index terms of `text`, in order, repeats kept."""
        terms = [word for word in self._WORD.findall(text.lower()) if word not in self._stop_words]
        if self._stem_words is None:
            return terms
        with self._lock:
            return self._stem_words(terms)


class BM25Retriever:
    """BM25 (Lucene's variant, by bm25s) whose order is a function of the scores and the ids alone.

    bm25s returns tied passages in arbitrary order and fills up with score-0 passages. Here every passage is
    scored, scores ≤ 0 are dropped, the rest is sorted by (−score rounded to 6 decimals, id) and cut at `k`;
    all passages that tie with the k-th take part in the sort, so the cut depends on no partial selection.
    A query none of whose terms occurs in the corpus returns an empty list.

    Reference: Robertson & Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009,
    section 3; Lù, "BM25S", 2024.

    Args:
        passages: The corpus; ids must be unique.
        tokenizer: Turns text into terms; default `EnglishTokenizer()`.
        tokenizer_name: Names the tokenizer in `content_hash`. Default: its `name` attribute, else its
            qualified name.
        k1: Term-frequency saturation.
        b: Length normalisation.

    Raises:
        ValueError: The corpus is empty, has a duplicate id, or has no terms at all.
        ImportError: bm25s is not installed.
    """

    def __init__(
        self,
        passages: Sequence[Passage],
        *,
        tokenizer: Tokenizer | None = None,
        tokenizer_name: str | None = None,
        k1: float = 1.5,
        b: float = 0.75,
    ) -> None:
        self._passages = tuple(passages)
        if not self._passages:
            raise ValueError("the corpus is empty; give at least one passage")
        ids = [passage.id for passage in self._passages]
        if len(set(ids)) != len(ids):
            twice = next(i for i, count in Counter(ids).items() if count > 1)
            raise ValueError(f"passage id {twice!r} occurs twice; ids break ties, so each must be unique")
        self._tokenize: Tokenizer = tokenizer if tokenizer is not None else EnglishTokenizer()
        name = tokenizer_name or _name_of(self._tokenize)
        self._content_hash = content_hash(self._passages, f"bm25-lucene k1={k1!r} b={b!r} tokenizer={name}")
        # Rank of each passage's id in code-point order: the tie-breaker, as an array.
        self._id_rank = np.empty(len(ids), dtype=np.int64)
        self._id_rank[sorted(range(len(ids)), key=ids.__getitem__)] = np.arange(len(ids))
        self._index, self._vocabulary = self._build(k1, b)

    def _build(self, k1: float, b: float) -> tuple[_Index, dict[str, int]]:
        # Term ids are given in order of first occurrence: bm25s would take them from a set, whose order
        # changes with the interpreter's hash seed.
        vocabulary: dict[str, int] = {}
        documents = [
            [vocabulary.setdefault(term, len(vocabulary)) for term in self._tokenize(passage.contents)]
            for passage in self._passages
        ]
        if not vocabulary:
            raise ValueError("no passage of the corpus has any index term; is the tokenizer right for this language?")
        # Double precision: the order of float32 sums would show in the sixth decimal of a score above 8.
        index = _import_bm25s().BM25(k1=k1, b=b, method="lucene", dtype="float64", backend="numpy")
        # bm25s adds an empty term to the dictionary it is given; ours stays as it is.
        index.index((documents, dict(vocabulary)), show_progress=False)
        return index, vocabulary

    @property
    def content_hash(self) -> str:
        """Hex digest of the passages, the tokenizer's name, k1 and b."""
        return self._content_hash

    @property
    def passages(self) -> tuple[Passage, ...]:
        """The whole corpus, in the order it was given."""
        return self._passages

    def search(self, query: str, k: int) -> list[Hit]:
        """Returns at most `k` passages with a positive score, by (−score rounded to 6 decimals, id).

        Args:
            query: Free text; terms that the corpus does not have are ignored.
            k: The most hits to return, at least 1.

        Raises:
            ValueError: `k` is below 1.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        # Sorted, so that the rounding of the sum depends neither on word order nor on the corpus's order.
        terms = [self._vocabulary[t] for t in sorted(self._tokenize(query)) if t in self._vocabulary]
        if not terms:
            return []
        raw: NDArray[np.float64] = self._index.get_scores_from_ids(terms)
        matching = np.flatnonzero(raw > 0)
        scores = np.round(raw[matching], SCORE_DIGITS)
        if len(matching) > k:
            threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
            kept = scores >= threshold
            matching, scores = matching[kept], scores[kept]
        order = np.lexsort((self._id_rank[matching], -scores))[:k]
        return [Hit(self._passages[matching[i]], float(scores[i])) for i in order]


class _Index(Protocol):
    """The part of `bm25s.BM25` that is used here (bm25s ships no type hints)."""

    def get_scores_from_ids(self, query_tokens_ids: list[int]) -> NDArray[np.float64]: ...


def _name_of(tokenizer: Tokenizer) -> str:
    name = getattr(tokenizer, "name", None)
    if isinstance(name, str):
        return name
    kind = tokenizer if hasattr(tokenizer, "__qualname__") else type(tokenizer)
    return f"{kind.__module__}.{kind.__qualname__}"


def _import_bm25s() -> Any:
    """Imports bm25s on first use: `import forkgym` must not pay for it.

    Raises:
        ImportError: With the command that installs it.
    """
    try:
        import bm25s
    except ImportError as error:
        raise ImportError("BM25 retrieval needs the package bm25s; run `pip install 'forkgym[retrieval]'`") from error
    return bm25s
