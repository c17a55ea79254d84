"""The run store gives back exactly what was recorded, whole updates only, to one writer at a time."""

from __future__ import annotations

import math
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkgym.rollout.trace import Branch, Decision, Episode, Ledger, Turn
from forkgym.store import RunLockedError, RunStore, StoreError
from forkgym.store.database import FILE_NAME, SCHEMA_VERSION, schema

VERSIONS = {"forkgym": "0.1.0", "python": "3.11"}

keys = st.integers(0, 2**64 - 1)
token_lists = st.lists(st.integers(0, 2**32 - 1), max_size=4)
real = st.floats(allow_nan=False)
float_lists = st.lists(real, max_size=4)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
turns = st.builds(
    Turn,
    index=st.integers(0, 50),
    context_length=st.integers(0, 10_000),
    tokens=token_lists,
    logprobs=float_lists,
    entropies=float_lists,
    gini_impurities=float_lists,
    finish_reason=st.sampled_from(["stop", "length"]),
    text=st.text(max_size=8),
    action=json_values,
    action_kind=st.sampled_from(["search", "answer"]),
    observation=st.text(max_size=8),
    observation_tokens=token_lists,
    evidence=json_values,
    reward=real,
    terminal=st.booleans(),
    action_start=st.integers(0, 50),
    state_hash=st.text("0123456789abcdef", max_size=8),
    supports=st.none() | st.lists(token_lists, max_size=3),
)
branches = st.builds(
    Branch,
    parent=keys,
    turn=st.integers(0, 9),
    index=st.integers(0, 3),
    kind=st.sampled_from(["twin", "independent", "pair"]),
    layout=st.just("turn-line"),
    stream=keys,
    turns=st.lists(turns, max_size=2),
    factual_turns=st.lists(turns, max_size=1),
    self_twin=st.booleans(),
    continuation_probability=st.floats(0.1, 1),
    utility=real,
)


def turn(index: int = 0, tokens: tuple[int, ...] = (1, 2)) -> Turn:
    return Turn(
        index=index,
        context_length=3,
        tokens=list(tokens),
        logprobs=[-0.1] * len(tokens),
        entropies=[0.5] * len(tokens),
        gini_impurities=[0.25] * len(tokens),
        finish_reason="stop",
        text="search capital France",
        action={"tool": "search", "arguments": {"query": "capital France"}},
        action_kind="search",
        observation="Paris is the capital of France .",
        observation_tokens=[7, 8],
        evidence=["p1"],
        reward=0.0,
        terminal=False,
    )


def episode(update: int, group: int = 0, member: int = 0, **changes: object) -> Episode:
    values: dict[str, object] = {
        "key": 2**63 + update * 100 + group * 10 + member,
        "environment": "toy/X-v0",
        "split": "train",
        "task": 4,
        "update": update,
        "group": group,
        "member": member,
        "version": update,
        "prompt_tokens": [1, 2, 3],
        "turns": [turn(0), turn(1)],
        "utility": 1.0,
        "success": True,
    }
    return Episode(**{**values, **changes})


def decision(of: Episode, **changes: object) -> Decision:
    values: dict[str, object] = {
        "episode": of.key,
        "update": of.update,
        "group": of.group,
        "member": of.member,
        "turn": 0,
        "terminal": False,
        "utility": of.utility,
        "features": [0.5] * 9,
    }
    return Decision(**{**values, **changes})


@pytest.fixture
def store(tmp_path: Path):
    with RunStore.create(tmp_path / "run", config="{}", digest="d", versions=VERSIONS) as made:
        yield made


