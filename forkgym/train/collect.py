"""Collect one update: factual groups, then the branches the algorithm asks for, with every token booked.

Phase by phase: all episodes of the update first, then all of its branches. Results depend on keys alone, so
`stream.py` interleaves the same rollouts differently and gets the same numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from forkgym.core import TextEnv
from forkgym.credit.protocol import Algorithm
from forkgym.noise import Layout, episode_id
from forkgym.policy.chat import Renderer
from forkgym.policy.engine import Engine, Sampling
from forkgym.rollout.branch import BranchSetting, play_branch
from forkgym.rollout.episode import EpisodeSpec, PlayedEpisode, Rollout, drive, play_episode
from forkgym.rollout.stopwatch import Stopwatch
from forkgym.rollout.trace import Branch, Decision, Episode, Ledger, Role
from forkgym.schedule import ControllerState, Planning, make_decisions, plan_branches, same_evidence_probability

__all__ = ["Collection", "Collector", "stop_strings_of"]

T = TypeVar("T")


class Collection(msgspec.Struct, kw_only=True):
    """What one update collected.

    Attributes:
        groups: Factual episodes by group, members in order.
        decisions: Every factual turn in canonical order (group, member, turn), branches run.
        multiplier: λ of this update's allocation.
    """

    groups: list[list[Episode]]
    decisions: list[Decision]
    multiplier: float = 0.0

    @property
    def episodes(self) -> list[Episode]:
        """All episodes in batch order."""
        return [episode for group in self.groups for episode in group]

    def decisions_by_episode(self) -> dict[int, list[Decision]]:
        """Decisions of each episode in turn order."""
        out: dict[int, list[Decision]] = {episode.key: [] for episode in self.episodes}
        for decision in self.decisions:
            out[decision.episode].append(decision)
        return out


class Collector:
    """Runs episodes and branches for a trainer.

    Args:
        engine: Source of tokens.
        renderer: Turns text into tokens and back.
        make_env: Makes a fresh environment.
        algorithm: What to collect.
        seed: Run seed.
        split: Task split.
        max_turn_tokens: Most tokens a turn may have.
        max_context: Most tokens of a context plus one turn.
        max_running: Most rollouts at a time.
        ledger: Where tokens and seconds are booked.
        record: Record state hashes and replayable handles.
        planning: Whether λ is solved over each update or known before it; see ``schedule.Planning``.
    """

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        make_env: Callable[[], TextEnv],
        algorithm: Algorithm,
        *,
        seed: int,
        split: str,
        max_turn_tokens: int,
        max_context: int,
        max_running: int,
        ledger: Ledger,
        record: bool = True,
        planning: Planning = "batch",
    ) -> None:
        self.engine = engine
        self.renderer = renderer
        self.make_env = make_env
        self.algorithm = algorithm
        self.seed = seed
        self.split = split
        self.max_context = max_context
        self.max_running = max_running
        self.ledger = ledger
        self.record = record
        self.planning = planning
        plan = algorithm.rollout
        self.layout = Layout(plan.layout)
        self.sampling = Sampling(
            temperature=plan.temperature,
            top_p=plan.top_p,
            max_tokens=max_turn_tokens,
            stop_tokens=renderer.stop_tokens,
            stop_strings=stop_strings_of(make_env),
        )

    def collect(self, update: int, version: int, tasks: Sequence[int], state: ControllerState) -> Collection:
        """Play the update's groups and branches.

        Args:
            update: Update number.
            version: Policy version every turn is written by.
            tasks: One task a group.
            state: What earlier updates taught; read only.
        """
        played = self._play_groups(update, version, tasks)
        size = self.algorithm.rollout.group_size
        try:
            groups = [[one.episode for one in played[start : start + size]] for start in range(0, len(played), size)]
            collection = Collection(groups=groups, decisions=make_decisions(groups))
            if self.algorithm.branching is not None:
                episodes = {one.episode.key: one.episode for one in played}
                collection.multiplier = plan_branches(
                    collection.decisions, episodes, self.algorithm.branching, state, update, planning=self.planning
                )
                self._play_branches({one.episode.key: one for one in played}, collection.decisions, state)
        finally:
            for one in played:
                one.close(self.engine)
        return collection

    def episode_spec(self, update: int, group: int, task: int, member: int, version: int) -> EpisodeSpec:
        """Which episode a member of a group plays."""
        return EpisodeSpec(
            # The group number tells two draws of one task within an update apart.
            key=episode_id(self.seed, f"{self.split}/{group}", update, task, member),
            split=self.split,
            task=task,
            update=update,
            group=group,
            member=member,
            version=version,
        )

    def branch_setting(self) -> BranchSetting:
        """What an update's branches share.

        Raises:
            ValueError: The algorithm has no branches.
        """
        if self.algorithm.branching is None:
            raise ValueError(f"{self.algorithm.name} runs no branches")
        return BranchSetting(
            plan=self.algorithm.branching.plan,
            renderer=self.renderer,
            sampling=self.sampling,
            layout=self.layout,
            max_context=self.max_context,
        )

    def _play_groups(self, update: int, version: int, tasks: Sequence[int]) -> list[PlayedEpisode]:
        size = self.algorithm.rollout.group_size
        branchable = self.algorithm.branching is not None
        stopwatch = Stopwatch()

        def rollouts() -> Iterator[Rollout[PlayedEpisode]]:
            for group, task in enumerate(tasks):
                for member in range(size):
                    yield play_episode(
                        self.make_env(),
                        self.episode_spec(update, group, task, member, version),
                        renderer=self.renderer,
                        sampling=self.sampling,
                        layout=self.layout,
                        release=self.engine.release,
                        max_context=self.max_context,
                        record=self.record,
                        branchable=branchable,
                        stopwatch=stopwatch,
                    )

        played = self._booked(
            "on_policy",
            lambda: drive(
                self.engine,
                rollouts(),
                max_running=self.max_running,
                discard=lambda one: one.close(self.engine),
            ),
            stopwatch,
        )
        self.ledger.episodes += len(played)
        return played

    def _play_branches(
        self, played: dict[int, PlayedEpisode], decisions: Sequence[Decision], state: ControllerState
    ) -> None:
        branching = self.algorithm.branching
        if branching is None:
            return
        setting = self.branch_setting()
        chosen = [decision for decision in decisions if decision.branched]

        def rollouts() -> Iterator[Rollout[Branch]]:
            for decision in chosen:
                q_same = same_evidence_probability(decision, branching, state)
                for index in range(branching.plan.pairs):
                    yield play_branch(
                        played[decision.episode],
                        decision,
                        index,
                        setting,
                        release=self.engine.release,
                        same_evidence_probability=q_same,
                    )

        branches = self._booked(
            "counterfactual",
            lambda: drive(self.engine, rollouts(), max_running=self.max_running),
            setting.stopwatch,
        )
        pairs = branching.plan.pairs
        for number, decision in enumerate(chosen):
            decision.branches = branches[number * pairs : (number + 1) * pairs]
        self.ledger.branches += len(branches)

    def _booked(self, role: Role, work: Callable[[], T], stopwatch: Stopwatch) -> T:
        before, started = self.engine.statistics(), time.perf_counter()
        result = work()
        after = self.engine.statistics()
        self.ledger.add(
            role,
            generated=after.generated_tokens - before.generated_tokens,
            fed=after.fed_tokens - before.fed_tokens,
            seconds=time.perf_counter() - started,
        )
        self.ledger.add_parts(role, stopwatch.seconds)
        return result


def stop_strings_of(make_env: Callable[[], TextEnv]) -> tuple[str, ...]:
    """Strings that end a turn in the environment ``make_env`` makes."""
    env = make_env()
    try:
        return tuple(env.stop_strings)
    finally:
        env.close()
