"""`EngineDesk`: many rollouts share one token engine; their waiting turns are batched, by priority and within slots.

The desk is the only one that touches the engine while it is open. Which rollouts exist is the scheduler's business
(`stream.py`).
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec

from forkgym.core import ForkgymError
from forkgym.policy.engine import Completion, Engine, GenerationRequest
from forkgym.runtime import Killed
from forkgym.schedule.timeline import Timeline, clock

__all__ = ["DeskStatistics", "EngineDesk", "EngineFault", "EngineLost", "SlotLimit", "perform_inline"]

Perform = Callable[[str, Callable[[], Any]], Awaitable[Any]]
"""How work that blocks is done: its name and the work; inline, in a thread, or after a model's delay."""


class EngineFault(ForkgymError, RuntimeError):
    """The engine failed while it worked on this turn; it goes on, and the rollout may be played again."""


class EngineLost(ForkgymError, RuntimeError):
    """The engine failed again and again and is given up."""


async def perform_inline(_name: str, work: Callable[[], Any]) -> Any:
    """Do the work here and now."""
    return work()


class SlotLimit:
    """How many turns are decoded at once: halved when the engine runs out of memory, grown by one when it does well.

    Args:
        most: The limit at the start, and the highest.
        patience: Steps without trouble after which the limit grows by one.
    """

    def __init__(self, most: int, *, patience: int = 64) -> None:
        if most < 1:
            raise ValueError(f"an engine has at least 1 slot, not {most}")
        self.most = most
        self.now = most
        self.lowest = most
        self._patience = patience
        self._good = 0

    def well(self) -> None:
        """A step went well."""
        if self.now == self.most:
            return
        self._good += 1
        if self._good >= self._patience:
            self._good = 0
            self.now += 1

    def exhausted(self) -> None:
        """The engine ran out of memory."""
        self._good = 0
        self.now = max(1, self.now // 2)
        self.lowest = min(self.lowest, self.now)


class DeskStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The desk at one moment.

    Attributes:
        slots: Turns that may be decoded at once, now.
        lowest_slots: The fewest that were allowed so far.
        decoding: Turns that are being decoded.
        waiting: Turns that wait for a slot.
        steps: Engine steps so far.
        mean_batch: Turns a step, on average.
        busy: Seconds inside the engine.
        failures: Times the engine failed.
        seconds: Of these, by role: a step's seconds are shared out to the turns it advanced.
    """

    slots: int
    lowest_slots: int
    decoding: int
    waiting: int
    steps: int
    mean_batch: float
    busy: float
    failures: int
    seconds: dict[str, float]


class _Turn:
    """One turn at the desk."""

    __slots__ = ("future", "request", "role", "ticket")

    def __init__(self, request: GenerationRequest, role: str, future: asyncio.Future[Completion]) -> None:
        self.request = request
        self.role = role
        self.future = future
        self.ticket: int | None = None


class EngineDesk:
    """Batches the turns of many rollouts on one engine.

    ``serve`` must run as a task beside the rollouts. When the engine fails, every turn that was being decoded fails
    with `EngineFault`, the desk pauses and goes on; after ``failures`` failures without a step that went well between
    them it is given up with `EngineLost`.

    Args:
        engine: Source of tokens.
        slots: Most turns decoded at once.
        perform: How a step of the engine is done; the rollouts go on meanwhile where it is in a thread.
        timeline: Where steps are shown.
        failures: Failures in a row after which the engine is given up.
        pause: Seconds before it goes on after a failure, doubled with each in a row.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        slots: int,
        perform: Perform = perform_inline,
        timeline: Timeline | None = None,
        failures: int = 5,
        pause: float = 0.1,
    ) -> None:
        self.engine = engine
        self.limit = SlotLimit(slots)
        self._perform = perform
        self._timeline = timeline
        self._most_failures = failures
        self._pause = pause
        self._waiting: list[tuple[Any, int, _Turn]] = []
        self._open: dict[int, _Turn] = {}
        self._releases: deque[int] = deque()  # appended to by other threads as well
        self._cancelled: list[int] = []
        self._arrivals = 0
        self._wake: asyncio.Event | None = None
        self._now: Callable[[], float] = time.perf_counter
        self._lost: EngineLost | None = None
        self._steps, self._advanced, self._busy, self._failed, self._in_a_row = 0, 0, 0.0, 0, 0
        self._seconds: dict[str, float] = {}

    async def generate(self, request: GenerationRequest, *, priority: Any, role: str) -> Completion:
        """Have a turn written.

        Args:
            request: The turn; a cache it consumes is the desk's from here on, whatever happens.
            priority: Lower is sooner, among turns that wait for a slot.
            role: On whom the engine's seconds are booked.

        Raises:
            EngineFault: The engine failed while it worked on the turn.
            EngineLost: The engine was given up.
            ValueError: The engine refused the request.
        """
        turn = _Turn(request, role, asyncio.get_running_loop().create_future())
        if self._lost is not None:
            self._give_back(request)
            raise self._lost
        self._arrivals += 1
        heapq.heappush(self._waiting, (priority, self._arrivals, turn))
        if self._wake is not None:
            self._wake.set()
        try:
            return await turn.future
        except BaseException:
            self._abandon(turn)
            raise

    def release(self, cache: int) -> None:
        """Free a stored cache, before the engine's next step; any thread may call it."""
        self._releases.append(cache)

    def statistics(self) -> DeskStatistics:
        """The desk at this moment."""
        return DeskStatistics(
            slots=self.limit.now,
            lowest_slots=self.limit.lowest,
            decoding=len(self._open),
            waiting=len(self._waiting),
            steps=self._steps,
            mean_batch=self._advanced / self._steps if self._steps else 0.0,
            busy=self._busy,
            failures=self._failed,
            seconds=dict(self._seconds),
        )

    async def serve(self) -> None:
        """Step the engine as long as turns wait; runs until it is cancelled.

        Raises:
            EngineLost: The engine failed too often in a row.
        """
        self._wake = asyncio.Event()
        self._now = clock()
        try:
            while True:
                try:
                    if self._in_a_row:
                        await asyncio.sleep(self._pause * 2.0 ** min(6, self._in_a_row - 1))
                    while True:
                        await self._step()
                except (Exception, Killed) as error:  # a kill is a failure of the desk's own
                    self._fail(error)
                    if self._in_a_row >= self._most_failures:
                        raise self._give_up(error) from error
        finally:
            # Whoever still waits is told; a cancelled desk leaves nothing open.
            self._give_up(None)
            self.settle()

    def settle(self) -> None:
        """Do what was put off until the next step: cancellations and releases."""
        cancelled, self._cancelled = self._cancelled, []
        for ticket in cancelled:
            with suppress(ValueError):  # the interrupted step may have ended it
                self.engine.cancel(ticket)
        while self._releases:
            self.engine.release(self._releases.popleft())

    async def _step(self) -> None:
        self.settle()
        self._admit()
        if not self._open:
            await self._idle()
            return
        started = self._now()
        arrived: list[tuple[int, Completion]] = await self._perform("engine", self.engine.step)
        self._book(started)
        for ticket, completion in arrived:
            turn = self._open.pop(ticket, None)
            if turn is not None and not turn.future.done():
                turn.future.set_result(completion)
            elif completion.cache is not None:  # nobody waits for it any more
                self.engine.release(completion.cache)
        await asyncio.sleep(0)  # those who got their turn may ask for the next before the engine steps again

    def _admit(self) -> None:
        while self._waiting and len(self._open) < self.limit.now:
            _, _, turn = heapq.heappop(self._waiting)
            if turn.future.done():
                continue  # it was abandoned, and gave back what it held
            try:
                turn.ticket = self.engine.submit(turn.request)
            except ValueError as error:  # a refusal comes before the engine takes the cache
                self._give_back(turn.request)
                turn.future.set_exception(error)
                continue
            self._open[turn.ticket] = turn

    async def _idle(self) -> None:
        wake = self._wake
        if wake is not None:
            wake.clear()
            if not self._waiting and not self._releases:
                await wake.wait()

    def _book(self, started: float) -> None:
        seconds = self._now() - started
        self.limit.well()
        self._in_a_row = 0
        self._steps += 1
        self._advanced += len(self._open)
        self._busy += seconds
        share = seconds / len(self._open) if self._open else 0.0
        for turn in self._open.values():
            self._seconds[turn.role] = self._seconds.get(turn.role, 0.0) + share
        if self._timeline is not None:
            self._timeline.span("engine", "step", started, self._now(), turns=len(self._open))

    def _fail(self, error: BaseException) -> None:
        """Fail every turn that was being decoded."""
        self._failed += 1
        self._in_a_row += 1
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            self.limit.exhausted()
            if self.limit.now < self.limit.most:
                self._in_a_row = min(self._in_a_row, 1) if self.limit.now > 1 else self._in_a_row
        fault = EngineFault(f"the engine failed: {type(error).__name__}: {error}")
        fault.__cause__ = error
        for ticket, turn in self._open.items():
            self._cancelled.append(ticket)
            if not turn.future.done():
                turn.future.set_exception(fault)
        self._open.clear()

    def _give_up(self, error: BaseException | None) -> EngineLost:
        if self._lost is None:
            why = "it was stopped" if error is None else f"{type(error).__name__}: {error}"
            self._lost = EngineLost(f"the engine takes no more turns ({why})")
        self._cancelled += self._open
        waiting, self._waiting = self._waiting, []
        for turn in [*self._open.values(), *(turn for _, _, turn in waiting)]:
            if turn.ticket is None and not turn.future.done():
                self._give_back(turn.request)
            if not turn.future.done():
                turn.future.set_exception(self._lost)
        self._open.clear()
        return self._lost

    def _abandon(self, turn: _Turn) -> None:
        """Whoever asked for the turn stopped waiting: give back what it holds."""
        future = turn.future
        if future.done() and not future.cancelled():
            if future.exception() is None:  # it arrived at the very moment its asker was stopped
                cache = future.result().cache
                if cache is not None:
                    self.release(cache)
            return
        future.cancel()
        if turn.ticket is None:
            self._give_back(turn.request)
        elif self._open.pop(turn.ticket, None) is not None:
            self._cancelled.append(turn.ticket)

    def _give_back(self, request: GenerationRequest) -> None:
        if request.consume_cache and request.cache is not None:
            self.release(request.cache)
