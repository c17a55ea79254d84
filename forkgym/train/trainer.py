"""Train: collect, credit, learn, record, checkpoint; one update after another until the budget is used up.

A run is a function of its configuration: every random choice is keyed, and a run killed at any moment resumes from
its last checkpoint to the same final weights, bit for bit on the CPU engine. Order of effects: the store records an
update, then the checkpoint counts it, so a crash between the two only repeats work.
"""

from __future__ import annotations

import copy
import math
import time
from importlib.metadata import version as package_version
from typing import TYPE_CHECKING, Any

import msgspec

from forkgym.credit import make_algorithm
from forkgym.credit.protocol import Advantages, Algorithm, CreditBatch
from forkgym.credit.terms import TurnCredit
from forkgym.noise import episode_id, generator
from forkgym.rollout.trace import Episode, Ledger
from forkgym.schedule import ControllerState, settle
from forkgym.store import RunStore
from forkgym.train.build import build_engine, build_learner, check_room, environment_maker, load_policy, save_policy
from forkgym.train.collect import Collection, Collector
from forkgym.train.config import (
    TrainConfig,
    check_resumable,
    config_digest,
    config_from_json,
    config_to_json,
)
from forkgym.train.evaluate import EvaluationResult, Evaluator
from forkgym.train.logs import run_logger
from forkgym.train.progress import Progress, Silent, TrainResult, UpdateRow

if TYPE_CHECKING:
    from forkgym.learn.metrics import LearnerMetrics
    from forkgym.schedule.timeline import Timeline

__all__ = ["Trainer", "train"]

TIMELINE_SPANS = 200_000
VERSIONED_PACKAGES = ("forkgym", "numpy", "torch", "transformers")


class RunState(msgspec.Struct, kw_only=True):
    """What a checkpoint holds besides the learner's tensors.

    Attributes:
        updates: Updates done.
        controller: Predictor, control variate, running scales.
        ledger: Tokens and seconds so far.
        realised: Realised branches so far.
        ties: Of these, with D = 0.
        self_twins: Of these, equal to the factual turn.
    """

    updates: int = 0
    controller: ControllerState = msgspec.field(default_factory=ControllerState)
    ledger: Ledger = msgspec.field(default_factory=Ledger)
    realised: int = 0
    ties: int = 0
    self_twins: int = 0


def train(config: TrainConfig, *, progress: Progress | None = None) -> TrainResult:
    """Run (or resume) a training run to the end of its budget.

    Args:
        config: The run's configuration. A run with the same directory and configuration is resumed.
        progress: Who is told.

    Raises:
        ConfigError: The directory holds a run with another configuration.
        StoreError: The run's record cannot be read or written, or another process is writing it.
    """
    trainer = Trainer(config, progress=progress)
    try:
        return trainer.run()
    finally:
        trainer.close()


