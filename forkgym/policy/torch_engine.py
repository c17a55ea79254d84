"""The token engine for Hugging Face causal language models: continuous batching, shared prefixes, keyed sampling.

The mathematics is in `invariant_forward.py` (CPU, bit-identical rows) and `huggingface_forward.py` (any model);
queueing and sampling are in `serving.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal, Protocol, cast

import numpy as np
import numpy.typing as npt
import torch

from forkgym.policy.chat import Renderer
from forkgym.policy.huggingface_forward import HuggingFaceBackend
from forkgym.policy.invariant_forward import (
    TILE,
    InvariantForward,
    ProductMode,
    choose_product_mode,
    supports,
)
from forkgym.policy.kv_cache import SlotCache, StoredPrefix
from forkgym.policy.serving import ActiveTurn, ServingEngine

__all__ = ["TorchEngine", "resolve_device"]

_DEFAULT_CONTEXT = 1024


def resolve_device(device: str) -> str:
    """``auto`` to ``cuda`` where there is one, else ``cpu``; other names are returned as they are.

    Raises:
        ValueError: CUDA was asked for and is not there.
    """
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device {device!r} was asked for but torch finds no CUDA device: use device='cpu' or 'auto'")
    return device


class Backend(Protocol):
    """What `TorchEngine` needs from a forward pass."""

    def begin(self, turn: ActiveTurn, stored: Any, length: int) -> None:
        """Make room for a turn and load its stored prefix."""

    def advance(self, turns: list[ActiveTurn]) -> tuple[list[ActiveTurn], npt.NDArray[np.float32]]:
        """Feed tokens; the turns whose next token can be drawn, and their logits."""

    def end(self, turn: ActiveTurn, *, keep: bool) -> Any:
        """Free the room; with ``keep`` return the stored prefix."""

    def stored_length(self, stored: Any) -> int:
        """Tokens of a stored prefix."""

    def install(self, version: int, weights: Mapping[str, torch.Tensor]) -> None:
        """Copy a version's weights."""

    def uninstall(self, version: int) -> None:
        """Forget a version's weights."""


class TorchEngine(ServingEngine):
    """Serves a Hugging Face causal language model through the engine protocol.

    Attributes:
        batch_invariant: Whether a turn's logits are independent of companions, batch size, slot and the way its
            prefix was computed, bit for bit (checked at start, see `choose_product_mode`).
        forward: ``"invariant"`` or ``"huggingface"``, as chosen.
        device: Where the model runs.
        context_limit: Most tokens of context and turn (`max_context`, which this engine always has).
        product_mode: How rows enter matrix products (``None`` with the Hugging Face forward).
    """

    def __init__(
        self,
        model: Any,
        renderer: Renderer | None = None,
        *,
        device: str = "auto",
        max_running: int = 64,
        max_context: int | None = None,
        forward: Literal["auto", "invariant", "huggingface"] = "auto",
        version: int = 0,
    ) -> None:
        """Copy the model's weights as the first version and check the forward pass.

        The invariant forward pass sets ``torch.set_num_threads(1)``: with more threads a product's rows depend on how
        the threads split it.

        Args:
            model: A Hugging Face causal language model. Later changes of its weights do not reach the engine.
            renderer: Decodes turns for stop strings.
            device: ``auto``, ``cpu`` or ``cuda[:n]``.
            max_running: Most turns served at once.
            max_context: Most tokens of context and turn; by default the model's own limit, at most 1,024.
            forward: ``invariant`` insists on the bit-identical pass, ``huggingface`` on the model's own code.
            version: Number of the version the model is.

        Raises:
            ValueError: The device is missing, or ``invariant`` was asked for a model it cannot run.
        """
        self.device = resolve_device(device)
        limit = int(getattr(model.config, "max_position_embeddings", _DEFAULT_CONTEXT) or _DEFAULT_CONTEXT)
        context = min(limit, _DEFAULT_CONTEXT) if max_context is None else max_context
        if context > limit:
            raise ValueError(f"max_context={context} exceeds the model's {limit} positions")
        decode = None if renderer is None else renderer.decode
        super().__init__(decode=decode, max_running=max_running, max_context=context, version=version)
        self.context_limit = context
        reason = supports(model) if self.device == "cpu" else f"the device is {self.device}, not the CPU"
        if forward == "invariant" and reason is not None:
            raise ValueError(f"the invariant forward pass cannot run this model: {reason}; use forward='huggingface'")
        self.forward: Literal["invariant", "huggingface"]
        self.product_mode: ProductMode | None = None
        self._backend: Backend
        if forward == "huggingface" or reason is not None:
            self.forward = "huggingface"
            self._backend = HuggingFaceBackend(model, device=self.device, version=version)
            # Companions, padding and the cut of a prefix into blocks may all change the last bits.
            self.batch_invariant = False
        else:
            self.forward = "invariant"
            torch.set_num_threads(1)
            backend = InvariantBackend(model, max_running=max_running, max_context=context, version=version)
            self.product_mode = backend.product_mode
            self._backend = backend
            self.batch_invariant = True

    def _begin(self, turn: ActiveTurn, stored: Any, length: int) -> None:
        self._backend.begin(turn, stored, length)

    def _advance(self, turns: list[ActiveTurn]) -> tuple[list[ActiveTurn], npt.NDArray[np.float32]]:
        return self._backend.advance(turns)

    def _end(self, turn: ActiveTurn, *, keep: bool) -> Any:
        return self._backend.end(turn, keep=keep)

    def _stored_length(self, stored: Any) -> int:
        return self._backend.stored_length(stored)

    def _install(self, version: int, weights: object) -> None:
        state = weights.state_dict() if isinstance(weights, torch.nn.Module) else weights
        if not isinstance(state, Mapping):
            raise TypeError(f"publish a model or its state_dict, not {type(weights).__name__}")
        self._backend.install(version, cast(Mapping[str, torch.Tensor], state))

    def _uninstall(self, version: int) -> None:
        self._backend.uninstall(version)


