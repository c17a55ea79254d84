"""`run`: a program on uvloop, asyncio or the virtual loop, through anyio. The virtual loop stands in `virtual.py`."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, TypeVar

import anyio

from forkgym.core.errors import ForkgymError, nearest
from forkgym.runtime.virtual import DeadlockError, Fault, Killed, VirtualLoop, VirtualLoopError

__all__ = ["DeadlockError", "Fault", "Killed", "LoopName", "VirtualLoop", "VirtualLoopError", "run"]

LoopName = Literal["uvloop", "asyncio", "virtual"]
_Result = TypeVar("_Result")


def run(
    main: Callable[..., Awaitable[_Result]],
    *args: Any,
    loop: LoopName = "uvloop",
    seed: int | None = 0,
    faults: Iterable[Fault] = (),
) -> _Result:
    """Run an asynchronous program to its end.

    SIGTERM cancels it, so that every `finally` and every supervisor cleans up, and then ends the process with status
    143; Ctrl-C does the same and raises `KeyboardInterrupt`.

    Args:
        main: The program.
        *args: Its arguments.
        loop: "uvloop" (fast), "asyncio" (CPython's own), or "virtual" (see `VirtualLoop`).
        seed: Order of the tasks' steps on the virtual loop; None for CPython's order. Real loops do not read it.
        faults: Tasks that the virtual loop kills.

    Returns:
        What `main` returns.

    Raises:
        DeadlockError: On the virtual loop, nothing can happen any more.
        ForkgymError: No such loop, uvloop is not installed, or faults were given to a real loop.
    """
    faults = tuple(faults)
    factory = _factory(loop, seed, faults)
    terminated = False

    async def guarded() -> _Result:
        running, task = asyncio.get_running_loop(), asyncio.current_task()
        mine = (
            loop != "virtual"
            and threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        )
        if not mine or task is None:
            return await main(*args)

        def terminate() -> None:
            nonlocal terminated
            terminated = True
            task.cancel()

        running.add_signal_handler(signal.SIGTERM, terminate)
        try:
            return await main(*args)
        finally:
            running.remove_signal_handler(signal.SIGTERM)

    guarded.__qualname__ = getattr(main, "__qualname__", guarded.__qualname__)  # the main task is named after it
    try:
        return anyio.run(guarded, backend="asyncio", backend_options={"loop_factory": factory})
    except asyncio.CancelledError:
        if terminated:
            raise SystemExit(128 + signal.SIGTERM) from None
        raise


def _factory(loop: str, seed: int | None, faults: tuple[Fault, ...]) -> Callable[[], asyncio.AbstractEventLoop]:
    if loop == "virtual":
        return lambda: VirtualLoop(seed, faults=faults)
    if faults:
        raise ForkgymError(f"faults are injected on the virtual loop only, not on {loop!r}; pass loop='virtual'.")
    if loop == "asyncio":
        return asyncio.new_event_loop
    if loop != "uvloop":
        raise ForkgymError(
            f"There is no loop {loop!r}.{nearest(loop, ['uvloop', 'asyncio', 'virtual'])} "
            "There are 'uvloop', 'asyncio' and 'virtual'."
        )
    try:
        import uvloop
    except ImportError as error:
        raise ForkgymError("uvloop is not installed; pip install 'forkgym[train]', or pass loop='asyncio'.") from error
    new: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return new
