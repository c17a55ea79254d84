"""Supervision: every actor is restarted on its own (one for one), within limits and with growing pauses.

What an actor is stands in `actor.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

import anyio
import anyio.abc
import anyio.lowlevel
import msgspec

from forkgym.core.errors import ForkgymError
from forkgym.runtime.actor import (
    Actor,
    ActorDead,
    ActorError,
    ActorFailed,
    ActorRef,
    ActorStatistics,
    ActorStopped,
    Envelope,
    Mailbox,
    MailboxEmptied,
    Refusal,
)

__all__ = ["Restarts", "Supervisor"]

_log = logging.getLogger("forkgym.runtime")
_log.addHandler(logging.NullHandler())  # quiet unless the program configures logging; statistics have it all
_MESSAGES_IN_A_ROW = 32


class Restarts(msgspec.Struct, frozen=True):
    """How often and after which pause an actor is restarted. All times are seconds of the loop, virtual ones too.

    Attributes:
        limit: Failures within `within` seconds that are forgiven; one more and the actor is dead.
        within: Length of that window.
        pause: Pause before the restart after the first failure of a window.
        factor: The pause grows by this with each further failure of the window.
        longest: The longest pause.
    """

    limit: int = 5
    within: float = 60.0
    pause: float = 0.05
    factor: float = 2.0
    longest: float = 5.0

    def __post_init__(self) -> None:
        if self.limit < 0 or self.within <= 0 or self.pause < 0 or self.factor < 1 or self.longest < 0:
            raise ValueError(f"{self} needs limit, pause, longest ≥ 0, within > 0 and factor ≥ 1")

    def pause_before(self, failures: int) -> float:
        """The pause after the n-th failure of a window (from 1)."""
        return min(self.longest, self.pause * self.factor ** min(failures - 1, 64))


class _Cell:
    """One actor with its mailbox, over all its restarts."""

    def __init__(
        self, factory: Callable[[], Actor], name: str, mailbox: int, restarts: Restarts, stop_within: float
    ) -> None:
        self.name = name
        self.mailbox = Mailbox(mailbox)
        self.finished = anyio.Event()
        self.scope = anyio.CancelScope()
        self._factory = factory
        self._restarts = restarts
        self._stop_within = stop_within
        self._state = "starting"
        self._current: Envelope | None = None
        self._handled = self._refused = self._failures = 0
        self._last_failure = ""
        self._recent: deque[float] = deque()

    def statistics(self) -> ActorStatistics:
        return ActorStatistics(
            self.name,
            self._state,
            self.mailbox.statistics(),
            self._handled,
            self._refused,
            self._failures,
            self._last_failure,
        )

    def close(self) -> None:
        """Take no further messages, finish those that are there, then stop."""
        self.mailbox.close(ActorStopped(f"Actor {self.name!r} was stopped and takes no further messages."))

    async def live(self) -> None:
        """Run the actor, again and again, until it is stopped or has failed too often. Raises cancellation only."""
        end: ActorError = ActorStopped(f"Actor {self.name!r} was stopped before it came to this message.")
        pause = 0.0
        try:
            with self.scope:
                while True:
                    try:
                        await anyio.sleep(pause) if pause else None
                        await self._incarnation()
                        break
                    except BaseException as error:
                        cause = _failure(error)
                        if cause is None:
                            raise
                        pause = self._count(cause)
                        if pause < 0:
                            end = ActorDead(
                                f"Actor {self.name!r} failed {len(self._recent)} times within "
                                f"{self._restarts.within:g} s and is not restarted any more. Its last failure: "
                                f"{self._last_failure}"
                            )
                            _log.error("%s", end)
                            break
                        if self.mailbox.finished:  # it failed while it stopped: there is nothing to come back for
                            break
        finally:
            self.finish(end)

    def finish(self, end: ActorError) -> None:
        """Answer whoever still waits; nothing more happens here."""
        self._state = "dead" if isinstance(end, ActorDead) else "stopped"
        self.mailbox.close(end)
        for envelope in self.mailbox.empty():
            envelope.fail(end)
        self.finished.set()

    def _count(self, cause: BaseException) -> float:
        """Note a failure; the pause before the restart, or -1 where there were too many."""
        self._state = "restarting"
        self._failures += 1
        self._last_failure = f"{type(cause).__name__}: {cause}"
        now = anyio.current_time()
        self._recent.append(now)
        while self._recent[0] < now - self._restarts.within:
            self._recent.popleft()
        _log.warning("actor %r failed (%d of %d): %s", self.name, len(self._recent), self._restarts.limit, cause)
        return self._restarts.pause_before(len(self._recent)) if len(self._recent) <= self._restarts.limit else -1.0

    async def _incarnation(self) -> None:
        actor = self._factory()
        try:
            await actor.start()
            if type(actor).watch is Actor.watch:
                await self._serve(actor)
            else:
                async with anyio.create_task_group() as group:
                    group.start_soon(actor.watch, name=f"watch:{self.name}")
                    await self._serve(actor)
                    group.cancel_scope.cancel()
        except BaseException as error:
            if self._current is not None:
                envelope, self._current = self._current, None
                cause = _failure(error)
                envelope.fail(
                    ActorStopped(f"Actor {self.name!r} was stopped while it worked on this message.")
                    if cause is None
                    else ActorFailed(self.name, cause)
                )
            raise
        finally:
            with anyio.CancelScope(shield=True, deadline=anyio.current_time() + self._stop_within) as scope:
                await actor.stop()
            if scope.cancelled_caught:
                _log.warning("actor %r did not stop within %g s", self.name, self._stop_within)

    async def _serve(self, actor: Actor) -> None:
        in_a_row = 0
        while True:
            self._state = "idle"
            try:
                envelope = await self.mailbox.take()
            except MailboxEmptied:
                return
            if envelope.abandoned:
                continue
            self._current = envelope
            self._state = "busy"
            try:
                envelope.answer(await actor.handle(envelope.message))
            except Refusal as refusal:
                self._refused += 1
                if envelope.reply is None:
                    _log.warning("actor %r refused a message that it was told: %s", self.name, refusal)
                envelope.fail(refusal.error)
            self._current = None
            self._handled += 1
            in_a_row += 1
            if in_a_row >= _MESSAGES_IN_A_ROW:  # a full mailbox and a handler that never waits would starve others
                in_a_row = 0
                await anyio.lowlevel.checkpoint()


def _failure(error: BaseException) -> BaseException | None:
    """What an actor failed of; None where it was cancelled, or the process is being ended."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        # A cancelled future that the behaviour waited for looks the same, but nobody has cancelled this task.
        return error if task is not None and task.cancelling() == 0 else None
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
        return None
    if isinstance(error, BaseExceptionGroup):
        ends, rest = error.split((asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit))
        if ends is not None and rest is None:
            return None
        while isinstance(rest, BaseExceptionGroup) and len({type(each) for each in rest.exceptions}) == 1:
            rest = rest.exceptions[0]  # a group of one is that one; two that died of the same thing say the same
        return rest
    return error


