"""Reports say what the record says: tables in three looks, curves with bands over seeds."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkgym.report.plots import MissingPlotLibrary, PlotError, band, draw_curves, plot_learning_curves
from forkgym.report.runs import Curve, episode_rows, read_curve, run_row
from forkgym.report.tables import format_cell, render_table
from forkgym.rollout.trace import Episode, Ledger
from forkgym.store import RunStore
from forkgym.train.config import config_to_json, parse_config

ROWS: list[dict[str, Any]] = [
    {"name": "grpo", "success": 0.5, "tokens": 12_345},
    {"name": "twice", "success": math.nan, "twins": 7},
]


def test_a_plain_table_is_aligned_and_numbers_stand_right() -> None:
    assert render_table(ROWS, title="runs") == (
        "runs\n"
        "name   success  tokens  twins\n"
        "-----  -------  ------  -----\n"
        "grpo     0.500  12,345      -\n"
        "twice        -       -      7\n"
    )


def test_a_markdown_table_can_hold_bars() -> None:
    text = render_table([{"a|b": "x|y", "n": 1}], style="markdown")
    assert text == "| a&#124;b | n |\n| --- | ---: |\n| x&#124;y | 1 |\n"


def test_a_rich_table_shows_brackets_as_they_are() -> None:
    pytest.importorskip("rich")
    assert "[bold]" in render_table([{"name": "[bold]"}], style="rich", width=60)


def test_without_rich_a_table_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    assert render_table(ROWS, style="rich") == render_table(ROWS)


def test_nothing_is_said_to_be_nothing() -> None:
    assert render_table([]) == "(nothing)\n"
    assert render_table([], title="runs") == "runs\n(nothing)\n"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (True, "yes"),
        (False, "no"),
        (1234567, "1,234,567"),
        (0.0, "0.000"),
        (0.12345, "0.123"),
        (0.000012, "1.2e-05"),
        (12345.6, "12,346"),
        (math.inf, "inf"),
        ("text", "text"),
    ],
)
def test_a_cell_is_short_and_readable(value: object, shown: str) -> None:
    assert format_cell(value) == shown


cells = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=["C"]))


@given(st.lists(st.dictionaries(st.sampled_from(["a", "b", "c"]), cells, min_size=1), min_size=1, max_size=4))
def test_a_plain_table_has_one_line_a_row(rows: list[dict[str, Any]]) -> None:
    clean = [{k: " ".join(v.split()) if isinstance(v, str) else v for k, v in row.items()} for row in rows]
    assert len(render_table(clean).split("\n")) == len(rows) + 3


def record(directory: Path, *, seed: int = 0, evaluations: int = 2, updates: int = 2, algorithm: str = "rloo") -> Path:
    config = parse_config(
        {
            "run": {"seed": seed},
            "env": {"id": "toy/Chain-v0"},
            "policy": {"checkpoint": "x"},
            "algorithm": {"name": algorithm},
            "budget": {"updates": 2},
        }
    )
    with RunStore.create(directory, config=config_to_json(config), digest="d", versions={}) as store:
        for update in range(updates):
            ledger = Ledger(branches=3 * (update + 1))
            ledger.add("on_policy", generated=1_000 * (update + 1), seconds=2.0)
            episode = Episode(
                key=update,
                environment="toy/Chain-v0",
                split="train",
                task=0,
                update=update,
                group=0,
                member=0,
                version=update,
                prompt_tokens=[],
                turns=[],
                utility=1.0,
                success=True,
            )
            metrics = {"success": 0.1 * update, "training_tokens": 1_000 * (update + 1)}
            store.commit_update(update, episodes=[episode], decisions=[], metrics=metrics, ledger=ledger)
        for number in range(evaluations):
            metrics = {"success": 0.2 + 0.3 * number, "standard_error": math.nan, "training_tokens": 2_000 * number}
            store.add_evaluation(2 * number, "sampled", metrics | {"split": "test"})
    return directory


def test_a_curve_is_made_of_evaluations_where_there_are_two(tmp_path: Path) -> None:
    curve = read_curve(record(tmp_path / "run", seed=4))
    assert (curve.label, curve.seed, curve.source) == ("rloo", 4, "test, sampled")
    assert (curve.tokens, curve.success) == ([0.0, 2_000.0], [0.2, 0.5])
    assert all(math.isnan(error) for error in curve.standard_error)


def test_a_curve_falls_back_on_the_training_episodes(tmp_path: Path) -> None:
    curve = read_curve(record(tmp_path / "run", evaluations=1))
    assert (curve.tokens, curve.success) == ([1_000.0, 2_000.0], [0.0, 0.1])
    assert curve.source == "train, while training"


def test_a_row_about_a_run_shows_before_and_after(tmp_path: Path) -> None:
    row = run_row(record(tmp_path / "run"))
    assert (row["updates"], row["tokens"], row["branches"], row["seconds"]) == (2, 2_000, 6, 2.0)
    assert (row["sampled before"], row["sampled after"]) == (0.2, 0.5)


def test_a_run_without_updates_has_a_row_too(tmp_path: Path) -> None:
    row = run_row(record(tmp_path / "run", evaluations=1, updates=0))
    assert (row["updates"], row["sampled before"], row["sampled after"]) == (0, 0.2, None)
    assert episode_rows(tmp_path / "run") == []


def test_episodes_of_the_last_update_are_listed_by_key(tmp_path: Path) -> None:
    directory = record(tmp_path / "run")
    assert [row["episode"] for row in episode_rows(directory)] == ["1"]
    assert [row["episode"] for row in episode_rows(directory, 0)] == ["0"]


def curve(seed: int, tokens: list[float], success: list[float]) -> Curve:
    return Curve(
        label="m", seed=seed, tokens=tokens, success=success, standard_error=[math.nan] * len(tokens), source="test"
    )


def test_the_band_is_mean_and_standard_error_over_the_common_range() -> None:
    tokens, mean, error = band([curve(0, [0, 10, 20], [0.0, 0.2, 0.4]), curve(1, [0, 20, 40], [0.2, 0.6, 0.8])])
    assert tokens == [0, 10, 20]
    assert mean == pytest.approx([0.1, 0.3, 0.5])
    # Two values a apart have a sample deviation of a/√2, so a standard error of a/2.
    assert error == pytest.approx([0.1, 0.1, 0.1])


def test_pictures_of_one_several_and_no_points(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    cases = {
        "one": [curve(0, [0, 10], [0.0, 1.0])],
        "seeds": [curve(s, [0, 10], [0.0, 1.0]) for s in range(3)],
        "apart": [curve(0, [0, 1], [0.0, 1.0]), curve(1, [5, 6], [0.0, 1.0])],
        "empty": [curve(0, [], [])],
    }
    for name, curves in cases.items():
        path = draw_curves(curves, tmp_path / "new" / f"{name}.png", title=name)
        assert path.read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == sorted(f"{name}.png" for name in cases)


def test_the_same_runs_give_the_same_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    runs = [record(tmp_path / str(seed), seed=seed) for seed in range(2)]
    first = plot_learning_curves(runs, tmp_path / "a.png").read_bytes()
    assert plot_learning_curves(runs, tmp_path / "b.png").read_bytes() == first


def test_a_missing_matplotlib_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingPlotLibrary, match=r"pip install 'forkgym\[report\]'"):
        draw_curves([curve(0, [0, 1], [0.0, 1.0])], tmp_path / "x.png")
    assert list(tmp_path.iterdir()) == []


def test_a_picture_that_cannot_be_written_is_told_by_its_name(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(PlotError, match=r"file/curve\.png cannot be written \((Not a directory|File exists)\)"):
        draw_curves([], tmp_path / "file" / "curve.png")
    (tmp_path / "taken").mkdir()
    with pytest.raises(PlotError, match="taken cannot be written"):
        draw_curves([], tmp_path / "taken")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "taken"]
