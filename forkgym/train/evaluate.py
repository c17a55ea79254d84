"""Judge a policy on held-out tasks: sampled and greedy success with standard errors, and twin coupling.

Evaluation never trains and books its tokens on the ``scoring`` role. Task results are kept one by one, so that two
policies can be compared task by task.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from forkgym.core import TextEnv
from forkgym.noise import Layout, episode_id
from forkgym.policy.chat import Renderer
from forkgym.policy.engine import Engine, Sampling
from forkgym.rollout.branch import BranchSetting, play_branch
from forkgym.rollout.episode import EpisodeSpec, PlayedEpisode, Rollout, drive, play_episode
from forkgym.rollout.plan import BranchPlan
from forkgym.rollout.trace import Branch, Ledger
from forkgym.schedule import make_decisions
from forkgym.train.collect import stop_strings_of

__all__ = ["CouplingResult", "EvaluationResult", "Evaluator", "mean_and_error", "merge_results"]

T = TypeVar("T")


class EvaluationResult(msgspec.Struct, frozen=True, kw_only=True):
    """Success on a split.

    Attributes:
        split: Task split.
        mode: ``sampled``, ``greedy``, or the name of a scripted policy.
        success: Mean success over tasks.
        standard_error: Standard error of that mean, tasks as units.
        utility: Mean utility.
        turns: Mean turns an episode.
        tokens: Mean generated tokens an episode.
        per_task: Mean success of each task, in task order.
        samples: Episodes a task.
        failures: Unsuccessful episodes by what the environment says went wrong, if it says so.
    """

    split: str
    mode: str
    success: float
    standard_error: float
    utility: float
    turns: float
    tokens: float
    per_task: list[float]
    samples: int = 1
    failures: dict[str, int] = {}

    @property
    def successes(self) -> list[int]:
        """Number of successful episodes of each task."""
        return [round(share * self.samples) for share in self.per_task]


class CouplingResult(msgspec.Struct, frozen=True, kw_only=True):
    """How strongly twins share their episode's outcome, at non-terminal decisions (Twice, Proposition 2).

    ``correlation`` is ``1 − mean(D_twin²)/mean(D_independent²)``: ρ of ``Var(D) = (1 − ρ)·Var(D_ind)`` up to the
    squared advantages, which both means share, so it understates ρ.

    Attributes:
        correlation: ρ as above; ``nan`` when no independent branch differed.
        standard_error: By jackknife over episodes.
        decisions: Number of decisions.
    """

    correlation: float
    standard_error: float
    decisions: int


class Evaluator:
    """Plays held-out tasks with an engine.

    Args:
        engine: Source of tokens.
        renderer: Turns text into tokens and back.
        make_env: Makes a fresh environment.
        seed: Seed of the evaluation's noise.
        temperature: τ of sampled episodes.
        top_p: Nucleus mass of sampled episodes.
        max_turn_tokens: Most tokens a turn may have.
        max_context: Most tokens of a context plus one turn.
        max_running: Most rollouts at a time.
        ledger: Where tokens and seconds are booked, or ``None``.
    """

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        make_env: Callable[[], TextEnv],
        *,
        seed: int = 0,
        temperature: float = 1.0,
        top_p: float = 1.0,
        max_turn_tokens: int,
        max_context: int,
        max_running: int = 64,
        ledger: Ledger | None = None,
    ) -> None:
        self.engine = engine
        self.renderer = renderer
        self.make_env = make_env
        self.seed = seed
        self.max_context = max_context
        self.max_running = max_running
        self.ledger = ledger
        self.sampling = Sampling(
            temperature=temperature,
            top_p=top_p,
            max_tokens=max_turn_tokens,
            stop_tokens=renderer.stop_tokens,
            stop_strings=stop_strings_of(make_env),
        )

    def evaluate(
        self, split: str, tasks: Sequence[int], *, version: int, samples: int = 1, greedy: bool = False
    ) -> EvaluationResult:
        """Success on tasks of a split.

        Args:
            split: Task split.
            tasks: Task numbers, at least one.
            version: Policy version.
            samples: Episodes a task (greedy ones are all alike, so 1 is enough there).
            greedy: Take the argmax instead of sampling.

        Raises:
            ValueError: No tasks or no samples.
        """
        if not tasks or samples < 1:
            raise ValueError(f"evaluation needs at least one task and one sample, got {len(tasks)} and {samples}")
        played = self._play(split, tasks, version, samples, greedy, branchable=False)
        for one in played:
            one.close(self.engine)
        episodes = [one.episode for one in played]
        per_task = [
            math.fsum(float(episode.success) for episode in episodes[start : start + samples]) / samples
            for start in range(0, len(episodes), samples)
        ]
        success, error = mean_and_error(per_task)
        count = len(episodes)
        return EvaluationResult(
            split=split,
            mode="greedy" if greedy else "sampled",
            success=success,
            standard_error=error,
            utility=math.fsum(episode.utility for episode in episodes) / count,
            turns=sum(len(episode.turns) for episode in episodes) / count,
            tokens=sum(episode.generated_tokens for episode in episodes) / count,
            per_task=per_task,
            samples=samples,
            failures=dict(sorted(Counter(e.failure for e in episodes if not e.success and e.failure).items())),
        )

    def coupling(self, split: str, tasks: Sequence[int], *, version: int, layout: Layout) -> CouplingResult:
        """Run one twin and one independent branch at every non-terminal decision of one episode a task.

        Args:
            split: Task split.
            tasks: Task numbers.
            version: Policy version.
            layout: Noise layout of the twins.
        """
        played = self._play(split, tasks, version, 1, False, branchable=True, layout=layout)
        decisions = [
            decision for decision in make_decisions([[one.episode] for one in played]) if not decision.terminal
        ]
        by_key = {one.episode.key: one for one in played}

        def rollouts() -> Iterator[Rollout[Branch]]:
            for coupling in ("twin", "independent"):
                plan = BranchPlan(
                    coupling="twin" if coupling == "twin" else "independent",
                    self_twin_shortcut=coupling == "twin",
                    same_evidence_probability=1.0,
                )
                setting = BranchSetting(
                    plan=plan,
                    renderer=self.renderer,
                    sampling=self.sampling,
                    layout=layout,
                    max_context=self.max_context,
                )
                for decision in decisions:
                    # The same index: both branches try the same alternative, so their second moments share A².
                    yield play_branch(by_key[decision.episode], decision, 0, setting, release=self.engine.release)

        try:
            branches = self._timed(rollouts())
        finally:
            for one in played:
                one.close(self.engine)
        count = len(decisions)
        twin = [branch.difference**2 for branch in branches[:count]]
        independent = [branch.difference**2 for branch in branches[count:]]
        return _coupling([decision.episode for decision in decisions], twin, independent)

    def _play(
        self,
        split: str,
        tasks: Sequence[int],
        version: int,
        samples: int,
        greedy: bool,
        *,
        branchable: bool,
        layout: Layout = Layout.TURN_LINE,
    ) -> list[PlayedEpisode]:
        sampling = msgspec.structs.replace(self.sampling, greedy=greedy)

        def rollouts() -> Iterator[Rollout[PlayedEpisode]]:
            for task in tasks:
                for member in range(samples):
                    yield play_episode(
                        self.make_env(),
                        EpisodeSpec(
                            key=episode_id(self.seed, f"evaluation/{split}", 0, task, member),
                            split=split,
                            task=task,
                            member=member,
                            version=version,
                        ),
                        renderer=self.renderer,
                        sampling=sampling,
                        layout=layout,
                        release=self.engine.release,
                        max_context=self.max_context,
                        branchable=branchable,
                    )

        return self._timed(rollouts(), discard=lambda one: one.close(self.engine))

    def _timed(self, rollouts: Iterator[Rollout[T]], discard: Callable[[T], None] | None = None) -> list[T]:
        before, started = self.engine.statistics(), time.perf_counter()
        results = drive(self.engine, rollouts, max_running=self.max_running, discard=discard)
        if self.ledger is not None:
            after = self.engine.statistics()
            self.ledger.add(
                "scoring",
                generated=after.generated_tokens - before.generated_tokens,
                fed=after.fed_tokens - before.fed_tokens,
                seconds=time.perf_counter() - started,
            )
        return results


def merge_results(results: Sequence[EvaluationResult]) -> EvaluationResult:
    """The same policy's results on several splits as one, each task counting once.

    Args:
        results: At least one, all of the same mode and number of samples.

    Raises:
        ValueError: They are of different modes or numbers of samples, or there are none.
    """
    if len({(result.mode, result.samples) for result in results}) != 1:
        raise ValueError("only results of one mode and one number of samples can be merged, and at least one")
    per_task = [share for result in results for share in result.per_task]
    success, error = mean_and_error(per_task)

    def mean(values: Sequence[float]) -> float:
        weighted = (value * len(r.per_task) for value, r in zip(values, results, strict=True))
        return math.fsum(weighted) / len(per_task)

    failures: Counter[str] = Counter()
    for result in results:
        failures.update(result.failures)
    return EvaluationResult(
        split=",".join(result.split for result in results),
        mode=results[0].mode,
        success=success,
        standard_error=error,
        utility=mean([result.utility for result in results]),
        turns=mean([result.turns for result in results]),
        tokens=mean([result.tokens for result in results]),
        per_task=per_task,
        samples=results[0].samples,
        failures=dict(sorted(failures.items())),
    )


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error (sample standard deviation over √n; ``nan`` for one value)."""
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return mean, math.nan
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return mean, math.sqrt(variance / count)


def _coupling(episodes: Sequence[int], twin: Sequence[float], independent: Sequence[float]) -> CouplingResult:
    total_twin, total_independent = math.fsum(twin), math.fsum(independent)
    if total_independent == 0.0:
        return CouplingResult(correlation=math.nan, standard_error=math.nan, decisions=len(twin))
    left_out: dict[int, list[float]] = {}
    for key, a, b in zip(episodes, twin, independent, strict=True):
        sums = left_out.setdefault(key, [0.0, 0.0])
        sums[0] += a
        sums[1] += b
    pseudo = [1.0 - (total_twin - a) / (total_independent - b) for a, b in left_out.values() if total_independent > b]
    centre = math.fsum(pseudo) / len(pseudo) if pseudo else math.nan
    spread = math.fsum((value - centre) ** 2 for value in pseudo)
    error = math.sqrt(spread * (len(pseudo) - 1) / len(pseudo)) if len(pseudo) > 1 else math.nan
    return CouplingResult(correlation=1.0 - total_twin / total_independent, standard_error=error, decisions=len(twin))
