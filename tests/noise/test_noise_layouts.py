"""Layouts: what re-synchronises, what never repeats, and what the inexact and the biased layout do wrong."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkgym.noise import Key, KeyStream, Layout, newline_table, stream_id
from forkgym.noise.keys import TAG_EPISODE, TAG_NGRAM, TAG_TURN, splitmix64, turn_prefix

WORD, OTHER, NEWLINE, DOUBLE, TEXT_NEWLINE = range(5)
TABLE = newline_table([b"word", b"other", b"\n", b"\n\n", b"end\nstart"])
TOKENS = st.lists(st.integers(0, 4), max_size=12)


def stream(layout=Layout.TURN_LINE, episode=7):
    return KeyStream(layout, episode, newlines=TABLE)


def keys_of(keys, tokens):
    """The keys that choose the tokens, in order."""
    read = []
    for token in tokens:
        read.append(keys.key64())
        keys.advance(token)
    return read


def turn_keys(layout, turns, stream_of=lambda turn: 0):
    """The keys of a whole trajectory, turn by turn."""
    keys = stream(layout)
    read = []
    for turn, tokens in enumerate(turns):
        keys.start_turn(turn, stream_of(turn))
        read.append(keys_of(keys, tokens))
    return read


def test_the_newline_table_counts_bytes():
    assert TABLE.tolist() == [0, 0, 1, 2, 1]
    assert TABLE.dtype == np.uint8


def test_turn_line_keys_are_those_of_Key():
    keys = stream()
    keys.start_turn(3, 9)
    assert keys.key64() == Key(7, 3, 9).hash64()
    for token in (WORD, WORD, DOUBLE, OTHER):
        keys.advance(token)
    assert (keys.line, keys.position) == (2, 1)
    assert keys.key64() == Key(7, 3, 9, line=2, position=1).hash64()


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (Layout.TURN_LINE, 0xF5E9006564993F95),
        (Layout.TURN, 0xDA4BA24EDA8502D8),
        (Layout.EPISODE, 0xCC14C6B1B61D2DF8),
        (Layout.NGRAM, 0xE1818A6D74EF63E0),
        (Layout.INDEPENDENT, 0xF5E9006564993F95),
    ],
)
def test_every_layout_is_pinned_by_a_golden_vector(layout, expected):
    keys = KeyStream(layout, 42, newlines=np.array([0, 1, 2], dtype=np.uint8))
    keys.start_turn(3, 9)
    keys.observe([7, 8])
    for token in (0, 1, 0):
        keys.advance(token)
    assert keys.key64() == expected


def test_the_other_layouts_hash_what_their_names_say():
    turn, episode, ngram = (stream(layout) for layout in (Layout.TURN, Layout.EPISODE, Layout.NGRAM))
    for keys in (turn, episode, ngram):
        keys.start_turn(0, 0)
        keys_of(keys, [WORD, NEWLINE])
        keys.start_turn(1, 5)
        keys_of(keys, [OTHER, DOUBLE, WORD])
    assert turn.key64() == splitmix64(turn_prefix(TAG_TURN, 7, 1, 5), 3)
    assert episode.key64() == splitmix64(turn_prefix(TAG_EPISODE, 7, 0, 5), 5)
    prefix = turn_prefix(TAG_NGRAM, 7, 0, 5)
    assert ngram.key64() == splitmix64(splitmix64(prefix, NEWLINE << 32 | OTHER), DOUBLE << 32 | WORD)


@given(TOKENS, TOKENS, TOKENS)
def test_turn_line_resynchronises_at_the_next_line(one, two, after):
    """Whatever stood on the lines before: with equally many line ends, both read the same noise afterwards."""
    lines = [int(TABLE[tokens].sum()) for tokens in (one, two)]
    one = [*one, *[NEWLINE] * (1 + max(lines) - lines[0])]
    two = [*two, *[NEWLINE] * (1 + max(lines) - lines[1])]
    first, second = stream(), stream()
    for keys, tokens in ((first, one), (second, two)):
        keys.start_turn(2, 0)
        keys_of(keys, tokens)
    assert keys_of(first, after) == keys_of(second, after)


def test_two_newlines_and_one_double_newline_resynchronise_alike():
    first, second = stream(), stream()
    for keys, tokens in ((first, [WORD, NEWLINE, NEWLINE]), (second, [WORD, WORD, DOUBLE])):
        keys.start_turn(0, 0)
        keys_of(keys, tokens)
    assert first.key64() == second.key64()


def test_turn_does_not_resynchronise_at_lines_but_at_turns():
    short, long = [WORD, NEWLINE], [WORD, OTHER, NEWLINE]
    first, second = stream(Layout.TURN), stream(Layout.TURN)
    for keys, tokens in ((first, short), (second, long)):
        keys.start_turn(0, 0)
        keys_of(keys, tokens)
    assert first.key64() != second.key64()
    for keys in (first, second):
        keys.start_turn(1, 0)
    assert first.key64() == second.key64()


@given(st.lists(TOKENS, max_size=6), st.sampled_from([layout for layout in Layout if layout.exact]))
def test_no_key_repeats_inside_a_trajectory_of_an_exact_layout(turns, layout):
    read = [key for keys in turn_keys(layout, turns) for key in keys]
    assert len(set(read)) == len(read)


def test_ngram_keys_repeat_with_their_context_so_ngram_is_not_exact():
    loop = [WORD, OTHER, WORD, WORD, NEWLINE]
    (read,) = turn_keys(Layout.NGRAM, [loop * 2])
    assert read[4] == read[9]
    assert not Layout.NGRAM.exact


@given(TOKENS, TOKENS, TOKENS, TOKENS)
def test_no_noise_that_chose_a_turn_is_read_after_it_with_the_turn_in_the_key(before, factual, alternative, after):
    """The condition for unbiased credit: the twin's later keys are disjoint from those that chose y_t."""
    own = stream_id(0, 1, "alternative", 0)
    for layout in (Layout.TURN_LINE, Layout.TURN):
        chose = turn_keys(layout, [before, factual])[1]
        twin = turn_keys(layout, [before, alternative, after], lambda turn: own if turn == 1 else 0)
        assert not set(chose) & set(twin[2])
        assert layout.unbiased_credit


