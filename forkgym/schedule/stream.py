"""`Scheduler`: on-policy and counterfactual rollouts streamed over a fixed number of slots, update after update.

It decides what runs next, retries what fails, and hands over updates in canonical order; how a rollout is played is
its crew's business (`train.stream`, or a model of it in `simulate.py`). Timing changes time only: which rollouts an
update consists of, and in which order they are handed over, depends on nothing that a clock measures.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Generic, Literal, Protocol, Self, TypeVar

import msgspec

from forkgym.core import ForkgymError
from forkgym.runtime import Killed
from forkgym.schedule.timeline import Timeline, clock

__all__ = [
    "Batch",
    "Blame",
    "Crew",
    "Limits",
    "Quarantine",
    "Scheduler",
    "SchedulerStatistics",
    "TooManyQuarantined",
    "admissible",
]

Played = TypeVar("Played")
Wanted = TypeVar("Wanted")
Branched = TypeVar("Branched")
BranchedOut = TypeVar("BranchedOut", covariant=True)

Blame = Literal["rollout", "shared", "run"]
"""Whose fault an error is: the rollout's own (tried again, a few times), something shared that others look after (tried
again without counting), or the run's (it ends)."""


class TooManyQuarantined(ForkgymError, RuntimeError):
    """So many groups of an update failed that the fault is hardly their tasks'; the last reason is in the text."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler keeps to.

    Attributes:
        groups: Groups an update.
        group_size: Episodes a group.
        max_running: Rollouts that run at once (sandbox slots); turns at the engine have a limit of their own.
        max_branches: Of these, branches; ``None`` for no limit of their own.
        lag: Update u is played by policy version max(0, u − lag).
        attempts: Times a rollout is tried before its group is quarantined.
        pause: Seconds before a failed rollout is tried again, doubled with each failure.
        longest_pause: The longest such pause.
        most_quarantined: Share of an update's groups that may be quarantined; beyond it the run ends.
    """

    groups: int
    group_size: int
    max_running: int = 64
    max_branches: int | None = None
    lag: int = 0
    attempts: int = 4
    pause: float = 0.05
    longest_pause: float = 10.0
    most_quarantined: float = 0.5

    def __post_init__(self) -> None:
        for name in ("groups", "group_size", "max_running", "attempts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.max_branches is not None and self.max_branches < 1:
            raise ValueError(f"max_branches must be at least 1 or None, not {self.max_branches}")
        if self.lag < 0:
            raise ValueError(f"lag must be at least 0, not {self.lag}")


def admissible(limits: Limits, *, version: int, running: int, started: int) -> int:
    """How many new episodes may start: ``min(max_running − running, (lag + version + 1)·B − started)``.

    Args:
        limits: B is ``groups · group_size``.
        version: Newest policy version that the learner has published.
        running: Rollouts that run.
        started: Episodes begun since version 0, those that run and those that are done.
    """
    size = limits.groups * limits.group_size
    return min(limits.max_running - running, (limits.lag + version + 1) * size - started)


class Quarantine(msgspec.Struct, frozen=True, kw_only=True):
    """A group that was given up.

    Attributes:
        update: Its update.
        group: Its number.
        rollout: The rollout that kept failing.
        attempts: Times it was tried.
        reason: What it failed of last.
    """

    update: int
    group: int
    rollout: str
    attempts: int
    reason: str


class Crew(Protocol[Played, Wanted, BranchedOut]):
    """Plays rollouts for a scheduler. Playing the same rollout again gives the same result."""

    async def episode(self, update: int, group: int, member: int, priority: tuple[int, ...]) -> Played:
        """Play a factual episode."""
        ...

    def plan(self, update: int, group: int, played: Sequence[Played]) -> list[Wanted] | None:
        """The branches of a whole group; ``None`` where the plan needs the whole update."""
        ...

    def plan_update(self, update: int, groups: dict[int, list[Played]]) -> dict[int, list[Wanted]]:
        """The branches of all groups of an update, for a crew whose ``plan`` returned ``None``."""
        ...

    async def branch(self, update: int, group: int, wanted: Wanted, priority: tuple[int, ...]) -> BranchedOut:
        """Play a branch."""
        ...

    def retire(self, played: Played) -> None:
        """No branch of an episode will be played any more (its group is whole, or given up)."""
        ...

    def blame(self, error: BaseException) -> Blame:
        """Whose fault an error of ``episode`` or ``branch`` is."""
        ...


class Batch(msgspec.Struct, Generic[Played, Wanted, Branched], kw_only=True):
    """An update, whole.

    Attributes:
        update: Its number.
        played: Episodes by group, members in order; quarantined groups are missing.
        wanted: Planned branches by group, in the plan's order.
        branched: What came of them, in the same order.
        quarantined: Groups that were given up.
    """

    update: int
    played: dict[int, list[Played]]
    wanted: dict[int, list[Wanted]]
    branched: dict[int, list[Branched]]
    quarantined: list[Quarantine]


class SchedulerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler at one moment.

    Attributes:
        running: Rollouts that run.
        branches: Of these, branches.
        waiting: Rollouts that could run and wait for a slot.
        open_groups: Groups that were begun and are not whole.
        busy: Slot-seconds spent on rollouts, by kind ("episode", "branch").
        retried: Rollouts that were tried again so far.
        quarantined: Groups that were given up so far.
        episodes: Episodes played so far.
        branched: Branches played so far.
    """

    running: int
    branches: int
    waiting: int
    open_groups: int
    busy: dict[str, float]
    retried: int
    quarantined: int
    episodes: int
    branched: int


class _Group:
    """A group on its way."""

    __slots__ = ("branched", "given_up", "live", "missing", "opened", "played", "retired", "tasks", "wanted")

    def __init__(self, size: int, opened: float) -> None:
        self.opened = opened
        self.played: list[Any] = [None] * size
        self.missing = size
        self.wanted: list[Any] | None = None
        self.branched: list[Any] = []
        self.given_up: Quarantine | None = None
        self.live = True
        self.retired = False
        self.tasks: set[asyncio.Task[None]] = set()


class _Rollout:
    """One thing to run."""

    __slots__ = ("attempt", "group", "index", "kind", "priority", "update")

    def __init__(self, kind: str, priority: tuple[int, ...], update: int, group: int, index: int) -> None:
        self.kind = kind
        self.priority = priority
        self.update = update
        self.group = group
        self.index = index
        self.attempt = 0

    def __lt__(self, other: _Rollout) -> bool:
        return self.priority < other.priority

    def __str__(self) -> str:
        return f"{self.kind} {self.update}/{self.group}/{self.index}"


class Scheduler(Generic[Played, Wanted, Branched]):
    """Streams updates.

        async with Scheduler(crew, limits) as scheduler:
            batch = await scheduler.batch()     # update 0, while later ones already run as far as the lag allows
            scheduler.publish(1)                # the learner has made version 1

    What runs next: branches of the oldest group, then episodes of the oldest group, then a new group, if one is
    admissible. A group is whole when all its episodes and branches are; an update is handed over when all its groups
    are whole or given up.

    Args:
        crew: Plays rollouts.
        limits: What to keep to.
        first: Update to begin with; policy version ``first`` is published.
        last: Update to end with, or ``None``.
        timeline: Where rollouts are shown.
        tell: Called with the name and details of what is worth recording: "retried", "quarantined".
    """

    def __init__(
        self,
        crew: Crew[Played, Wanted, Branched],
        limits: Limits,
        *,
        first: int = 0,
        last: int | None = None,
        timeline: Timeline | None = None,
        tell: Callable[[str, dict[str, Any]], None] | None = None,
    ) -> None:
        self.crew = crew
        self.limits = limits
        self._first = first
        self._last = last
        self._timeline = timeline
        self._tell = tell
        self._version = first
        self._next_batch = first
        self._next_group = (first, 0)
        self._groups: dict[tuple[int, int], _Group] = {}
        self._whole: dict[int, int] = {}
        self._unplanned: dict[int, int] = {}
        self._branches: list[_Rollout] = []
        self._episodes: list[_Rollout] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._running, self._running_branches = 0, 0
        self._started = first * limits.groups * limits.group_size
        self._error: BaseException | None = None
        self._changed: asyncio.Event | None = None
        self._closing = False
        self._now: Callable[[], float] = time.perf_counter
        self._busy = {"episode": 0.0, "branch": 0.0}
        self._counts = {"retried": 0, "quarantined": 0, "episode": 0, "branch": 0}

    async def __aenter__(self) -> Self:
        self._changed, self._now = asyncio.Event(), clock()
        self._fill()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        for timer in self._timers:
            timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        while self._tasks:
            await asyncio.wait(list(self._tasks))
        for group in self._groups.values():
            self._retire(group)
        self._groups.clear()

    def publish(self, version: int) -> None:
        """The learner has published a policy version: later updates become admissible."""
        self._version = max(self._version, version)
        self._fill()

    def fail(self, error: BaseException) -> None:
        """End the run with an error that was found elsewhere; `batch` raises it."""
        if self._error is None:
            self._error = error
        if self._changed is not None:
            self._changed.set()

    async def batch(self) -> Batch[Played, Wanted, Branched]:
        """The next update, when it is whole.

        Raises:
            TooManyQuarantined: Too many of its groups kept failing.
            Exception: An error that is the run's.
        """
        update = self._next_batch
        while self._whole.get(update, 0) < self.limits.groups:
            if self._error is not None:
                raise self._error
            if self._changed is None:
                raise ForkgymError("the scheduler is not running; use it inside 'async with'")
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise self._error
        self._next_batch += 1
        del self._whole[update]
        out: Batch[Played, Wanted, Branched] = Batch(update=update, played={}, wanted={}, branched={}, quarantined=[])
        for number in range(self.limits.groups):
            group = self._groups.pop((update, number))
            if group.given_up is not None:
                out.quarantined.append(group.given_up)
                continue
            out.played[number] = group.played
            out.wanted[number] = group.wanted or []
            out.branched[number] = group.branched
        self._fill()
        return out

    def statistics(self) -> SchedulerStatistics:
        """The scheduler at this moment."""
        return SchedulerStatistics(
            running=self._running,
            branches=self._running_branches,
            waiting=len(self._branches) + len(self._episodes),
            open_groups=sum(group.live for group in self._groups.values()),
            busy=dict(self._busy),
            retried=self._counts["retried"],
            quarantined=self._counts["quarantined"],
            episodes=self._counts["episode"],
            branched=self._counts["branch"],
        )

    # ------------------------------------------------------------------ what runs next

    def _fill(self) -> None:
        """Start whatever there is room for."""
        if self._changed is None or self._closing or self._error is not None:
            return
        while self._running < self.limits.max_running:
            rollout = self._pick()
            if rollout is None:
                return
            self._start(rollout)

    def _pick(self) -> _Rollout | None:
        most = self.limits.max_branches
        if most is None or self._running_branches < most:
            while self._branches:
                rollout = heapq.heappop(self._branches)
                if self._groups[rollout.update, rollout.group].live:
                    return rollout
        while True:
            while self._episodes:
                rollout = heapq.heappop(self._episodes)
                if self._groups[rollout.update, rollout.group].live:
                    return rollout
            if not self._open_group():
                return None

    def _open_group(self) -> bool:
        """Begin the next group if one of its episodes may start; its others follow before any group after it."""
        update, number = self._next_group
        if self._last is not None and update > self._last:
            return False
        size = self.limits.group_size
        if admissible(self.limits, version=self._version, running=self._running, started=self._started) < 1:
            return False
        self._groups[update, number] = _Group(size, self._now())
        self._started += size
        for member in range(size):
            self._push(_Rollout("episode", (1, update, number, member), update, number, member))
        self._next_group = (update, number + 1) if number + 1 < self.limits.groups else (update + 1, 0)
        return True

    def _push(self, rollout: _Rollout) -> None:
        heapq.heappush(self._branches if rollout.kind == "branch" else self._episodes, rollout)

    def _start(self, rollout: _Rollout) -> None:
        self._running += 1
        self._running_branches += rollout.kind == "branch"
        task = asyncio.get_running_loop().create_task(self._run(rollout), name=f"rollout:{rollout}")
        group = self._groups[rollout.update, rollout.group]
        self._tasks.add(task)
        group.tasks.add(task)
        task.add_done_callback(lambda done: self._ended(done, rollout, group))

    # ------------------------------------------------------------------ what came of it

    async def _run(self, rollout: _Rollout) -> None:
        began = self._now()
        rollout.attempt += 1
        error: BaseException | None = None
        result: Any = None
        try:
            result = await self._work(rollout)
        except (Exception, Killed) as caught:  # a killed worker is a failure of its rollout
            error = caught
        finally:
            ended = self._now()
            self._busy[rollout.kind] += ended - began
        if self._timeline is not None:
            track = "on_policy" if rollout.kind == "episode" else "counterfactual"
            failed = {} if error is None else {"failed": f"{type(error).__name__}: {error}"}
            details = {"update": rollout.update, "group": rollout.group, "attempt": rollout.attempt}
            self._timeline.span(track, str(rollout), began, ended, **details, **failed)
        try:
            self._settle(rollout, result, error)
        except Exception as caught:  # of the crew's plan: the run's own
            self.fail(caught)

    def _work(self, rollout: _Rollout) -> Awaitable[Any]:
        crew = self.crew
        if rollout.kind == "episode":
            return crew.episode(rollout.update, rollout.group, rollout.index, rollout.priority)
        wanted = self._groups[rollout.update, rollout.group].wanted
        if wanted is None:
            raise ForkgymError(f"{rollout} runs before its group was planned")
        return crew.branch(rollout.update, rollout.group, wanted[rollout.index], rollout.priority)

    def _ended(self, task: asyncio.Task[None], rollout: _Rollout, group: _Group) -> None:
        self._tasks.discard(task)
        group.tasks.discard(task)
        self._running -= 1
        self._running_branches -= rollout.kind == "branch"
        if not group.live and not group.tasks:
            self._retire(group)
        if task.cancelled():
            if group.live and not self._closing:  # cancelled by somebody else
                self.fail(ForkgymError(f"{rollout} was cancelled"))
        elif (error := task.exception()) is not None:
            self.fail(error)
        self._fill()

    def _settle(self, rollout: _Rollout, result: Any, error: BaseException | None) -> None:
        group = self._groups.get((rollout.update, rollout.group))
        if group is None or not group.live or self._closing:
            if error is None and rollout.kind == "episode":
                self.crew.retire(result)
            return
        if error is not None:
            self._failed(rollout, group, error)
        elif rollout.kind == "episode":
            self._counts["episode"] += 1
            group.played[rollout.index] = result
            group.missing -= 1
            if group.missing == 0:
                self._plan(rollout.update, rollout.group, group)
        else:
            self._counts["branch"] += 1
            group.branched[rollout.index] = result
            group.missing -= 1
            if group.missing == 0:
                self._group_done(rollout.update, group)

    def _plan(self, update: int, number: int, group: _Group) -> None:
        wanted = self.crew.plan(update, number, group.played)
        if wanted is not None:
            self._branch(update, number, group, wanted)
            return
        self._unplanned[update] = self._unplanned.get(update, 0) + 1
        self._plan_update(update)

    def _plan_update(self, update: int) -> None:
        """Plan the whole update once its last group has been played or given up."""
        waiting = self._unplanned.get(update, 0)
        if not waiting or waiting + self._whole.get(update, 0) < self.limits.groups:
            return
        del self._unplanned[update]
        open_groups = {
            number: group
            for number in range(self.limits.groups)
            if (group := self._groups[update, number]).live and group.wanted is None
        }
        plans = self.crew.plan_update(update, {number: group.played for number, group in open_groups.items()})
        for number, group in open_groups.items():
            self._branch(update, number, group, plans[number])

    def _branch(self, update: int, number: int, group: _Group, wanted: list[Any]) -> None:
        group.wanted = wanted
        group.branched = [None] * len(wanted)
        group.missing = len(wanted)
        if not wanted:
            self._group_done(update, group)
        for index in range(len(wanted)):
            self._push(_Rollout("branch", (0, update, number, index), update, number, index))

    def _failed(self, rollout: _Rollout, group: _Group, error: BaseException) -> None:
        blame = "rollout" if isinstance(error, Killed) else self.crew.blame(error)
        if blame == "run":
            self.fail(error)
            return
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, Killed) or blame == "shared":
            rollout.attempt -= 1  # not its fault
        if rollout.attempt >= self.limits.attempts:
            self._give_up(rollout, group, reason, error)
            return
        self._counts["retried"] += 1
        if self._tell is not None:
            self._tell("retried", {"rollout": str(rollout), "attempt": rollout.attempt, "reason": reason})
        pause = min(self.limits.longest_pause, self.limits.pause * 2.0 ** max(0, rollout.attempt - 1))
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle

        def again() -> None:
            self._timers.discard(timer)
            if group.live:
                self._push(rollout)
                self._fill()

        timer = loop.call_later(pause, again)
        self._timers.add(timer)

    def _give_up(self, rollout: _Rollout, group: _Group, reason: str, error: BaseException) -> None:
        """Quarantine a group: part of a family would bias its baseline, so all of it goes."""
        update = rollout.update
        group.given_up = Quarantine(
            update=update, group=rollout.group, rollout=str(rollout), attempts=rollout.attempt, reason=reason
        )
        self._counts["quarantined"] += 1
        if self._tell is not None:
            self._tell("quarantined", msgspec.to_builtins(group.given_up))
        mine = asyncio.current_task()
        for task in group.tasks:
            if task is not mine:
                task.cancel()
        given_up = [one for one in self._groups.items() if one[0][0] == update and one[1].given_up is not None]
        if len(given_up) > self.limits.most_quarantined * self.limits.groups:
            failure = TooManyQuarantined(
                f"{len(given_up)} of {self.limits.groups} groups of update {update} kept failing; last: {reason}"
            )
            failure.__cause__ = error
            self.fail(failure)
        self._group_done(update, group)
        self._plan_update(update)

    def _group_done(self, update: int, group: _Group) -> None:
        group.live = False
        if self._timeline is not None:
            self._timeline.span("groups", f"update {update}", group.opened, self._now())
        self._whole[update] = self._whole.get(update, 0) + 1
        if self._changed is not None and self._whole[update] == self.limits.groups:
            self._changed.set()
        if all(task is asyncio.current_task() for task in group.tasks):
            self._retire(group)

    def _retire(self, group: _Group) -> None:
        """Free what the group's episodes hold; their traces stay."""
        if group.retired:
            return
        group.retired = True
        for one in group.played:
            if one is not None:
                self.crew.retire(one)
