"""What a run reports while it goes: one row per update, one result per evaluation and one at the end.

The trainer calls a :class:`Progress`; how it is shown is the console's business. Nothing here imports torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import msgspec

from forkgym.train.config import TrainConfig
from forkgym.train.evaluate import EvaluationResult

__all__ = ["Progress", "Silent", "TrainResult", "UpdateRow"]


class UpdateRow(msgspec.Struct, frozen=True, kw_only=True):
    """One update in numbers. Shares and rates are in [0, 1].

    Attributes:
        update: Update number, from 0.
        utility: Mean utility of the factual episodes.
        success: Share of them that the grader accepted.
        mixed_groups: Share of groups whose members' utilities differ (only these teach a group baseline anything).
        turns: Mean turns an episode.
        entropy: Mean entropy of the sampled tokens in nats.
        twins: Branches run.
        self_twins: Share of branches equal to their factual turn.
        same_evidence: Share of branches whose first observation equals the factual one.
        ties: Share of realised branches with D = 0.
        multiplier: λ of the allocator.
        auxiliary: Branch tokens per factual token.
        training_tokens: Tokens generated for training since the run began.
        progress: Share of the budget used.
        learner: The learner's own metrics.
        seconds: Wall seconds by role.
    """

    update: int
    utility: float
    success: float
    mixed_groups: float
    turns: float
    entropy: float
    twins: int
    self_twins: float
    same_evidence: float
    ties: float
    multiplier: float
    auxiliary: float
    training_tokens: int
    progress: float
    learner: dict[str, Any]
    seconds: dict[str, float]


class TrainResult(msgspec.Struct, frozen=True, kw_only=True):
    """A finished run in numbers.

    Attributes:
        directory: Where the run lies.
        algorithm: Name of the method.
        updates: Updates done.
        training_tokens: Tokens generated for training (on policy and counterfactual).
        on_policy_tokens: Of these, in factual episodes.
        counterfactual_tokens: Of these, in branches.
        branches: Branches run.
        self_twins: Share of branches equal to their factual turn; ``nan`` without branches.
        ties: Share of realised branches with D = 0; ``nan`` without any.
        before: Evaluations of the untrained policy by mode (``sampled``, ``greedy``).
        after: Evaluations of the trained policy by mode.
        weights_digest: Digest of the final weights: equal digests, equal runs.
        seconds: Wall seconds by role.
    """

    directory: str
    algorithm: str
    updates: int
    training_tokens: int
    on_policy_tokens: int
    counterfactual_tokens: int
    branches: int
    self_twins: float
    ties: float
    before: dict[str, EvaluationResult]
    after: dict[str, EvaluationResult]
    weights_digest: str
    seconds: dict[str, float]


class Progress(Protocol):
    """Who is told how a run goes."""

    def started(self, config: TrainConfig, directory: Path, resumed_at: int | None) -> None:
        """The run begins, or goes on after ``resumed_at`` updates."""
        ...

    def updated(self, row: UpdateRow) -> None:
        """An update is recorded."""
        ...

    def evaluated(self, update: int, result: EvaluationResult) -> None:
        """The policy after ``update`` updates was judged."""
        ...

    def finished(self, result: TrainResult) -> None:
        """The budget is used up."""
        ...


class Silent:
    """Tells nobody."""

    def started(self, config: TrainConfig, directory: Path, resumed_at: int | None) -> None:
        """See :class:`Progress`."""

    def updated(self, row: UpdateRow) -> None:
        """See :class:`Progress`."""

    def evaluated(self, update: int, result: EvaluationResult) -> None:
        """See :class:`Progress`."""

    def finished(self, result: TrainResult) -> None:
        """See :class:`Progress`."""
