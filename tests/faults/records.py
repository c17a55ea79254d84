"""What a run's record says, without the clock: two runs of one configuration must say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from forkgym.store import RunStore


def record(directory: Path) -> dict[str, Any]:
    """Everything in the store but seconds and times."""
    with RunStore.open(directory) as store:
        last = store.last_update()
        updates = [] if last is None else list(range(last + 1))
        ledger = msgspec.to_builtins(store.ledger())
        del ledger["seconds"], ledger["parts"]
        return {
            "updates": last,
            "episodes": [msgspec.to_builtins(episode) for update in updates for episode in store.episodes(update)],
            "decisions": msgspec.to_builtins(store.decisions()),
            "metrics": [without_clock(row) for row in store.metrics()],
            "evaluations": [(one.update, one.name, one.metrics) for one in store.evaluations()],
            "ledger": ledger,
        }


def without_clock(value: Any) -> Any:
    """A JSON structure without keys that measure time."""
    if isinstance(value, dict):
        return {key: without_clock(inner) for key, inner in value.items() if "second" not in key}
    return [without_clock(inner) for inner in value] if isinstance(value, list) else value
