"""How the learner runs a Hugging Face causal LM: hidden states of packed rows, then logits of action tokens only.

What a model can do (block-diagonal masks, a head that may be called alone) is tried on the model itself, once; a
model that cannot is run the plain way, with the same numbers. No loss and no optimiser here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import msgspec
import torch

from forkgym.learn.batch import Arrangement, MicroBatch, TrainingSequence, attention_masks, pack
from forkgym.learn.losses import DEFAULT_CHUNK_ELEMENTS, TokenScores, chunked_scores

__all__ = ["PolicyForward"]

_WINDOWED = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
_MASKED_KERNELS = ("sdpa", "eager")


class PolicyForward:
    """Scores action tokens under a model.

    Attributes:
        arrangement: ``packed`` where the model takes block-diagonal masks (checked by running it), else ``padded``.
        separate_head: Whether logits are computed for action tokens alone. Otherwise (a model that changes its
            logits after the head) the model's own logits are taken and cut.

    Args:
        model: A causal LM of transformers, perhaps wrapped by peft.
        temperature: τ of the behaviour distribution.
        dtype: Compute type; ``bfloat16`` runs under autocast.
        max_elements: Most float32 logits held at once.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        temperature: float = 1.0,
        dtype: torch.dtype = torch.float32,
        max_elements: int = DEFAULT_CHUNK_ELEMENTS,
    ) -> None:
        self.model = model
        self.temperature = temperature
        self.dtype = dtype
        self.max_elements = max_elements
        # peft keeps the causal LM inside; its layers are replaced in place, so the inner model runs the adapters.
        self._causal = cast(Any, model.get_base_model() if hasattr(model, "get_base_model") else model)  # type: ignore[operator]
        self.device = next(model.parameters()).device
        text_config = self._causal.config.get_text_config()
        self.vocabulary = int(text_config.vocab_size)
        self.hidden_size = int(text_config.hidden_size)
        self._kinds = _layer_kinds(text_config)
        self._single_mask = not getattr(text_config, "layer_types", None)
        self._kernel = str(getattr(self._causal.config, "_attn_implementation", "eager"))
        self.separate_head = self._head_is_separate()
        self.arrangement: Arrangement = "packed" if self._takes_packing() else "padded"

    def cost(self, batches: Sequence[MicroBatch]) -> float:
        """Estimated work of forward passes, in units of one token's matrix products.

        A transformer block costs about ``20 d²`` operations a token for its matrices and ``4 d·L`` for attention
        over a row of ``L``; half of that where the kernel knows that the mask is plainly causal.
        """
        work = 0.0
        for batch in batches:
            width = batch.input_ids.shape[1]
            work += batch.input_ids.numel() * (1 + (1 if batch.packed else 0.5) * width / (5 * self.hidden_size))
        return work

    def score(self, batch: MicroBatch) -> TokenScores:
        """Log-probability and entropy of every action token of ``batch``, float32 ``[A]``, on the model's device.

        Gradients flow to the model unless grad mode is off.
        """
        batch = batch.to(self.device)
        with self._autocast():
            states, head = self._states(batch)
            return chunked_scores(
                states.flatten(0, 1)[batch.source],
                head,
                batch.targets,
                vocabulary=self.vocabulary,
                temperature=self.temperature,
                supports=batch.supports,
                max_elements=self.max_elements,
            )

    def _states(self, batch: MicroBatch) -> tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]:
        inputs = self._inputs(batch)
        if self.separate_head:
            hidden = self._causal.base_model(**inputs).last_hidden_state
            return hidden, self._causal.get_output_embeddings()
        return self._causal(**inputs).logits, _identity

    def _inputs(self, batch: MicroBatch) -> dict[str, Any]:
        inputs: dict[str, Any] = {"input_ids": batch.input_ids, "use_cache": False}
        if batch.packed:
            masks: dict[str, torch.Tensor] = attention_masks(batch.segments, batch.position_ids, self._kinds)
            if self._kernel == "eager":
                lowest = torch.finfo(self.dtype).min
                masks = {
                    kind: torch.zeros(mask.shape, dtype=self.dtype, device=mask.device).masked_fill(~mask, lowest)
                    for kind, mask in masks.items()
                }
            inputs["attention_mask"] = next(iter(masks.values())) if self._single_mask else masks
            inputs["position_ids"] = batch.position_ids
        # Rows that start at 0 and are padded on the right need no mask: causal attention never looks ahead.
        return inputs

    def _autocast(self) -> AbstractContextManager[None]:
        if self.dtype == torch.float32:
            return nullcontext()
        return cast(AbstractContextManager[None], torch.autocast(self.device.type, dtype=self.dtype))

    def _probe(self) -> tuple[TrainingSequence, TrainingSequence]:
        """Two short sequences; the first is longer (so it comes first in the row), past a small window's reach."""
        reach = max((size or 0) for size in self._kinds.values())
        lengths = (min(24, 8 + 2 * reach), 7)
        return cast(
            tuple[TrainingSequence, TrainingSequence],
            tuple(
                TrainingSequence(
                    key=number,
                    group=0,
                    member=number,
                    tokens=[(7 * i + 3 * number + 1) % self.vocabulary for i in range(length)],
                    action_mask=[False] + [True] * (length - 1),
                    advantages=[0.0] * length,
                    behaviour_logprobs=[0.0] * length,
                    turns=[-1] + [0] * (length - 1),
                )
                for number, length in enumerate(lengths)
            ),
        )

    @torch.no_grad()
    def _head_is_separate(self) -> bool:
        head = self._causal.get_output_embeddings()
        if head is None or not hasattr(self._causal, "base_model"):
            return False
        (batch,) = pack(self._probe(), 1024, arrangement="padded")
        batch = batch.to(self.device)
        inputs = self._inputs(batch)
        with self._autocast():
            own = self._causal(**inputs).logits
            alone = head(self._causal.base_model(**inputs).last_hidden_state)
        return own.shape == alone.shape and torch.equal(own, alone)

    @torch.no_grad()
    def _takes_packing(self) -> bool:
        """Run two sequences packed and apart; packing is on when the scores agree and nothing leaks across."""
        known = {"full_attention", *_WINDOWED}
        if self._kernel not in _MASKED_KERNELS or not set(self._kinds) <= known:
            return False
        first, second = self._probe()
        changed_tokens = [(token + 1) % self.vocabulary for token in first.tokens]
        other = msgspec.structs.replace(first, tokens=changed_tokens)
        packed = [self._probe_scores(pair, "packed") for pair in ((first, second), (other, second))]
        apart = self._probe_scores((first, second), "padded")
        tolerance = 1e-4 if self.dtype == torch.float32 else 5e-2
        count = second.action_tokens
        leaks = not torch.equal(packed[0][-count:], packed[1][-count:])
        return not leaks and torch.allclose(packed[0], apart, rtol=tolerance, atol=tolerance)

    def _probe_scores(self, pair: tuple[TrainingSequence, ...], arrangement: Arrangement) -> torch.Tensor:
        (batch,) = pack(pair, 1024, arrangement=arrangement, row_tokens=64)
        return self.score(batch).logprobs


def _identity(logits: torch.Tensor) -> torch.Tensor:
    return logits


def _layer_kinds(config: Any) -> dict[str, int | None]:
    """Layer types of a model and the window or chunk of each."""
    types = getattr(config, "layer_types", None)
    if types:
        return {kind: getattr(config, _WINDOWED[kind], None) if kind in _WINDOWED else None for kind in types}
    # Older configurations have one kind of layer; those with a window (Mistral) use it in all of them.
    window = getattr(config, "sliding_window", None)
    return {"sliding_attention": window} if window else {"full_attention": None}