class Trainer:
    """One run: its environment, policy, engine, learner, record and state.

    Args:
        config: The run's configuration.
        progress: Who is told.
    """

    def __init__(self, config: TrainConfig, *, progress: Progress | None = None) -> None:
        self.config = config
        self.progress: Progress = progress or Silent()
        self.algorithm: Algorithm = make_algorithm(config.algorithm.name, **config.algorithm.arguments)
        self.directory = config.run_directory
        self.log = run_logger(run=str(self.directory), algorithm=self.algorithm.name)
        self.make_env = environment_maker(config.env)
        self.model, self.tokenizer, self.renderer = load_policy(config.policy, self.make_env)
        # The engine copies the initial weights before the learner (which may add adapters) takes the model over.
        self.engine = build_engine(config.policy, self.model, self.renderer, version=0)
        self.learner = build_learner(config, self.model, self.algorithm)
        for split in (config.env.split, config.evaluation.split):
            self.task_count(split)
            check_room(self.make_env, self.renderer, split, config.policy, self.engine.context_limit)
        # Last, so that a configuration which does not work leaves no directory that belongs to it.
        self.store = self._open_store()
        self.state = RunState()
        self.timeline: Timeline | None = None
        self._evaluations: dict[tuple[int, str], EvaluationResult] = {}
        try:
            self._resume()
            self._make_workers()
        except BaseException:
            self.store.close()
            raise

    def close(self) -> None:
        """Release the run's record."""
        try:
            self._write_timeline()
        finally:
            self.store.close()

    def run(self) -> TrainResult:
        """Do updates until the budget is used up, then evaluate, save the policy and report."""
        resumed_at = self.state.updates or None
        self.progress.started(self.config, self.directory, resumed_at)
        self.log.info("run started", resumed_at=resumed_at)
        while not self._done():
            if self._evaluation_due():
                self._evaluate("sampled")
            if self.state.updates == 0:
                self._evaluate("greedy")
            self._update()
        for mode in ("sampled", "greedy"):
            self._evaluate(mode)
        result = self._result()
        save_policy(self.directory / "policy", self._plain_model(), self.tokenizer, self.make_env)
        self.log.info("run finished", updates=result.updates, tokens=result.training_tokens)
        self.progress.finished(result)
        return result

    # One update

    def _update(self) -> None:
        update = self.state.updates
        before, progress = dict(self.state.ledger.seconds), self._progress()
        collection = self.collector.collect(update, update, self._tasks(update), self.state.controller)
        metrics = self._learn(update, *self._credit(collection, progress))
        self._publish(update + 1)
        self.state.updates = update + 1
        row = self._row(update, collection, metrics, before)
        self.store.commit_update(
            update,
            episodes=collection.episodes,
            decisions=collection.decisions,
            metrics=msgspec.to_builtins(row),
            ledger=self.state.ledger,
        )
        if (update + 1) % self.config.checkpoint.every == 0 or self._done():
            self._checkpoint()
        self.log.info("update", update=update, success=row.success, tokens=row.training_tokens, twins=row.twins)
        self.progress.updated(row)

    def _tasks(self, update: int) -> list[int]:
        """Tasks of an update: a keyed draw without replacement (with, when there are fewer tasks than groups)."""
        count, groups = self.task_count(self.config.env.split), self.config.collection.groups_per_update
        drawn = generator(episode_id(self.config.run.seed, "tasks", update, 0, 0)).choice(
            count, size=groups, replace=count < groups
        )
        return [int(task) for task in drawn]

    def _credit(self, collection: Collection, progress: float) -> tuple[list[Episode], Advantages]:
        controller = self.state.controller
        batch = CreditBatch(
            groups=collection.groups,
            decisions=collection.decisions_by_episode(),
            progress=progress,
            running_scale=controller.running_scale,
        )
        examples = self.algorithm.examples(batch)
        branching = self.algorithm.branching
        if branching is not None:
            credited = any(isinstance(term, TurnCredit) for term in self.algorithm.credit)
            episodes = {episode.key: episode for episode in collection.episodes}
            by_group = self.config.collection.planning == "group"
            settle(
                collection.decisions, branching, controller, credited=credited, episodes=episodes if by_group else None
            )
        return examples

    def _learn(self, update: int, episodes: list[Episode], advantages: Advantages) -> LearnerMetrics:
        from forkgym.learn.batch import training_sequences

        started = time.perf_counter()
        supports = None
        if self.algorithm.rollout.top_p < 1.0:
            # The ratio is that of the truncated distribution, so the learner needs what each token was drawn from.
            supports = {episode.key: [turn.supports or [] for turn in episode.turns] for episode in episodes}
        metrics = self.learner.update(training_sequences(episodes, advantages, supports), update)
        if self.timeline is not None:
            self.timeline.span("learner", f"update {update}", started, time.perf_counter())
        ledger = self.state.ledger
        ledger.add("learner", seconds=time.perf_counter() - started)
        ledger.trained += metrics.trained_tokens
        ledger.collections += 1
        ledger.updates += 1
        ledger.optimiser_steps += metrics.optimiser_steps
        return metrics

    def _publish(self, version: int) -> None:
        self.engine.publish(version, self.learner.weights())
        self.engine.retire(version - 1)

    def _checkpoint(self) -> None:
        self.learner.save(
            self.directory / "checkpoints",
            extra=msgspec.to_builtins(self.state),
            keep=self.config.checkpoint.keep,
        )
        self.log.debug("checkpoint", updates=self.state.updates)

    # Budget and evaluation

    def _progress(self) -> float:
        budget = self.config.budget
        shares = []
        if budget.tokens is not None:
            shares.append(self.state.ledger.training_tokens / budget.tokens)
        if budget.updates is not None:
            shares.append(self.state.updates / budget.updates)
        return min(1.0, max(shares))

    def _done(self) -> bool:
        """Whether the budget is used up; tokens are met as closely as whole updates can, within half an update."""
        budget, state = self.config.budget, self.state
        if budget.updates is not None and state.updates >= budget.updates:
            return True
        if budget.tokens is None or state.updates == 0:
            return False
        spent = state.ledger.training_tokens
        return budget.tokens - spent < 0.5 * spent / state.updates

    def _evaluation_due(self) -> bool:
        every = self.config.evaluation.every
        return self.state.updates == 0 or (every > 0 and self.state.updates % every == 0)

    def _evaluate(self, mode: str) -> None:
        """Judge the current version; a resumed run repeats what its record lacks."""
        settings, update, greedy = self.config.evaluation, self.state.updates, mode == "greedy"
        if (update, mode) in self._evaluations:
            return
        tasks = range(min(settings.tasks, self.task_count(settings.split)))
        result = self.evaluator.evaluate(
            settings.split, tasks, version=update, samples=1 if greedy else settings.samples, greedy=greedy
        )
        metrics = msgspec.to_builtins(result)
        metrics["training_tokens"] = self.state.ledger.training_tokens
        self.store.add_evaluation(update, mode, metrics)
        self._evaluations[update, mode] = result
        self.log.info("evaluation", update=update, mode=mode, split=result.split, success=result.success)
        self.progress.evaluated(update, result)

    def task_count(self, split: str) -> int:
        """Number of tasks of a split.

        Raises:
            ValueError: There is no such split.
        """
        env = self.make_env()
        try:
            splits = env.splits
        finally:
            env.close()
        if split not in splits:
            raise ValueError(
                f"environment {self.config.env.id!r} has no split {split!r}; it has {', '.join(sorted(splits))}"
            )
        return splits[split]

    # Reports

    def _row(
        self, update: int, collection: Collection, metrics: LearnerMetrics, seconds_before: dict[str, float]
    ) -> UpdateRow:
        episodes = collection.episodes
        branches = [branch for decision in collection.decisions for branch in decision.branches]
        realised = [branch for branch in branches if branch.continued and not branch.skipped]
        ties = sum(branch.difference == 0.0 for branch in realised)
        self_twins = sum(branch.self_twin for branch in branches)
        self.state.realised += len(realised)
        self.state.ties += ties
        self.state.self_twins += self_twins
        factual = sum(episode.generated_tokens for episode in episodes)
        mixed = sum(len({episode.utility for episode in group}) > 1 for group in collection.groups)
        return UpdateRow(
            update=update,
            utility=math.fsum(episode.utility for episode in episodes) / len(episodes),
            success=sum(episode.success for episode in episodes) / len(episodes),
            mixed_groups=mixed / len(collection.groups),
            turns=sum(len(episode.turns) for episode in episodes) / len(episodes),
            entropy=_mean_entropy(collection),
            twins=len(branches),
            self_twins=self_twins / len(branches) if branches else 0.0,
            same_evidence=sum(branch.same_evidence for branch in branches) / len(branches) if branches else 0.0,
            ties=ties / len(realised) if realised else 0.0,
            multiplier=collection.multiplier,
            auxiliary=sum(branch.generated_tokens for branch in branches) / max(1, factual),
            training_tokens=self.state.ledger.training_tokens,
            progress=self._progress(),
            learner=msgspec.to_builtins(metrics),
            seconds={
                role: seconds - seconds_before.get(role, 0.0) for role, seconds in self.state.ledger.seconds.items()
            },
        )

    def _result(self) -> TrainResult:
        from forkgym.learn.weights import weights_digest

        ledger, state = self.state.ledger, self.state
        return TrainResult(
            directory=str(self.directory),
            algorithm=self.algorithm.name,
            updates=state.updates,
            training_tokens=ledger.training_tokens,
            on_policy_tokens=ledger.generated.get("on_policy", 0),
            counterfactual_tokens=ledger.generated.get("counterfactual", 0),
            branches=ledger.branches,
            self_twins=state.self_twins / ledger.branches if ledger.branches else math.nan,
            ties=state.ties / state.realised if state.realised else math.nan,
            before=self._evaluations_at(0),
            after=self._evaluations_at(state.updates),
            weights_digest=weights_digest(self.learner.weights()),
            seconds=dict(ledger.seconds),
        )

    def _evaluations_at(self, update: int) -> dict[str, EvaluationResult]:
        return {mode: result for (at, mode), result in self._evaluations.items() if at == update}

    # Set-up

    def _open_store(self) -> RunStore:
        versions = {name: package_version(name) for name in VERSIONED_PACKAGES}
        if not RunStore.exists(self.directory):
            return RunStore.create(
                self.directory,
                config=config_to_json(self.config),
                digest=config_digest(self.config),
                versions=versions,
            )
        store = RunStore.open(self.directory, write=True)
        try:
            check_resumable(config_from_json(store.config), self.config)
        except BaseException:
            store.close()
            raise
        if store.versions != versions:
            # A bug fix in a library is a reason to go on; whoever counts on equal bits must know.
            self.log.warning("resumed with other software", started_with=store.versions, now=versions)
        return store

    def _resume(self) -> None:
        extra = self.learner.resume(self.directory / "checkpoints")
        if extra is not None:
            self.state = msgspec.convert(extra, RunState)
            self.engine.publish(self.state.updates, self.learner.weights())
            self.engine.retire(0)
        dropped = self.store.truncate_after(self.state.updates - 1)
        if extra is None and dropped:
            self.log.warning("no checkpoint: the run starts again and its record with it", updates_dropped=dropped)
        if extra is not None:
            self.store.add_event(self.state.updates, "resumed", tokens=self.state.ledger.training_tokens)
        for evaluation in self.store.evaluations():
            metrics = {key: value for key, value in evaluation.metrics.items() if key != "training_tokens"}
            if metrics["standard_error"] is None:  # JSON has no NaN: one task has no standard error
                metrics["standard_error"] = math.nan
            self._evaluations[evaluation.update, evaluation.name] = msgspec.convert(metrics, EvaluationResult)

    def _make_workers(self) -> None:
        policy, rollout = self.config.policy, self.algorithm.rollout
        self.collector = self._make_collector()
        self.evaluator = Evaluator(
            self.engine,
            self.renderer,
            self.make_env,
            seed=self.config.evaluation.seed,
            temperature=1.0,
            top_p=rollout.top_p,
            max_turn_tokens=policy.max_turn_tokens,
            max_context=self.engine.context_limit,
            max_running=policy.max_running,
            ledger=self.state.ledger,
        )

    def _make_collector(self) -> Collector:
        config, collection = self.config, self.config.collection
        options: dict[str, Any] = {
            "seed": config.run.seed,
            "split": config.env.split,
            "max_turn_tokens": config.policy.max_turn_tokens,
            "max_context": self.engine.context_limit,
            "max_running": config.policy.max_running,
            "ledger": self.state.ledger,
            "planning": collection.planning,
        }
        if collection.mode == "phases":
            return Collector(self.engine, self.renderer, self.make_env, self.algorithm, **options)
        # Imported here: a run phase by phase needs no event loop.
        from forkgym.schedule.timeline import Timeline
        from forkgym.train.remote import RemoteEnvironments
        from forkgym.train.stream import StreamCollector, StreamSettings

        streamed = StreamCollector(self.engine, self.renderer, self.make_env, self.algorithm, **options)
        self.timeline = Timeline(most=TIMELINE_SPANS) if collection.timeline else None
        streamed.stream = StreamSettings(
            max_environments=collection.max_environments,
            remote=RemoteEnvironments(id=config.env.id, kwargs=config.env.kwargs, workers=collection.workers),
            timeline=self.timeline,
            tell=self._tell,
        )
        return streamed

    def _tell(self, name: str, detail: dict[str, Any]) -> None:
        """Record what happened to a rollout or a group while an update was collected."""
        detail = {key: value for key, value in detail.items() if key != "update"}
        self.store.add_event(self.state.updates, name, **detail)
        self.log.warning(name, update=self.state.updates, **detail)

    def _write_timeline(self) -> None:
        if self.timeline is not None:
            self.timeline.write(self.directory / "timeline.json")
            if self.timeline.dropped:
                self.log.warning("the timeline is full", kept=len(self.timeline), dropped=self.timeline.dropped)

    def _plain_model(self) -> Any:
        """The trained model without adapters: merged into the base where LoRA was used."""
        from forkgym.learn.lora import is_lora

        model: Any = self.learner.model
        # A copy: merging changes a model in place, and the learner goes on being the learner.
        return copy.deepcopy(model).merge_and_unload() if is_lora(model) else model


def _mean_entropy(collection: Collection) -> float:
    entropies = [entropy for episode in collection.episodes for turn in episode.turns for entropy in turn.entropies]
    return math.fsum(entropies) / len(entropies) if entropies else 0.0
