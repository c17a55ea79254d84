import pytest

from pagelet import TemplateError
from pagelet.parser import For, If, Text, Value, parse, split_outside_quotes, unquote


def test_text_and_values():
    nodes = parse("Hello {{ name | upper }}!")
    assert nodes == [Text("Hello "), Value("name", [("upper", [])], 1), Text("!")]


def test_filters_with_arguments():
    (value,) = parse("{{ text | truncate(10, '|') | default(\"a,b\") }}")
    assert value.filters == [("truncate", ["10", "'|'"]), ("default", ['"a,b"'])]


def test_comments_are_dropped():
    assert parse("a{# not\nshown #}b") == [Text("a"), Text("b")]


def test_blocks():
    (condition,) = parse("{% if a %}1{% elif b %}2{% else %}3{% end %}")
    assert isinstance(condition, If)
    assert condition.branches == [("a", [Text("1")]), ("b", [Text("2")]), (None, [Text("3")])]


def test_loop():
    (loop,) = parse("{% for key, value in items %}x{% else %}y{% end %}")
    assert isinstance(loop, For)
    assert (loop.names, loop.expression) == (["key", "value"], "items")
    assert (loop.body, loop.otherwise) == ([Text("x")], [Text("y")])


def test_nodes_go_on_in_the_outer_block():
    (outer,) = parse("{% for a in b %}{% if a %}x{% end %}y{% end %}")
    assert outer.body[1] == Text("y")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a\n\n{% if x %}", "line 3: this block has no end: if"),
        ("{% for x in y %}{% if x %}{% end %}", "line 1: this block has no end: for"),
        ("{% end %}", "line 1: 'end' outside of any block"),
        ("{% if %}{% end %}", "if needs a condition"),
        ("{% if a %}{% else %}{% else %}{% end %}", "a second else"),
        ("{% if a %}{% else %}{% elif b %}{% end %}", "elif after else"),
        ("{% for 1 in b %}{% end %}", "for needs names"),
        ("{% if a %}{% while b %}{% end %}", "unknown block 'while'"),
        ("{{ | upper }}", "a value without a name"),
        ("{{ a | b c }}", "'b c' is no filter"),
    ],
)
def test_errors(source, message):
    with pytest.raises(TemplateError, match=message):
        parse(source)


def test_error_knows_its_line():
    with pytest.raises(TemplateError) as caught:
        parse("a\nb {{ x }}\n{% end %}")
    assert caught.value.line == 3


def test_split_outside_quotes():
    assert split_outside_quotes("a,'b,c',d", ",") == ["a", "'b,c'", "d"]
    assert split_outside_quotes('"it\'s"|x', "|") == ['"it\'s"', "x"]


def test_unquote():
    assert unquote("'a'") == "a"
    assert unquote('"a b"') == "a b"
    assert unquote("''") == ""
    assert unquote("a") is None
