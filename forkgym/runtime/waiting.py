"""Where a task waits: the chain of awaits from its coroutine down to the future. For deadlock reports and `dump`."""

from __future__ import annotations

import asyncio
import linecache
from typing import Any

import msgspec

__all__ = ["WaitingTask", "waiting_tasks"]


class WaitingTask(msgspec.Struct, frozen=True):
    """A task that is not done.

    Attributes:
        name: The task's name.
        stack: 'file:line in function: source' of each await, outermost first.
        waits_for: What the innermost await stands for.
    """

    name: str
    stack: list[str]
    waits_for: str

    def __str__(self) -> str:
        lines = [f"- task {self.name!r} waits for {self.waits_for}", *(f"    {line}" for line in self.stack)]
        return "\n".join(lines)


def waiting_tasks(loop: asyncio.AbstractEventLoop) -> list[WaitingTask]:
    """The unfinished tasks of a loop, by name.

    Args:
        loop: The loop; call it from the loop's thread.
    """
    found = [_described(task) for task in asyncio.all_tasks(loop)]
    return sorted(found, key=lambda task: (task.name, task.stack))


def _described(task: asyncio.Task[Any]) -> WaitingTask:
    stack: list[str] = []
    at: Any = task.get_coro()
    while at is not None:
        frame = getattr(at, "cr_frame", None) or getattr(at, "gi_frame", None) or getattr(at, "ag_frame", None)
        if frame is None:
            break
        code = frame.f_code
        source = linecache.getline(code.co_filename, frame.f_lineno).strip()
        stack.append(f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}: {source}")
        at = getattr(at, "cr_await", None) or getattr(at, "gi_yieldfrom", None) or getattr(at, "ag_await", None)
    waiter = getattr(task, "_fut_waiter", None)
    return WaitingTask(task.get_name(), stack, "its next step" if waiter is None else _brief(waiter))


def _brief(waiter: Any) -> str:
    if isinstance(waiter, asyncio.Task):
        return f"task {waiter.get_name()!r}"
    return f"a {type(waiter).__name__.removeprefix('_')} that nobody has resolved"