class InvariantBackend:
    """Schedules the rows of the invariant forward pass, one block of slots for each version.

    Every running turn gets one row a step; rows left over in the step are filled with further context tokens of turns
    that still read their prompt or observation (a block prefill whose bits equal those of single steps).

    Attributes:
        product_mode: What the start-up check chose.
    """

    def __init__(self, model: Any, *, max_running: int, max_context: int, version: int) -> None:
        # A copy: its owner may add adapters to the model, and later versions are checked against its names and shapes.
        self._model = copy.deepcopy(model)
        self._max_context = max_context
        self._max_rows = -(-max_running // TILE) * TILE
        forward = InvariantForward(model, max_context=max_context, max_rows=self._max_rows)
        self.product_mode: ProductMode = choose_product_mode(forward, rows=self._max_rows)
        self._lanes: dict[int, tuple[InvariantForward, SlotCache]] = {version: (forward, forward.new_cache())}
        # Slots of retired versions: what they held is never read, and allocating them anew each update costs time.
        self._spare: list[SlotCache] = []

    def begin(self, turn: ActiveTurn, stored: Any, length: int) -> None:
        """Take a slot and copy the stored prefix into it."""
        _, cache = self._lanes[turn.request.version]
        turn.place = cache.take()
        if length:
            cache.load(turn.place, cast(StoredPrefix, stored), length)

    def advance(self, turns: list[ActiveTurn]) -> tuple[list[ActiveTurn], npt.NDArray[np.float32]]:
        """One step for every turn; versions are computed one after the other."""
        if torch.get_num_threads() != 1:
            raise RuntimeError(
                f"torch has {torch.get_num_threads()} threads but the invariant forward pass was checked with one: "
                "call torch.set_num_threads(1)"
            )
        versions = {turn.request.version for turn in turns}
        if len(versions) == 1:
            return self._advance_version(turns)
        parts = [self._advance_version([t for t in turns if t.request.version == v]) for v in sorted(versions)]
        ready = [turn for part, _ in parts for turn in part]
        return ready, np.concatenate([logits for _, logits in parts])

    def _advance_version(self, turns: list[ActiveTurn]) -> tuple[list[ActiveTurn], npt.NDArray[np.float32]]:
        forward, cache = self._lanes[turns[0].request.version]
        spare = self._max_rows - len(turns)
        tokens: list[int] = []
        slots: list[int] = []
        positions: list[int] = []
        ready: list[ActiveTurn] = []
        wanted: list[int] = []
        for turn in turns:
            computed = turn.computed
            if turn.tokens:  # the context is in the cache; the last drawn token is not
                tokens.append(turn.tokens[-1])
                count = 1
                done = True
            else:
                context = turn.request.context
                count = min(len(context) - computed, 1 + spare)
                spare -= count - 1
                tokens += context[computed : computed + count]
                done = computed + count == len(context)
            slots += [turn.place] * count
            positions += range(computed, computed + count)
            turn.computed = computed + count
            if done:
                ready.append(turn)
                wanted.append(len(tokens) - 1)
        logits = forward.rows(
            cache,
            np.array(tokens, dtype=np.int64),
            np.array(slots, dtype=np.int64),
            np.array(positions, dtype=np.int64),
            np.array(wanted, dtype=np.int64),
        )
        return ready, logits

    def end(self, turn: ActiveTurn, *, keep: bool) -> StoredPrefix | None:
        """Copy the slot out where it is kept, and free it."""
        _, cache = self._lanes[turn.request.version]
        stored = cache.store(turn.place, turn.computed) if keep else None
        cache.give_back(turn.place)
        return stored

    def stored_length(self, stored: Any) -> int:
        """Tokens of a stored prefix."""
        return cast(StoredPrefix, stored).length

    def install(self, version: int, weights: Mapping[str, torch.Tensor]) -> None:
        """Copy a version's weights; slots are allocated when turns need them."""
        forward = InvariantForward(
            self._model,
            max_context=self._max_context,
            max_rows=self._max_rows,
            product_mode=self.product_mode,
            state=weights,
        )
        self._lanes[version] = (forward, self._spare.pop() if self._spare else forward.new_cache())

    def uninstall(self, version: int) -> None:
        """Forget a version's weights; its slots, all free by now, serve the next version."""
        _, cache = self._lanes.pop(version)
        self._spare = [cache]