class Supervisor:
    """Runs actors and restarts each that fails; none outlives the `async with` block.

        async with Supervisor() as supervisor:
            counter = supervisor.spawn(Counter, name="counter")
            print(await counter.ask(Add(2)))

    Leaving the block by its end stops the actors gracefully (they finish their mailboxes); leaving it by an error or
    by cancellation stops them at once.

    Args:
        restarts: Default limits of the actors.
        grace: Seconds that a graceful stop may take before it becomes an immediate one; None for no limit.
        stop_within: Seconds that `Actor.stop` may take.
    """

    def __init__(
        self, restarts: Restarts | None = None, *, grace: float | None = None, stop_within: float = 5.0
    ) -> None:
        self._restarts = restarts or Restarts()
        self._grace = grace
        self._stop_within = stop_within
        self._cells: dict[str, _Cell] = {}
        self._group: anyio.abc.TaskGroup | None = None

    def spawn(
        self,
        factory: Callable[[], Actor],
        *,
        name: str,
        mailbox: int = 16,
        restarts: Restarts | None = None,
    ) -> ActorRef:
        """Start an actor. Its task is called "actor:NAME" (see `forkgym.runtime.Fault`).

        Args:
            factory: Makes the behaviour; called again for each restart.
            name: A name that no living actor of this supervisor has.
            mailbox: Messages that wait at most; further senders wait in turn.
            restarts: Limits of this actor.

        Returns:
            A reference, valid over restarts.

        Raises:
            ForkgymError: The supervisor is not running, or the name is taken.
        """
        if self._group is None:
            raise ForkgymError("This supervisor is not running; spawn actors inside 'async with Supervisor() as s:'.")
        if name in self._cells and not self._cells[name].finished.is_set():
            raise ForkgymError(f"There is an actor {name!r} already; choose another name, or stop that one first.")
        cell = _Cell(factory, name, mailbox, restarts or self._restarts, self._stop_within)
        self._cells[name] = cell
        self._group.start_soon(cell.live, name=f"actor:{name}")
        return ActorRef(name, cell.mailbox, cell.statistics)

    async def stop(self, actor: ActorRef, *, graceful: bool = True) -> None:
        """Stop one actor and wait until it has stopped.

        Args:
            actor: The actor.
            graceful: Whether it works on what is in its mailbox first.
        """
        cell = self._cells[actor.name]
        cell.close()
        if not graceful:
            cell.scope.cancel()
        await cell.finished.wait()

    async def shutdown(self, *, graceful: bool = True) -> None:
        """Stop all actors and wait until they have stopped.

        Args:
            graceful: Whether they work on what is in their mailboxes first (for at most `grace` seconds).
        """
        for cell in self._cells.values():
            cell.close()
            if not graceful:
                cell.scope.cancel()
        with anyio.move_on_after(self._grace if graceful else None):
            await self._all_finished()
            return
        for cell in self._cells.values():
            cell.scope.cancel()
        await self._all_finished()

    def statistics(self) -> list[ActorStatistics]:
        """All actors at this moment, in the order in which they were spawned."""
        return [cell.statistics() for cell in self._cells.values()]

    async def _all_finished(self) -> None:
        for cell in list(self._cells.values()):
            await cell.finished.wait()

    async def __aenter__(self) -> Self:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if self._group is None:
            return None
        try:
            if error is None:
                await self.shutdown()
        finally:
            self._group.cancel_scope.cancel()
            group, self._group = self._group, None
            # Without the block's own error, which the group would wrap; it goes on as it is.
            try:
                await group.__aexit__(None, None, None)
            finally:
                for cell in self._cells.values():
                    if not cell.finished.is_set():  # cancelled before its first step
                        cell.finish(ActorStopped(f"Actor {cell.name!r} was stopped before it began."))
        return None
