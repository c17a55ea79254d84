"""Question and corpus files: what a good one gives, and what every kind of bad one says."""

import json
import os

import pytest
from forkgym_retrieval.cache import open_dataset
from forkgym_retrieval.data import DataError, load_corpus, load_questions, resolve_path

QUESTION = {"id": "q1", "question": "Who?", "golden_answers": ["Ada"]}
PASSAGE = {"id": "1", "contents": '"Prague"\nA city.\nOn a river.'}


@pytest.fixture
def write(tmp_path):
    def write(content, name="file.jsonl"):
        path = tmp_path / name
        if isinstance(content, list):
            content = "".join(json.dumps(row) + "\n" for row in content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


def question(**changes):
    return {**QUESTION, **changes}


def test_a_corpus_line_is_a_quoted_title_and_a_text(write):
    (passage,) = load_corpus(write([PASSAGE]))
    assert (passage.id, passage.title, passage.text) == ("1", "Prague", "A city.\nOn a river.")


@pytest.mark.parametrize(
    ("contents", "title", "text"),
    [
        ("Prague\nA city.", "Prague", "A city."),
        ("A text alone", "", "A text alone"),
        ('""\nuntitled', "", "untitled"),
        ('"\nodd quote', '"', "odd quote"),
        ('"The "Big" One"\nx', 'The "Big" One', "x"),
    ],
)
def test_titles_may_lack_quotes_or_be_missing(write, contents, title, text):
    (passage,) = load_corpus(write([{"id": "1", "contents": contents}]))
    assert (passage.title, passage.text) == (title, text)


def test_blank_lines_extra_fields_integer_ids_and_a_byte_order_mark_are_fine(write):
    text = "\ufeff" + json.dumps({"id": 7, "contents": "x", "source": [1]}) + "\r\n\n   \n"
    assert [p.id for p in load_corpus(write(text))] == ["7"]


def test_questions_keep_their_order_and_their_answers(write):
    loaded = load_questions(write([QUESTION, question(id="q0", golden_answers=["B", "C"])]))
    assert [q.id for q in loaded.questions] == ["q1", "q0"]
    assert loaded.questions[1].golden_answers == ("B", "C")
    assert loaded.passages == ()


def test_equal_passages_of_different_questions_become_one(write):
    shared = {"title": "Prague", "text": "A city.", "gold": True}
    other = {"title": "Prague", "text": "Another text."}
    rows = [question(passages=[shared, other]), question(id="q2", passages=[other, {**shared, "gold": False}])]
    loaded = load_questions(write(rows))
    assert [p.text for p in loaded.passages] == ["A city.", "Another text."]
    first, second = loaded.questions
    assert first.passages == second.passages[::-1]
    assert first.gold_passages == first.passages[:1]
    assert second.gold_passages == ()


def test_a_passage_listed_twice_by_one_question_counts_once_and_is_gold_if_either_is(write):
    twice = {"title": "T", "text": "x"}
    (only,) = load_questions(write([question(passages=[twice, {**twice, "gold": True}])])).questions
    assert len(only.passages) == 1
    assert only.gold_passages == only.passages


GOOD = json.dumps(QUESTION)
BAD_QUESTIONS = {
    "not json": (GOOD + "\n{oops", "line 2: not a JSON object"),
    "a json array": ("[1, 2]", "line 1: Expected `object`, got `array`"),
    "two objects on a line": (GOOD + GOOD, "trailing characters"),
    "cut off": (GOOD[:-5], "line 1: not a JSON object"),
    "no id": ([{k: v for k, v in QUESTION.items() if k != "id"}], "missing required field `id`"),
    "empty id": ([question(id=" ")], "`id` is empty"),
    "id of a wrong type": ([question(id=1.5)], "`$.id`"),
    "id is null": ([question(id=None)], "`$.id`"),
    "double id": ([QUESTION, question(question="Else?"), question()], "'q1' was used in line 1"),
    "no question": ([{"id": "1", "golden_answers": ["a"]}], "missing required field `question`"),
    "empty question": ([question(question="  ")], "`question` is empty"),
    "no answers": ([{"id": "1", "question": "Who?"}], "missing required field `golden_answers`"),
    "empty answers": ([question(golden_answers=[])], "`golden_answers` is empty"),
    "an empty answer": ([question(golden_answers=["a", " "])], "`golden_answers` is empty or holds an empty answer"),
    "answers as a string": ([question(golden_answers="Ada")], "`$.golden_answers`"),
    "a numeric answer": ([question(golden_answers=[1815])], "`$.golden_answers[0]`"),
    "passages as a string": ([question(passages="text")], "`$.passages`"),
    "a passage without a text": ([question(passages=[{"title": "T"}])], "missing required field `text`"),
    "an empty passage": ([question(passages=[{"title": "", "text": ""}])], "neither title nor text"),
    "gold of a wrong type": ([question(passages=[{"title": "T", "text": "x", "gold": "yes"}])], "`$.passages[0].gold`"),
    "latin-1": (GOOD.encode() + '\n{"id": "é"}'.encode("latin-1"), "line 2: byte 9 of the line is not UTF-8"),
    "utf-16": (GOOD.encode("utf-16"), "not UTF-8"),
    "a lone surrogate": ('{"id": "\\ud800", "question": "Who?", "golden_answers": ["a"]}', "line 1"),
    "empty file": ("", "has no lines"),
    "blank file": ("\n  \n", "has no lines"),
    "gzip": (b"\x1f\x8b\x08\x00", "gunzip"),
}


@pytest.mark.parametrize("name", BAD_QUESTIONS)
def test_a_bad_question_file_gives_one_paragraph_with_file_line_and_remedy(write, name):
    content, message = BAD_QUESTIONS[name]
    path = write(content)
    with pytest.raises(DataError) as caught:
        load_questions(path)
    text = str(caught.value)
    assert message in text
    assert path in text
    assert "\n" not in text
    assert len(text) < 700


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"id": "1"}], "missing required field `contents`"),
        ([{"contents": "x"}], "missing required field `id`"),
        ([{"id": "1", "contents": ["x"]}], "`$.contents`"),
        ([{"id": "1", "contents": ""}], "`contents` is empty"),
        ([PASSAGE, {"id": 1, "contents": "x"}], "'1' was used in line 1"),
        ([], "has no lines"),
    ],
)
def test_a_bad_corpus_file_gives_one_paragraph_with_file_line_and_remedy(write, rows, message):
    path = write(rows)
    with pytest.raises(DataError, match=r".*") as caught:
        load_corpus(path)
    assert message in str(caught.value)
    assert path in str(caught.value)


