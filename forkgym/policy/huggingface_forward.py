"""Any Hugging Face causal language model through its own forward pass: prefill one by one, decode together.

Decoding turns share a left-padded batch; a turn joins it after its prefill and leaves it when it ends. Logits may
change in their last bits with the companions: measure it with `measure_mismatch`, or serve one turn at a time.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import pad
from transformers import DynamicCache

from forkgym.policy.serving import ActiveTurn

__all__ = ["HuggingFaceBackend"]

Layers = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values ``[B, H, L, h]`` of each layer."""


class _StoredCache(msgspec.Struct, frozen=True):
    """Keys and values of one trajectory's first ``length`` tokens (B = 1); never written again."""

    layers: Any
    length: int


class _Batch:
    """Turns that are decoded together: row i holds ``width - computed_i`` padding slots, then the turn's tokens.

    Attributes:
        turns: Rows in order; ``None`` where the turn has ended and the row waits to be dropped.
        layers: Keys and values.
        width: Slots of each row.
    """

    def __init__(self) -> None:
        self.turns: list[ActiveTurn | None] = []
        self.layers: Layers = []
        self.width = 0

    def rearrange(self, joining: list[tuple[ActiveTurn, Layers]]) -> None:
        """Drop ended rows, let turns join, and cut or widen the padding on the left."""
        kept = [row for row, turn in enumerate(self.turns) if turn is not None]
        if len(kept) == len(self.turns) and not joining:
            return
        members = [turn for turn in self.turns if turn is not None]
        width = max([turn.computed for turn in members] + [turn.computed for turn, _ in joining], default=0)
        layers: Layers = []
        for index in range(len(self.layers) or len(joining[0][1] if joining else ())):
            parts: list[tuple[torch.Tensor, torch.Tensor]] = []
            if kept:
                keys, values = self.layers[index]
                rows = torch.tensor(kept, device=keys.device)
                parts.append((_fit(keys[rows], width), _fit(values[rows], width)))
            for _, own in joining:
                parts.append((_fit(own[index][0], width), _fit(own[index][1], width)))
            if parts:
                layers.append((torch.cat([k for k, _ in parts]), torch.cat([v for _, v in parts])))
        self.turns = [*members, *(turn for turn, _ in joining)]
        self.layers, self.width = layers, width


