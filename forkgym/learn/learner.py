"""The learner: batches of training sequences in, one policy update out, the same bits every time on one CPU thread.

Credit is computed elsewhere (`forkgym.credit`); the loss is `losses.py`, the model's forward pass `forward.py`.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import msgspec
import torch

from forkgym.learn.batch import Arrangement, MicroBatch, TrainingSequence, canonical_order, pack
from forkgym.learn.checkpoint import CheckpointError, load_latest, write_checkpoint
from forkgym.learn.config import LearnerConfig
from forkgym.learn.forward import PolicyForward
from forkgym.learn.lora import add_lora, is_lora
from forkgym.learn.losses import SurrogateTerms, aggregation_weights, clipped_surrogate
from forkgym.learn.metrics import Counters, LearnerMetrics, Tally
from forkgym.learn.weights import snapshot_weights, weights_digest
from forkgym.noise import generator, luck_key
from forkgym.rollout.plan import ClippedSurrogate

__all__ = ["Counters", "Learner", "LearnerConfig", "LearnerMetrics", "NonFiniteError"]


class NonFiniteError(FloatingPointError):
    """A loss or gradient is NaN or infinite; the message names the sequence. The weights were not stepped with it."""


class Learner:
    """Trains a copy of the policy.

    An update's result does not depend on the order in which sequences arrive, and a learner restored from a
    checkpoint continues bit for bit: there is no hidden random state (minibatch order is a keyed permutation).

    Args:
        model: A causal LM of transformers. It is moved to the device and trained in place; under
            ``config.lora`` adapters are added to it. An engine must serve a copy (:meth:`weights`).
        loss: The policy loss.
        config: How updates are made.
        temperature: τ of the behaviour policy.
        top_p: Nucleus mass of the behaviour policy; below 1 every sequence must carry its ``supports``.

    Raises:
        ValueError: ``temperature`` or ``top_p`` is out of range, or CUDA was asked for and is missing.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        loss: ClippedSurrogate,
        config: LearnerConfig | None = None,
        *,
        temperature: float = 1.0,
        top_p: float = 1.0,
    ) -> None:
        if not (temperature > 0 and 0 < top_p <= 1):
            raise ValueError(f"need temperature > 0 and 0 < top_p <= 1, got {temperature} and {top_p}")
        self.config = config or LearnerConfig()
        self.loss = loss
        self.top_p = top_p
        self.counters = Counters()
        self.device = _device(self.config.device)
        dtype = torch.float32 if self.config.dtype == "float32" else torch.bfloat16
        if self.config.lora is not None and not is_lora(model):
            model = add_lora(model, self.config.lora, seed=self.config.seed)
        # eval(): no dropout anywhere, the ratio at θ_old is 1 only for the policy that sampled.
        self.model = model.to(self.device).eval()
        for parameter in self.model.parameters():
            parameter.data = parameter.data.to(torch.float32 if parameter.requires_grad else dtype)
        self._forward = PolicyForward(self.model, temperature=temperature, dtype=dtype)
        self._reference = self._make_reference(temperature, dtype)
        self._named = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self._optimiser = self._make_optimiser()
        frozen = {name: p for name, p in self.model.named_parameters() if not p.requires_grad}
        self._frozen_digest = weights_digest(frozen) if frozen else ""
        copied = self._reference is not None and not is_lora(self.model)
        self._reference_digest = weights_digest(self._named) if copied else ""

    def _make_reference(self, temperature: float, dtype: torch.dtype) -> PolicyForward | None:
        if self.loss.kl_coefficient <= 0:
            return None
        if is_lora(self.model):
            return self._forward  # scored with the adapters switched off
        frozen = copy.deepcopy(self.model).requires_grad_(False)
        return PolicyForward(frozen, temperature=temperature, dtype=dtype)

    def _make_optimiser(self) -> torch.optim.AdamW:
        matrices = [p for p in self._named.values() if p.ndim >= 2]
        others = [p for p in self._named.values() if p.ndim < 2]
        groups = [
            (matrices, self.config.weight_decay),
            (others, 0.0),
        ]
        filled = [{"params": parameters, "weight_decay": decay} for parameters, decay in groups if parameters]
        return torch.optim.AdamW(filled, lr=0.0, betas=self.config.betas, eps=1e-8)

    @property
    def can_pack(self) -> bool:
        """Whether this model takes several sequences in a row (tried on the model itself)."""
        return self._forward.arrangement == "packed"

    @property
    def _skips_zero_credit(self) -> bool:
        return self.config.skip_zero_credit and self._reference is None

    def weights(self) -> dict[str, torch.Tensor]:
        """An immutable copy of the policy for ``engine.publish`` (adapters merged)."""
        return snapshot_weights(self.model)

    def learning_rate(self, update: int) -> float:
        """Learning rate of an update: linear warm-up, then constant."""
        warmup = self.config.warmup_updates
        return self.config.learning_rate * (min(1.0, (update + 1) / warmup) if warmup else 1.0)

    # --- one update ---------------------------------------------------------------------------------------------

    def update(
        self, sequences: Sequence[TrainingSequence], update: int, *, collection: int | None = None
    ) -> LearnerMetrics:
        """Run ``epochs`` × minibatches optimiser steps on a batch.

        Ratios are taken to θ_old, the learner's weights at the start of this call: with several steps the
        log-probs at θ_old are computed first, with one step they are the step's own. The engine's log-probs only
        serve to measure the mismatch.

        Args:
            sequences: The batch, in any order.
            update: Update number; higher than any before.
            collection: Number of the collection the batch came from; ``update`` by default.

        Raises:
            ValueError: The batch is empty, holds an episode twice, lacks supports, or ``update`` went back.
            NonFiniteError: A loss or gradient is not finite.
        """
        started = time.perf_counter()
        batch = self._checked(sequences, update)
        steps = self._plan(batch, update)
        rate = self.learning_rate(update)
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        tally = Tally()
        with self._threads():
            laid_out = [self._lay_out(batch, members) for members in steps[0]]
            single = len(steps) * len(steps[0]) == 1
            old = None if single else self._score_old(batch, laid_out, tally)
            reference = self._score_reference(batch, laid_out, tally)
            for epoch, minibatches in enumerate(steps):
                for number, members in enumerate(minibatches):
                    passes = laid_out[number] if epoch == 0 else self._lay_out(batch, members)
                    self._step(batch, members, passes, old, reference, tally)
        self.counters.updates += 1
        self.counters.last_update = update
        source = update if collection is None else collection
        self.counters.collections += source != self.counters.last_collection
        self.counters.last_collection = source
        return tally.metrics(
            batch,
            update=update,
            learning_rate=rate,
            skip=self._skips_zero_credit,
            seconds=time.perf_counter() - started,
        )

    def _checked(self, sequences: Sequence[TrainingSequence], update: int) -> list[TrainingSequence]:
        if not sequences:
            raise ValueError(f"update {update} has no sequences: skip the update instead")
        if update <= self.counters.last_update:
            raise ValueError(f"update {update} is not after update {self.counters.last_update}, which is done")
        batch = canonical_order(sequences)
        for earlier, later in pairwise(batch):
            if earlier.key == later.key and earlier.member == later.member and earlier.group == later.group:
                raise ValueError(f"{later.describe()} occurs twice in the batch")
        if self.top_p < 1:
            bare = next((s for s in batch if s.supports is None and any(s.action_mask)), None)
            if bare is not None:
                raise ValueError(
                    f"{bare.describe()} was sampled with top_p = {self.top_p} but carries no behaviour supports: "
                    "pass supports to training_sequences, or sample with top_p = 1"
                )
        return batch

    def _plan(self, batch: Sequence[TrainingSequence], update: int) -> list[list[list[int]]]:
        """Indices by epoch and minibatch; a keyed permutation where there is more than one minibatch."""
        size = self.config.minibatch or len(batch)
        plan: list[list[list[int]]] = []
        for epoch in range(self.config.epochs):
            order = list(range(len(batch)))
            if size < len(batch):
                key = luck_key(self.config.seed, 0, update, "learner.minibatch", epoch)
                order = [int(i) for i in generator(key).permutation(len(batch))]
            plan.append([order[start : start + size] for start in range(0, len(order), size)])
        return plan

    def _lay_out(self, batch: Sequence[TrainingSequence], members: Sequence[int]) -> list[MicroBatch]:
        needed = [i for i in members if batch[i].has_credit or not self._skips_zero_credit]
        arrangements: list[Arrangement] = (
            ["packed", "padded"] if self.config.packing == "auto" else [self.config.packing]
        )
        if not self.can_pack:
            arrangements = ["padded"]
        layouts = [
            pack(
                batch,
                self.config.max_tokens_per_forward,
                arrangement=arrangement,
                row_tokens=self.config.row_tokens,
                members=needed,
            )
            for arrangement in arrangements
        ]
        return min(layouts, key=self._forward.cost)

    @torch.no_grad()
    def _score_old(
        self, batch: Sequence[TrainingSequence], laid_out: list[list[MicroBatch]], tally: Tally
    ) -> list[torch.Tensor]:
        """Log-probs at θ_old by sequence, from the very passes the first epoch will run: ratios there are exactly 1."""
        old = [torch.empty(0)] * len(batch)
        for passes in laid_out:
            for micro in passes:
                scores = self._forward.score(micro)
                tally.add_old(scores.logprobs, scores.entropies, micro.behaviour_logprobs)
                tally.scored_tokens += micro.tokens
                _scatter(old, micro, scores.logprobs)
        return old

    @torch.no_grad()
    def _score_reference(
        self, batch: Sequence[TrainingSequence], laid_out: list[list[MicroBatch]], tally: Tally
    ) -> list[torch.Tensor] | None:
        if self._reference is None:
            return None
        reference = [torch.empty(0)] * len(batch)
        switched_off = cast(Any, self.model).disable_adapter() if is_lora(self.model) else nullcontext()
        with switched_off:
            for passes in laid_out:
                for micro in passes:
                    _scatter(reference, micro, self._reference.score(micro).logprobs)
                    tally.scored_tokens += micro.tokens
        return reference

    def _step(
        self,
        batch: Sequence[TrainingSequence],
        members: Sequence[int],
        passes: Sequence[MicroBatch],
        old: list[torch.Tensor] | None,
        reference: list[torch.Tensor] | None,
        tally: Tally,
    ) -> None:
        """One optimiser step; gradients accumulate over the forward passes."""
        self._clear_gradients()
        counts = torch.tensor([batch[i].action_tokens for i in members])
        for micro in passes:
            terms = self._terms(batch, members, counts, micro, old, reference, tally)
            terms.loss.backward()  # type: ignore[no-untyped-call]
            tally.add_terms(terms, micro)
        limit = self.config.gradient_clip or float("inf")
        norm = float(torch.nn.utils.clip_grad_norm_(list(self._named.values()), limit))
        if norm != norm or norm == float("inf"):
            raise NonFiniteError(self._blame(batch, members, old, reference, norm))
        self._optimiser.step()
        tally.gradient_norms.append(norm)
        self.counters.optimiser_steps += 1

    def _clear_gradients(self) -> None:
        for parameter in self._named.values():
            # Zeros rather than None: a step in which every sequence was skipped is still a step.
            parameter.grad = torch.zeros_like(parameter)

    def _terms(
        self,
        batch: Sequence[TrainingSequence],
        members: Sequence[int],
        counts: torch.Tensor,
        micro: MicroBatch,
        old: list[torch.Tensor] | None,
        reference: list[torch.Tensor] | None,
        tally: Tally | None,
    ) -> SurrogateTerms:
        scores = self._forward.score(micro)
        place = {index: number for number, index in enumerate(members)}
        in_step = torch.tensor([place[index] for index in micro.members])[micro.sequence_index]
        old_logprobs = scores.logprobs.detach() if old is None else _gather(old, micro)
        if old is None and tally is not None:
            tally.add_old(old_logprobs, scores.entropies, micro.behaviour_logprobs)
        terms = clipped_surrogate(
            self.loss,
            scores.logprobs,
            old_logprobs,
            micro.advantages.to(self.device),
            aggregation_weights(self.loss, in_step, counts).to(self.device),
            micro.turn_index.to(self.device),
            None if reference is None else _gather(reference, micro),
        )
        bad = ~(torch.isfinite(terms.per_token) & torch.isfinite(scores.logprobs.detach()))
        if bool(bad.any()):
            at = int(bad.nonzero()[0, 0])
            culprit = batch[micro.members[int(micro.sequence_index[at])]]
            raise NonFiniteError(
                f"the loss is not finite at {culprit.describe()}: log-probability {scores.logprobs[at].item()}, "
                f"advantage {float(micro.advantages[at])}; lower the learning rate or inspect its advantages"
            )
        return terms

    def _blame(
        self,
        batch: Sequence[TrainingSequence],
        members: Sequence[int],
        old: list[torch.Tensor] | None,
        reference: list[torch.Tensor] | None,
        norm: float,
    ) -> str:
        """Find the sequence whose own gradient is not finite."""
        counts = torch.tensor([batch[i].action_tokens for i in members])
        for index in members:
            for micro in self._lay_out(batch, [index]):
                self._clear_gradients()
                self._terms(batch, members, counts, micro, old, reference, None).loss.backward()  # type: ignore[no-untyped-call]
                gradients = [p.grad for p in self._named.values() if p.grad is not None]
                if not all(bool(torch.isfinite(gradient).all()) for gradient in gradients):
                    return f"the gradient of {batch[index].describe()} is not finite; the weights were not stepped"
        return f"the gradient norm is {norm} although each sequence's gradient is finite: their sum overflows"

    @contextmanager
    def _threads(self) -> Iterator[None]:
        before = torch.get_num_threads()
        torch.set_num_threads(self.config.threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    # --- state --------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Everything that continues the run: tensors (trained weights, AdamW moments) and JSON-able state.

        Frozen weights (under LoRA) and the reference model are not in it, only their digests: build the learner
        from the same initial model before :meth:`load_state`.
        """
        tensors = {f"weights/{name}": parameter.detach() for name, parameter in self._named.items()}
        for name, parameter in self._named.items():
            for kind, value in self._optimiser.state.get(parameter, {}).items():
                tensors[f"adamw/{kind}/{name}"] = value
        state = {
            "counters": msgspec.to_builtins(self.counters),
            "frozen_digest": self._frozen_digest,
            "reference_digest": self._reference_digest,
        }
        return tensors, state

    def load_state(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state`.

        Raises:
            CheckpointError: The state belongs to another architecture or another initial model. Nothing was loaded.
        """
        own = {f"weights/{name}": parameter.shape for name, parameter in self._named.items()}
        saved = {name: tensor.shape for name, tensor in tensors.items() if name.startswith("weights/")}
        if own != saved:
            differing = sorted({name for name, _ in own.items() ^ saved.items()})
            raise CheckpointError(f"the checkpoint is of another model: {', '.join(differing[:5])} differ")
        for kind, digest in (("frozen", self._frozen_digest), ("reference", self._reference_digest)):
            if state[f"{kind}_digest"] != digest:
                raise CheckpointError(f"the {kind} weights differ: build the learner from the run's initial model")
        counters = msgspec.convert(state["counters"], Counters)
        with torch.no_grad():
            for name, parameter in self._named.items():
                parameter.copy_(tensors[f"weights/{name}"])
        self._optimiser.state.clear()
        for name, parameter in self._named.items():
            moments = {
                kind: tensors[f"adamw/{kind}/{name}"].clone()
                for kind in ("step", "exp_avg", "exp_avg_sq")
                if f"adamw/{kind}/{name}" in tensors
            }
            if moments:
                # AdamW keeps its step count on the CPU whatever the parameter's device.
                self._optimiser.state[parameter] = {
                    kind: value if kind == "step" else value.to(parameter.device) for kind, value in moments.items()
                }
        self.counters = counters

    def save(self, directory: str | Path, *, extra: Mapping[str, Any] | None = None, keep: int = 3) -> Path:
        """Write a checkpoint of this state (see :func:`forkgym.learn.checkpoint.write_checkpoint`)."""
        tensors, state = self.state()
        return write_checkpoint(directory, self.counters.updates, tensors, state, extra, keep=keep)

    def resume(self, directory: str | Path) -> dict[str, Any] | None:
        """Continue from the newest intact checkpoint; returns its ``extra``, or ``None`` when there is none."""
        checkpoint = load_latest(directory)
        if checkpoint is None:
            return None
        self.load_state(checkpoint.tensors, checkpoint.state)
        return checkpoint.extra


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("learner.device is cuda but torch sees no CUDA device: use auto or cpu")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu")


def _scatter(by_sequence: list[torch.Tensor], micro: MicroBatch, values: torch.Tensor) -> None:
    for index, part in zip(micro.members, torch.split(values, list(micro.lengths)), strict=True):
        by_sequence[index] = part


def _gather(by_sequence: Sequence[torch.Tensor], micro: MicroBatch) -> torch.Tensor:
    return torch.cat([by_sequence[index] for index in micro.members])
