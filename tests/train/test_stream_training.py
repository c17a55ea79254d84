"""Whole runs with streamed collection: the record of the run phase by phase, resumable, with a timeline beside it."""

from __future__ import annotations

import json

import pytest

from forkgym.store import RunStore
from forkgym.train.trainer import Trainer, train
from tests.faults.records import record
from tests.faults.runs import make_config
from tests.faults.test_interruptions import interrupt
from tests.rollout.lamps import Lamps

torch = pytest.importorskip("torch")
pytest.importorskip("uvloop")

RUNS = [
    ("twice-dr", "group"),
    pytest.param("twice-dr", "batch", marks=pytest.mark.slow),
    pytest.param("crr", "batch", marks=pytest.mark.slow),
    pytest.param("grpo", "batch", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("algorithm", "planning"), RUNS)
def test_a_streamed_run_is_the_run_phase_by_phase(algorithm, planning, checkpoint, tmp_path):
    runs = []
    for mode in ("phases", "stream"):
        collection = {"mode": mode, "planning": planning, "max_environments": 5, "timeline": mode == "stream"}
        config = make_config(tmp_path / mode, checkpoint, algorithm, collection=collection)
        runs.append((train(config).weights_digest, record(config.run_directory)))
    assert runs[0] == runs[1]
    events = json.loads((config.run_directory / "timeline.json").read_text())["traceEvents"]
    tracks = {event["args"]["name"] for event in events if event["ph"] == "M"}
    expected = {"engine", "environments", "groups", "learner", "on_policy"}
    assert tracks == (expected if algorithm == "grpo" else expected | {"counterfactual"})
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")
    assert sum(event["ph"] == "X" and event["cat"] == "learner" for event in events) == 4


def test_a_run_changes_its_mode_when_it_is_resumed(checkpoint, tmp_path, monkeypatch):
    whole = make_config(tmp_path / "whole", checkpoint, "twice-dr")
    begun = make_config(tmp_path / "begun", checkpoint, "twice-dr", collection={"mode": "stream"})
    with monkeypatch.context() as patched:
        interrupt(patched, RunStore, "commit_update", 2, KeyboardInterrupt(), after=True)
        with pytest.raises(KeyboardInterrupt):
            train(begun)
    resumed = make_config(tmp_path / "begun", checkpoint, "twice-dr")
    assert train(resumed).weights_digest == train(whole).weights_digest
    assert record(resumed.run_directory) == record(whole.run_directory)


def test_planning_is_part_of_what_a_run_is(checkpoint, tmp_path):
    by_group = make_config(tmp_path, checkpoint, "twice-dr", collection={"planning": "group"})
    Trainer(by_group).close()
    with pytest.raises(Exception, match=r"collection\.planning \(was 'group', now 'batch'\)"):
        Trainer(make_config(tmp_path, checkpoint, "twice-dr"))


def test_a_task_that_keeps_failing_is_recorded_and_the_run_goes_on(checkpoint, tmp_path, monkeypatch):
    step = Lamps._step

    def cursed(self, action):
        if self._task == 2:
            raise RuntimeError("task 2 is cursed")
        return step(self, action)

    monkeypatch.setattr(Lamps, "_step", cursed)
    # The evaluation is phase by phase and stops at the first fault: it has other tasks.
    config = make_config(
        tmp_path, checkpoint, "grpo", collection={"mode": "stream", "groups_per_update": 4}, evaluation={"tasks": 2}
    )
    assert train(config).updates == 4
    with RunStore.open(config.run_directory) as store:
        events = [event for event in store.events() if event.name == "quarantined"]
        groups = [sum(len({e.group for e in store.episodes(update)}) for _ in "1") for update in range(4)]
    assert events
    assert all(event.detail["reason"] == "RuntimeError: task 2 is cursed" for event in events)
    assert sum(groups) + len(events) == 16
