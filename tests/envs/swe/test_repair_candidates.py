"""Candidate edits, suspicion and words of ``swe/Repair-v0``: pure functions, no sandbox."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest
from forkgym_swe.repair.candidates import LineEdits, apply_edit, line_edits
from forkgym_swe.repair.localisation import band, is_source, ochiai, rank_statements
from forkgym_swe.repair.memo import Memo, read_export
from forkgym_swe.repair.rehearsal import make_rehearsals
from forkgym_swe.repair.source import ModuleSource
from forkgym_swe.repair.texts import action_line, check_action, parse_action
from forkgym_swe.repair.words import LETTERS, MAX_CODE, VARIABLES, Names, code_words, vocabulary

WORDS = {*vocabulary().words, *VARIABLES}


def edits_of(source: str, line: int) -> tuple[ModuleSource, LineEdits]:
    module = ModuleSource(textwrap.dedent(source).lstrip("\n").encode())
    statement = next(s for s in module.statements if s.line == line)
    return module, line_edits(module, statement, Names())


# Bug, its line, and what the right edit turns that line into.
BUGS = [
    ("def f(a, b):\n    if a <= b:\n        return a\n", 2, "    if a < b:"),
    ("def f(a, b):\n    if a != b:\n        return a\n", 2, "    if a == b:"),
    ("def f(a, b):\n    if a not in b:\n        return a\n", 2, "    if a in b:"),
    ("def f(a, b):\n    if a is not b:\n        return a\n", 2, "    if a is b:"),
    ("def f(a, b):\n    if not (a):\n        return b\n", 2, "    if (a):"),
    ("def f(a, b):\n    if a:\n        return b\n", 2, "    if (not (a)):"),
    ("def f(a, b):\n    return a or b\n", 2, "    return a and b"),
    ("def f(a, b):\n    return a - b\n", 2, "    return a + b"),
    ("def f(a):\n    return a[1]\n", 2, "    return a[0]"),
    ("def f(a):\n    return a[-2]\n", 2, "    return a[-1]"),
    ("def f(a, n):\n    return a[:n]\n", 2, "    return a[:n - 1]"),
    ("def f(a, n):\n    return a[:n + 1]\n", 2, "    return a[:(n)]"),
    ("def f(n):\n    return list(range(n))\n", 2, "    return list(range(n + 1))"),
    ("def f(n):\n    return max(n)\n", 2, "    return min(n)"),
    ("def f(n):\n    return n.lstrip()\n", 2, "    return n.rstrip()"),
    ("def f(a, b):\n    return g(b, a)\n", 2, "    return g(a, b)"),
    ("def f(a, b):\n    g(b, a)\n", 2, "    return g(b, a)"),
    ("def f(a):\n    b = a\n    return None\n", 3, "    return b"),
    ("def f(a):\n    pass\n", 2, "    raise ValueError"),
    ("def f(a):\n    raise TypeError(a)\n", 2, "    raise ValueError(a)"),
    ("def f(a):\n    for b in a:\n        break\n", 3, "        continue"),
    ("def f(a):\n    for b in a[1:]:\n        g(b)\n", 2, "    for b in a:"),
    ("def f(a, b=False):\n    return a\n", 1, "def f(a, b=True):"),
    ("def f(a, b=2):\n    return a\n", 1, "def f(a, b=1):"),
    ("def f(a, n):\n    n = a\n    return n\n", 2, "    n += a"),
    ("def f(a, n):\n    n -= a\n    return n\n", 2, "    n += a"),
    ("def f(a, key):\n    return g(a)\n", 2, "    return g(a, key=key)"),
    ("def f(a, b):\n    return b if a else 1\n", 2, "    return 1 if a else b"),
    ("async def f(a):\n    return g(a)\n", 2, "    return await g(a)"),
    ("def f(a, b):\n    return b\n", 2, "    return a"),
]


@pytest.mark.parametrize(("source", "line", "wanted"), BUGS)
def test_the_inverse_of_a_small_bug_is_among_the_candidates(source: str, line: int, wanted: str) -> None:
    module, found = edits_of(source, line)
    repaired = [apply_edit(module.content, edit).decode().splitlines()[line - 1] for edit in found.edits]
    assert wanted in repaired


def test_a_lost_import_comes_back_after_docstring_and_future() -> None:
    source = '"""What."""\nfrom __future__ import annotations\n\ndef f(a):\n    return json.dumps(a)\n'
    module, found = edits_of(source, 5)
    repaired = [apply_edit(module.content, edit).decode() for edit in found.edits if edit.family == "import"]
    assert repaired == [
        '"""What."""\nfrom __future__ import annotations\nimport json\n\ndef f(a):\n    return json.dumps(a)\n'
    ]


@pytest.mark.slow
def test_every_candidate_of_this_package_is_another_program_and_said_in_known_words() -> None:
    import forkgym_swe.repair

    for path in sorted(Path(forkgym_swe.repair.__file__).parent.glob("[lmst]*.py")):
        module = ModuleSource(path.read_bytes())
        names = Names()
        for statement in module.statements:
            found = line_edits(module, statement, names)
            assert len(found.edits) <= len(LETTERS)
            assert len(found.code) <= MAX_CODE
            assert not {*found.code, *(word for edit in found.edits for word in edit.words)} - WORDS
            for edit in found.edits[:2]:
                changed = apply_edit(module.content, edit)
                assert changed != module.content
                ast.parse(changed)


def test_places_count_bytes_so_text_beyond_ascii_moves_nothing() -> None:
    module, found = edits_of('def f(a):\n    return "ä€😀", a < len("ö")\n', 2)
    repaired = {apply_edit(module.content, edit).decode() for edit in found.edits}
    assert 'def f(a):\n    return "ä€😀", a <= len("ö")\n' in repaired


def test_the_order_of_candidates_is_fixed_and_does_not_favour_a_family() -> None:
    first = [edits_of(f"def f(x{n}, y):\n    if x{n} < y and y > 1:\n        return y\n", 2)[1] for n in range(40)]
    assert first == [
        edits_of(f"def f(x{n}, y):\n    if x{n} < y and y > 1:\n        return y\n", 2)[1] for n in range(40)
    ]
    # Forty independent orders of at least five families: the same family in front of all has probability below 5e-28.
    assert len({found.edits[0].family for found in first}) > 1


def test_ochiai_is_one_for_what_only_failing_tests_run() -> None:
    assert ochiai(3, 0, 3) == 1.0
    assert ochiai(1, 3, 1) == 0.5
    assert ochiai(0, 5, 2) == 0.0
    assert [band(score, 0.5) for score in (0.5, 0.41, 0.26, 0.1)] == ["top", "high", "middle", "low"]


def test_statements_are_ranked_by_score_then_by_the_way_to_the_exception() -> None:
    source = "def f(a):\n    b = a\n    if b:\n        b = g(\n            b,\n        )\n    return b\n"
    lines = [("m.py", 2, 1, 3), ("m.py", 3, 1, 0), ("m.py", 5, 1, 0), ("m.py", 7, 1, 0)]
    found = rank_statements({"m.py": ModuleSource(source.encode())}, lines, 1, [("m.py", 7)])
    assert [s.statement.line for s in found] == [7, 3, 4, 2]


@pytest.mark.parametrize("path", ["a.py", "src/a/b.py", "a/contest.py"])
def test_code_is_suspected(path: str) -> None:
    assert is_source(path)


@pytest.mark.parametrize("path", ["tests/a.py", "a/test_b.py", "conftest.py", "setup.py", "a.txt", "a/b_test.py"])
def test_tests_and_packaging_are_not(path: str) -> None:
    assert not is_source(path)


def test_code_is_said_in_numbered_names_and_kinds_of_literals() -> None:
    names = Names()
    words = code_words("if total >= len(lines) + 3 and name != 'x':\n", names)
    assert " ".join(words) == "if v0 >= len ( v1 ) + 3 and v2 != text :"
    assert names.word("lines") == "v1"
    assert code_words("a = " + " + ".join("abcdefghijklmnop"), Names())[-1] == "more"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("look", "look"),
        ("I think so\n  INSPECT 3 ", "inspect 3"),
        ("edit 2 b", "edit 2 b"),
        ("submit", "submit"),
        ("edit 2 z", "invalid edit"),
        ("inspect 0", "invalid inspect"),
        ("edit b 2", "invalid edit b 2"),
        ("test 3", "invalid test 3"),
        ("", "invalid"),
        ("\udc80 \x00", "invalid ?"),
    ],
)
def test_the_last_line_is_the_action(text: str, line: str) -> None:
    action = parse_action(text)
    assert action_line(action) == line or (action["tool"] == "invalid" and line.startswith("invalid"))
    assert (action["tool"] == "invalid") == line.startswith("invalid")


def test_any_json_is_an_action_or_invalid() -> None:
    assert check_action({"tool": "edit", "arguments": {"line": 1, "edit": "a"}})["tool"] == "edit"
    bad: list[object] = [None, 3, [], {"tool": "edit"}, {"tool": "edit", "arguments": {"line": True, "edit": "a"}}]
    assert all(check_action(value)["tool"] == "invalid" for value in bad)


def test_the_memo_keeps_the_first_value_and_another_object_finds_it(tmp_path: Path) -> None:
    memo = Memo(tmp_path / "folder" / "memo.sqlite", {"shipped": b"s"})
    assert memo.get("a") is None
    assert memo.put("a", b"1") == b"1"
    assert Memo(memo.path).put("a", b"2") == b"1"
    assert Memo(memo.path).get("a") == b"1"
    assert read_export(memo.export(["a", "shipped"])) == {"a": b"1", "shipped": b"s"}
    with pytest.raises(KeyError):
        memo.export(["b"])


@pytest.mark.slow
def test_rehearsals_are_a_function_of_their_numbers_and_can_be_won(tmp_path: Path) -> None:
    found = make_rehearsals(12, Memo(tmp_path / "one.sqlite"))
    again = make_rehearsals(12, Memo(tmp_path / "other.sqlite"))
    assert [rehearsal.study for rehearsal in found] == [rehearsal.study for rehearsal in again]
    for rehearsal in found:
        study = rehearsal.study
        wrong = next(
            (line, number)
            for line, suspect in enumerate(study.lines)
            for number in range(len(suspect.edits) + 1)
            if (line, number) not in study.repairs
        )
        assert rehearsal.verdict(None, study.repairs[0]).resolved
        assert not rehearsal.verdict(None, None).resolved
        assert [note.passed == note.total for note in rehearsal.focused_run(None, study.repairs[0])] == [True, True]
        if wrong[1] < len(study.lines[wrong[0]].edits):
            assert not rehearsal.verdict(None, wrong).resolved
        said = {word for line in study.lines for word in (*line.code, *(w for edit in line.edits for w in edit.words))}
        assert not said - WORDS
