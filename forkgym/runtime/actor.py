"""Actors: a behaviour, a bounded mailbox, and references that ask and tell. Who restarts them: `supervisor.py`."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import anyio
import msgspec

from forkgym.core.errors import ForkgymError

__all__ = [
    "Actor",
    "ActorDead",
    "ActorError",
    "ActorFailed",
    "ActorRef",
    "ActorStatistics",
    "ActorStopped",
    "Envelope",
    "Mailbox",
    "MailboxEmptied",
    "MailboxStatistics",
    "Refusal",
]


class ActorError(ForkgymError, RuntimeError):
    """An actor did not answer; the text says why and whether asking again makes sense."""


class ActorFailed(ActorError):
    """The actor failed while it worked on this message. It is being restarted; whether to ask again is the caller's.

    Attributes:
        actor: Name of the actor.
        cause: What it failed of.
    """

    def __init__(self, actor: str, cause: BaseException) -> None:
        self.actor = actor
        self.cause = cause
        super().__init__(
            f"Actor {actor!r} failed while it worked on this message: {type(cause).__name__}: {cause}. It is being "
            "restarted; ask again if the message may be worked on twice."
        )


class ActorDead(ActorError):
    """The actor failed too often within its limit and is not restarted any more."""


class ActorStopped(ActorError):
    """The actor was stopped: it takes no further messages."""


class Refusal(Exception):
    """Raised by `Actor.handle`: the asker gets `error`, and the actor lives on.

    Attributes:
        error: What the asker's `ask` raises.
    """

    def __init__(self, error: Exception) -> None:
        self.error = error
        super().__init__(f"{type(error).__name__}: {error}")


class MailboxStatistics(msgspec.Struct, frozen=True):
    """A mailbox at one moment.

    Attributes:
        bound: Messages it holds at most.
        used: Messages it holds.
        highest: The most it has held.
        waiting: Senders that wait for room.
        received: Messages that were put into it so far.
    """

    bound: int
    used: int
    highest: int
    waiting: int
    received: int


class ActorStatistics(msgspec.Struct, frozen=True):
    """An actor at one moment.

    Attributes:
        name: Its name.
        state: "starting", "idle", "busy", "restarting", "stopped" or "dead".
        mailbox: Its mailbox.
        handled: Messages that it has worked on to the end, refusals included.
        refused: Messages that it refused.
        failures: Times it failed.
        last_failure: What it failed of last, or "".
    """

    name: str
    state: str
    mailbox: MailboxStatistics
    handled: int
    refused: int
    failures: int
    last_failure: str


class Actor:
    """A behaviour. It has one message at a time, so its attributes need no locks.

    After a failure a new object of the behaviour takes over the mailbox: state that must survive lives elsewhere.
    """

    async def start(self) -> None:
        """Called before the first message; a failure here counts as one of the actor."""

    async def handle(self, message: Any) -> Any:
        """Work on a message.

        Args:
            message: What was asked or told; by convention a `msgspec.Struct`.

        Returns:
            The answer to an `ask`; ignored for a `tell`.

        Raises:
            Refusal: An answer that is an error; the actor lives on.
            Exception: The actor has failed and will be restarted.
        """
        raise NotImplementedError(f"{type(self).__name__} must define handle(self, message)")

    async def watch(self) -> None:
        """Runs beside `handle`; raises when something outside that the actor needs is lost (a process, a socket)."""

    async def stop(self) -> None:
        """Called once at the end of this object, after a failure too: free what it holds."""


class Envelope:
    """A message with the future of its answer (None for a `tell`)."""

    __slots__ = ("message", "reply")

    def __init__(self, message: Any, reply: asyncio.Future[Any] | None) -> None:
        self.message = message
        self.reply = reply

    def answer(self, value: Any) -> None:
        """Answer, if somebody still waits."""
        if self.reply is not None and not self.reply.done():
            self.reply.set_result(value)

    def fail(self, error: BaseException) -> None:
        """Answer with an error, if somebody still waits."""
        if self.reply is not None and not self.reply.done():
            self.reply.set_exception(error)

    @property
    def abandoned(self) -> bool:
        """Whether the asker has stopped waiting."""
        return self.reply is not None and self.reply.done()


class MailboxEmptied(Exception):
    """The mailbox is closed, and everything that was in it has been taken."""


class Mailbox:
    """A bounded queue for one taker. Senders wait for room in order; nothing is lost with a sender or taker that dies.

    Unlike an anyio memory object stream it hands nothing to a taker that waits: a message stays inside until the taker
    runs, so one that is killed at that very moment has lost nothing (and a message costs a third).

    Args:
        bound: Messages it holds at most.
    """

    __slots__ = ("_bound", "_closed", "_held", "_highest", "_promised", "_received", "_senders", "_taker")

    def __init__(self, bound: int) -> None:
        if bound < 1:
            raise ValueError(f"a mailbox holds at least 1 message, not {bound}")
        self._bound = bound
        self._held: deque[Envelope] = deque()
        self._senders: deque[asyncio.Future[None]] = deque()
        self._promised = 0  # room that is kept for senders who were woken and have not come yet
        self._taker: asyncio.Future[None] | None = None
        self._closed: ActorError | None = None
        self._highest = 0
        self._received = 0

    async def put(self, envelope: Envelope) -> None:
        """Put a message in; waits for room.

        Raises:
            ActorError: The mailbox is closed; the error is the one that `close` was given.
        """
        self._require_open()
        if len(self._held) + self._promised >= self._bound:
            await self._room()
            self._require_open()
        self._held.append(envelope)
        self._received += 1
        self._highest = max(self._highest, len(self._held))
        self._wake_taker()

    async def take(self) -> Envelope:
        """The oldest message; waits for one.

        Raises:
            MailboxEmptied: The mailbox is closed and empty.
        """
        while not self._held:
            if self._closed is not None:
                raise MailboxEmptied
            self._taker = asyncio.get_running_loop().create_future()
            try:
                await self._taker
            finally:
                self._taker = None
        envelope = self._held.popleft()
        self._wake_senders()
        return envelope

    def close(self, error: ActorError) -> None:
        """Refuse further messages with `error`; those inside can still be taken."""
        if self._closed is None:
            self._closed = error
            self._wake_senders()
            self._wake_taker()

    def empty(self) -> list[Envelope]:
        """Take everything out of a closed mailbox."""
        left = list(self._held)
        self._held.clear()
        return left

    @property
    def closed(self) -> bool:
        """Whether it refuses further messages."""
        return self._closed is not None

    @property
    def finished(self) -> bool:
        """Whether it is closed and empty."""
        return self._closed is not None and not self._held

    def statistics(self) -> MailboxStatistics:
        """How full it is and was."""
        return MailboxStatistics(self._bound, len(self._held), self._highest, len(self._senders), self._received)

    async def _room(self) -> None:
        """Wait for a turn to put; whatever ends the wait, no room is lost."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._senders.append(turn)
        try:
            await turn
        except BaseException:
            if not turn.done():
                turn.cancel()
            if turn.cancelled():
                self._senders = deque(other for other in self._senders if other is not turn)
            else:
                self._promised -= 1
                self._wake_senders()
            raise
        self._promised -= 1

    def _wake_senders(self) -> None:
        """Promise the free room to those who wait longest; all may come once the mailbox is closed."""
        while self._senders and (self._closed is not None or len(self._held) + self._promised < self._bound):
            turn = self._senders.popleft()
            if not turn.done():
                self._promised += 1
                turn.set_result(None)

    def _wake_taker(self) -> None:
        if self._taker is not None and not self._taker.done():
            self._taker.set_result(None)

    def _require_open(self) -> None:
        if self._closed is not None:
            raise self._closed


