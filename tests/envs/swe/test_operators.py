"""Every bug operator makes the bug that it is named for, and every mutant is another valid program."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("libcst")

from forkgym_swe.making.mutants import MutableModule, MutationError
from forkgym_swe.making.operators import OPERATORS, operator_names

PACKAGE = Path(__file__).resolve().parents[3] / "forkgym"


def bugs(operator: str, body: str, *, header: str = "def f(a, b, items):") -> list[str]:
    """The function's body after each change that one operator makes of it."""
    source = f"{header}\n{textwrap.indent(textwrap.dedent(body).strip(), '    ')}\n"
    found = []
    for mutant in MutableModule("m.py", source, [operator]).mutants():
        first, _, rest = mutant.source.partition("\n")
        found.append(textwrap.dedent(rest).strip() if first == header else mutant.source.strip())
    return found


EXAMPLES: list[tuple[str, str, list[str]]] = [
    ("comparison-changed", "return a < b", ["return a <= b", "return a > b"]),
    ("comparison-changed", "return a not in b", ["return a in b"]),
    ("arithmetic-changed", "return a + b", ["return a - b"]),
    ("arithmetic-changed", "a *= b", ["a += b"]),
    ("boolean-operator-changed", "return a and b", ["return a or b"]),
    ("condition-part-dropped", "return (a or b)", ["return (a)", "return (b)"]),
    ("negation-dropped", "return not a", ["return a"]),
    ("off-by-one", "return items[1:]", ["return items[2:]", "return items[0:]"]),
    ("off-by-one", "return range(a)", ["return range(a + 1)", "return range(a - 1)"]),
    ("off-by-one", "return a - 1", ["return a"]),
    ("constant-changed", "return a * 3", ["return a * 4", "return a * 2"]),
    ("constant-changed", "return True", ["return False"]),
    ("index-changed", "return items[0]", ["return items[1]"]),
    ("index-changed", "return items[-1]", ["return items[0]"]),
    ("string-changed", "return a['key']", ["return a['Key']"]),
    ("string-changed", "return ', '.join(items)", ["return ','.join(items)"]),
    ("arguments-swapped", "return g(a, b)", ["return g(b, a)"]),
    ("keyword-removed", "return g(a, key=b)", ["return g(a)"]),
    ("wrong-variable", "return a - b", ["return b - b", "return a - items"]),
    ("related-call", "return a.lstrip()", ["return a.rstrip()"]),
    ("related-call", "return min(a, b)", ["return max(a, b)"]),
    ("copy-lost", "return list(items)", ["return items"]),
    ("copy-lost", "return items.copy()", ["return items"]),
    ("branches-swapped", "return a if items else b", ["return b if items else a"]),
    ("condition-inverted", "if a:\n    return b", ["if not a:\n    return b"]),
    ("condition-inverted", "return [x for x in items if not x]", ["return [x for x in items if x]"]),
    ("condition-dropped", "return [x for x in items if x]", ["return [x for x in items]"]),
    ("condition-dropped", "if a:\n    b = 1\nreturn b", ["b = 1\nreturn b", "return b"]),
    ("blocks-swapped", "if a:\n    b = 1\nelse:\n    b = 2", ["if a:\n    b = 2\nelse:\n    b = 1"]),
    ("return-removed", "return g(a)", ["g(a)"]),
    ("return-removed", "return a", ["return None"]),
    ("raise-removed", "if a:\n    raise ValueError(a)", ["if a:\n    pass"]),
    ("exception-changed", "raise ValueError('x')", ["raise TypeError('x')"]),
    (
        "exception-changed",
        "try:\n    g()\nexcept (A, B):\n    pass",
        ["try:\n    g()\nexcept (A,):\n    pass"],
    ),
    (
        "loop-broken",
        "for x in items:\n    if x:\n        break\n    g(x)",
        [
            "for x in items:\n    if x:\n        continue\n    g(x)",
            "for x in items:\n    if x:\n        pass\n    g(x)",
            "for x in items:\n    if x:\n        break\n    g(x)\n    break",
        ],
    ),
    ("import-lost", "from m import x, y", ["from m import y", "from m import x"]),
    ("call-removed", "items.sort()\nreturn items", ["pass\nreturn items"]),
    ("assignment-removed", "a = 1\nreturn a", ["return a"]),
    ("update-became-assignment", "a += b", ["a = b"]),
]


@pytest.mark.parametrize(("operator", "before", "after"), EXAMPLES)
def test_an_operator_makes_the_bug_that_it_is_named_for(operator: str, before: str, after: list[str]) -> None:
    assert sorted(bugs(operator, before)) == sorted(after)


