"""The learner's settings: plain structs that a run's configuration is read into. Nothing here imports torch."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["LearnerConfig", "LoraConfig"]


class LoraConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Low-rank adaptation (Hu et al. 2021, "LoRA", section 4.1).

    Attributes:
        rank: r, columns of the update's factors.
        alpha: The update is scaled by ``alpha / rank``.
        target_modules: ``"all-linear"`` (every linear layer but the head) or names of modules.
        rank_stabilised: Scale by ``alpha / √rank`` instead.
    """

    rank: int = 16
    alpha: float = 32.0
    target_modules: str | tuple[str, ...] = "all-linear"
    rank_stabilised: bool = False

    def __post_init__(self) -> None:
        """Refuse values that cannot be meant."""
        if self.rank < 1 or self.alpha <= 0:
            raise ValueError(f"lora.rank and lora.alpha must be positive, got {self.rank} and {self.alpha}")


class LearnerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How updates are made.

    Attributes:
        learning_rate: AdamW's step size after warm-up.
        betas: AdamW's moment decays.
        weight_decay: Decoupled decay of matrices (not of norms and biases).
        warmup_updates: Updates over which the learning rate rises linearly; update u uses (u + 1)/warmup of it.
        gradient_clip: Largest gradient norm; 0 does not clip.
        minibatch: Sequences per optimiser step; 0 takes the whole batch.
        epochs: Passes over the batch.
        max_tokens_per_forward: Most tokens of a forward pass; gradients accumulate over several.
        row_tokens: Width of packed rows.
        packing: ``packed`` lays several sequences into a row where the model allows it, ``padded`` gives each a
            row, ``auto`` takes whichever costs less for the batch at hand.
        dtype: Compute type; trained parameters and optimiser state are float32 either way.
        device: ``auto`` takes CUDA where there is one.
        threads: CPU threads during an update; bit-exact reproduction is promised for 1.
        skip_zero_credit: Do not run sequences whose gradient is exactly zero (no credit and no KL term).
        lora: Train low-rank adapters only; ``None`` trains all parameters.
        seed: Seed of minibatch order and of the adapters' first weights.
    """

    learning_rate: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    warmup_updates: int = 0
    gradient_clip: float = 1.0
    minibatch: int = 0
    epochs: int = 1
    max_tokens_per_forward: int = 4096
    row_tokens: int = 256
    packing: Literal["auto", "packed", "padded"] = "auto"
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = 1
    skip_zero_credit: bool = True
    lora: LoraConfig | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse values that cannot be meant."""
        for name in ("epochs", "max_tokens_per_forward", "row_tokens", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"learner.{name} must be at least 1, got {getattr(self, name)}")
        for name in ("learning_rate", "weight_decay", "warmup_updates", "gradient_clip", "minibatch", "seed"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"learner.{name} must not be negative, got {getattr(self, name)}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"learner.betas must lie in [0, 1), got {self.betas}")
