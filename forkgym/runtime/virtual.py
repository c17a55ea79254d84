"""`VirtualLoop`: an asyncio event loop whose clock jumps, whose order is a seed's, and which reports deadlocks.

Nothing of forkgym is known here, and no input or output is possible: a program that needs either runs on a real loop
(see `loop.py`).
"""

from __future__ import annotations

import asyncio
import fnmatch
import heapq
import math
import random
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextvars import Context
from typing import Any, NoReturn

import msgspec

from forkgym.core.errors import ForkgymError
from forkgym.runtime.waiting import WaitingTask, waiting_tasks

__all__ = ["DeadlockError", "Fault", "Killed", "VirtualLoop", "VirtualLoopError"]

_RESOLUTION = 1e-9
_MANY_TIMERS = 100
_STEPS_IN_A_ROW = 16


class VirtualLoopError(ForkgymError, RuntimeError):
    """Something was asked of the virtual loop that only a real loop can do: sockets, pipes, processes, threads."""


class DeadlockError(ForkgymError, RuntimeError):
    """Nothing can happen any more, and the program has not finished.

    Attributes:
        waiting: The tasks that wait, each with the awaits it stands in.
    """

    def __init__(self, waiting: list[WaitingTask]) -> None:
        self.waiting = waiting
        lines = [f"Deadlock: no callback is ready, no timer is set, and {len(waiting)} tasks wait."]
        lines += [str(task) for task in waiting]
        if any("run_sync_in_worker_thread" in line for task in waiting for line in task.stack):
            lines.append("One waits for a thread: the virtual loop runs none. Use loop='asyncio', or an inline runner.")
        super().__init__("\n".join(lines))


class Killed(BaseException):
    """Raised at an await of a task that a `Fault` kills; no `except Exception` of the task can stop it."""


class Fault(msgspec.Struct, frozen=True):
    """A task to be killed, and the await at which it dies.

    Attributes:
        task: Name of the task, or a pattern such as "actor:*" (`fnmatch`).
        at: Which await, from 1; awaits of all tasks with a matching name are counted together, so the successor of a
            killed task goes on counting. An await that does not suspend the task does not count.
    """

    task: str
    at: int

    def __post_init__(self) -> None:
        if self.at < 1:
            raise ValueError(f"a fault is at the 1st await or later, not at {self.at}")


