"""A resumed learner is the uninterrupted one, bit for bit; torn, altered or half-written checkpoints are noticed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings

import msgspec
import pytest
import torch

from forkgym.learn import Learner, LearnerConfig, LoraConfig, equal_weights
from forkgym.learn.checkpoint import (
    CheckpointError,
    CheckpointWarning,
    list_checkpoints,
    load_latest,
    read_checkpoint,
    write_checkpoint,
)
from forkgym.rollout.plan import ClippedSurrogate

CONFIG = LearnerConfig(learning_rate=1e-3, minibatch=4, epochs=2, warmup_updates=3, weight_decay=0.01, row_tokens=64)


def same_state(first: Learner, second: Learner) -> bool:
    (a, about_a), (b, about_b) = first.state(), second.state()
    return equal_weights(a, b) and about_a == about_b


@pytest.mark.parametrize("kl", [0.0, 0.05])
@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4)])
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(make_model, make_sequences, tmp_path, kl, lora):
    """Weights, AdamW moments and counters, after updates that straddle the interruption."""
    loss, config = ClippedSurrogate(kl_coefficient=kl), msgspec.structs.replace(CONFIG, lora=lora)
    batches = [make_sequences(10, seed=seed, zero_every=4) for seed in range(5)]
    whole = Learner(make_model(), loss, config)
    expected = [whole.update(batch, update) for update, batch in enumerate(batches)]

    first = Learner(make_model(), loss, config)
    for update in range(2):
        first.update(batches[update], update)
    first.save(tmp_path, extra={"next": 2})
    resumed = Learner(make_model(), loss, config)
    extra = resumed.resume(tmp_path)
    assert extra == {"next": 2}
    assert same_state(first, resumed)
    for update in range(2, 5):
        metrics = resumed.update(batches[update], update)
        assert msgspec.structs.replace(metrics, seconds=0.0) == msgspec.structs.replace(expected[update], seconds=0.0)
    assert same_state(whole, resumed)
    assert resumed.counters.optimiser_steps == 5 * 2 * 3


def test_without_a_checkpoint_there_is_nothing_to_resume(make_model, tmp_path):
    learner = Learner(make_model(), ClippedSurrogate())
    assert learner.resume(tmp_path) is None
    assert learner.resume(tmp_path / "missing") is None


def test_a_checkpoint_of_another_model_is_refused_and_nothing_is_loaded(make_model, make_sequences, tmp_path):
    Learner(make_model(hidden=16), ClippedSurrogate()).save(tmp_path / "small")
    learner = Learner(make_model(), ClippedSurrogate())
    before = learner.weights()
    with pytest.raises(CheckpointError, match="another model"):
        learner.resume(tmp_path / "small")
    assert equal_weights(before, learner.weights())


def test_another_reference_model_is_refused(make_model, tmp_path):
    loss = ClippedSurrogate(kl_coefficient=0.1)
    Learner(make_model(), loss).save(tmp_path)
    with pytest.raises(CheckpointError, match="initial model"):
        Learner(make_model(seed=1), loss).resume(tmp_path)


def test_another_base_under_adapters_is_refused(make_model, tmp_path):
    config = LearnerConfig(lora=LoraConfig(rank=2))
    Learner(make_model(), ClippedSurrogate(), config).save(tmp_path)
    with pytest.raises(CheckpointError, match="initial model"):
        Learner(make_model(seed=1), ClippedSurrogate(), config).resume(tmp_path)


def write(directory, step, **options):
    return write_checkpoint(directory, step, {"x": torch.full((3,), float(step))}, {"step": step}, **options)


def test_only_the_newest_are_kept_in_numerical_order(tmp_path):
    for step in (1, 2, 9, 10, 123456789):
        write(tmp_path, step, keep=3)
    assert [path.name for path in list_checkpoints(tmp_path)] == [
        "checkpoint-00000009",
        "checkpoint-00000010",
        "checkpoint-123456789",
    ]
    newest = load_latest(tmp_path)
    assert newest is not None
    assert newest.step == 123456789
    assert torch.equal(newest.tensors["x"], torch.full((3,), 123456789.0))
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in list_checkpoints(tmp_path)}


def test_writing_a_step_again_adds_a_newer_attempt(tmp_path):
    write_checkpoint(tmp_path, 4, {}, {"attempt": 0})
    path = write_checkpoint(tmp_path, 4, {}, {"attempt": 1})
    assert path.name == "checkpoint-00000004.1"
    newest = load_latest(tmp_path)
    assert newest is not None
    assert newest.state == {"attempt": 1}


@pytest.mark.parametrize("file", ["tensors.safetensors", "state.json", "digests.json"])
@pytest.mark.parametrize("damage", ["torn", "altered", "missing", "empty"])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path, file, damage):
    write(tmp_path, 1)
    victim = write(tmp_path, 2) / file
    content = victim.read_bytes()
    if damage == "missing":
        victim.unlink()
    elif damage == "altered":
        victim.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    else:
        victim.write_bytes(content[: len(content) // 2] if damage == "torn" else b"")
    with pytest.warns(CheckpointWarning, match="checkpoint-00000002"):
        newest = load_latest(tmp_path)
    assert newest is not None
    assert newest.step == 1


def test_when_all_are_damaged_the_run_does_not_silently_start_afresh(tmp_path):
    for step in (1, 2):
        (write(tmp_path, step) / "state.json").write_bytes(b"{}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)
        with pytest.raises(CheckpointError, match="every checkpoint is damaged"):
            load_latest(tmp_path)


def test_a_failed_write_leaves_the_earlier_checkpoint_and_no_litter(tmp_path, monkeypatch):
    write(tmp_path, 1)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("forkgym.learn.checkpoint.save_file", full)
    with pytest.raises(OSError, match="No space"):
        write(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-00000001"]


@pytest.mark.parametrize("extra", [{"x": float("nan")}, {"x": [1.0, float("inf")]}, {"x": {1: 2}}, {"x": object()}])
def test_state_that_json_would_change_is_refused(tmp_path, extra):
    with pytest.raises(ValueError, match="JSON"):
        write(tmp_path, 1, extra=extra)
    assert list(tmp_path.iterdir()) == []


def test_numbers_in_extra_come_back_exactly(tmp_path):
    extra = {"third": 1 / 3, "tiny": 5e-324, "key": 2**64 - 1, "list": [1, 2.0, "ü", None, True]}
    write(tmp_path, 1, extra=extra)
    newest = load_latest(tmp_path)
    assert newest is not None
    assert newest.extra == extra


@pytest.mark.parametrize("arguments", [{"keep": 0}, {"step": -1}])
def test_numbers_out_of_range_are_refused(tmp_path, arguments):
    with pytest.raises(ValueError, match="at least"):
        write_checkpoint(tmp_path, arguments.get("step", 0), {}, {}, keep=arguments.get("keep", 1))


def test_no_file_is_a_pickle(make_model, make_sequences, tmp_path):
    learner = Learner(make_model(), ClippedSurrogate())
    learner.update(make_sequences(3), 0)
    path = learner.save(tmp_path)
    assert sorted(file.name for file in path.iterdir()) == ["digests.json", "state.json", "tensors.safetensors"]
    json.loads((path / "state.json").read_text())
    assert read_checkpoint(path).step == 1


KILLED = """
import sys, torch
from forkgym.learn.checkpoint import write_checkpoint
for step in range(10**6):
    tensors = {"x": torch.full((20_000,), float(step))}
    write_checkpoint(sys.argv[1], step, tensors, {"step": step}, keep=2)
    print(step, flush=True)
"""


@pytest.mark.slow
def test_a_process_killed_while_writing_leaves_an_intact_newest_checkpoint(tmp_path):
    """Five kills; each time the last checkpoint that was reported done, or a later one, is read back whole."""
    for round_number, lines in enumerate((1, 3, 7, 12, 20)):
        directory = tmp_path / str(round_number)
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, str(directory)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            reported = [int(process.stdout.readline()) for _ in range(lines)][-1]
            os.kill(process.pid, signal.SIGKILL)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            newest = load_latest(directory)
        assert newest is not None
        assert newest.step >= reported
        assert torch.equal(newest.tensors["x"], torch.full((20_000,), float(newest.step)))
