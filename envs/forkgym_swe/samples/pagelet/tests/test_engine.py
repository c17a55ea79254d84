from types import SimpleNamespace

import pytest

from pagelet import Template, TemplateError, render
from pagelet.engine import holds, look_up

SCOPE = {"a": 1, "b": 2, "name": "Ada", "none": None, "zero": 0, "user": {"tags": ["x", "y"]}, "empty": []}


def test_values_are_escaped():
    assert render("<p>{{ x }}</p>", x="<b>") == "<p>&lt;b&gt;</p>"
    assert render("{{ x | safe }}", x="<b>") == "<b>"
    assert Template("{{ x }}", autoescape=False).render(x="<b>") == "<b>"


def test_missing_values_are_empty():
    assert render("[{{ x }}][{{ x.y.z }}]") == "[][]"
    assert Template("[{{ x }}]", autoescape=False).render() == "[]"


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a", 1),
        ("12", 12),
        ("-3", -3),
        ("'a'", "a"),
        ("user.tags.0", "x"),
        ("user.tags.-1", "y"),
        ("user.tags.2", None),
        ("user.tags.-3", None),
        ("name.0", None),
        ("none.x", None),
        ("zero", 0),
    ],
)
def test_look_up(expression, expected):
    assert look_up(expression, SCOPE) == expected


def test_look_up_of_attributes():
    assert look_up("point.x", {"point": SimpleNamespace(x=3)}) == 3


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("a", True),
        ("zero", False),
        ("empty", False),
        ("not empty", True),
        ("a == 1", True),
        ("a != 1", False),
        ("name == 'Ada'", True),
        ("a < b", True),
        ("b < a", False),
        ("a <= 1", True),
        ("a < 1", False),
        ("b >= 2", True),
        ("b > 2", False),
        ("none < 1", False),
        ("none == none", True),
        ("a and zero", False),
        ("zero or a", True),
        ("a or zero and zero", True),
        ("zero and a or b", True),
        ("not a or not zero", True),
    ],
)
def test_conditions(condition, expected):
    assert holds(condition, SCOPE) is expected


def test_if():
    template = Template("{% if n < 0 %}minus{% elif n == 0 %}zero{% else %}plus{% end %}")
    assert [template.render(n=n) for n in (-1, 0, 5)] == ["minus", "zero", "plus"]
    assert render("{% if x %}a{% end %}") == ""


def test_for():
    assert render("{% for x in items %}{{ x }};{% end %}", items=[1, 2]) == "1;2;"
    assert render("{% for x in items %}{{ x }}{% else %}none{% end %}", items=[]) == "none"
    assert render("{% for x in items %}{{ x }}{% else %}none{% end %}") == "none"


def test_for_with_pairs():
    assert render("{% for k, v in d %}{{ k }}={{ v }} {% end %}", d={"a": 1, "b": 2}) == "a=1 b=2 "
    with pytest.raises(TemplateError, match="2 names for 3 values"):
        render("{% for a, b in rows %}{% end %}", rows=[(1, 2, 3)])


def test_loop_position():
    source = "{% for x in items %}{{ loop.index }}/{{ loop.length }}{{ x }}{% if not loop.last %}, {% end %}{% end %}"
    assert render(source, items="abc") == "1/3a, 2/3b, 3/3c"
    assert render("{% for x in items %}{% if loop.first %}>{% end %}{{ x }}{% end %}", items=[1, 2]) == ">12"


def test_names_of_a_loop_end_with_it():
    assert render("{% for x in items %}{{ x }}{% end %}{{ x }}", items=[1, 2], x="o") == "12o"


def test_nested_blocks():
    source = "{% for row in rows %}{% for x in row %}{% if x %}{{ x }}{% else %}-{% end %}{% end %}|{% end %}"
    assert render(source, rows=[[1, 0], [0, 2]]) == "1-|-2|"


def test_values_as_mapping_and_keywords():
    assert Template("{{ a }}{{ b }}").render({"a": 1, "b": 2}, b=3) == "13"


def test_a_template_can_be_rendered_again():
    template = Template("{{ a | default('x') }}")
    assert [template.render(a="1"), template.render(), template.render(a=0)] == ["1", "x", "0"]