class VirtualTask(asyncio.Task[Any]):
    """A task that hashes to its number, so that the sets in which task groups keep their tasks have a fixed order."""

    def __init__(self, coro: Any, *, number: int, **options: Any) -> None:
        self.number = number  # before the base registers the task, and hashes it
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class _Armed:
    """Faults that wait for their await, by the name of the task."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self._left = {fault: fault.at for fault in faults}
        self._matching: dict[str, list[Fault]] = {}

    def __bool__(self) -> bool:
        return bool(self._left)

    def due(self, name: str) -> Fault | None:
        """Count an await of the task called `name`; the fault that it meets, if any."""
        matching = self._matching.get(name)
        if matching is None:
            matching = self._matching[name] = [f for f in self._left if fnmatch.fnmatchcase(name, f.task)]
        due = None
        for fault in matching:
            self._left[fault] -= 1
            if self._left[fault] == 0 and due is None:
                due = fault
        return due


class _Watched(Coroutine[Any, Any, Any]):
    """A coroutine whose awaits are counted, and which dies at one of them. Looks like the coroutine it wraps."""

    def __init__(self, inner: Coroutine[Any, Any, Any], armed: _Armed) -> None:
        self._inner: Any = inner
        self._armed = armed
        self._begun = False
        self.task: asyncio.Task[Any] | None = None
        self.__name__ = getattr(inner, "__name__", type(inner).__name__)
        self.__qualname__ = getattr(inner, "__qualname__", self.__name__)

    def send(self, value: Any) -> Any:
        killed = self._killed()
        return self._inner.send(value) if killed is None else self._inner.throw(killed)

    def throw(self, *exception: Any) -> Any:
        killed = self._killed()
        return self._inner.throw(*exception) if killed is None else self._inner.throw(killed)

    def _killed(self) -> Killed | None:
        """What to die of, if a fault is due at the await that this resumption ends."""
        if not self._begun or self.task is None:
            self._begun = True
            return None
        name = self.task.get_name()  # asked anew each time: Python 3.11 names a task after it was made
        due = self._armed.due(name)
        return None if due is None else Killed(f"task {name!r} was killed at await {due.at} of {due.task!r}")

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._inner.__await__()  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:  # cr_frame, cr_running, cr_suspended, cr_await, cr_code
        return getattr(self._inner, name)


class VirtualLoop(asyncio.BaseEventLoop):
    """A real asyncio loop in virtual time, for tests of every schedule, for faults and for simulation.

    - The clock starts at 0 and stands still while anything can run; then it jumps to the next timer.
    - With a seed, which ready task takes the next step is a keyed draw. Plain callbacks (`call_soon`, timers, futures'
      callbacks) keep the order in which they were registered, and no task's step overtakes a plain callback that was
      registered before it. asyncio promises no order between tasks, so a correct program is correct under any seed.
    - Without a seed the order is exactly CPython's; timers of the same instant fire in the order they were set.
    - Where nothing can happen any more, `DeadlockError` tells who waits where.
    - Sockets, processes, signals and threads are refused with `VirtualLoopError`.

    Args:
        seed: Of the order of steps; None for CPython's order.
        faults: Tasks to be killed, each at one of its awaits.
        patience: Callbacks that may run at one instant while a timer is set; then the clock jumps nevertheless, as
            real time would pass under a program that polls.

    Attributes:
        steps: Callbacks run so far.
    """

    _ready: Any
    _closed: bool
    _debug: bool
    _stopping: bool
    _thread_id: int | None
    _timer_cancelled_count: int

    def __init__(self, seed: int | None = 0, *, faults: Iterable[Fault] = (), patience: int = 1_000_000) -> None:
        super().__init__()
        self.steps = 0
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timers_set = 0
        self._random = None if seed is None else random.Random(seed)
        self._steps_ready: list[asyncio.Handle] = []
        self._armed = _Armed(faults)
        self._tasks_made = 0
        self._patience = patience
        self._moved_at = 0

    # ------------------------------------------------------------------ time

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call at a virtual time; see asyncio."""
        if when is None:
            raise TypeError("when cannot be None")
        self._check(callback, "call_at")
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        timer._scheduled = True  # type: ignore[attr-defined]
        self._timers_set += 1
        heapq.heappush(self._timers, (when, self._timers_set, timer))
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call after a virtual delay; see asyncio."""
        if delay is None:
            raise TypeError("delay must not be None")
        return self.call_at(self._now + delay, callback, *args, context=context)

    def _jump(self) -> None:
        """Move the clock to the next timer.

        Raises:
            DeadlockError: There is none.
        """
        if not self._timers or self._timers[0][0] == math.inf:
            raise DeadlockError(waiting_tasks(self))
        self._now = max(self._now, self._timers[0][0])
        self._moved_at = self.steps

    def _drop_cancelled(self) -> None:
        timers = self._timers
        if len(timers) > _MANY_TIMERS and self._timer_cancelled_count * 2 > len(timers):
            kept = []
            for entry in timers:
                if entry[2].cancelled():
                    entry[2]._scheduled = False  # type: ignore[attr-defined]
                else:
                    kept.append(entry)
            heapq.heapify(kept)
            self._timers = kept
            self._timer_cancelled_count = 0
            return
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)[2]._scheduled = False  # type: ignore[attr-defined]
            self._timer_cancelled_count -= 1

    # ------------------------------------------------------------------ callbacks and tasks

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Call in the next iteration; see asyncio."""
        self._check(callback, "call_soon")
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """As `call_soon`; only the loop's own thread may call it.

        Raises:
            VirtualLoopError: Called from another thread.
        """
        if self._thread_id is not None and self._thread_id != threading.get_ident():
            _refuse("a callback from another thread")
        return self.call_soon(callback, *args, context=context)

    def create_task(self, coro: Any, *, name: object = None, **options: Any) -> asyncio.Task[Any]:
        """Start a task; see asyncio."""
        task: asyncio.Task[Any]
        if self._task_factory is not None:  # type: ignore[attr-defined]
            return super().create_task(coro, name=name, **options)
        if self._closed:
            raise RuntimeError("Event loop is closed")
        watched = _Watched(coro, self._armed) if self._armed and asyncio.iscoroutine(coro) else None
        self._tasks_made += 1
        number = self._tasks_made
        task = VirtualTask(coro if watched is None else watched, number=number, loop=self, name=name, **options)
        if watched is not None:
            watched.task = task
        return task

    def _check(self, callback: Callable[..., object], method: str) -> None:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        if self._debug:
            self._check_callback(callback, method)  # type: ignore[attr-defined]

    def _run_once(self) -> None:
        """One iteration, as CPython's: due timers become ready, then what was ready at that moment runs."""
        self._drop_cancelled()
        timers, ready = self._timers, self._ready
        if not ready and not self._steps_ready:
            if not self._stopping:
                self._jump()
        elif timers and self.steps - self._moved_at >= self._patience and timers[0][0] != math.inf:
            self._jump()
        while timers and timers[0][0] < self._now + _RESOLUTION:
            when, _, timer = heapq.heappop(timers)
            timer._scheduled = False  # type: ignore[attr-defined]
            self._now = max(self._now, when)  # whoever compares the clock with his deadline finds it reached
            ready.append(timer)
        if self._random is None:
            for _ in range(len(ready)):
                self._call(ready.popleft())
        else:
            self._run_permuted(self._random)

    def _run_permuted(self, source: random.Random) -> None:
        """Run the plain callbacks that are ready, in order, then a task's step that the seed picks, and so on."""
        ready, steps, draw = self._ready, self._steps_ready, source.random
        for _ in range(_STEPS_IN_A_ROW):  # timers that are due already wait for their turn outside
            fresh = []
            for _ in range(len(ready)):
                handle = ready.popleft()
                task = getattr(handle._callback, "__self__", None)
                if isinstance(task, asyncio.Task):
                    fresh.append((getattr(task, "number", 0), handle))
                else:
                    self._call(handle)
            if len(fresh) > 1:
                fresh.sort(key=_number)  # whoever woke them went through a set, whose order is that of addresses
            for _, handle in fresh:
                steps.append(handle)
            if not steps or self._stopping:
                return
            picked = int(draw() * len(steps))
            handle = steps[picked]
            steps[picked] = steps[-1]
            steps.pop()
            self._call(handle)

    def _call(self, handle: Any) -> None:
        if not handle._cancelled:
            self.steps += 1
            handle._run()

    # ------------------------------------------------------------------ what BaseEventLoop leaves to its children

    def _process_events(self, event_list: Any) -> None:
        """There are no events from outside."""

    def _write_to_self(self) -> None:
        """Nobody waits in a selector."""


