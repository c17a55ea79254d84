"""A run that is stopped anywhere and resumed ends with the bits of the run that was not."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forkgym.learn.checkpoint import CheckpointError, CheckpointWarning, list_checkpoints, read_checkpoint
from forkgym.learn.learner import Learner
from forkgym.policy.torch_engine import TorchEngine
from forkgym.store import RunStore
from forkgym.train.config import ConfigError
from forkgym.train.trainer import Trainer, train
from tests.faults.records import record
from tests.faults.runs import make_config, write_config

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def reference(checkpoint, tmp_path_factory):
    """The uninterrupted run: digest of the weights and everything recorded."""
    config = make_config(tmp_path_factory.mktemp("reference"), checkpoint, "twice-dr")
    result = train(config)
    return result.weights_digest, record(config.run_directory)


@pytest.fixture
def config(checkpoint, tmp_path):
    return make_config(tmp_path, checkpoint, "twice-dr")


def interrupt(monkeypatch, owner, method: str, call: int, error: BaseException, *, after: bool = False):
    """Make the ``call``-th call of a method raise, before or after doing its work."""
    plain, seen = getattr(owner, method), [0]

    def wrapper(self, *arguments, **options):
        seen[0] += 1
        if seen[0] == call and not after:
            raise error
        result = plain(self, *arguments, **options)
        if seen[0] == call:
            raise error
        return result

    monkeypatch.setattr(owner, method, wrapper)


def rarely(*place):
    return pytest.param(*place, marks=pytest.mark.slow)


PLACES = [
    rarely(TorchEngine, "step", 3, False),  # in the evaluation before the first update
    (TorchEngine, "step", 60, False),  # among rollouts
    rarely(TorchEngine, "step", 150, True),
    rarely(Learner, "update", 1, False),
    (Learner, "update", 3, True),  # the weights have moved, nothing is recorded
    rarely(TorchEngine, "publish", 2, True),
    rarely(RunStore, "commit_update", 2, False),
    (RunStore, "commit_update", 3, True),  # recorded, but not in a checkpoint
    rarely(Learner, "save", 2, False),
    rarely(Learner, "save", 2, True),
    rarely(RunStore, "add_evaluation", 3, True),  # after the last update
]


@pytest.mark.parametrize(("owner", "method", "call", "after"), PLACES)
def test_an_interrupted_run_resumes_to_the_same_bits(owner, method, call, after, config, reference, monkeypatch):
    with monkeypatch.context() as patched:
        interrupt(patched, owner, method, call, KeyboardInterrupt(), after=after)
        with pytest.raises(KeyboardInterrupt):
            train(config)
    assert_consistent(config.run_directory)
    assert train(config).weights_digest == reference[0]
    assert record(config.run_directory) == reference[1]


def test_a_run_interrupted_again_and_again_ends_with_the_same_bits(config, reference, monkeypatch):
    interruptions = 0
    while True:
        with monkeypatch.context() as patched:
            interrupt(patched, Learner, "update", 2, RuntimeError("the machine is tired"))
            try:
                digest = train(config).weights_digest
            except RuntimeError:
                interruptions += 1
                assert_consistent(config.run_directory)
                continue
        break
    assert interruptions == 3
    assert digest == reference[0]
    assert record(config.run_directory) == reference[1]


def test_an_interrupted_run_with_rare_checkpoints_repeats_what_was_recorded_after_the_last(
    checkpoint, tmp_path, reference, monkeypatch
):
    rare = make_config(tmp_path, checkpoint, "twice-dr", checkpoint={"every": 3})
    with monkeypatch.context() as patched:
        interrupt(patched, RunStore, "commit_update", 2, KeyboardInterrupt(), after=True)
        with pytest.raises(KeyboardInterrupt):
            train(rare)
    with RunStore.open(rare.run_directory) as store:
        assert store.last_update() == 1
    assert list_checkpoints(rare.run_directory / "checkpoints") == []
    assert train(rare).weights_digest == reference[0]
    assert record(rare.run_directory) == reference[1]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("broken"), MemoryError()])
@pytest.mark.parametrize(
    ("owner", "method"), [(TorchEngine, "step"), (Learner, "update"), (RunStore, "commit_update"), (Learner, "save")]
)
@pytest.mark.slow
def test_an_error_in_an_update_is_told_and_leaves_record_and_checkpoints_consistent(
    owner, method, error, config, reference, monkeypatch
):
    with monkeypatch.context() as patched:
        interrupt(patched, owner, method, 3 if method != "step" else 100, error)
        with pytest.raises(type(error)):
            train(config)
    assert_consistent(config.run_directory)
    assert train(config).weights_digest == reference[0]
    assert record(config.run_directory) == reference[1]


def assert_consistent(directory: Path) -> None:
    """The record is whole, and no checkpoint counts on an update that it lacks."""
    connection = sqlite3.connect(_database(directory))
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()
    with RunStore.open(directory) as store:
        recorded = -1 if store.last_update() is None else store.last_update()
        for update in range(recorded + 1):
            assert len(store.episodes(update)) == 8
            assert {d.episode for d in store.decisions(update)} == {one.key for one in store.episodes(update)}
    for path in list_checkpoints(directory / "checkpoints"):
        assert read_checkpoint(path).extra["updates"] <= recorded + 1


def _database(directory: Path) -> Path:
    from forkgym.store.database import FILE_NAME

    return directory / FILE_NAME


def stop_after(config, updates: int, monkeypatch) -> None:
    with monkeypatch.context() as patched:
        interrupt(patched, Learner, "save", updates, KeyboardInterrupt(), after=True)
        with pytest.raises(KeyboardInterrupt):
            train(config)


def test_a_torn_newest_checkpoint_is_passed_over(config, reference, monkeypatch):
    stop_after(config, 3, monkeypatch)
    newest = list_checkpoints(config.run_directory / "checkpoints")[-1]
    tensors = newest / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-100])
    with pytest.warns(CheckpointWarning, match="torn or was altered"):
        result = train(config)
    assert result.weights_digest == reference[0]
    assert record(config.run_directory) == reference[1]


def test_a_run_without_an_intact_checkpoint_is_not_started_afresh_in_silence(config, monkeypatch):
    stop_after(config, 2, monkeypatch)
    for path in list_checkpoints(config.run_directory / "checkpoints"):
        (path / "state.json").unlink()
    with pytest.warns(CheckpointWarning), pytest.raises(CheckpointError, match="every checkpoint is damaged"):
        train(config)
    assert_consistent_record_only(config.run_directory)


def assert_consistent_record_only(directory: Path) -> None:
    with RunStore.open(directory, write=True) as store:  # the lock was given back
        assert store.last_update() == 1


def test_a_changed_configuration_is_refused_and_the_old_one_still_resumes(
    config, checkpoint, tmp_path, reference, monkeypatch
):
    stop_after(config, 2, monkeypatch)
    other = make_config(tmp_path, checkpoint, "twice-dr", optimiser={"learning_rate": 0.02})
    with pytest.raises(ConfigError, match=r"optimiser\.learning_rate \(was 0\.01, now 0\.02\)"):
        train(other)
    assert train(config).weights_digest == reference[0]


def test_a_run_that_is_being_trained_is_not_trained_twice_at_once(config):
    first = Trainer(config)
    try:
        with pytest.raises(Exception, match="writ"):
            Trainer(config)
    finally:
        first.close()
    Trainer(config).close()


@pytest.mark.slow
def test_an_interrupted_run_with_adapters_resumes_to_the_same_bits(checkpoint, tmp_path, monkeypatch):
    lora = {"learning_rate": 0.05, "lora": {"rank": 4, "alpha": 8.0}}
    whole = make_config(tmp_path / "whole", checkpoint, "twice-dr", optimiser=lora)
    broken = make_config(tmp_path / "broken", checkpoint, "twice-dr", optimiser=lora)
    stop_after(broken, 2, monkeypatch)
    assert train(broken).weights_digest == train(whole).weights_digest
    assert record(broken.run_directory) == record(whole.run_directory)


@pytest.mark.slow
def test_a_run_killed_at_three_random_moments_ends_with_the_same_bits(checkpoint, tmp_path):
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"moments are drawn with seed {seed}")  # shown when the test fails
    moments = random.Random(seed)
    settings = {"budget": {"updates": 20}, "checkpoint": {"every": moments.choice([1, 2, 3])}}
    whole = make_config(tmp_path / "whole", checkpoint, "twice-dr", **settings)
    killed = make_config(tmp_path / "killed", checkpoint, "twice-dr", **settings)
    expected = train(whole).weights_digest
    path = write_config(killed, tmp_path / "config.json")
    for low, high in ((0, 4), (5, 10), (11, 16)):
        process = start(path)
        wait_for(killed.run_directory, moments.randint(low, high), process)
        time.sleep(moments.uniform(0.0, 0.25))
        process.send_signal(signal.SIGKILL)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, f"it was over before it could be killed: {output}"
        assert_consistent(killed.run_directory)
    last = start(path)
    output, _ = last.communicate(timeout=240)
    assert last.returncode == 0, output
    assert output.split()[-1] == expected
    assert record(killed.run_directory) == record(whole.run_directory)


def start(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.faults.runs", str(path)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(directory: Path, update: int, process: subprocess.Popen[str]) -> None:
    """Wait until the run has recorded ``update``."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.fail(f"the run ended by itself: {process.communicate()[0]}")
        if RunStore.exists(directory):
            connection = sqlite3.connect(f"file:{_database(directory)}?mode=ro", uri=True, timeout=30)
            try:
                tables = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'updates'").fetchone()[0]
                last = connection.execute("SELECT max(number) FROM updates").fetchone()[0] if tables else None
            finally:
                connection.close()
            if last is not None and last >= update:
                return
        time.sleep(0.01)
    pytest.fail("the run did not get far enough in two minutes")
