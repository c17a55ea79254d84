"""Engines without a network: logits come from a function of the context (toy worlds, proofs, tests; numpy only).

They speak the whole engine protocol and draw exactly, so everything above an engine can be tested with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from forkgym.policy.serving import ActiveTurn, ServingEngine

__all__ = ["LogitsFunction", "RandomEngine", "Script", "ScriptedEngine", "TableEngine"]

LogitsFunction = Callable[[Sequence[int]], npt.ArrayLike]
"""Context token ids to logits ``[V]``; ``-inf`` forbids a token."""


class TableEngine(ServingEngine):
    """A policy given as a function of its context.

    Versions are functions too: ``publish(version, function)``. Caches hold no tensors, only their tokens, but obey
    the protocol's rules, so a caller's cache handling is checked as it would be by a real engine.

    Attributes:
        batch_invariant: Always true: each row is computed alone.
    """

    batch_invariant = True

    def __init__(
        self,
        logits_function: LogitsFunction,
        *,
        decode: Callable[[Sequence[int]], str] | None = None,
        max_running: int = 64,
        max_context: int | None = None,
        version: int = 0,
    ) -> None:
        """Serve a logits function.

        Args:
            logits_function: Context (prompt, earlier turns and this turn's tokens) to logits ``[V]``.
            decode: Token ids to text; only needed by requests with stop strings.
            max_running: Most turns served at once.
            max_context: Most tokens of context and turn together.
            version: Number of the version the function is.
        """
        super().__init__(decode=decode, max_running=max_running, max_context=max_context, version=version)
        self._functions: dict[int, LogitsFunction] = {version: logits_function}

    def _begin(self, turn: ActiveTurn, stored: Any, length: int) -> None:  # noqa: ARG002
        turn.place = None

    def _advance(self, turns: list[ActiveTurn]) -> tuple[list[ActiveTurn], npt.NDArray[np.float32]]:
        rows = []
        for turn in turns:
            history = turn.history
            row = np.asarray(self._functions[turn.request.version](history), dtype=np.float32)
            if row.ndim != 1:
                raise ValueError(f"the logits function must return one value a token ([V]), got shape {row.shape}")
            rows.append(row)
            turn.computed = len(history)
        return list(turns), np.stack(rows)

    def _end(self, turn: ActiveTurn, *, keep: bool) -> Any:
        return turn.computed if keep else None

    def _stored_length(self, stored: Any) -> int:
        return cast(int, stored)

    def _install(self, version: int, weights: object) -> None:
        if not callable(weights):
            raise TypeError(f"a version of this engine is a logits function, got {type(weights).__name__}")
        self._functions[version] = cast(LogitsFunction, weights)

    def _uninstall(self, version: int) -> None:
        del self._functions[version]


class RandomEngine(TableEngine):
    """Every token equally likely: the floor of any comparison."""

    def __init__(self, vocabulary_size: int, **options: Any) -> None:
        """Serve the uniform distribution over ``vocabulary_size`` tokens; options are `TableEngine`'s."""
        logits = np.zeros(vocabulary_size, dtype=np.float32)
        super().__init__(lambda _: logits, **options)


Script = Callable[[Sequence[int]], Sequence[int]]
"""Context before a turn to the turn's token ids, its stop token included."""


class ScriptedEngine(TableEngine):
    """Says exactly what a script says: a function from the context to the whole next turn.

    Log-probabilities and entropies are 0: the policy is deterministic, whatever the keys. Versions are scripts.
    """

    def __init__(self, script: Script, vocabulary_size: int, **options: Any) -> None:
        """Serve a script.

        Args:
            script: Context before the turn to the turn's token ids, its stop token included.
            vocabulary_size: V.
            **options: As for `TableEngine`.
        """
        super().__init__(script, **options)
        self._vocabulary_size = vocabulary_size

    def _begin(self, turn: ActiveTurn, stored: Any, length: int) -> None:  # noqa: ARG002
        script = cast(Script, self._functions[turn.request.version])
        turn.place = list(script(turn.request.context))

    def _advance(self, turns: list[ActiveTurn]) -> tuple[list[ActiveTurn], npt.NDArray[np.float32]]:
        logits = np.full((len(turns), self._vocabulary_size), -np.inf, dtype=np.float32)
        for row, turn in enumerate(turns):
            said = len(turn.tokens)
            if said >= len(turn.place):
                raise ValueError(
                    f"the script's turn of {len(turn.place)} tokens ended without a stop token or string: "
                    "end it with one, or lower max_tokens"
                )
            logits[row, turn.place[said]] = 0.0
            turn.computed = len(turn.request.context) + said
        return list(turns), logits