def record(store: RunStore, update: int) -> Episode:
    one = episode(update)
    ledger = Ledger(updates=update)
    store.commit_update(update, episodes=[one], decisions=[decision(one)], metrics={"success": 0.5}, ledger=ledger)
    return one


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_what_was_recorded_comes_back_equal(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("run")
    original = episode(1, key=data.draw(keys), turns=data.draw(st.lists(turns, max_size=3)), utility=data.draw(real))
    credit = data.draw(st.none() | real)
    choice = decision(
        original,
        branches=data.draw(st.lists(branches, max_size=2)),
        features=data.draw(float_lists),
        credit=credit,
        branched=True,
    )
    ledger = Ledger()
    ledger.add("counterfactual", generated=7, fed=3, seconds=0.25)
    with RunStore.create(directory, config='{"a": 1}', digest="d", versions=VERSIONS) as store:
        store.commit_update(1, episodes=[original], decisions=[choice], metrics={"loss": 0.5}, ledger=ledger)
    with RunStore.open(directory) as store:
        assert store.episodes(1) == [original]
        assert store.episode(original.key) == original
        assert store.decisions(1) == [choice]
        assert store.decisions(episode=original.key) == [choice]
        assert store.metrics() == [{"update": 1, "loss": 0.5}]
        assert store.ledger() == ledger
        assert (store.config, store.digest, store.versions) == ('{"a": 1}', "d", VERSIONS)


def test_episodes_come_back_in_canonical_order_whatever_order_they_were_given_in(store: RunStore) -> None:
    members = [episode(1, group, member) for group in (1, 0) for member in (2, 0, 1)]
    store.commit_update(1, episodes=members, decisions=[], metrics={}, ledger=Ledger())
    assert [(e.group, e.member) for e in store.episodes(1)] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_an_update_that_fails_half_way_leaves_nothing(store: RunStore) -> None:
    record(store, 1)
    stranger = decision(episode(2, member=5))
    with pytest.raises(StoreError, match="not among the update's episodes"):
        store.commit_update(2, episodes=[episode(2)], decisions=[stranger], metrics={}, ledger=Ledger())
    assert store.last_update() == 1
    assert store.episodes(2) == []
    record(store, 2)
    assert store.last_update() == 2


def test_an_update_cannot_be_recorded_twice(store: RunStore) -> None:
    record(store, 1)
    with pytest.raises(StoreError, match="call truncate_after first"):
        record(store, 1)


def test_going_back_to_a_checkpoint_forgets_everything_after_it(store: RunStore) -> None:
    kept = record(store, 1)
    store.add_evaluation(1, "greedy", {"success": 0.3})
    for update in (2, 3):
        record(store, update)
    store.add_evaluation(3, "greedy", {"success": 0.9})
    store.add_event(3, "quarantine", task=3)
    assert store.truncate_after(1) == 2
    assert store.last_update() == 1
    assert store.episodes(1) == [kept]
    assert [e.update for e in store.evaluations()] == [1]
    assert store.events() == []
    assert len(store.decisions()) == 1
    raw = sqlite3.connect(store.path)
    assert raw.execute("SELECT count(*) FROM turns").fetchone() == (2,), "turns of dropped episodes must go too"
    raw.close()
    record(store, 2)


def test_a_checkpoint_ahead_of_the_record_is_refused(store: RunStore) -> None:
    record(store, 1)
    with pytest.raises(StoreError, match="recorded updates up to 1, but the checkpoint is of update 5"):
        store.truncate_after(5)
    assert store.last_update() == 1


def test_going_back_before_the_first_update_is_fine_on_an_empty_record(store: RunStore) -> None:
    assert store.truncate_after(0) == 0
    assert store.truncate_after(-1) == 0
    assert store.ledger() == Ledger()


def test_a_repeated_evaluation_replaces_the_first(store: RunStore) -> None:
    store.add_evaluation(0, "sampled", {"success": 0.1})
    store.add_evaluation(0, "sampled", {"success": 0.2})
    assert [e.metrics for e in store.evaluations()] == [{"success": 0.2}]


def test_events_keep_their_order(store: RunStore) -> None:
    store.add_event(0, "resume", version="0.1.0")
    store.add_event(0, "quarantine", task=3)
    assert [(e.name, e.detail) for e in store.events()] == [
        ("resume", {"version": "0.1.0"}),
        ("quarantine", {"task": 3}),
    ]


def test_a_metric_that_is_not_a_number_is_stored_as_null(store: RunStore) -> None:
    store.commit_update(1, episodes=[], decisions=[], metrics={"tie_rate": math.nan}, ledger=Ledger())
    assert store.metrics() == [{"update": 1, "tie_rate": None}]


def test_numbers_of_numpy_are_stored_as_numbers(store: RunStore) -> None:
    one = episode(1, key=np.uint64(2**64 - 1), task=np.int64(3), utility=np.float32(0.5), success=np.bool_(True))
    choice = decision(one, credit=np.float32(0.25))
    store.commit_update(1, episodes=[one], decisions=[choice], metrics={}, ledger=Ledger())
    (back,) = store.episodes(1)
    assert (back.key, back.task, back.utility, back.success) == (2**64 - 1, 3, 0.5, True)
    assert store.decisions(1)[0].credit == 0.25


def test_an_unknown_episode_is_named_with_some_that_exist(store: RunStore) -> None:
    one = record(store, 1)
    with pytest.raises(StoreError, match=str(one.key)):
        store.episode(12)
    with pytest.raises(StoreError, match="has no episode -1"):
        store.episode(-1)


def test_a_second_writer_in_this_process_is_refused(store: RunStore) -> None:
    with pytest.raises(RunLockedError, match="this process"):
        RunStore.open(store.path.parent, write=True)


def test_a_second_writer_in_another_process_is_refused_and_told_who_writes(store: RunStore) -> None:
    code = f"from forkgym.store import RunStore; RunStore.open({str(store.path.parent)!r}, write=True)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"RunLockedError: {store.path.parent}: process {os.getpid()} on" in done.stderr


def test_a_reader_sees_the_last_whole_update_while_a_writer_is_open(store: RunStore) -> None:
    record(store, 1)
    with RunStore.open(store.path.parent) as reader:
        assert reader.last_update() == 1
        record(store, 2)
        assert reader.last_update() == 2


def test_a_reader_cannot_write(store: RunStore) -> None:
    with RunStore.open(store.path.parent) as reader, pytest.raises(StoreError, match="open for reading only"):
        record(reader, 1)


def test_the_lock_of_a_killed_writer_is_stale_and_its_whole_updates_survive(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    code = textwrap.dedent(
        f"""
        import sys, time
        from forkgym.store import RunStore
        from forkgym.rollout.trace import Ledger
        store = RunStore.create({str(directory)!r}, config="{{}}", digest="d", versions={{}})
        for update in range(1, 1000000):
            store.commit_update(update, episodes=[], decisions=[], metrics={{"u": update}}, ledger=Ledger())
            print(update, flush=True)
        """
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    told = 0
    while told < 3:
        told = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    told = max([told, *(int(line) for line in process.stdout.read().split("\n")[:-1] if line)])
    process.wait()
    process.stdout.close()
    with RunStore.open(directory, write=True) as store:
        last = store.last_update()
        assert last in (told, told + 1), "an announced update must survive; one more may have been committed"
        assert store.metrics() == [{"update": u, "u": u} for u in range(1, last + 1)]


def test_the_lock_is_given_back(store: RunStore) -> None:
    store.close()
    store.close()
    with RunStore.open(store.path.parent, write=True) as again:
        record(again, 1)
    assert sorted(p.name for p in store.path.parent.iterdir()) == ["run.lock", FILE_NAME]


def test_a_full_disk_is_reported_and_nothing_of_the_update_is_kept(store: RunStore) -> None:
    record(store, 1)
    connection = store._connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    big = episode(2, turns=[turn(0, tuple(range(5000)))])
    with pytest.raises(StoreError, match="recording update 2 failed: the disk is full"):
        store.commit_update(2, episodes=[big], decisions=[], metrics={}, ledger=Ledger())
    assert store.last_update() == 1
    connection.execute("PRAGMA max_page_count = 1000000")
    store.commit_update(2, episodes=[big], decisions=[], metrics={}, ledger=Ledger())
    assert store.episodes(2) == [big]


def test_a_missing_run_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no run here"):
        RunStore.open(tmp_path / "nowhere")
    with pytest.raises(StoreError, match="there is no run here"):
        RunStore.open(tmp_path / "nowhere", write=True)
    assert list(tmp_path.iterdir()) == []
    assert not RunStore.exists(tmp_path)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"not a database at all " * 100)
    for write in (False, True):
        with pytest.raises(StoreError, match="corrupted or is no SQLite database"):
            RunStore.open(tmp_path, write=write)


def test_somebody_elses_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    foreign = sqlite3.connect(tmp_path / FILE_NAME)
    foreign.execute("CREATE TABLE cats (name)")
    foreign.commit()
    foreign.close()
    before = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(StoreError, match="not a forkgym run"):
        RunStore.open(tmp_path, write=True)
    with pytest.raises(StoreError, match="exists already"):
        RunStore.create(tmp_path, config="{}", digest="d", versions={})
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_a_newer_schema_asks_for_an_upgrade(store: RunStore) -> None:
    store._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    store.close()
    with pytest.raises(StoreError, match="written by a newer forkgym"):
        RunStore.open(store.path.parent)


def test_a_torn_file_is_found_before_anything_is_written(store: RunStore) -> None:
    for update in range(1, 30):
        record(store, update)
    store.close()
    data = bytearray(store.path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 4096] = os.urandom(4096)
    store.path.write_bytes(data)
    with pytest.raises(StoreError, match="corrupted"):
        RunStore.open(store.path.parent, write=True)


def test_a_file_left_empty_by_a_crash_during_creation_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).touch()
    assert not RunStore.exists(tmp_path)
    with RunStore.create(tmp_path, config="{}", digest="d", versions={}) as store:
        assert store.last_update() is None


def test_a_run_is_not_created_over_another(store: RunStore) -> None:
    directory = store.path.parent
    store.close()
    with pytest.raises(StoreError, match="exists already"):
        RunStore.create(directory, config="{}", digest="d", versions={})


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be made"):
        RunStore.create(tmp_path / "file" / "run", config="{}", digest="d", versions={})


def test_another_program_that_locks_the_database_is_named_as_the_cause(store: RunStore) -> None:
    store._connection.execute("PRAGMA busy_timeout = 10")
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked by another program"):
        record(store, 1)
    other.execute("ROLLBACK")
    other.close()
    record(store, 1)


def test_the_schema_is_the_one_of_its_version() -> None:
    """A changed trace struct changes the tables: raise SCHEMA_VERSION, add a migration, then renew the golden file."""
    golden = Path(__file__).with_name(f"schema_v{SCHEMA_VERSION}.sql")
    written = ";\n\n".join(schema()) + ";\n"
    assert written == golden.read_text(), f"a new schema; once its version is right, write this to {golden}:\n{written}"
