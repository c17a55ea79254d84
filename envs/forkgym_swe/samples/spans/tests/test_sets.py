import itertools

import pytest

from spans import Span, SpanSet

SOME = [
    SpanSet(),
    SpanSet.of((0, 3)),
    SpanSet.of((1, 2), (4, 7)),
    SpanSet.of((0, 1), (2, 5), (6, 8)),
    SpanSet.of((3, 4), (7, 8)),
]


def numbers(spans):
    return {number for span in spans for number in span}


def test_spans_are_sorted_and_merged():
    assert list(SpanSet.of((5, 7), (0, 2), (2, 3))) == [Span(0, 3), Span(5, 7)]
    assert list(SpanSet.of((0, 9), (2, 3), (9, 9))) == [Span(0, 9)]


def test_length_counts_numbers():
    assert len(SpanSet.of((0, 3), (5, 7))) == 5
    assert not SpanSet.of((4, 4))


def test_of_numbers():
    assert SpanSet.of_numbers([3, 1, 2, 7]) == SpanSet.of((1, 4), (7, 8))


def test_equal_sets_have_equal_hashes():
    one, two = SpanSet.of((0, 2), (2, 4)), SpanSet.of((0, 4))
    assert one == two
    assert hash(one) == hash(two)
    assert one != SpanSet.of((0, 5))
    assert one != "0-3"


@pytest.mark.parametrize(("one", "two"), list(itertools.product(SOME, SOME)))
def test_algebra_is_that_of_sets_of_numbers(one, two):
    assert numbers(one | two) == numbers(one) | numbers(two)
    assert numbers(one & two) == numbers(one) & numbers(two)
    assert numbers(one - two) == numbers(one) - numbers(two)
    assert numbers(one ^ two) == numbers(one) ^ numbers(two)
    assert one.issubset(two) == numbers(one).issubset(numbers(two))
    assert one.isdisjoint(two) == numbers(one).isdisjoint(numbers(two))


@pytest.mark.parametrize("number", range(-1, 9))
def test_membership(number):
    for spans in SOME:
        assert (number in spans) == (number in numbers(spans))


def test_span_of():
    spans = SpanSet.of((1, 3), (5, 8))
    assert spans.span_of(6) == Span(5, 8)
    assert spans.span_of(1) == Span(1, 3)
    assert spans.span_of(3) is None
    assert spans.span_of(0) is None


def test_hull():
    assert SpanSet.of((1, 3), (5, 8)).hull() == Span(1, 8)
    assert SpanSet().hull() is None


def test_gaps():
    spans = SpanSet.of((1, 3), (5, 8), (9, 10))
    assert spans.gaps() == SpanSet.of((3, 5), (8, 9))
    assert spans.gaps(Span(0, 12)) == SpanSet.of((0, 1), (3, 5), (8, 9), (10, 12))
    assert SpanSet().gaps() == SpanSet()
    assert SpanSet().gaps(Span(0, 2)) == SpanSet.of((0, 2))


def test_closed():
    spans = SpanSet.of((0, 2), (3, 5), (8, 9))
    assert spans.closed(1) == SpanSet.of((0, 5), (8, 9))
    assert spans.closed(3) == SpanSet.of((0, 9))
    assert spans.closed(0) == spans


def test_first_fit():
    taken = SpanSet.of((0, 2), (3, 5), (8, 9))
    assert taken.first_fit(1, Span(0, 12)) == Span(2, 3)
    assert taken.first_fit(3, Span(0, 12)) == Span(5, 8)
    assert taken.first_fit(4, Span(0, 12)) is None


def test_coverage():
    spans = SpanSet.of((0, 2), (5, 10))
    assert spans.coverage(Span(0, 10)) == 0.7
    assert spans.coverage(Span(4, 6)) == 0.5
    assert spans.coverage(Span(3, 3)) == 0.0


def test_repr():
    assert repr(SpanSet.of((0, 2), (5, 7))) == "SpanSet.of((0, 2), (5, 7))"
