"""A run's record as JSON Lines, for other tools: one file of episodes, one of turns with their credit.

Only the record is read; nothing is computed that was not recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from forkgym.rollout.trace import Decision, Episode
from forkgym.store.errors import StoreError
from forkgym.store.run import RunStore

__all__ = ["episode_lines", "export_jsonl", "turn_lines"]


def export_jsonl(run: str | Path, directory: str | Path) -> list[Path]:
    """Write ``episodes.jsonl`` and ``turns.jsonl``.

    Args:
        run: Directory of the run.
        directory: Where the files go; made if needed. Existing files are replaced, whole.

    Returns:
        The files written.

    Raises:
        StoreError: There is no run, or a file cannot be written.
    """
    target = Path(directory)
    with RunStore.open(run) as store:
        lines = {"episodes.jsonl": episode_lines(store), "turns.jsonl": turn_lines(store)}
        try:
            target.mkdir(parents=True, exist_ok=True)
            return [_write(target / name, content) for name, content in lines.items()]
        except OSError as error:
            raise StoreError(f"{target} cannot be written ({error.strerror}); check space and permissions.") from error


def _write(path: Path, lines: Iterator[dict[str, Any]]) -> Path:
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            for line in lines:
                file.write(msgspec.json.encode(line) + b"\n")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def episode_lines(store: RunStore) -> Iterator[dict[str, Any]]:
    """One object per episode in order: what it was and how it ended.

    Keys are text, because many readers of JSON lose the last digits of 64-bit integers.
    """
    for episode in _episodes(store):
        yield {
            "episode": str(episode.key),
            "environment": episode.environment,
            "split": episode.split,
            "task": episode.task,
            "update": episode.update,
            "group": episode.group,
            "member": episode.member,
            "version": episode.version,
            "turns": len(episode.turns),
            "generated_tokens": episode.generated_tokens,
            "utility": episode.utility,
            "success": episode.success,
        }


def turn_lines(store: RunStore) -> Iterator[dict[str, Any]]:
    """One object per factual turn in order: texts, tokens, and what its decision brought.

    ``credit``, ``propensity`` and ``branches`` are ``null`` for methods that do not branch.
    """
    decisions: dict[tuple[int, int], Decision] = {}
    update = -1
    for episode in _episodes(store):
        if episode.update != update:
            update = episode.update
            decisions = {(decision.episode, decision.turn): decision for decision in store.decisions(update)}
        for turn in episode.turns:
            decision = decisions.get((episode.key, turn.index))
            yield {
                "episode": str(episode.key),
                "update": update,
                "turn": turn.index,
                "text": turn.text,
                "action": turn.action,
                "action_kind": turn.action_kind,
                "observation": turn.observation,
                "tokens": turn.tokens,
                "logprobs": turn.logprobs,
                "reward": turn.reward,
                "credit": None if decision is None else decision.credit,
                "propensity": None if decision is None else decision.propensity,
                "branches": None
                if decision is None
                else [
                    {"utility": branch.utility, "difference": branch.difference, "self_twin": branch.self_twin}
                    for branch in decision.realised()
                ],
            }


def _episodes(store: RunStore) -> Iterator[Episode]:
    last = store.last_update()
    for update in range(0 if last is None else last + 1):
        yield from store.episodes(update)
