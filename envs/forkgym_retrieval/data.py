"""Corpora and question files: JSON Lines in, checked structs out, or one error and nothing.

Forms: `{id, contents}` (Search-R1, FlashRAG), `{id, question, golden_answers}`, and the latter with
`passages`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from forkgym.core import ForkgymError
from forkgym_retrieval.retrievers import Passage

__all__ = ["DataError", "LoadedQuestions", "Question", "load_corpus", "load_questions", "resolve_path"]

DATA_VARIABLE = "FORKGYM_DATA"
"""Environment variable: where relative paths are looked for after the working directory."""


class DataError(ForkgymError, ValueError):
    """A corpus or question file is unusable: which file and line, what is wrong, what to do."""


class Question(msgspec.Struct, frozen=True):
    """One question.

    Attributes:
        id: Unique in its split.
        question: The text.
        golden_answers: Accepted answers, at least one.
        passages: Ids of the passages that came with the question (empty where the corpus is a file of its
            own).
        gold_passages: Ids of those among them that hold the evidence.
    """

    id: str
    question: str
    golden_answers: tuple[str, ...]
    passages: tuple[str, ...] = ()
    gold_passages: tuple[str, ...] = ()


class LoadedQuestions(msgspec.Struct, frozen=True):
    """The content of one or more question files.

    Attributes:
        questions: In file order.
        passages: The union of the passages that came with them, without duplicates, in order of first
            appearance.
    """

    questions: tuple[Question, ...]
    passages: tuple[Passage, ...]


class _CorpusLine(msgspec.Struct):
    id: str | int
    contents: str


class _PassageField(msgspec.Struct):
    title: str
    text: str
    gold: bool = False


class _QuestionLine(msgspec.Struct):
    id: str | int
    question: str
    golden_answers: list[str]
    passages: list[_PassageField] = []


_Line = TypeVar("_Line")

_CORPUS_FORM = 'one object a line, {"id": "7", "contents": "\\"Title\\"\\nText of the passage"}'
_QUESTION_FORM = 'one object a line, {"id": "q7", "question": "Who …?", "golden_answers": ["Ada Lovelace"]}'


def load_corpus(path: str | os.PathLike[str]) -> tuple[Passage, ...]:
    r"""Reads a corpus in Search-R1's form: `{"id": …, "contents": "\"Title\"\ntext"}`, one object a line.

    The first line of `contents` is the title (one pair of outer quotation marks is dropped), the rest the
    text; without a line break there is no title. Other fields are ignored, blank lines too; integer ids
    become text.

    Raises:
        DataError: The file is missing, empty, not UTF-8, or one of its lines is wrong.
    """
    file = resolve_path(path)
    passages: list[Passage] = []
    seen: dict[str, int] = {}
    for number, line in _lines(file, _CORPUS_FORM):
        record = _decode(file, number, line, _CorpusLine, _CORPUS_FORM)
        identifier = _identifier(file, number, record.id, seen)
        if not record.contents.strip():
            raise _error(file, number, "`contents` is empty", "remove the line or fill it")
        title, text = _split_contents(record.contents)
        passages.append(Passage(identifier, title, text))
    return tuple(passages)


def load_questions(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> LoadedQuestions:
    """Reads question files: `{"id": …, "question": …, "golden_answers": […]}`, one object a line.

    A line may bring its own passages, `"passages": [{"title": …, "text": …, "gold": true}, …]`. A passage has
    no id in this form: it gets one from its content, so equal passages of different questions become one.

    Args:
        paths: One file, or several that are read as one list; ids must be unique over all of them.

    Raises:
        DataError: A file is missing, empty, not UTF-8, or one of its lines is wrong.
    """
    files = [resolve_path(p) for p in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    if not files:
        raise DataError("the list of question files is empty; name at least one JSON Lines file")
    questions: list[Question] = []
    passages: dict[str, Passage] = {}
    origin: dict[str, Path] = {}
    for file in files:
        seen: dict[str, int] = {}
        for number, line in _lines(file, _QUESTION_FORM):
            record = _decode(file, number, line, _QuestionLine, _QUESTION_FORM)
            identifier = _identifier(file, number, record.id, seen)
            if identifier in origin:
                raise _error(
                    file,
                    number,
                    f"the id {identifier!r} occurs in {origin[identifier]} too",
                    "give each question of a split an id of its own, or put the files into different splits",
                )
            questions.append(_question(file, number, identifier, record, passages))
        origin.update(dict.fromkeys(seen, file))
    return LoadedQuestions(tuple(questions), tuple(passages.values()))


def resolve_path(path: str | os.PathLike[str]) -> Path:
    """Finds a data file; a relative path in the working directory, then in `$FORKGYM_DATA`.

    Relative paths keep a handle portable: each machine sets `FORKGYM_DATA` to its own directory.

    Raises:
        DataError: There is no such file.
    """
    given = Path(path).expanduser()
    candidates = [given]
    root = os.environ.get(DATA_VARIABLE)
    if root and not given.is_absolute():
        candidates.append(Path(root) / given)
    for candidate in candidates:
        if candidate.is_file():
            return candidate.resolve()
    if given.is_dir():
        raise DataError(f"{given} is a directory; name the JSON Lines file inside it")
    looked = " and ".join(str(c) for c in candidates)
    raise DataError(f"there is no file {looked}; check the path, or set {DATA_VARIABLE} to the directory with the data")


def passage_id(title: str, text: str) -> str:
    """The id of a passage that came without one: 16 hex digits of BLAKE2b over title and text."""
    data = title.encode()
    return hashlib.blake2b(len(data).to_bytes(8, "little") + data + text.encode(), digest_size=8).hexdigest()


def _question(
    file: Path, number: int, identifier: str, record: _QuestionLine, passages: dict[str, Passage]
) -> Question:
    if not record.question.strip():
        raise _error(file, number, "`question` is empty", "remove the line or fill it")
    if not record.golden_answers or not all(answer.strip() for answer in record.golden_answers):
        raise _error(
            file,
            number,
            "`golden_answers` is empty or holds an empty answer",
            "give at least one non-empty answer",
        )
    # Dictionaries keep the order and drop a passage that a question lists twice.
    own: dict[str, bool] = {}
    for field in record.passages:
        if not field.text.strip() and not field.title.strip():
            raise _error(file, number, "one of the `passages` has neither title nor text", "remove or fill it")
        key = passage_id(field.title, field.text)
        passages.setdefault(key, Passage(key, field.title, field.text))
        own[key] = own.get(key, False) or field.gold
    gold = tuple(key for key, is_gold in own.items() if is_gold)
    return Question(identifier, record.question, tuple(record.golden_answers), tuple(own), gold)


def _split_contents(contents: str) -> tuple[str, str]:
    title, newline, text = contents.partition("\n")
    if not newline:
        return "", contents
    if len(title) >= 2 and title[0] == title[-1] == '"':
        title = title[1:-1]
    return title, text


def _identifier(file: Path, number: int, raw: str | int, seen: dict[str, int]) -> str:
    identifier = str(raw)
    if not identifier.strip():
        raise _error(file, number, "`id` is empty", "give every line an id of its own")
    if identifier in seen:
        raise _error(
            file,
            number,
            f"the id {identifier!r} was used in line {seen[identifier]} already",
            "give every line an id of its own",
        )
    seen[identifier] = number
    return identifier


def _lines(file: Path, form: str) -> Iterator[tuple[int, bytes]]:
    """Yields (line number from 1, bytes) of the lines that are not blank; refuses a file that has none."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror}); check its permissions") from error
    if data.startswith(b"\x1f\x8b"):
        raise DataError(f"{file} is gzip-compressed; unpack it first (gunzip --keep {file.name})")
    empty = True
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            empty = False
            yield number, line
    if empty:
        raise DataError(f"{file} has no lines; expected {form}")


def _decode(file: Path, number: int, line: bytes, kind: type[_Line], form: str) -> _Line:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _error(
            file,
            number,
            f"byte {error.start + 1} of the line is not UTF-8",
            "convert the file, e.g. `iconv -f latin1 -t utf-8`",
        ) from error
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.ValidationError as error:
        raise _error(file, number, str(error), f"expected {form}") from error
    except msgspec.DecodeError as error:
        raise _error(file, number, f"not a JSON object ({error})", f"expected {form}") from error


def _error(file: Path, number: int, problem: str, remedy: str) -> DataError:
    return DataError(f"{file}, line {number}: {problem}. Nothing was loaded; {remedy}.")