def test_a_missing_file_and_a_directory_are_named(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.jsonl.*FORKGYM_DATA"):
        load_corpus(tmp_path / "nowhere.jsonl")
    with pytest.raises(DataError, match="is a directory"):
        load_questions(tmp_path)
    with pytest.raises(DataError, match="list of question files is empty"):
        load_questions([])


def test_the_same_id_in_two_files_of_a_split_names_both(write):
    first, second = write([QUESTION], "a.jsonl"), write([QUESTION], "b.jsonl")
    with pytest.raises(DataError) as caught:
        load_questions([first, second])
    assert first in str(caught.value)
    assert second in str(caught.value)


def test_a_relative_path_is_looked_for_in_the_working_directory_then_in_the_data_directory(
    tmp_path, monkeypatch, write
):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    write([PASSAGE], "corpus.jsonl")
    monkeypatch.chdir(elsewhere)
    monkeypatch.delenv("FORKGYM_DATA", raising=False)
    with pytest.raises(DataError):
        resolve_path("corpus.jsonl")
    monkeypatch.setenv("FORKGYM_DATA", str(tmp_path))
    assert resolve_path("corpus.jsonl") == (tmp_path / "corpus.jsonl").resolve()
    (elsewhere / "corpus.jsonl").write_text("{}")
    assert resolve_path("corpus.jsonl") == (elsewhere / "corpus.jsonl").resolve()


# ---------------------------------------------------------------- question sets


def test_a_question_set_is_loaded_once_until_its_file_changes(write):
    pytest.importorskip("bm25s")
    questions, corpus = write([QUESTION], "q.jsonl"), write([PASSAGE], "c.jsonl")
    first = open_dataset(questions, corpus)
    assert open_dataset([questions], corpus) is first
    assert open_dataset({"test": questions}, corpus) is not first
    assert open_dataset({"test": questions}, corpus).retriever is first.retriever
    write([PASSAGE, {"id": "2", "contents": "more"}], "c.jsonl")
    changed = open_dataset(questions, corpus)
    assert changed is not first
    assert len(changed.retriever.passages) == 2


def test_the_content_hash_covers_questions_answers_splits_and_corpus_but_not_paths(write):
    pytest.importorskip("bm25s")
    questions, corpus = write([QUESTION], "q.jsonl"), write([PASSAGE], "c.jsonl")
    base = open_dataset(questions, corpus).content_hash
    assert open_dataset(write([QUESTION], "copy.jsonl"), write([PASSAGE], "copy2.jsonl")).content_hash == base
    others = [
        open_dataset(write([question(question="Whom?")], "a.jsonl"), corpus),
        open_dataset(write([question(golden_answers=["Bob"])], "b.jsonl"), corpus),
        open_dataset(write([question(id="q9")], "c2.jsonl"), corpus),
        open_dataset({"test": questions}, corpus),
        open_dataset(questions, write([{"id": "1", "contents": "other"}], "d.jsonl")),
    ]
    assert len({base, *(dataset.content_hash for dataset in others)}) == 6


def test_the_corpus_of_a_question_set_is_the_union_over_its_splits(write):
    pytest.importorskip("bm25s")
    train = write([question(passages=[{"title": "A", "text": "alpha"}])], "train.jsonl")
    test = write([question(passages=[{"title": "B", "text": "beta"}, {"title": "A", "text": "alpha"}])], "test.jsonl")
    dataset = open_dataset({"train": train, "test": test})
    assert sorted(p.text for p in dataset.retriever.passages) == ["alpha", "beta"]
    assert dataset.task_number("test", "q1") == 0
    assert dataset.task_number("test", "unknown") is None


def test_questions_without_passages_need_a_corpus(write):
    with pytest.raises(DataError, match="no corpus was given"):
        open_dataset(write([QUESTION]))
    with pytest.raises(DataError, match="no split name"):
        open_dataset({" ": write([QUESTION])})
    with pytest.raises(DataError, match="mapping of splits is empty"):
        open_dataset({})


def test_a_corpus_without_a_single_index_term_is_refused_by_name(write):
    pytest.importorskip("bm25s")
    corpus = write([{"id": "1", "contents": "the"}], "stop.jsonl")
    with pytest.raises(DataError, match=r"stop\.jsonl cannot be indexed"):
        open_dataset(write([QUESTION]), corpus)


def test_an_unreadable_file_is_an_error_with_its_reason(write):
    path = write([PASSAGE])
    os.chmod(path, 0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read any file")
    with pytest.raises(DataError, match="cannot be read"):
        load_corpus(path)
