"""`Pool`: a fixed number of supervised workers that run one function inline, in threads or in processes.

How a worker runs stands in `runners.py`; when it is restarted in `supervisor.py`.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

import anyio
import msgspec

from forkgym.core.errors import ForkgymError
from forkgym.runtime.actor import Actor, ActorRef, ActorStatistics, Refusal
from forkgym.runtime.runners import Runner, RunnerName, WorkerDied, check_runner, make_runner
from forkgym.runtime.supervisor import Restarts, Supervisor
from forkgym.runtime.worker import check_entry

__all__ = ["Health", "Pool", "Worker", "WorkerDied"]


class Health(msgspec.Struct, frozen=True):
    """A worker's answer to a health check.

    Attributes:
        name: The worker.
        alive: Whether it answered in time; a worker that is still starting does not.
        busy: Seconds it has been working on one call; 0 when idle or not alive.
        generation: How often it has been started.
        pid: Its process; 0 when not alive.
    """

    name: str
    alive: bool
    busy: float
    generation: int
    pid: int


class _Working(Actor):
    """A worker as an actor: a worker that is lost is a failure, an error of its function is not."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._runner: Runner | None = None
        self._given_up = False

    async def start(self) -> None:
        worker = self._worker
        self._runner = make_runner(worker.run, worker.entry, worker.config)
        await self._runner.start()
        worker.generation += 1
        worker.runner = self._runner

    async def handle(self, message: tuple[int | None, Any]) -> tuple[int, Any]:
        generation, content = message
        runner, worker = self._runner, self._worker
        if runner is None:
            raise WorkerDied(f"Worker {worker.name!r} is not running.")
        if generation is not None and generation != worker.generation:
            raise Refusal(worker.lost())
        with anyio.move_on_after(worker.call_timeout) as limit:
            try:
                return worker.generation, await runner.call(content)
            except WorkerDied:
                raise
            except Exception as error:  # the function's own error is its answer
                raise Refusal(error) from error
        if not limit.cancelled_caught:
            raise WorkerDied(f"Worker {worker.name!r} ended a call without an answer.")
        self._given_up = True
        raise WorkerDied(f"Worker {worker.name!r} worked for {worker.call_timeout:g} s on a call and was given up.")

    async def watch(self) -> None:
        if self._runner is not None:
            await self._runner.died()
            await anyio.sleep(0)  # a call that failed of it comes first, with a better text
            raise WorkerDied(f"Worker {self._worker.name!r} has ended while it was idle.")

    async def stop(self) -> None:
        self._worker.runner = None
        if self._runner is not None:
            task = asyncio.current_task()
            at_once = self._given_up or (task is not None and task.cancelling() > 0)
            await self._runner.close(within=0.0 if at_once else self._worker.close_within)


class Worker:
    """One worker of a pool.

    Attributes:
        name: Its name.
        generation: How often it has been started; what it holds in memory belongs to one generation.
        outstanding: Calls that have been sent and not answered.
    """

    def __init__(
        self, name: str, run: str, entry: str, config: dict[str, Any], call_timeout: float | None, close_within: float
    ) -> None:
        self.name = name
        self.run = run
        self.entry = entry
        self.config = config
        self.call_timeout = call_timeout
        self.close_within = close_within
        self.generation = 0
        self.outstanding = 0
        self.runner: Runner | None = None
        self.actor: ActorRef | None = None

    async def call(self, message: Any, *, generation: int | None = None, timeout: float | None = None) -> Any:
        """Have the worker's function called.

        Args:
            message: Its argument; plain data for a process.
            generation: Refuse the call if the worker has been restarted since that generation.
            timeout: Seconds after which to stop waiting.

        Raises:
            ActorFailed: The worker was lost during this call; whether to call again is the caller's to decide.
            WorkerDied: The generation is gone.
            ActorDead, ActorStopped: The worker is not restarted any more.
            Exception: What the function raises.
        """
        if generation is not None and generation != self.generation:
            raise self.lost()
        _, answer = await self._exchange(generation, message, timeout)
        return answer

    async def call_new(self, message: Any, *, timeout: float | None = None) -> tuple[int, Any]:
        """As `call`, for something that the worker is to hold: (its generation, the answer)."""
        return await self._exchange(None, message, timeout)

    async def _exchange(self, generation: int | None, message: Any, timeout: float | None) -> tuple[int, Any]:
        if self.actor is None:
            raise ForkgymError(f"Worker {self.name!r} is not running; use its pool inside 'async with'.")
        self.outstanding += 1
        try:
            answer: tuple[int, Any] = await self.actor.ask((generation, message), timeout=timeout)
            return answer
        finally:
            self.outstanding -= 1

    @property
    def alive(self) -> bool:
        """Whether it takes calls, now or after a restart; False once it has failed too often."""
        return self.actor is not None and self.actor.alive

    def lost(self) -> WorkerDied:
        """The error of a call that belongs to an earlier generation."""
        return WorkerDied(f"Worker {self.name!r} was restarted, and what it held is gone. Make it again.")

    async def health(self, timeout: float) -> Health:
        """Whether it answers within `timeout` seconds."""
        runner = self.runner
        if runner is not None:
            try:
                with anyio.fail_after(timeout):
                    pulse = await runner.pulse()
                return Health(self.name, True, pulse.busy, self.generation, pulse.pid)
            except (TimeoutError, WorkerDied):
                return Health(self.name, False, 0.0, self.generation, 0)
        return Health(self.name, False, 0.0, self.generation, 0)


