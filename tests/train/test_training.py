"""A whole run: episodes become a gradient, everything is recorded, the books balance, and the numbers repeat."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import forkgym
from forkgym.credit import CreditBatch
from forkgym.credit.estimators import contrast, horvitz_thompson
from forkgym.store import RunStore
from forkgym.train.progress import Silent
from forkgym.train.trainer import Trainer, train
from tests.faults.records import record
from tests.faults.runs import OPTIONS, make_config, write_config

torch = pytest.importorskip("torch")


class Watcher(Silent):
    """Keeps what it is told."""

    def __init__(self):
        self.rows, self.evaluations, self.resumed = [], [], []

    def started(self, config, directory, resumed_at):
        self.resumed.append(resumed_at)

    def updated(self, row):
        self.rows.append(row)

    def evaluated(self, update, result):
        self.evaluations.append((update, result.mode))


def initial_digest(checkpoint):
    from transformers import AutoModelForCausalLM

    from forkgym.learn.weights import snapshot_weights, weights_digest

    return weights_digest(snapshot_weights(AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)))


QUICK = ("crr", "twice-dr")
PRESETS = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in OPTIONS]


@pytest.fixture(scope="module", params=PRESETS)
def finished(request, checkpoint, tmp_path_factory):
    """One finished run of each preset."""
    config = make_config(tmp_path_factory.mktemp(request.param), checkpoint, request.param)
    watcher = Watcher()
    return config, train(config, progress=watcher), watcher


def test_a_run_ends_where_its_budget_ends_and_has_changed_the_policy(finished, checkpoint):
    config, result, watcher = finished
    assert result.updates == 4
    assert result.algorithm == config.algorithm.name
    assert result.weights_digest != initial_digest(checkpoint)
    assert [row.update for row in watcher.rows] == [0, 1, 2, 3]
    assert watcher.resumed == [None]
    assert watcher.evaluations == [(0, "sampled"), (0, "greedy"), (4, "sampled"), (4, "greedy")]
    assert set(result.before) == set(result.after) == {"sampled", "greedy"}
    assert any(row.mixed_groups > 0 for row in watcher.rows)


def test_the_saved_policy_is_the_trained_one(finished):
    from forkgym.learn.weights import snapshot_weights, weights_digest
    from forkgym.policy.tiny import load_checkpoint
    from tests.rollout.lamps import Lamps

    config, result, _ = finished
    model, _ = load_checkpoint(config.run_directory / "policy", Lamps().vocabulary())
    Lamps.live -= 1
    assert weights_digest(snapshot_weights(model)) == result.weights_digest


def test_every_episode_decision_and_branch_is_recorded_and_the_tokens_add_up(finished):
    config, result, watcher = finished
    with RunStore.open(config.run_directory) as store:
        totals = {"on_policy": 0, "counterfactual": 0}
        keys = [one.key for update in range(4) for one in store.episodes(update)]
        assert len(set(keys)) == 4 * 8  # no episode shares its noise with another
        for update in range(4):
            episodes = store.episodes(update)
            decisions = store.decisions(update)
            assert [(one.group, one.member) for one in episodes] == [(g, m) for g in range(2) for m in range(4)]
            assert [(d.episode, d.turn) for d in decisions] == [
                (one.key, turn.index) for one in episodes for turn in one.turns
            ]
            assert all(one.version == update for one in episodes)
            branches = [branch for decision in decisions for branch in decision.branches]
            totals["on_policy"] += sum(len(turn.tokens) for one in episodes for turn in one.turns)
            totals["counterfactual"] += sum(branch.generated_tokens for branch in branches)
            ledger = store.ledger(update)
            assert ledger.generated.get("on_policy", 0) == totals["on_policy"]
            assert ledger.generated.get("counterfactual", 0) == totals["counterfactual"]
            assert ledger.updates == ledger.collections == update + 1
            assert ledger.optimiser_steps == 2 * (update + 1)  # eight episodes, four a step
            assert ledger.episodes == 8 * (update + 1)
            assert watcher.rows[update].twins == len(branches)
            assert watcher.rows[update].training_tokens == sum(totals.values())
        assert ledger.branches == result.branches
        assert result.on_policy_tokens == totals["on_policy"]
        assert result.counterfactual_tokens == totals["counterfactual"]
        for parts, seconds in ((ledger.parts[role], ledger.seconds[role]) for role in ledger.parts):
            assert set(parts) <= {"environment", "verifier", "fork"}
            assert 0 < sum(parts.values()) < seconds  # the engine's share is what is left
        assert ("fork" in ledger.parts["on_policy"]) == (result.branches > 0)
        assert ledger.part("verifier") == sum(parts["verifier"] for parts in ledger.parts.values())
        assert ledger.generated["scoring"] > 0  # the evaluation before the first update is not training
        assert result.training_tokens == sum(totals.values())


def test_credit_is_what_the_recorded_branches_say(finished):
    config, result, _ = finished
    with RunStore.open(config.run_directory) as store:
        decisions = store.decisions()
    if result.branches == 0:
        assert config.algorithm.name in ("grpo", "rloo", "merge-annealed")
        assert all(decision.credit is None and not decision.branches for decision in decisions)
        return
    assert any(decision.branches for decision in decisions)
    for decision in decisions:
        if config.algorithm.name == "crr":
            assert decision.credit == (contrast(decision) if decision.branched else None)
            assert not (decision.branched and decision.terminal)
        else:
            assert decision.credit == horvitz_thompson(decision)
            assert decision.branched == (decision.coin < decision.propensity)
            for branch in decision.branches:
                if branch.same_evidence and config.algorithm.name == "twice-dr":  # the adaptive coin keeps q·q_same up
                    assert decision.propensity * branch.continuation_probability >= 0.1 * (1 - 1e-12)
                elif branch.same_evidence:
                    assert branch.continuation_probability == 0.25
            warm_up = decision.update < 1
            assert (decision.propensity == 0.3) == warm_up


def test_recorded_episodes_replay_from_their_handles(finished):
    config, _, _ = finished
    with RunStore.open(config.run_directory) as store:
        for episode in store.episodes(3)[:4]:
            env = forkgym.replay(forkgym.Handle.from_json(episode.handle))
            assert env.state_hash() == episode.turns[-1].state_hash
            assert store.episode(episode.key) == episode
            env.close()


@pytest.mark.slow
def test_no_environment_and_no_cache_is_left_open(finished, checkpoint, tmp_path):
    from tests.rollout.lamps import Lamps

    config, _, _ = finished
    before = Lamps.live
    trainer = Trainer(msgspec.structs.replace(config, run=msgspec.structs.replace(config.run, directory=str(tmp_path))))
    try:
        trainer.run()
        assert trainer.engine.statistics().stored_caches == 0
        assert trainer.engine.statistics().running == 0
        for version in range(4):  # only the last policy is still served
            with pytest.raises(ValueError, match="not published"):
                trainer.engine.retire(version)
        assert Lamps.live == before
    finally:
        trainer.close()


def test_a_finished_run_is_not_run_again(finished):
    config, result, _ = finished
    before = record(config.run_directory)
    watcher = Watcher()
    again = train(config, progress=watcher)
    assert watcher.resumed == [4]
    assert watcher.rows == []
    assert again.weights_digest == result.weights_digest
    assert again.branches == result.branches
    assert again.ties == pytest.approx(result.ties, nan_ok=True)
    assert record(config.run_directory) == before


def test_the_same_configuration_gives_the_same_bits(finished, tmp_path):
    config, result, _ = finished
    again = make_config(
        tmp_path, config.policy.checkpoint, config.algorithm.name, checkpoint={"every": 3}, evaluation={"every": 2}
    )
    assert train(again).weights_digest == result.weights_digest
    mine, other = record(again.run_directory), record(config.run_directory)
    for name in ("episodes", "decisions"):
        assert mine[name] == other[name]
    assert [row["learner"] for row in mine["metrics"]] == [row["learner"] for row in other["metrics"]]


def test_how_many_run_at_once_changes_no_number(finished, tmp_path):
    config, result, _ = finished
    few = make_config(tmp_path, config.policy.checkpoint, config.algorithm.name, policy={"max_running": 3})
    assert config.policy.max_running == 64
    assert train(few).weights_digest == result.weights_digest
    mine, other = record(few.run_directory), record(config.run_directory)
    assert mine["episodes"] == other["episodes"]
    assert mine["decisions"] == other["decisions"]
    assert mine["ledger"] == other["ledger"]


@pytest.mark.slow
def test_another_process_with_another_hash_seed_and_thread_count_gives_the_same_bits(finished, tmp_path):
    config, result, _ = finished
    again = make_config(tmp_path, config.policy.checkpoint, config.algorithm.name)
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.runs", str(write_config(again, tmp_path / "config.json"))],
        cwd=Path(__file__).resolve().parents[2],
        env={**os.environ, "PYTHONHASHSEED": "4242", "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == result.weights_digest
    assert record(again.run_directory) == record(config.run_directory)


@pytest.mark.slow
def test_another_seed_gives_another_policy(finished, tmp_path):
    config, result, _ = finished
    other = make_config(tmp_path, config.policy.checkpoint, config.algorithm.name, run={"seed": 6})
    assert train(other).weights_digest != result.weights_digest


def test_a_token_budget_ends_the_run_at_the_update_that_reaches_it(checkpoint, tmp_path):
    config = make_config(tmp_path, checkpoint, "twice", budget={"updates": 50, "tokens": 300})
    watcher = Watcher()
    result = train(config, progress=watcher)
    assert result.updates < 50
    assert result.training_tokens >= 300
    assert watcher.rows[-2].training_tokens < 300
    assert watcher.rows[-1].progress == 1.0
    assert watcher.rows[0].progress == pytest.approx(watcher.rows[0].training_tokens / 300)


@pytest.mark.parametrize("tokens", [330, 390])
def test_a_token_budget_is_met_within_half_an_update(tokens, checkpoint, tmp_path):
    watcher = Watcher()
    train(make_config(tmp_path, checkpoint, "grpo", budget={"tokens": tokens}), progress=watcher)
    left = [tokens - row.training_tokens for row in watcher.rows]
    half_an_update = [0.5 * row.training_tokens / (row.update + 1) for row in watcher.rows]
    assert [gap < half for gap, half in zip(left, half_an_update, strict=True)] == [False] * (len(left) - 1) + [True]
    assert len(left) > 2


@pytest.mark.parametrize("budget", [{"updates": 3}, {"updates": 50, "tokens": 300}])
def test_credit_is_told_what_was_used_of_the_budget_before_its_update(budget, checkpoint, tmp_path, monkeypatch):
    told = []

    def spy(**fields):
        told.append(fields["progress"])
        return CreditBatch(**fields)

    monkeypatch.setattr("forkgym.train.trainer.CreditBatch", spy)
    watcher = Watcher()
    train(make_config(tmp_path, checkpoint, "merge-annealed", budget=budget), progress=watcher)
    assert told == [0.0, *(row.progress for row in watcher.rows[:-1])]
    assert len(told) > 2


def test_a_run_that_is_resumed_with_other_software_says_so(checkpoint, tmp_path, monkeypatch, caplog):
    config = make_config(tmp_path, checkpoint, "grpo", budget={"updates": 1})
    train(config)
    train(config)
    assert "other software" not in caplog.text
    monkeypatch.setattr("forkgym.train.trainer.package_version", lambda name: f"another {name}")
    train(config)
    assert "resumed with other software" in caplog.text
    assert "another torch" in caplog.text


def test_one_evaluation_task_has_no_standard_error_and_the_run_still_resumes(checkpoint, tmp_path):
    config = make_config(tmp_path, checkpoint, "grpo", evaluation={"tasks": 1}, budget={"updates": 2})
    first = train(config)
    again = train(config)
    assert again.weights_digest == first.weights_digest
    assert again.before["sampled"].success == first.before["sampled"].success


def test_a_split_that_does_not_exist_is_refused_before_anything_is_trained(checkpoint, tmp_path):
    config = make_config(tmp_path, checkpoint, "grpo", evaluation={"split": "tset"})
    with pytest.raises(ValueError, match="no split 'tset'; it has test, train"):
        train(config)


def test_a_truncated_policy_is_trained_on_the_distribution_it_was_sampled_from(checkpoint, tmp_path):
    config = make_config(tmp_path / "runs", checkpoint, "grpo", algorithm={"top_p": 0.9}, budget={"updates": 3})
    watcher = Watcher()
    result = train(config, progress=watcher)
    with RunStore.open(config.run_directory) as store:
        [turn, *_] = store.episodes(0)[0].turns
    assert turn.supports is not None
    assert all(token in support for token, support in zip(turn.tokens, turn.supports, strict=True))
    # At θ_old the learner's log-probability within the stored support is the engine's, to float32 rounding: without
    # the supports it would be off by up to −log .9.
    assert all(row.learner["largest_mismatch"] < 1e-4 for row in watcher.rows)
    untruncated = train(make_config(tmp_path / "plain", checkpoint, "grpo", budget={"updates": 3}))
    assert result.weights_digest != untruncated.weights_digest


@pytest.mark.slow
def test_adapters_train_and_are_merged_into_the_saved_policy(checkpoint, tmp_path):
    from forkgym.learn.weights import snapshot_weights, weights_digest
    from forkgym.policy.tiny import load_checkpoint
    from tests.rollout.lamps import Lamps

    lora = {"learning_rate": 0.05, "lora": {"rank": 4, "alpha": 8.0}}
    config = make_config(tmp_path / "a", checkpoint, "twice-dr", optimiser=lora)
    result = train(config)
    assert result.weights_digest != initial_digest(checkpoint)
    model, _ = load_checkpoint(config.run_directory / "policy", Lamps().vocabulary())
    Lamps.live -= 1
    assert weights_digest(snapshot_weights(model)) == result.weights_digest
    few = make_config(tmp_path / "b", checkpoint, "twice-dr", optimiser=lora, policy={"max_running": 3})
    assert train(few).weights_digest == result.weights_digest