def _number(entry: tuple[int, asyncio.Handle]) -> int:
    return entry[0]


def _refuse(what: str) -> NoReturn:
    raise VirtualLoopError(
        f"The virtual loop cannot do this: {what}. It runs one thread in virtual time, without input and output. Use "
        "loop='asyncio' or loop='uvloop', or put a model of the outside world (a coroutine that sleeps) in its place."
    )


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refused(*_: Any, **__: Any) -> NoReturn:
        _refuse(f"loop.{name}")

    refused.__name__ = name
    refused.__qualname__ = f"VirtualLoop.{name}"
    refused.__doc__ = "Refused: there is no outside world in virtual time."
    return refused


_OUTSIDE = """
    add_reader remove_reader add_writer remove_writer sock_recv sock_recv_into sock_recvfrom sock_recvfrom_into
    sock_sendall sock_sendto sock_connect sock_accept sock_sendfile sendfile start_tls create_connection create_server
    create_unix_connection create_unix_server create_datagram_endpoint connect_accepted_socket connect_read_pipe
    connect_write_pipe subprocess_exec subprocess_shell add_signal_handler remove_signal_handler getaddrinfo
    getnameinfo run_in_executor
"""
for _name in _OUTSIDE.split():
    setattr(VirtualLoop, _name, _refusal(_name))
