"""Policy weights as data: immutable copies for engines, and a digest that tells versions apart.

Files of weights are `checkpoint.py`'s; adapters are made in `lora.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch

from forkgym.learn.lora import merged_state_dict

__all__ = ["equal_weights", "snapshot_weights", "tensor_bytes", "weights_digest"]


def snapshot_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copy a model's weights for ``engine.publish(version, weights)``.

    The copy shares no storage with the model, so training on never changes a published version; names and shapes
    are those of the plain Hugging Face model (``load_state_dict`` takes them). Under LoRA the adapters are merged
    into the base weights, without touching the model; engines that serve adapters take
    :func:`forkgym.learn.lora.adapter_weights` instead.

    Args:
        model: A causal LM, perhaps wrapped by peft.

    Returns:
        Detached tensors on the model's device, by name. Tied weights appear under each name and share one copy.
    """
    source = merged_state_dict(model) if hasattr(model, "get_base_model") else model.state_dict()
    copies: dict[tuple[int, torch.Size, torch.dtype], torch.Tensor] = {}
    snapshot: dict[str, torch.Tensor] = {}
    for name, tensor in source.items():
        identity = (tensor.data_ptr(), tensor.shape, tensor.dtype)
        if identity not in copies:
            copies[identity] = tensor.detach().clone()
        snapshot[name] = copies[identity]
    return snapshot


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The tensor's elements in row-major order as bytes (copied to the CPU if it is elsewhere)."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy().data)


def weights_digest(weights: Mapping[str, torch.Tensor]) -> str:
    """BLAKE2b-256 of the weights as 64 hexadecimal digits: names in sorted order, dtypes, shapes and bytes."""
    state = hashlib.blake2b(digest_size=32, person=b"forkgym.weights")
    for name in sorted(weights):
        tensor = weights[name]
        header = f"{len(name)}:{name} {tensor.dtype} {tuple(tensor.shape)}\n"
        state.update(header.encode())
        state.update(tensor_bytes(tensor))
    return state.hexdigest()


def equal_weights(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    """Whether two sets of weights have the same names, dtypes, shapes and bits (NaNs with equal bits are equal)."""
    return first.keys() == second.keys() and all(
        first[name].dtype == second[name].dtype
        and first[name].shape == second[name].shape
        and tensor_bytes(first[name]) == tensor_bytes(second[name])
        for name in first
    )
