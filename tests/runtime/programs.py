"""Small asynchronous programs, and CPython's own event loop on a clock that jumps: the oracle of the virtual loop."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from forkgym.runtime.loop import DeadlockError, VirtualLoop
from forkgym.runtime.virtual import VirtualTask

TICK = 1 / 16


class _JumpingSelector(selectors.DefaultSelector):
    loop: ReferenceLoop | None = None

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise RuntimeError("deadlock: CPython would wait for ever")
        if timeout > 0 and self.loop is not None:
            self.loop.base = round((self.loop.base + timeout) * 1024) / 1024
        return super().select(0)


class ReferenceLoop(asyncio.SelectorEventLoop):
    """CPython's `_run_once`, unchanged, with a clock that jumps to the next timer.

    Like a real clock it never reads the same twice (by a picosecond), so that timers of one instant have an order.
    """

    def __init__(self) -> None:
        self.base, self.reads = 0.0, 0
        selector = _JumpingSelector()
        super().__init__(selector)
        selector.loop = self
        self._clock_resolution = 1e-6
        self.tasks_made = 0

    def create_task(self, coro: Any, *, name: object = None, **options: Any) -> asyncio.Task[Any]:
        """CPython's tasks, but with the virtual loop's hash: task groups cancel in the order of a set's addresses."""
        self.tasks_made += 1
        return VirtualTask(coro, number=self.tasks_made, loop=self, name=name, **options)

    def time(self) -> float:
        self.reads += 1
        return self.base + self.reads * 1e-12


class Trace:
    """What happened, with the time at which it did."""

    def __init__(self) -> None:
        self.events: list[tuple[float, str, str]] = []
        self.closed = False

    def __call__(self, who: str, what: object) -> None:
        if self.closed:  # tasks that outlive the program are cancelled in the order of a set that all loops share
            return
        self.events.append((round(asyncio.get_running_loop().time(), 6), who, str(what)))


Program = Callable[[Trace], Any]


def trace_of(program: Program, loop: asyncio.AbstractEventLoop) -> list[tuple[float, str, str]]:
    """Run a program on a loop; a deadlock is the last event of its trace."""
    trace = Trace()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        try:
            result = runner.run(program(trace))
            trace.events.append((round(loop.time(), 6), "main", f"returned {result}"))
        except DeadlockError:
            trace.events.append((round(loop.time(), 6), "loop", "deadlock"))
        except RuntimeError as error:
            if "deadlock" not in str(error):
                raise
            trace.events.append((round(loop.time(), 6), "loop", "deadlock"))
        trace.closed = True
        for _ in range(50):  # a task may start others while it is being cancelled
            pending = asyncio.all_tasks(loop)
            if not pending:
                break
            for task in pending:
                task.cancel()
            with contextlib.suppress(DeadlockError, RuntimeError):
                loop.run_until_complete(asyncio.wait(pending))
    return trace.events


def both(program: Program) -> tuple[list[Any], list[Any]]:
    """The traces on CPython's loop and on the virtual loop in CPython's order."""
    return trace_of(program, ReferenceLoop()), trace_of(program, VirtualLoop(seed=None))


# ---------------------------------------------------------------------- programs that hypothesis writes

_ticks = st.integers(0, 4)
_target = st.integers(0, 3)
_simple = st.one_of(
    st.tuples(st.just("sleep"), _ticks),
    st.tuples(st.just("put"), _ticks),
    st.tuples(st.just("get"), _ticks),
    st.tuples(st.just("get_forever")),
    st.tuples(st.just("event"), _ticks),
    st.tuples(st.just("set")),
    st.tuples(st.just("lock"), _ticks),
    st.tuples(st.just("semaphore"), _ticks),
    st.tuples(st.just("cancel"), _target),
    st.tuples(st.just("call_soon")),
    st.tuples(st.just("call_later"), _ticks),
    st.tuples(st.just("fail")),
    st.tuples(st.just("shielded"), _ticks),
)
_operations = st.recursive(
    _simple,
    lambda inner: st.one_of(
        st.tuples(st.just("timeout"), _ticks, st.lists(inner, min_size=1, max_size=3)),
        st.tuples(st.just("group"), st.lists(st.lists(inner, max_size=3), max_size=3)),
        st.tuples(st.just("gather"), st.lists(st.lists(inner, max_size=3), max_size=3)),
        st.tuples(st.just("wait_first"), st.lists(st.lists(inner, max_size=2), min_size=1, max_size=3)),
    ),
    max_leaves=6,
)
task_lists = st.lists(st.lists(_operations, max_size=5), min_size=1, max_size=4)