class Pool:
    """Workers that each run one function, restarted one for one when they are lost.

        async with Pool("my_module:make_grader", size=4, run="process") as pool:
            score = await pool.call({"answer": "Berlin"})

    The entry point is called once in each worker, with `config`, and returns the function that is then called with
    messages, one at a time; an attribute `close` of that function is called at the end. Leaving the block gracefully
    lets calls finish; an error, Ctrl-C or SIGTERM ends processes at once, and no process outlives this one.

    Args:
        entry: "module:function" of an importable module.
        size: Number of workers.
        run: "inline", "thread" or "process".
        config: Keyword arguments of the entry point; plain data for processes.
        name: Prefix of the workers' names.
        mailbox: Calls that wait at each worker at most.
        restarts: Limits.
        call_timeout: Seconds of one call after which the worker is given up and restarted; None for no limit.
        close_within: Seconds in which a worker may end by itself.
    """

    def __init__(
        self,
        entry: str,
        *,
        size: int = 1,
        run: RunnerName = "inline",
        config: dict[str, Any] | None = None,
        name: str = "worker",
        mailbox: int = 16,
        restarts: Restarts | None = None,
        call_timeout: float | None = None,
        close_within: float = 5.0,
    ) -> None:
        if size < 1:
            raise ValueError(f"a pool has at least 1 worker, not {size}")
        check_runner(run)
        check_entry(entry)
        self.workers = [
            Worker(f"{name}-{index}", run, entry, dict(config or {}), call_timeout, close_within)
            for index in range(size)
        ]
        self._mailbox = mailbox
        self._supervisor = Supervisor(restarts, stop_within=close_within + 5.0)

    async def call(self, message: Any, *, timeout: float | None = None) -> Any:
        """Have the function called by the living worker with the fewest calls outstanding; see `Worker.call`."""
        worker = min(self.workers, key=lambda worker: (not worker.alive, worker.outstanding))
        return await worker.call(message, timeout=timeout)

    async def check(self, timeout: float = 5.0) -> list[Health]:
        """Ask every worker, all at once, whether it is alive; a busy one answers too.

        Args:
            timeout: Seconds to wait for answers.
        """
        found: dict[str, Health] = {}

        async def ask(worker: Worker) -> None:
            found[worker.name] = await worker.health(timeout)

        async with anyio.create_task_group() as group:
            for worker in self.workers:
                group.start_soon(ask, worker)
        return [found[worker.name] for worker in self.workers]

    def statistics(self) -> list[ActorStatistics]:
        """The workers and their mailboxes at this moment."""
        return self._supervisor.statistics()

    async def __aenter__(self) -> Self:
        await self._supervisor.__aenter__()
        for worker in self.workers:
            worker.actor = self._supervisor.spawn(
                lambda worker=worker: _Working(worker),  # type: ignore[misc]  # binds the worker of this round
                name=worker.name,
                mailbox=self._mailbox,
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._supervisor.__aexit__(kind, error, trace)
