"""What the learner counts and reports: counters that are checkpointed, metrics of one update, and their sums."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch

from forkgym.learn.batch import MicroBatch, TrainingSequence
from forkgym.learn.losses import SurrogateTerms

__all__ = ["Counters", "LearnerMetrics", "Tally"]


class Counters(msgspec.Struct, kw_only=True):
    """Three counts that are easily confused.

    Attributes:
        collections: Batches of episodes seen; one batch may serve several updates.
        updates: Calls of :meth:`Learner.update` completed.
        optimiser_steps: AdamW steps: epochs × minibatches in each update.
        last_collection: Number of the newest collection, −1 before the first.
        last_update: Number of the newest update, −1 before the first.
    """

    collections: int = 0
    updates: int = 0
    optimiser_steps: int = 0
    last_collection: int = -1
    last_update: int = -1


class LearnerMetrics(msgspec.Struct, kw_only=True):
    """What an update did. Means over tokens are over action tokens that were run forward.

    Attributes:
        update: Update number.
        loss: Mean loss of the optimiser steps, KL term included.
        kl: Mean k3 estimate of KL(π ‖ reference) a token; 0 without a reference.
        clip_fraction: Share of ratios (tokens or turns) whose clip binds.
        approximate_kl: Mean k3 of KL(π_old ‖ π) a ratio.
        largest_log_ratio: max |log π/π_old|.
        gradient_norm: Mean norm before clipping.
        largest_gradient_norm: Largest of them.
        mismatch: Mean |log-prob of the learner at θ_old − log-prob of the engine| a token.
        largest_mismatch: Largest of them.
        entropy: Mean entropy of the behaviour distribution at θ_old, nats a token.
        learning_rate: The rate that was used.
        sequences: Sequences in the batch.
        skipped_sequences: Of these, not run because their gradient is zero.
        action_tokens: Sampled tokens in the batch, skipped ones included.
        trained_tokens: Tokens run forward and backward, context included, all epochs.
        scored_tokens: Tokens run forward only (θ_old and reference passes).
        padding: Share of padding in the training passes.
        optimiser_steps: AdamW steps of this update.
        seconds: Wall time.
    """

    update: int
    loss: float
    kl: float
    clip_fraction: float
    approximate_kl: float
    largest_log_ratio: float
    gradient_norm: float
    largest_gradient_norm: float
    mismatch: float
    largest_mismatch: float
    entropy: float
    learning_rate: float
    sequences: int
    skipped_sequences: int
    action_tokens: int
    trained_tokens: int
    scored_tokens: int
    padding: float
    optimiser_steps: int
    seconds: float


class Tally:
    """Running sums over the passes of one update, from which :class:`LearnerMetrics` are made."""

    def __init__(self) -> None:
        self.loss = self.kl = self.approximate_kl = self.largest_log_ratio = 0.0
        self.mismatch = self.largest_mismatch = self.entropy = 0.0
        self.gradient_norms: list[float] = []
        self.clipped = self.units = self.tokens = self.old_tokens = 0
        self.trained_tokens = self.scored_tokens = self.slots = 0

    def add_terms(self, terms: SurrogateTerms, batch: MicroBatch) -> None:
        """A training pass."""
        self.loss += float(terms.loss.detach())
        self.kl += terms.kl_sum
        self.clipped += terms.clipped
        self.units += terms.units
        self.approximate_kl += terms.approximate_kl_sum
        self.largest_log_ratio = max(self.largest_log_ratio, terms.largest_log_ratio)
        self.tokens += len(batch.targets)
        self.trained_tokens += batch.tokens
        self.slots += batch.input_ids.numel()

    def add_old(self, old: torch.Tensor, entropies: torch.Tensor, behaviour: torch.Tensor) -> None:
        """Log-probs at θ_old next to the engine's."""
        gap = (old.cpu() - behaviour).abs()
        self.mismatch += float(gap.sum())
        self.largest_mismatch = max(self.largest_mismatch, float(gap.max()))
        self.entropy += float(entropies.sum())
        self.old_tokens += len(gap)

    def metrics(
        self, batch: Sequence[TrainingSequence], *, update: int, learning_rate: float, skip: bool, seconds: float
    ) -> LearnerMetrics:
        """Means and totals of the update."""
        steps = len(self.gradient_norms)
        return LearnerMetrics(
            update=update,
            loss=self.loss / steps,
            kl=self.kl / max(1, self.tokens),
            clip_fraction=self.clipped / max(1, self.units),
            approximate_kl=self.approximate_kl / max(1, self.units),
            largest_log_ratio=self.largest_log_ratio,
            gradient_norm=sum(self.gradient_norms) / steps,
            largest_gradient_norm=max(self.gradient_norms),
            mismatch=self.mismatch / max(1, self.old_tokens),
            largest_mismatch=self.largest_mismatch,
            entropy=self.entropy / max(1, self.old_tokens),
            learning_rate=learning_rate,
            sequences=len(batch),
            skipped_sequences=sum(1 for s in batch if not any(s.action_mask) or (skip and not s.has_credit)),
            action_tokens=sum(sequence.action_tokens for sequence in batch),
            trained_tokens=self.trained_tokens,
            scored_tokens=self.scored_tokens,
            padding=1.0 - self.trained_tokens / self.slots if self.slots else 0.0,
            optimiser_steps=steps,
            seconds=seconds,
        )