class _World:
    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.queue: asyncio.Queue[str] = asyncio.Queue(2)
        self.event = asyncio.Event()
        self.lock = asyncio.Lock()
        self.semaphore = asyncio.Semaphore(2)
        self.tasks: list[asyncio.Task[None]] = []

    async def play(self, name: str, operations: list[tuple[Any, ...]]) -> None:
        for number, operation in enumerate(operations):
            step = f"{name}.{number}"
            try:
                self.trace(step, f"{operation[0]} -> {await self.do(step, operation)}")
            except (TimeoutError, ValueError) as error:
                self.trace(step, f"{operation[0]} raised {type(error).__name__}")
            except asyncio.CancelledError:
                self.trace(step, f"{operation[0]} cancelled")
                raise

    async def held(self, guard: Any, ticks: int) -> None:
        async with guard:
            await asyncio.sleep(ticks * TICK)

    async def do(self, step: str, operation: tuple[Any, ...]) -> object:
        loop = asyncio.get_running_loop()
        match operation:
            case ("sleep", ticks):
                return await asyncio.sleep(ticks * TICK, "slept")
            case ("put", ticks):
                return await asyncio.wait_for(self.queue.put(step), ticks * TICK)
            case ("get", ticks):
                return await asyncio.wait_for(self.queue.get(), ticks * TICK)
            case ("get_forever",):
                return await self.queue.get()
            case ("event", ticks):
                return await asyncio.wait_for(self.event.wait(), ticks * TICK)
            case ("set",):
                return self.event.clear() if self.event.is_set() else self.event.set()
            case ("lock", ticks):
                return await self.held(self.lock, ticks)
            case ("semaphore", ticks):
                return await self.held(self.semaphore, ticks)
            case ("cancel", target):
                task = self.tasks[target % len(self.tasks)]
                return task.cancel() if task is not asyncio.current_task() else "not myself"
            case ("call_soon",):
                return loop.call_soon(self.trace, step, "called soon") and None
            case ("call_later", ticks):
                return loop.call_later(ticks * TICK, self.trace, step, "called later") and None
            case ("fail",):
                raise ValueError(step)
            case ("shielded", ticks):
                return await asyncio.shield(asyncio.sleep(ticks * TICK, "shielded"))
            case ("timeout", ticks, inner):
                async with asyncio.timeout(ticks * TICK):
                    return await self.play(f"{step}t", inner)
            case ("group", lists):
                async with asyncio.TaskGroup() as group:
                    for index, inner in enumerate(lists):
                        group.create_task(self.play(f"{step}g{index}", inner))
                return "joined"
            case ("gather", lists):
                await asyncio.gather(*[self.play(f"{step}a{i}", inner) for i, inner in enumerate(lists)])
                return "gathered"
            case ("wait_first", lists):
                tasks = [loop.create_task(self.play(f"{step}w{i}", inner)) for i, inner in enumerate(lists)]
                done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in pending:
                    task.cancel()
                return len(done)
        raise LookupError(operation)


def written(lists: list[list[tuple[Any, ...]]]) -> Program:
    """The program whose tasks do these operations."""

    async def main(trace: Trace) -> int:
        world = _World(trace)
        world.tasks = [asyncio.create_task(world.play(f"t{i}", operations)) for i, operations in enumerate(lists)]
        done = await asyncio.gather(*world.tasks, return_exceptions=True)
        return sum(value is None for value in done)

    return main
