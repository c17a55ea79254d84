"""An export holds the record's episodes and turns, one JSON object a line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forkgym.rollout.trace import Branch, Ledger
from forkgym.store import RunStore, StoreError
from forkgym.store.export import export_jsonl
from tests.store.test_run_store import decision, episode


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with RunStore.create(tmp_path / "run", config="{}", digest="d", versions={}) as store:
        for update in range(2):
            one = episode(update)
            realised = Branch(
                parent=one.key, turn=0, index=0, kind="twin", layout="turn", stream=1, factual_utility=1.0
            )
            given_up = Branch(parent=one.key, turn=0, index=1, kind="twin", layout="turn", stream=2, skipped=True)
            branched = decision(one, branched=True, propensity=0.5, credit=0.25, branches=[realised, given_up])
            store.commit_update(update, episodes=[one], decisions=[branched], metrics={}, ledger=Ledger())
    return tmp_path / "run"


def test_episodes_and_turns_are_exported_with_their_credit(run: Path, tmp_path: Path) -> None:
    episodes, turns = export_jsonl(run, tmp_path / "out")
    rows = [json.loads(line) for line in episodes.read_text().splitlines()]
    assert [(row["update"], row["episode"], row["generated_tokens"]) for row in rows] == [
        (0, str(2**63), 4),
        (1, str(2**63 + 100), 4),
    ]
    rows = [json.loads(line) for line in turns.read_text().splitlines()]
    assert [(row["update"], row["turn"]) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert (rows[0]["credit"], rows[0]["propensity"]) == (0.25, 0.5)
    assert rows[0]["branches"] == [{"utility": 0.0, "difference": 1.0, "self_twin": False}]
    assert (rows[1]["credit"], rows[1]["branches"]) == (None, None)
    assert rows[0]["tokens"] == [1, 2]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["episodes.jsonl", "turns.jsonl"]


def test_an_export_to_nowhere_says_so(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be written"):
        export_jsonl(run, tmp_path / "file")