def test_a_shorter_alternative_reads_the_noise_that_chose_the_factual_turn_under_the_episode_layout():
    own = stream_id(0, 0, "alternative", 0)
    chose = turn_keys(Layout.EPISODE, [[WORD, WORD, WORD]])[0]
    twin = turn_keys(Layout.EPISODE, [[OTHER], [WORD, WORD]], lambda turn: own if turn == 0 else 0)
    assert twin[1] == chose[1:3]
    assert not Layout.EPISODE.unbiased_credit


@given(TOKENS, TOKENS)
def test_a_twin_reads_its_factual_episodes_noise_in_later_turns(alternative, later):
    own = stream_id(0, 0, "alternative", 0)
    factual = turn_keys(Layout.TURN_LINE, [[WORD, NEWLINE], later])
    twin = turn_keys(Layout.TURN_LINE, [alternative, later], lambda turn: own if turn == 0 else 0)
    assert twin[1] == factual[1]
    assert not set(twin[0]) & set(factual[0])


def test_independent_branches_share_nothing_but_the_factual_episode_is_turn_lines():
    turns = [[WORD, NEWLINE, OTHER], [WORD, WORD]]
    factual = turn_keys(Layout.INDEPENDENT, turns)
    assert factual == turn_keys(Layout.TURN_LINE, turns)
    own = [stream_id(0, 0, "alternative", 0), stream_id(0, 0, "continuation", 0)]
    branch = turn_keys(Layout.INDEPENDENT, turns, lambda turn: own[turn])
    assert not {key for keys in branch for key in keys} & {key for keys in factual for key in keys}
    assert [layout for layout in Layout if not layout.couples] == [Layout.INDEPENDENT]


def test_the_episode_counter_survives_turns_and_can_be_handed_to_a_twin():
    keys = stream(Layout.EPISODE)
    keys.start_turn(0, 0)
    keys_of(keys, [WORD, WORD])
    keys.observe([WORD] * 5)
    keys.start_turn(1, 0)
    assert keys.counter == 2
    twin = stream(Layout.EPISODE)
    twin.counter = keys.counter
    twin.start_turn(1, 0)
    assert twin.key64() == keys.key64()


@given(st.sampled_from(list(Layout)), TOKENS, TOKENS)
def test_a_copy_walks_on_alone(layout, before, after):
    keys = stream(layout)
    keys.start_turn(0, 0)
    keys_of(keys, before)
    place = keys.key64()
    twin = keys.copy()
    read = keys_of(twin, after)
    assert keys.key64() == place
    assert keys_of(keys, after) == read


@given(st.sampled_from(list(Layout)), TOKENS)
def test_only_ngram_sees_observed_tokens(layout, observed):
    keys = stream(layout)
    keys.start_turn(0, 0)
    place = keys.key64()
    keys.observe(np.array(observed, dtype=np.int64))
    assert (keys.key64() == place) == (layout is not Layout.NGRAM or not observed)


def test_misuse_names_the_remedy():
    with pytest.raises(RuntimeError, match="start_turn"):
        stream().key64()
    with pytest.raises(ValueError, match="newline_table"):
        KeyStream(Layout.TURN_LINE, 1, newlines=None)
    with pytest.raises(ValueError, match="uint8"):
        KeyStream(Layout.TURN_LINE, 1, newlines=np.zeros(3))
    with pytest.raises(ValueError, match="no-such"):
        KeyStream("no-such", 1, newlines=TABLE)
    with pytest.raises(ValueError, match="255"):
        newline_table([b"a", b"\n" * 256])
    keys = stream()
    with pytest.raises(ValueError, match="episode, turn and branch"):
        keys.start_turn(-1, 0)
    keys.start_turn(0, 0)
    with pytest.raises(ValueError, match="outside the newline table"):
        keys.advance(5)
    with pytest.raises(ValueError, match="negative"):
        keys.advance(-1)
    with pytest.raises(ValueError, match="negative"):
        stream(Layout.NGRAM).observe([3, -1])


@pytest.mark.parametrize("layout", [layout for layout in Layout if layout is not Layout.TURN_LINE])
def test_layouts_without_lines_need_no_table(layout):
    keys = KeyStream(layout, 1, newlines=None)
    keys.start_turn(0, 0)
    assert len(set(keys_of(keys, range(20)))) == 20
    assert repr(layout.value) in repr(keys)
