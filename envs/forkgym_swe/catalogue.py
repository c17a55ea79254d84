"""`load_tasks`: the tasks that a name or a file stands for. Formats are read in ``formats``."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from forkgym_swe.formats import read_tasks
from forkgym_swe.instance import Instance, InstanceError

__all__ = ["SAMPLES", "load_tasks"]

SAMPLES = Path(__file__).parent / "samples" / "tasks.jsonl"


def load_tasks(tasks: str | os.PathLike[str]) -> list[Instance]:
    """The tasks of a file, or those that ship with this package.

    Args:
        tasks: ``samples``, or the path of a task file in this project's or a known foreign format.

    Raises:
        InstanceError: There is no such file, it holds no task, or a line is wrong.
    """
    path = SAMPLES if tasks == "samples" else Path(tasks).expanduser()
    try:
        status = path.stat()
    except OSError as error:
        raise InstanceError(f"there are no tasks at {path}: {error.strerror}; give 'samples' or a task file") from error
    return list(_load(str(path), status.st_mtime_ns, status.st_size))


@lru_cache(maxsize=8)
def _load(path: str, _changed: int, _size: int) -> tuple[Instance, ...]:
    found = tuple(read_tasks(path))
    if not found:
        raise InstanceError(f"{path} holds no task")
    return found
