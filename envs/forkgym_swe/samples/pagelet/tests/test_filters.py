import pytest

from pagelet import FILTERS, TemplateError, escape, render
from pagelet.filters import Safe, default, indent, join, money, plural, truncate


def test_escape():
    assert escape("<a href=\"x\">'&'</a>") == "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;"
    assert escape(None) == ""
    assert escape(7) == "7"


def test_escape_leaves_safe_text_alone():
    assert escape(Safe("<b>")) == "<b>"
    assert escape(escape("<b>")) == "&lt;b&gt;"


@pytest.mark.parametrize(
    ("text", "length", "expected"),
    [("short", "20", "short"), ("exactly five", "12", "exactly five"), ("one two three", "8", "one two…")],
)
def test_truncate(text, length, expected):
    assert truncate(text, length) == expected


def test_truncate_with_another_mark():
    assert truncate("one two three", "10", "...") == "one two..."
    assert truncate("one two three", "7", "...") == "one..."


def test_join():
    assert join([1, 2, 3]) == "1, 2, 3"
    assert join(["a", "b"], "-") == "a-b"


def test_default():
    assert default(None, "x") == "x"
    assert default("", "x") == "x"
    assert default(0, "x") == 0
    assert default("a", "x") == "a"


def test_plural():
    assert [f"item{plural(count)}" for count in (0, 1, 2)] == ["items", "item", "items"]
    assert plural("1", "y", "ies") == "y"


def test_money():
    assert money(1234567.891) == "1,234,567.89"
    assert money("12", "0") == "12"


def test_indent():
    assert indent("a\nb\n\nc", "2") == "a\n  b\n\n  c"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ items | first }}", "3"),
        ("{{ items | last }}", "2"),
        ("{{ items | sort | join }}", "1, 2, 3"),
        ("{{ items | length }}", "3"),
        ("{{ nothing | first | default('none') }}", "none"),
        ("{{ name | upper }}{{ name | lower }}{{ name | title }}", "ADA LOVELACEada lovelaceAda Lovelace"),
        ("{{ '  x ' | trim }}", "x"),
    ],
)
def test_filters_in_templates(source, expected):
    assert render(source, items=[3, 1, 2], nothing=[], name="ada Lovelace") == expected


def test_unknown_filter():
    with pytest.raises(TemplateError, match="line 2: there is no filter 'shout'"):
        render("a\n{{ x | shout }}", x=1)


def test_filter_that_refuses():
    with pytest.raises(TemplateError, match="filter 'money' refused 'abc'"):
        render("{{ x | money }}", x="abc")


def test_every_filter_is_documented_or_plain():
    assert set(FILTERS) >= {"escape", "safe", "join", "default", "length"}