def test_an_await_is_removed() -> None:
    assert bugs("await-removed", "return await g(a)", header="async def f(a):") == ["return g(a)"]


def test_a_default_is_changed() -> None:
    made = bugs("wrong-default", "return a", header="def f(a=1, b=None):")
    assert made == [
        "def f(a=2, b=None):\n    return a",
        "def f(a=0, b=None):\n    return a",
        "def f(a=1, b=False):\n    return a",
    ]


def test_a_decorator_is_lost() -> None:
    source = "@staticmethod\n@cached\ndef f(a):\n    return a\n"
    made = [mutant.source for mutant in MutableModule("m.py", source, ["decorator-lost"]).mutants()]
    assert made == ["@cached\ndef f(a):\n    return a\n", "@staticmethod\ndef f(a):\n    return a\n"]


def test_another_attribute_of_the_object_is_read() -> None:
    source = (
        "class C:\n    def __init__(self):\n        self.first = 1\n        self.last = 2\n\n"
        "    def g(self):\n        return self.first\n"
    )
    made = [mutant.source for mutant in MutableModule("m.py", source, ["wrong-attribute"]).mutants()]
    assert made == [source.replace("return self.first", "return self.last")]


def test_every_operator_has_an_example_here() -> None:
    told = {operator for operator, _, _ in EXAMPLES}
    told |= {"await-removed", "wrong-default", "decorator-lost", "wrong-attribute"}
    assert told == set(OPERATORS)
    assert len(OPERATORS) >= 12


def test_annotations_documentation_and_printing_are_left_alone() -> None:
    source = (
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from x import y\n\n\n"
        'def f(a: "list[int]") -> "int":\n    """Say 1 < 2."""\n\n\n'
        'class C:\n    def __repr__(self):\n        return "C" + str(1 + 2)\n'
    )
    sites = MutableModule("m.py", source).sites
    assert {site.operator for site in sites} <= {"import-lost"}
    assert {site.line for site in sites} <= {1}


def test_sites_come_in_source_order_and_are_the_same_every_time() -> None:
    source = (PACKAGE / "core" / "errors.py").read_text()
    first, second = MutableModule("errors.py", source).sites, MutableModule("errors.py", source).sites
    assert first == second
    assert [site.line for site in first] == sorted(site.line for site in first)
    assert [site.index for site in first] == list(range(len(first)))


def test_sites_know_their_function_and_lines() -> None:
    source = "class C:\n    def f(self, a):\n        return (\n            a + 1\n        )\n"
    (site,) = MutableModule("m.py", source, ["arithmetic-changed"]).sites
    assert (site.function, site.line, site.last_line) == ("C.f", 4, 4)


@pytest.mark.parametrize("name", ["sandbox/output.py"])
def test_every_mutant_of_real_code_is_a_valid_and_different_program(name: str) -> None:
    source = (PACKAGE / name).read_text()
    module = MutableModule(name, source)
    before, old, made = ast.dump(ast.parse(source)), source.splitlines(), 0
    for site in module.sites[::9]:
        mutant = module.apply(site)
        if mutant is not None:
            made += 1
            assert ast.dump(ast.parse(mutant.source)) != before
            changed = [i for i, (a, b) in enumerate(zip(old, mutant.source.splitlines(), strict=False)) if a != b]
            assert not changed or changed[0] + 1 >= site.line - 1, "a bug is not above the line that it names"
    assert made > 5


def test_a_mutant_keeps_all_other_text_to_the_letter() -> None:
    source = "# one\ndef f( a,b ):  # two\n    x  =  a+b # three\n\n\n    return x\n"
    (mutant,) = MutableModule("m.py", source, ["arithmetic-changed"]).mutants()
    assert mutant.source == source.replace("a+b", "a - b")


def test_text_that_is_no_module_is_refused_with_its_name() -> None:
    with pytest.raises(MutationError, match=r"broken\.py cannot be parsed"):
        MutableModule("broken.py", "def f(:\n")


def test_an_unknown_operator_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(ValueError, match=r"no operator is called typo.*arguments-swapped"):
        operator_names(["typo"])


def test_a_site_of_another_module_is_refused() -> None:
    (site,) = MutableModule("a.py", "def f(a):\n    return a + 1\n", ["arithmetic-changed"]).sites
    with pytest.raises(MutationError, match=r"not one of b\.py"):
        MutableModule("b.py", "def f(a):\n    return a\n").apply(site)
