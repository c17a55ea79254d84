"""The page's example runs, its table holds, and the bench prints what it promises."""

import json
import re
from pathlib import Path

import pytest
from forkgym_toy import WORLDS, Solver

from bench import credit_toy

PAGE = Path(__file__).resolve().parents[3] / "docs" / "toy.md"


def test_the_example_on_the_page_runs_and_finds_no_bias(capsys):
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL).group(1)
    exec(compile(code.replace("20_000", "2_000"), str(PAGE), "exec"), {})
    scores = [float(score) for score in re.findall(r"\(([+-][\d.]+) s\.e\.\)", capsys.readouterr().out)]
    assert len(scores) == 6
    assert max(map(abs, scores)) < 4


def test_the_values_on_the_page_are_the_exact_ones():
    rows = re.findall(r"^\| `(toy/\S+)` \|.*\| ([^|]+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert {name for name, _ in rows} == set(WORLDS)
    for name, cell in rows:
        solver = Solver(WORLDS[name]())
        printed = {float(number) for number in cell.split(" or ")}
        exact = {round(float(solver.value[root]), 4) for root in solver.graph.roots}
        assert printed == exact


def test_the_bench_prints_tables_and_one_json_line(capsys):
    assert credit_toy.main(["--episodes", "500", "--env", "toy/Shortcut-v0", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    layouts = {row["layout"]: row for row in report["worlds"]["toy/Shortcut-v0"]["layouts"]}
    assert layouts["turn-line"]["rho"] == pytest.approx(1.0)
    assert layouts["episode"]["rho"] < 0.9
    estimators = [row["estimator"] for row in report["worlds"]["toy/Shortcut-v0"]["estimators"]]
    assert len(estimators) == len(set(estimators))


def test_the_bench_refuses_what_it_cannot_do(capsys):
    assert credit_toy.main(["--episodes", "7"]) == 2
    assert "multiple of 5" in capsys.readouterr().err
