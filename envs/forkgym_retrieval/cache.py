"""What environments of one process share: loaded question sets, their index, and the answers to queries.

Everything here is immutable or a pure memo, so it never shows in a state, a hash or an observation.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from forkgym_retrieval.data import DataError, Question, load_corpus, load_questions, resolve_path
from forkgym_retrieval.retrievers import BM25Retriever, Hit, Passage, Retriever

__all__ = ["CachedRetriever", "Dataset", "Memo", "open_dataset"]

Paths = str | Sequence[str]

_Value = TypeVar("_Value")

_FileKey = tuple[str, int, int]


class Memo(Generic[_Value]):
    """A bounded memo of a pure function, safe to share between threads; the least recently used entry goes.

    Args:
        limit: The most entries to keep, at least 1.
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"a memo keeps at least one entry, got a limit of {limit}")
        self._limit = limit
        self._entries: OrderedDict[Hashable, _Value] = OrderedDict()
        self._lock = threading.Lock()
        self._hits = 0
        self._misses = 0

    def get(self, key: Hashable, compute: Callable[[], _Value]) -> _Value:
        """Returns the value for `key`, computed on first use (by two threads at once, if they meet)."""
        with self._lock:
            if key in self._entries:
                self._hits += 1
                self._entries.move_to_end(key)
                return self._entries[key]
            self._misses += 1
        value = compute()
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            while len(self._entries) > self._limit:
                self._entries.popitem(last=False)
        return value

    def statistics(self) -> dict[str, int]:
        """How often an entry was there (`hits`) or not (`misses`), and how many are kept (`entries`)."""
        with self._lock:
            return {"hits": self._hits, "misses": self._misses, "entries": len(self._entries)}


class CachedRetriever:
    """A retriever that remembers its answers by (query, k): a twin that repeats a query pays nothing.

    Args:
        retriever: A pure function of (query, k), as the protocol demands.
        limit: The most answers to keep.
    """

    def __init__(self, retriever: Retriever, limit: int = 65_536) -> None:
        self._retriever = retriever
        self._memo: Memo[tuple[Hit, ...]] = Memo(limit)

    @property
    def content_hash(self) -> str:
        """The wrapped retriever's."""
        return self._retriever.content_hash

    @property
    def passages(self) -> Sequence[Passage]:
        """The wrapped retriever's."""
        return self._retriever.passages

    def search(self, query: str, k: int) -> list[Hit]:
        """The same hits as the wrapped retriever's, in a list of the caller's own."""
        return list(self._memo.get((query, k), lambda: tuple(self._retriever.search(query, k))))

    def statistics(self) -> dict[str, int]:
        """The memo's statistics."""
        return self._memo.statistics()


class Dataset:
    """Questions by split, over one corpus. Immutable, shared by all environments of a process.

    Attributes:
        splits: Split name to its questions, in file order.
        retriever: Ranks the corpus.
        content_hash: 32 hex digits over the questions, their answers, the corpus and the index's settings.
    """

    def __init__(self, splits: Mapping[str, tuple[Question, ...]], retriever: Retriever) -> None:
        self.splits = dict(splits)
        self.retriever = retriever
        self._passages = {passage.id: passage for passage in retriever.passages}
        self._task_numbers = {
            split: {question.id: number for number, question in enumerate(questions)}
            for split, questions in self.splits.items()
        }
        digest = hashlib.blake2b(retriever.content_hash.encode(), digest_size=16)
        for split, questions in sorted(self.splits.items()):
            for question in questions:
                for field in (split, question.id, question.question, *question.golden_answers):
                    data = field.encode()
                    digest.update(len(data).to_bytes(8, "little") + data)
                digest.update(b"\xff")
        self.content_hash = digest.hexdigest()

    def passage(self, identifier: str) -> Passage:
        """The passage with this id.

        Raises:
            KeyError: The corpus has none.
        """
        return self._passages[identifier]

    def task_number(self, split: str, question_id: str) -> int | None:
        """Where a question stands in its split, or None if it is not there."""
        return self._task_numbers[split].get(question_id)


_datasets: Memo[Dataset] = Memo(8)
_retrievers: Memo[CachedRetriever] = Memo(4)


def open_dataset(questions: Paths | Mapping[str, Paths], corpus: str | None = None) -> Dataset:
    """Loads question files and builds the index of their corpus, once per process and state of the files.

    Args:
        questions: One file, several files (read as one list), or a mapping from split name to such. Without a
            mapping the split is called `train`.
        corpus: A corpus file, or None where the questions bring their passages; the corpus is then the union
            over all splits.

    Raises:
        DataError: A file is unusable, a split has no name or files, or there are no passages at all.
        ImportError: bm25s is not installed.
    """
    by_split = questions if isinstance(questions, Mapping) else {"train": questions}
    if not by_split:
        raise DataError('the mapping of splits is empty; give at least one, e.g. {"train": "train.jsonl"}')
    files: dict[str, tuple[str, ...]] = {}
    for split, paths in by_split.items():
        if not str(split).strip():
            raise DataError(f"{split!r} is no split name; use a text such as 'train'")
        files[split] = (paths,) if isinstance(paths, str) else tuple(paths)
    keys = tuple((split, tuple(_file_key(p) for p in paths)) for split, paths in sorted(files.items()))
    corpus_key = None if corpus is None else _file_key(corpus)
    return _datasets.get((keys, corpus_key), lambda: _load(files, corpus))


def _load(files: Mapping[str, tuple[str, ...]], corpus: str | None) -> Dataset:
    loaded = {split: load_questions(paths) for split, paths in files.items()}
    splits = {split: content.questions for split, content in loaded.items()}
    if corpus is not None:
        retriever = _retrievers.get(_file_key(corpus), lambda: _index(load_corpus(corpus), corpus))
        return Dataset(splits, retriever)
    union = {passage.id: passage for content in loaded.values() for passage in content.passages}
    if not union:
        names = ", ".join(sorted(p for paths in files.values() for p in paths))
        raise DataError(
            f"no corpus was given and the questions of {names} bring no passages; pass corpus=FILE with one "
            'object a line, {"id": "7", "contents": "\\"Title\\"\\nText of the passage"}'
        )
    passages = tuple(union.values())
    return Dataset(splits, _retrievers.get(tuple(sorted(union)), lambda: _index(passages, "the questions' passages")))


def _index(passages: tuple[Passage, ...], source: str) -> CachedRetriever:
    try:
        return CachedRetriever(BM25Retriever(passages))
    except ValueError as error:
        raise DataError(f"{source} cannot be indexed: {error}") from error


def _file_key(path: str) -> _FileKey:
    """Identifies a file's content cheaply: a changed file gets a new modification time or size."""
    file: Path = resolve_path(path)
    status = file.stat()
    return str(file), status.st_mtime_ns, status.st_size
