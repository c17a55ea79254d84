"""Luck is a pure function of episode, stream, turn, name and draw; its numbers are uniform."""

import numpy as np
import pytest
from scipy import stats

from forkgym import SAME, Luck
from forkgym.core.luck import KeyedLuck, episode_of_seed


def test_a_draw_depends_on_each_part_of_its_key():
    def draw(episode=1, stream=2, turn=3, name="a", before=0):
        luck = KeyedLuck(episode, stream, turn)
        for _ in range(before):
            luck.random(name)
        return luck.random(name)

    draws = [draw(), draw(episode=2), draw(stream=3), draw(turn=4), draw(name="b"), draw(before=1)]
    assert len(set(draws)) == len(draws)
    assert draw() == draws[0]


def test_a_draw_does_not_depend_on_draws_of_other_names():
    luck, other = KeyedLuck(1), KeyedLuck(1)
    other.random("something else")
    assert luck.random("coin") == other.random("coin")


def test_each_turn_counts_its_draws_from_zero():
    luck = KeyedLuck(1)
    luck.random("coin")
    luck.start_turn(5, 0)
    assert luck.random("coin") == KeyedLuck(1, 0, 5).random("coin")


def test_a_copy_continues_at_the_same_draw_and_counts_by_itself():
    luck = KeyedLuck(1)
    luck.random("coin")
    copied = luck.copy()
    assert copied.random("coin") == luck.random("coin")
    copied.random("coin")
    copied.random("coin")
    assert luck.random("coin") == KeyedLuckAfter(2)


def KeyedLuckAfter(draws):
    luck = KeyedLuck(1)
    for _ in range(draws):
        luck.random("coin")
    return luck.random("coin")


def test_integers_are_uniform():
    """χ² over 5 cells at N = 20,000; fixed keys, so the test is deterministic; p > 1e-3 was required once."""
    draws = [KeyedLuck(7, 0, turn).integers("die", 10, 15) for turn in range(20_000)]
    counts = np.bincount(np.array(draws) - 10, minlength=5)
    assert stats.chisquare(counts).pvalue > 1e-3


def test_random_numbers_are_uniform_on_the_unit_interval():
    """Kolmogorov-Smirnov at N = 20,000; fixed keys, deterministic."""
    draws = np.array([KeyedLuck(7, 0, turn).random("u") for turn in range(20_000)])
    assert draws.min() >= 0
    assert draws.max() < 1
    assert stats.kstest(draws, "uniform").pvalue > 1e-3


def test_choice_and_generator_are_keyed_too():
    assert 0 <= KeyedLuck(1).choice("c", 3) < 3
    assert KeyedLuck(1).generator("g").random() == KeyedLuck(1).generator("g").random()


@pytest.mark.parametrize(("low", "high"), [(0, 0), (5, 4), (0, 2**64 + 1)])
def test_an_empty_or_endless_range_is_refused(low, high):
    with pytest.raises(ValueError, match="need low < high"):
        KeyedLuck(1).integers("x", low, high)


@pytest.mark.parametrize("stream", [0, -1, 2**64, 1.5, True, "7"])
def test_a_fresh_stream_is_a_positive_64_bit_integer(stream):
    with pytest.raises(ValueError, match="from 1 to"):
        Luck.fresh(stream)


def test_luck_shows_itself_as_one_writes_it():
    assert repr(SAME) == "SAME"
    assert repr(Luck.fresh(7)) == "Luck.fresh(7)"


def test_the_episode_of_a_seed_is_pinned():
    assert episode_of_seed(0) == 14030681894270983403
    assert episode_of_seed(2**64 - 1) != episode_of_seed(0)
