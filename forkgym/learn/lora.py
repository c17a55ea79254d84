"""Low-rank adapters through peft: adding them, merging them into copies, reading them out.

Training with them is `learner.py`'s; nothing here knows a loss.
"""

from __future__ import annotations

from typing import Any, cast

import torch

from forkgym.learn.config import LoraConfig

__all__ = ["LoraConfig", "adapter_weights", "add_lora", "is_lora", "merged_state_dict"]

_ADAPTER = "default"


def add_lora(model: torch.nn.Module, config: LoraConfig, *, seed: int = 0) -> torch.nn.Module:
    """Wrap a causal LM so that only low-rank adapters train. The policy is unchanged at first (B = 0).

    There is no dropout: a policy gradient needs the policy that sampled.

    Args:
        model: A causal LM of transformers; its linear layers are replaced in place.
        config: Rank, scale and targets.
        seed: Seed of the adapters' first weights (A); torch's global generator is left as it was.

    Returns:
        The ``peft.PeftModel``; the plain model is ``.get_base_model()``.

    Raises:
        ValueError: ``target_modules`` matches nothing in the model.
    """
    import peft

    targets = config.target_modules if isinstance(config.target_modules, str) else list(config.target_modules)
    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=0.0,
        target_modules=targets,
        use_rslora=config.rank_stabilised,
        bias="none",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        wrapped = peft.get_peft_model(cast(Any, model), settings, adapter_name=_ADAPTER)
    return cast(torch.nn.Module, wrapped)


def is_lora(model: torch.nn.Module) -> bool:
    """Whether the model is wrapped by peft."""
    return hasattr(model, "get_base_model") and hasattr(model, "disable_adapter")


def merged_state_dict(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Weights of the plain model with the adapters merged in, under the plain model's names.

    The model itself is not merged, not even for a moment, so its bits do not change.

    Args:
        model: A model from :func:`add_lora`.

    Returns:
        Tensors by name; those without an adapter share storage with the model.
    """
    base = cast(Any, model).get_base_model()
    deltas = {
        f"{name}.weight" if name else "weight": module.get_delta_weight(_ADAPTER).detach()
        for name, module in base.named_modules()
        if hasattr(module, "base_layer") and hasattr(module, "get_delta_weight")
    }
    merged: dict[str, torch.Tensor] = {}
    for name, tensor in base.state_dict().items():
        if ".lora_" in name:
            continue
        plain = name.replace(".base_layer.", ".")
        delta = deltas.get(plain)
        merged[plain] = tensor if delta is None else (tensor + delta.to(tensor.dtype))
    return merged


def adapter_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copies of the adapters' tensors under peft's own names, for engines that serve adapters."""
    import peft

    state = peft.get_peft_model_state_dict(cast(Any, model), adapter_name=_ADAPTER)
    return {name: tensor.detach().clone() for name, tensor in state.items()}
