"""Collect one update as a stream: a group's branches are planned and played as soon as they can be.

The same `Collection` as `collect.py` gives phase by phase, bit for bit; only the time differs. What runs next is
decided in `schedule.stream`; here rollouts are played: on the engine's desk, their environments in place or in threads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec

from forkgym.policy.engine import Completion, GenerationRequest
from forkgym.rollout.branch import play_branch
from forkgym.rollout.episode import NoRoomError, PlayedEpisode, Rollout, play_episode
from forkgym.rollout.stopwatch import Stopwatch
from forkgym.rollout.trace import Branch, Decision, Episode, Role
from forkgym.runtime import ActorDead, Fault, Restarts, WorkerDied, run
from forkgym.runtime.loop import LoopName
from forkgym.schedule import (
    ControllerState,
    make_decisions,
    plan_branches,
    plans_by_group,
    same_evidence_probability,
)
from forkgym.schedule.desk import EngineDesk, EngineFault, EngineLost, Perform, perform_inline
from forkgym.schedule.stream import Batch, Blame, Limits, Scheduler
from forkgym.schedule.timeline import Timeline, clock
from forkgym.train.collect import Collection, Collector
from forkgym.train.remote import RemoteEnvironments, revive
from forkgym.train.workshop import Place, SharedEnv, Workshop, workshop

__all__ = ["StreamCollector", "StreamSettings"]

T = TypeVar("T")
Alternative = tuple[Decision, int]
"""A planned branch: its decision and its number there."""


class StreamSettings(msgspec.Struct, kw_only=True):
    """How updates are streamed; none of it changes what is collected.

    Attributes:
        loop: Event loop.
        loop_seed: Order of steps on the virtual loop.
        faults: Tasks that the virtual loop kills.
        max_environments: Rollouts that run at once; ``None`` for as many as the engine decodes.
        attempts: Times a rollout is tried before its group is quarantined.
        environments: Where environments' steps run: ``inline``, ``thread``, ``process``, or ``declared``: as the
            environment's class says (``runs_in``).
        remote: What runs in processes, and in how many; without it threads take the place of processes.
        restarts: How often worker processes are restarted.
        perform: Overrides how the engine's and the environments' work is done (for tests and models of delays).
        timeline: Where work is shown.
        tell: Called with what is worth recording ("retried", "quarantined") and its details.
    """

    loop: LoopName = "uvloop"
    loop_seed: int | None = 0
    faults: tuple[Fault, ...] = ()
    max_environments: int | None = None
    attempts: int = 4
    environments: Place = "declared"
    remote: RemoteEnvironments | None = None
    restarts: Restarts = Restarts(limit=20)
    perform: Perform | None = None
    timeline: Timeline | None = None
    tell: Callable[[str, dict[str, Any]], None] | None = None


class StreamCollector(Collector):
    """As `Collector`, streamed.

    Rollouts that fail are played again under the same keys; a group with one that keeps failing is quarantined and
    missing from the collection. Tokens of failed attempts are booked on ``retried``, which no budget counts, so that
    the run's course does not depend on them.

    Attributes:
        stream: How it streams; may be changed between updates.
    """

    stream = StreamSettings()

    def collect(self, update: int, version: int, tasks: Sequence[int], state: ControllerState) -> Collection:
        """Play the update's groups and branches; see `Collector.collect`.

        Raises:
            TooManyQuarantined: Most groups kept failing.
            EngineLost: The engine kept failing.
        """
        settings = self.stream
        return run(
            self._collect,
            update,
            version,
            tasks,
            state,
            loop=settings.loop,
            seed=settings.loop_seed,
            faults=settings.faults,
        )

    async def _collect(self, update: int, version: int, tasks: Sequence[int], state: ControllerState) -> Collection:
        settings, started = self.stream, time.perf_counter()
        limits = Limits(
            groups=len(tasks),
            group_size=self.algorithm.rollout.group_size,
            max_running=settings.max_environments or self.max_running,
            attempts=settings.attempts,
        )
        desk = EngineDesk(
            self.engine,
            slots=self.max_running,
            perform=settings.perform or perform_inline,
            timeline=settings.timeline,
        )
        async with workshop(
            self.make_env,
            place=settings.environments,
            size=limits.max_running,
            remote=settings.remote,
            restarts=settings.restarts,
            perform=settings.perform,
        ) as opened:
            crew = _Crew(self, desk, opened, version, tasks, state)
            serving = asyncio.get_running_loop().create_task(desk.serve(), name="engine")
            scheduler: Scheduler[PlayedEpisode, Alternative, Branch] = Scheduler(
                crew, limits, first=update, last=update, timeline=settings.timeline, tell=settings.tell
            )
            serving.add_done_callback(lambda task: _watch(task, scheduler))
            try:
                async with scheduler:
                    batch = await scheduler.batch()
            finally:
                serving.cancel()
                with suppress(asyncio.CancelledError, EngineLost):
                    await serving
                desk.settle()
        self._book(crew, desk, time.perf_counter() - started)
        return crew.collection(batch)

    def _book(self, crew: _Crew, desk: EngineDesk, wall: float) -> None:
        """Tokens by role, and the wall time shared out by what each role used of engine and environments."""
        used = {role: desk.statistics().seconds.get(role, 0.0) for role in crew.generated}
        for role, watch in crew.stopwatches.items():
            used[role] += sum(seconds for part, seconds in watch.seconds.items() if not part.startswith("charged"))
            if watch.seconds:
                self.ledger.add_parts(role, watch.seconds)
        total = sum(used.values())
        for role, tokens in crew.generated.items():
            if (role == "retried" and not used[role]) or (role == "counterfactual" and not crew.branches):
                continue
            share = used[role] / total if total > 0.0 else 0.0
            self.ledger.add(role, generated=tokens, fed=crew.fed[role], seconds=wall * share)
        self.ledger.episodes += crew.counts["on_policy"]
        self.ledger.branches += crew.counts["counterfactual"]


class _Flight(Generic[T]):
    """A rollout between its environment and the engine; knows what it would leave behind if it stopped now."""

    def __init__(self, start: Callable[[], Rollout[T]], discard: Callable[[T], None]) -> None:
        self._start = start
        self._discard = discard
        self._rollout: Rollout[T] | None = None
        self.request: GenerationRequest | None = None
        self.completion: Completion | None = None
        self.result: T | None = None
        self.done = False

    def advance(self) -> None:
        """Let the rollout go on until it asks for a turn or ends."""
        completion, self.completion = self.completion, None
        try:
            if self._rollout is None:
                self._rollout = self._start()
                self.request = next(self._rollout)
            elif completion is not None:
                self.request = self._rollout.send(completion)
        except StopIteration as stop:
            self.result, self.done = stop.value, True

    def ask(self) -> GenerationRequest:
        """The request, which is the caller's now."""
        request, self.request = self.request, None
        if request is None:
            raise RuntimeError("a rollout went on without asking for a turn")
        return request

    def take(self) -> T:
        """The result, which is the caller's now."""
        result, self.result = self.result, None
        return result  # type: ignore[return-value]  # T may be None

    def abandon(self, release: Callable[[int], None]) -> None:
        """Free whatever it holds."""
        if self.completion is not None and self.completion.cache is not None:
            release(self.completion.cache)
        if self.request is not None and self.request.consume_cache and self.request.cache is not None:
            release(self.request.cache)
        if self._rollout is not None:
            self._rollout.close()
        if self.done and self.result is not None:
            self._discard(self.result)
        self.completion = self.request = self.result = None


