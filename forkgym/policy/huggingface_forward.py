"""Any Hugging Face causal language model through its own forward pass, one turn at a time.

The safe default for models that the invariant pass does not know: batch size 1, so there are no companions and no
padding. Blocks of different length may still differ in the last bits; measure with `measure_mismatch`.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import DynamicCache

from forkgym.policy.serving import ActiveTurn

__all__ = ["HuggingFaceBackend"]


class HuggingFaceBackend:
    """Feeds each turn's own key/value cache; prefixes are shared by copying their slices."""

    def __init__(self, model: Any, *, device: str, version: int) -> None:
        """Copy the model to the device as the first version."""
        self._device = device
        # transformers 5.24 renamed the argument.
        known = inspect.signature(type(model).forward).parameters
        self._cache_argument = "cache" if "cache" in known else "past_key_values"
        self._models: dict[int, Any] = {version: copy.deepcopy(model).to(device).eval()}

    def begin(self, turn: ActiveTurn, stored: Any, length: int) -> None:
        """An empty cache, or the first ``length`` tokens of a stored one."""
        turn.place = _prefix(stored, length) if length else DynamicCache()

    @torch.no_grad()
    def advance(self, turns: list[ActiveTurn]) -> tuple[list[ActiveTurn], npt.NDArray[np.float32]]:
        """Feed what each turn has not fed yet: the whole rest of its context, then one token a step."""
        rows = []
        for turn in turns:
            fresh = turn.history[turn.computed :]
            ids = torch.tensor([fresh], device=self._device)
            arguments = {"input_ids": ids, self._cache_argument: turn.place, "use_cache": True}
            output = self._models[turn.request.version](**arguments)
            turn.computed += len(fresh)
            rows.append(output.logits[0, -1].float().cpu().numpy())
        return list(turns), np.stack(rows)

    def end(self, turn: ActiveTurn, *, keep: bool) -> Any:
        """Hand the cache over; it is never written again (`begin` copies slices)."""
        return (turn.place, turn.computed) if keep else None

    def stored_length(self, stored: Any) -> int:
        """Tokens of a stored cache."""
        return int(stored[1])

    def install(self, version: int, weights: Mapping[str, torch.Tensor]) -> None:
        """A copy of the model with other weights."""
        model = copy.deepcopy(next(iter(self._models.values())))
        model.load_state_dict(dict(weights))
        self._models[version] = model

    def uninstall(self, version: int) -> None:
        """Forget a version's model."""
        if len(self._models) == 1:
            raise ValueError(f"version {version} is the only one: publish another before retiring it")
        del self._models[version]


def _prefix(stored: Any, length: int) -> Any:
    """A new cache with copies of the first ``length`` tokens' keys and values."""
    cache = DynamicCache()
    for index, layer in enumerate(stored[0].layers):
        cache.update(layer.keys[:, :, :length].clone(), layer.values[:, :, :length].clone(), index)
    return cache
