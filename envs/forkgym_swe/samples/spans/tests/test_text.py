import pytest

from spans import Span, SpanError, SpanSet, format_spans, parse_spans


def test_parse():
    assert parse_spans("1-3,7,10..12") == SpanSet.of((1, 4), (7, 8), (10, 13))
    assert parse_spans(" 4 - 5 , 5-9 ") == SpanSet.of((4, 10))
    assert parse_spans("-3--1") == SpanSet.of((-3, 0))
    assert parse_spans("") == SpanSet()


@pytest.mark.parametrize(
    ("text", "message"),
    [("1,,3", "part 2 of '1,,3' is empty"), ("a", "no number"), ("5-2", "runs backwards"), ("1,2-x", "part 2")],
)
def test_parse_errors(text, message):
    with pytest.raises(SpanError, match=message):
        parse_spans(text)


def test_parse_within_a_limit():
    assert parse_spans("0-9", limit=Span(0, 10)) == SpanSet.of((0, 10))
    with pytest.raises(SpanError, match=r"leaves 0\.\.9"):
        parse_spans("3,8-10", limit=Span(0, 10))


def test_format():
    assert format_spans(SpanSet.of((1, 4), (7, 8), (10, 12))) == "1-3,7,10,11"
    assert format_spans(SpanSet.of((1, 4), (7, 8)), separator=" ", dash="..") == "1..3 7"
    assert format_spans(SpanSet()) == ""


@pytest.mark.parametrize("text", ["", "1", "1-3", "1-3,7,10-15", "0,2,4"])
def test_round_trip(text):
    assert format_spans(parse_spans(text)) == text