class _Crew:
    """Plays one update's rollouts for the scheduler."""

    def __init__(
        self,
        collector: Collector,
        desk: EngineDesk,
        workshop: Workshop,
        version: int,
        tasks: Sequence[int],
        state: ControllerState,
    ) -> None:
        self.collector = collector
        self.desk = desk
        self.workshop = workshop
        self.version = version
        self.tasks = tasks
        self.state = state
        self.decisions: dict[int, list[Decision]] = {}
        self.parents: dict[int, PlayedEpisode] = {}
        self.multiplier = 0.0
        self.branches = collector.algorithm.branching is not None
        self.stopwatches: dict[Role, Stopwatch] = {}
        self.generated: dict[Role, int] = {"on_policy": 0, "counterfactual": 0, "retried": 0}
        self.fed: dict[Role, int] = dict.fromkeys(self.generated, 0)
        self.counts: dict[Role, int] = dict.fromkeys(self.generated, 0)
        for role in self.generated:
            self.stopwatches[role] = Stopwatch()

    # What the scheduler asks for

    async def episode(self, update: int, group: int, member: int, priority: tuple[int, ...]) -> PlayedEpisode:
        """Play a factual episode."""
        collector, stopwatch = self.collector, Stopwatch()
        spec = collector.episode_spec(update, group, self.tasks[group], member, self.version)

        def start() -> Rollout[PlayedEpisode]:
            return play_episode(
                self.workshop.make_env(),
                spec,
                renderer=collector.renderer,
                sampling=collector.sampling,
                layout=collector.layout,
                release=self.desk.release,
                max_context=collector.max_context,
                record=collector.record,
                branchable=collector.algorithm.branching is not None,
                stopwatch=stopwatch,
            )

        played = await self._play(start, "on_policy", priority, stopwatch, self.retire)
        if self.workshop.threaded:
            played.env = SharedEnv(played.env)  # type: ignore[assignment]  # forks and closes, as branches do
        return played

    def plan(self, update: int, group: int, played: Sequence[PlayedEpisode]) -> list[Alternative] | None:
        """The branches of a whole group; ``None`` where λ is solved over the whole update."""
        branching = self.collector.algorithm.branching
        if branching is not None and not plans_by_group(branching, update, self.collector.planning):
            return None
        return self.plan_update(update, {group: list(played)})[group]

    def plan_update(self, update: int, groups: dict[int, list[PlayedEpisode]]) -> dict[int, list[Alternative]]:
        """The branches of some groups, planned together."""
        collector = self.collector
        branching = collector.algorithm.branching
        decisions = make_decisions([[one.episode for one in groups[number]] for number in sorted(groups)])
        self.parents.update({one.episode.key: one for group in groups.values() for one in group})
        pairs = 0
        if branching is not None:
            episodes = {one.episode.key: one.episode for number in sorted(groups) for one in groups[number]}
            self.multiplier = plan_branches(
                decisions, episodes, branching, self.state, update, planning=collector.planning
            )
            pairs = branching.plan.pairs
        for number in groups:
            self.decisions[number] = []
        for decision in decisions:
            self.decisions[decision.group].append(decision)
        return {
            number: [
                (decision, index) for decision in self.decisions[number] if decision.branched for index in range(pairs)
            ]
            for number in groups
        }

    async def branch(
        self,
        update: int,  # noqa: ARG002
        group: int,  # noqa: ARG002
        wanted: Alternative,
        priority: tuple[int, ...],
    ) -> Branch:
        """Play a branch."""
        collector, stopwatch = self.collector, Stopwatch()
        branching = collector.algorithm.branching
        decision, index = wanted
        if branching is None:
            raise RuntimeError("a branch was planned for an algorithm without branches")
        setting = msgspec.structs.replace(collector.branch_setting(), stopwatch=stopwatch)
        played = self.parents[decision.episode]
        env: Any = played.env
        if isinstance(env, SharedEnv) and env.lost:
            await self._revive(played, env, stopwatch)

        def start() -> Rollout[Branch]:
            return play_branch(
                played,
                decision,
                index,
                setting,
                release=self.desk.release,
                same_evidence_probability=same_evidence_probability(decision, branching, self.state),
            )

        return await self._play(start, "counterfactual", priority, stopwatch, lambda _: None)

    def retire(self, played: PlayedEpisode) -> None:
        """Free an episode's environment, snapshots and cache; its trace stays."""
        self.parents.pop(played.episode.key, None)
        cache, played.cache = played.cache, None
        played.close()
        if cache is not None:
            self.desk.release(cache)

    def blame(self, error: BaseException) -> Blame:
        """Whose fault an error is."""
        if isinstance(error, EngineFault):
            return "shared"
        if isinstance(error, WorkerDied):  # another rollout's verb, or nothing at all, ended the worker
            return "shared"
        # A prompt that is too long is a matter of the configuration: the same everywhere, and not to be passed over.
        return "run" if isinstance(error, (ActorDead, EngineLost, NoRoomError)) else "rollout"

    def collection(self, batch: Batch[PlayedEpisode, Alternative, Branch]) -> Collection:
        """The update in canonical order."""
        groups: list[list[Episode]] = []
        decisions: list[Decision] = []
        for number in sorted(batch.played):
            groups.append([one.episode for one in batch.played[number]])
            decisions += self.decisions[number]
            for (decision, _), branch in zip(batch.wanted[number], batch.branched[number], strict=True):
                decision.branches = [*decision.branches, branch]
        return Collection(groups=groups, decisions=decisions, multiplier=self.multiplier)

    # How a rollout is played

    async def _play(
        self,
        start: Callable[[], Rollout[T]],
        role: Role,
        priority: tuple[int, ...],
        stopwatch: Stopwatch,
        discard: Callable[[T], None],
    ) -> T:
        flight = _Flight(start, discard)
        generated = fed = 0
        succeeded = False
        try:
            await self._advance(flight, role)
            while not flight.done:
                completion = await self.desk.generate(flight.ask(), priority=priority, role=role)
                generated += len(completion.tokens)
                fed += completion.fed_tokens
                flight.completion = completion
                await self._advance(flight, role)
            succeeded = True
            return flight.take()
        finally:
            flight.abandon(self.desk.release)
            self._book(role if succeeded else "retried", generated, fed, stopwatch)

    async def _advance(self, flight: _Flight[T], role: Role) -> None:
        timeline = self.collector.stream.timeline if isinstance(self.collector, StreamCollector) else None
        if timeline is None:
            await self.workshop.perform("environment", flight.advance)
            return
        now = clock()
        began = now()
        await self.workshop.perform("environment", flight.advance)
        timeline.span("environments", role, began, now())

    async def _revive(self, played: PlayedEpisode, env: SharedEnv, stopwatch: Stopwatch) -> None:
        """Make an episode's environment again in another worker, once for all its branches that wait for it."""
        async with env.reviving:
            current: Any = played.env
            if current is not env:
                return

            def again() -> None:
                with stopwatch.measure("fork"):
                    revive(played, self.workshop.make_env())

            await self.workshop.perform("environment", again)
            played.env = SharedEnv(played.env)  # type: ignore[assignment]  # forks and closes, as branches do

    def _book(self, role: Role, generated: int, fed: int, stopwatch: Stopwatch) -> None:
        self.counts[role] += 1
        self.generated[role] += generated
        self.fed[role] += fed
        for part, seconds in stopwatch.seconds.items():
            self.stopwatches[role].add(part, seconds)


def _watch(serving: asyncio.Task[None], scheduler: Scheduler[Any, Any, Any]) -> None:
    """Tell the scheduler that the engine was given up."""
    if not serving.cancelled() and (error := serving.exception()) is not None:
        scheduler.fail(error)
