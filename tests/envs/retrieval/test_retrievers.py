"""BM25 with a fixed order: ties, unknown words, the cut, and what the content hash covers."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

bm25s = pytest.importorskip("bm25s", reason="needs the extra forkgym[retrieval]")

from forkgym_retrieval.cache import CachedRetriever, Memo  # noqa: E402
from forkgym_retrieval.retrievers import (  # noqa: E402
    BM25Retriever,
    EnglishTokenizer,
    Passage,
    Retriever,
    content_hash,
)


def passages(*texts, titles=None):
    return [Passage(str(i), titles[i] if titles else "", text) for i, text in enumerate(texts)]


def ids(hits):
    return [hit.passage.id for hit in hits]


def test_the_passage_with_the_rarer_query_word_comes_first():
    retriever = BM25Retriever(passages("red apple", "red pear", "red plum", "green plum"))
    assert ids(retriever.search("green plum", 3)) == ["3", "2"]


def test_passages_that_tie_at_the_cut_are_chosen_by_id_not_by_position():
    corpus = [Passage(f"{i:02d}", "", "alpha beta") for i in reversed(range(40))] + [Passage("x", "", "gamma")]
    assert ids(BM25Retriever(corpus).search("alpha", 5)) == ["00", "01", "02", "03", "04"]


def test_a_query_without_known_words_finds_nothing():
    retriever = BM25Retriever(passages("red apple", "green pear"))
    assert retriever.search("zebra", 3) == []
    assert retriever.search("", 3) == []
    assert retriever.search("the of and", 3) == []


def test_passages_with_score_zero_are_never_returned_to_fill_up():
    retriever = BM25Retriever(passages("red apple", "green pear", "blue plum"))
    hits = retriever.search("apple", 3)
    assert ids(hits) == ["0"]
    assert hits[0].score > 0


def test_the_title_is_indexed_too():
    retriever = BM25Retriever(passages("a city", "a river", titles=["Prague", "Vltava"]))
    assert ids(retriever.search("vltava", 1)) == ["1"]


def test_words_are_stemmed_and_case_is_ignored():
    retriever = BM25Retriever(passages("The rivers were flowing", "a mountain"), tokenizer=EnglishTokenizer(stem=True))
    assert ids(retriever.search("RIVER flows", 1)) == ["0"]


def test_without_stemming_only_the_same_form_matches():
    plain = EnglishTokenizer(stem=False)
    retriever = BM25Retriever(passages("rivers", "mountains"), tokenizer=plain)
    assert retriever.search("river", 1) == []
    assert ids(retriever.search("rivers", 1)) == ["0"]


def test_a_custom_tokenizer_decides_what_a_word_is():
    retriever = BM25Retriever(
        passages("New York|big", "York|small"), tokenizer=lambda text: text.split("|"), tokenizer_name="bars"
    )
    assert ids(retriever.search("York", 2)) == ["1"]


def test_scores_are_those_of_the_textbook_formula():
    texts = ["apple apple pear", "apple plum", "cherry"]
    retriever = BM25Retriever(passages(*texts), tokenizer=str.split, tokenizer_name="words")
    documents = [text.split() for text in texts]
    average = np.mean([len(d) for d in documents])

    def score(query, document):
        total = 0.0
        for word in query:
            frequency, holders = document.count(word), sum(word in d for d in documents)
            idf = np.log(1 + (len(documents) - holders + 0.5) / (holders + 0.5))
            total += idf * frequency / (frequency + 1.5 * (1 - 0.75 + 0.75 * len(document) / average))
        return total

    got = {hit.passage.id: hit.score for hit in retriever.search("apple pear", 3)}
    assert got == {
        str(i): pytest.approx(score(["apple", "pear"], d), abs=1e-6) for i, d in enumerate(documents) if i < 2
    }


@given(
    texts=st.lists(st.text("abc ", min_size=1, max_size=12), min_size=1, max_size=12),
    query=st.text("abcd ", max_size=8),
    k=st.integers(1, 14),
    shuffle=st.randoms(use_true_random=False),
)
@settings(max_examples=60, deadline=None)
def test_the_ranking_follows_the_rule_for_any_corpus_in_any_order(texts, query, k, shuffle):
    corpus = [*passages(*texts), Passage("anchor", "", "a b")]
    options = {"tokenizer": str.split, "tokenizer_name": "words"}
    retriever = BM25Retriever(corpus, **options)
    everything = retriever.search(query, len(corpus))
    assert everything == sorted(everything, key=lambda hit: (-hit.score, hit.passage.id))
    assert retriever.search(query, k) == everything[:k]
    known = set(query.split())
    assert set(ids(everything)) == {p.id for p in corpus if known & set(p.text.split())}
    shuffle.shuffle(corpus)
    other = BM25Retriever(corpus, **options)
    assert other.search(query, k) == everything[:k]
    assert other.content_hash == retriever.content_hash


def test_rankings_do_not_depend_on_the_hash_seed_of_the_interpreter():
    code = (
        "import json; from forkgym_retrieval.retrievers import *\n"
        "c = [Passage(str(i), '', f'w{i % 7} w{i % 5} w{i % 3} common') for i in range(60)]\n"
        "r = BM25Retriever(c)\n"
        "print(json.dumps([r.content_hash, [[h.passage.id, h.score] for h in r.search('w1 w2 common', 9)]]))"
    )
    answers = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", code],
                env={"PYTHONHASHSEED": seed, "PATH": "", "OMP_NUM_THREADS": "1"},
                capture_output=True,
                check=True,
                text=True,
            ).stdout
        )
        for seed in ("1", "2")
    ]
    assert answers[0] == answers[1]
    assert len(answers[0][1]) == 9


def test_the_content_hash_changes_with_anything_that_changes_a_ranking():
    base = passages("red apple", "green pear")
    variants = [
        BM25Retriever(base),
        BM25Retriever(passages("red apple", "green pears")),
        BM25Retriever(passages("red apple", "green pear", titles=["", "t"])),
        BM25Retriever(base, k1=1.2),
        BM25Retriever(base, b=0.5),
        BM25Retriever(base, tokenizer=EnglishTokenizer(stem=False)),
        BM25Retriever(base, tokenizer=str.split, tokenizer_name="words"),
    ]
    assert len({retriever.content_hash for retriever in variants}) == len(variants)
    assert BM25Retriever(base).content_hash == variants[0].content_hash


def test_moving_a_letter_between_title_and_text_changes_the_content_hash():
    assert content_hash([Passage("1", "ab", "c")]) != content_hash([Passage("1", "a", "bc")])


def test_an_empty_corpus_a_double_id_and_a_corpus_without_words_are_refused():
    with pytest.raises(ValueError, match="empty"):
        BM25Retriever([])
    with pytest.raises(ValueError, match="'7' occurs twice"):
        BM25Retriever([Passage("7", "", "one"), Passage("7", "", "two")])
    with pytest.raises(ValueError, match="no passage of the corpus has any index term"):
        BM25Retriever(passages("the", "of"))


@pytest.mark.parametrize("k", [0, -1])
def test_a_search_for_no_passages_is_refused(k):
    with pytest.raises(ValueError, match="at least 1"):
        BM25Retriever(passages("red apple")).search("apple", k)


def test_the_cache_answers_as_the_retriever_does_and_searches_once():
    inner = BM25Retriever(passages("red apple", "red pear"))
    cached = CachedRetriever(inner)
    first = cached.search("red", 2)
    first.clear()
    assert cached.search("red", 2) == inner.search("red", 2)
    assert cached.search("red", 1) == inner.search("red", 1)
    assert cached.statistics() == {"hits": 1, "misses": 2, "entries": 2}
    assert cached.content_hash == inner.content_hash


def test_a_full_memo_forgets_the_entry_used_longest_ago():
    memo = Memo(2)
    for key in ("a", "b", "a", "c"):
        memo.get(key, lambda key=key: key.upper())
    assert memo.get("a", lambda: "computed again") == "A"
    assert memo.get("b", lambda: "computed again") == "computed again"
    with pytest.raises(ValueError, match="at least one"):
        Memo(0)


def test_both_retrievers_satisfy_the_protocol():
    inner = BM25Retriever(passages("red apple"))
    assert isinstance(inner, Retriever)
    assert isinstance(CachedRetriever(inner), Retriever)
