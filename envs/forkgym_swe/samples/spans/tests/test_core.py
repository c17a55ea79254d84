import pytest

from spans import Span, SpanError


def test_length_and_truth():
    assert len(Span(2, 5)) == 3
    assert Span(2, 3)
    assert not Span(4, 4)


def test_bounds_in_the_wrong_order():
    with pytest.raises(SpanError, match="before its start 5"):
        Span(5, 2)


@pytest.mark.parametrize(("number", "inside"), [(1, False), (2, True), (4, True), (5, False)])
def test_contains(number, inside):
    assert (number in Span(2, 5)) is inside


def test_iteration():
    assert list(Span(2, 5)) == [2, 3, 4]


@pytest.mark.parametrize(
    ("other", "expected"),
    [((0, 2), False), ((0, 3), True), ((4, 9), True), ((5, 9), False), ((3, 3), False)],
)
def test_overlaps(other, expected):
    assert Span(2, 5).overlaps(Span(*other)) is expected
    assert Span(*other).overlaps(Span(2, 5)) is expected


@pytest.mark.parametrize(("other", "expected"), [((0, 2), True), ((5, 9), True), ((6, 9), False), ((0, 1), False)])
def test_touches(other, expected):
    assert Span(2, 5).touches(Span(*other)) is expected


def test_intersection():
    assert Span(2, 5).intersection(Span(4, 9)) == Span(4, 5)
    assert Span(2, 9).intersection(Span(4, 6)) == Span(4, 6)
    assert Span(2, 5).intersection(Span(5, 9)) is None


def test_hull():
    assert Span(2, 5).hull(Span(8, 9)) == Span(2, 9)
    assert Span(7, 9).hull(Span(1, 2)) == Span(1, 9)
    assert Span(2, 5).hull(Span(0, 0)) == Span(2, 5)
    assert Span(0, 0).hull(Span(2, 5)) == Span(2, 5)


def test_minus():
    assert Span(2, 8).minus(Span(4, 5)) == [Span(2, 4), Span(5, 8)]
    assert Span(2, 8).minus(Span(0, 5)) == [Span(5, 8)]
    assert Span(2, 8).minus(Span(5, 9)) == [Span(2, 5)]
    assert Span(2, 8).minus(Span(0, 9)) == []
    assert Span(2, 8).minus(Span(9, 12)) == [Span(2, 8)]


def test_shifted():
    assert Span(2, 5).shifted(3) == Span(5, 8)
    assert Span(2, 5).shifted(-3) == Span(-1, 2)


def test_grown():
    assert Span(2, 5).grown(1) == Span(1, 6)
    assert Span(2, 5).grown(1, 3) == Span(1, 8)
    assert Span(2, 5).grown(0, -1) == Span(2, 4)
    with pytest.raises(SpanError):
        Span(2, 5).grown(-2)


def test_split():
    assert Span(2, 5).split(3) == (Span(2, 3), Span(3, 5))
    assert Span(2, 5).split(5) == (Span(2, 5), Span(5, 5))
    with pytest.raises(SpanError, match="6 is not in"):
        Span(2, 5).split(6)


def test_pieces():
    assert Span(0, 5).pieces(2) == [Span(0, 2), Span(2, 4), Span(4, 5)]
    assert Span(3, 3).pieces(2) == []
    with pytest.raises(SpanError):
        Span(0, 5).pieces(0)


def test_order():
    assert sorted([Span(3, 4), Span(1, 9), Span(1, 2)]) == [Span(1, 2), Span(1, 9), Span(3, 4)]
