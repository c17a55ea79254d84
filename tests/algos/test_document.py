"""docs/algorithms.md speaks of every preset, and its code runs."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from pathlib import Path

from forkgym.credit import CreditBatch, list_algorithms, make_algorithm
from tests.credit.traces import episode

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "algorithms.md").read_text(encoding="utf-8")
OURS = [point.name for point in entry_points(group="forkgym.algos") if point.value.startswith("forkgym_algos.")]


def test_every_preset_has_a_row_and_a_section() -> None:
    headings = re.findall(r"^##+ (.+)$", DOCUMENT, re.MULTILINE)
    assert "twice" in OURS
    for name in OURS:
        assert f"| `{name}` |" in DOCUMENT
        assert any(name in re.split(r"[ `,()]+", heading) for heading in headings), name


def test_the_example_registers_a_method_that_works() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    exec(compile(code, "docs/algorithms.md", "exec"), {})
    assert "mine" in list_algorithms()
    group = [episode(1, 1.0, []), episode(2, 0.0, [], member=1)]
    assert make_algorithm("mine").advantages(CreditBatch(groups=[group], decisions={})) == [[1.0], [-1.0]]