class ActorRef:
    """What others hold of an actor; stays valid when the actor is restarted.

    Attributes:
        name: The actor's name.
    """

    def __init__(self, name: str, mailbox: Mailbox, statistics: Any) -> None:
        self.name = name
        self._mailbox = mailbox
        self._statistics = statistics

    async def ask(self, message: Any, *, timeout: float | None = None) -> Any:
        """Send a message and wait for its answer.

        Args:
            message: For `Actor.handle`.
            timeout: Seconds (of the loop) after which to stop waiting, for room in the mailbox and for the answer. The
                actor drops a message that nobody waits for, unless it works on it already.

        Raises:
            ActorFailed: The actor failed while it worked on this message.
            ActorDead, ActorStopped: There is no such actor any more.
            TimeoutError: No answer in time.
            Exception: What the actor refused the message with.
        """
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            if timeout is None:
                await self._mailbox.put(Envelope(message, reply))
                return await reply
            with anyio.fail_after(timeout):
                await self._mailbox.put(Envelope(message, reply))
                return await reply
        finally:
            if not reply.done():
                reply.cancel()  # tells the actor that nobody waits

    async def tell(self, message: Any) -> None:
        """Send a message; waits only for room in the mailbox.

        Raises:
            ActorDead, ActorStopped: There is no such actor any more.
        """
        await self._mailbox.put(Envelope(message, None))

    @property
    def alive(self) -> bool:
        """Whether it takes messages, now or after a restart."""
        return not self._mailbox.closed

    def statistics(self) -> ActorStatistics:
        """The actor and its mailbox at this moment."""
        found: ActorStatistics = self._statistics()
        return found

    def __repr__(self) -> str:
        return f"<ActorRef {self.name}: {self.statistics().state}>"