class HuggingFaceBackend:
    """Feeds DynamicCaches; prefixes are shared by copying their slices."""

    def __init__(self, model: Any, *, device: str, version: int) -> None:
        """Copy the model to the device as the first version."""
        self._device = device
        known = inspect.signature(type(model).forward).parameters
        # transformers 5.24 renamed the argument.
        self._cache_argument = "cache" if "cache" in known else "past_key_values"
        # Left padding needs explicit positions; a model without them decodes turn by turn.
        self._batches_turns = "position_ids" in known and "attention_mask" in known
        self._models: dict[int, Any] = {version: copy.deepcopy(model).to(device).eval()}
        self._batches: dict[int, _Batch] = {version: _Batch()}

    def begin(self, turn: ActiveTurn, stored: Any, length: int) -> None:
        """Remember the first ``length`` tokens' keys and values for the prefill."""
        turn.place = _cut(stored.layers, 0, 0, length) if length else []

    @torch.no_grad()
    def advance(self, turns: list[ActiveTurn]) -> tuple[list[ActiveTurn], npt.NDArray[np.float32]]:
        """Prefill new turns one by one and decode the others together; every turn's next token can be drawn."""
        ready: list[ActiveTurn] = []
        rows: list[npt.NDArray[np.float32]] = []
        for version in sorted({turn.request.version for turn in turns}):
            batch = self._batches[version]
            batch.rearrange([])
            members = [turn for turn in batch.turns if turn is not None]
            if members:
                rows.append(self._decode(version, batch, members))
                ready += members
            joining = []
            for turn in turns:
                if turn.request.version == version and turn.place is not None:
                    logits, layers = self._prefill(version, turn)
                    rows.append(logits)
                    ready.append(turn)
                    turn.place = None if self._batches_turns else layers
                    joining.append((turn, layers))
            if self._batches_turns:
                batch.rearrange(joining)
        return ready, np.concatenate(rows)

    def _prefill(self, version: int, turn: ActiveTurn) -> tuple[npt.NDArray[np.float32], Layers]:
        """Feed whatever the turn has not fed yet, alone."""
        fresh = turn.history[turn.computed :]
        ids = torch.tensor([fresh], device=self._device)
        logits, layers = self._run(version, turn.place, {"input_ids": ids})
        turn.computed += len(fresh)
        return logits, layers

    def _decode(self, version: int, batch: _Batch, members: list[ActiveTurn]) -> npt.NDArray[np.float32]:
        """Feed each member's last token."""
        ids = torch.tensor([[turn.tokens[-1]] for turn in members], device=self._device)
        lengths = torch.tensor([turn.computed for turn in members], device=self._device)
        arguments: dict[str, torch.Tensor] = {"input_ids": ids, "position_ids": lengths[:, None]}
        if any(turn.computed != batch.width for turn in members):
            slots = torch.arange(batch.width + 1, device=self._device)
            arguments["attention_mask"] = (slots[None] >= batch.width - lengths[:, None]).long()
        logits, batch.layers = self._run(version, batch.layers, arguments)
        batch.width += 1
        for turn in members:
            turn.computed += 1
        return logits

    def _run(
        self, version: int, layers: Layers, arguments: dict[str, torch.Tensor]
    ) -> tuple[npt.NDArray[np.float32], Layers]:
        """One forward pass on top of some keys and values: last logits ``[B, V]`` and the longer cache."""
        cache = DynamicCache()
        for index, (keys, values) in enumerate(layers):
            cache.update(keys, values, index)
        output = self._models[version](use_cache=True, **{self._cache_argument: cache}, **arguments)
        logits: npt.NDArray[np.float32] = output.logits[:, -1].float().cpu().numpy()
        return logits, [(layer.keys, layer.values) for layer in cache.layers]

    def end(self, turn: ActiveTurn, *, keep: bool) -> Any:
        """Cut the turn's row out of the batch; the row itself is dropped before the next step."""
        batch = self._batches[turn.request.version]
        row = next((i for i, member in enumerate(batch.turns) if member is turn), None)
        if row is None:
            layers: Layers = turn.place or []
            return _StoredCache(layers, turn.computed) if keep else None
        batch.turns[row] = None
        if not keep:
            return None
        start = batch.width - turn.computed
        return _StoredCache(_cut(batch.layers, row, start, turn.computed), turn.computed)

    def stored_length(self, stored: Any) -> int:
        """Tokens of a stored cache."""
        return int(stored.length)

    def install(self, version: int, weights: Mapping[str, torch.Tensor]) -> None:
        """A copy of the model with other weights."""
        model = copy.deepcopy(next(iter(self._models.values())))
        model.load_state_dict(dict(weights))
        self._models[version] = model
        self._batches[version] = _Batch()

    def uninstall(self, version: int) -> None:
        """Forget a version's model.

        Raises:
            ValueError: It is the only one (later versions are copies of an earlier one with other weights).
        """
        if len(self._models) == 1:
            raise ValueError(f"version {version} is the only one: publish another before retiring it")
        del self._models[version], self._batches[version]


def _fit(tensor: torch.Tensor, width: int) -> torch.Tensor:
    """Cut or pad ``[B, H, L, h]`` on the left to ``width`` slots (what is cut off is padding)."""
    missing = width - tensor.shape[2]
    return pad(tensor, (0, 0, missing, 0)) if missing > 0 else tensor[:, :, -missing:]


def _cut(layers: Layers, row: int, start: int, length: int) -> Layers:
    """Copies of ``length`` slots of one row, B = 1."""
    slots = slice(start, start + length)
    return [(keys[row : row + 1, :, slots].clone(), values[row : row + 1, :, slots].clone()) for keys, values in layers]
