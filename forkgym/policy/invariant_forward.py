"""A forward pass for Llama, Qwen2 and Qwen3 models (float32, CPU, one thread) whose rows do not depend on each other.

One row is one token of one trajectory. Everything but the matrix products is invariant by construction
(`invariant_kernels.py`); the products are checked bit by bit when the engine starts, see `choose_product_mode`.
Scheduling of rows is in `torch_engine.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from forkgym.noise import words
from forkgym.policy import invariant_kernels as kernels
from forkgym.policy.kv_cache import SlotCache

__all__ = ["SUPPORTED_MODELS", "TILE", "InvariantForward", "ProductMode", "choose_product_mode", "supports"]

# Rows of one matrix product come in multiples of this many; missing rows are dummies.
TILE = 16
SUPPORTED_MODELS = ("llama", "qwen2", "qwen3")

ProductMode = Literal["stacked", "tiled", "single"]
"""How rows enter a matrix product.

``stacked``: all rows at once, padded to a multiple of `TILE` (fast; needs a BLAS whose rows do not depend on the
number of rows). ``tiled``: every product has exactly `TILE` rows (needs a BLAS whose rows do not depend on their place
in the tile). ``single``: every product has one real row and ``TILE - 1`` zero rows: invariant by construction, slow.
"""

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]


def supports(model: Any) -> str | None:
    """Why a model cannot run through the invariant forward pass, or ``None`` when it can."""
    config = model.config
    if config.model_type not in SUPPORTED_MODELS:
        return f"its type is {config.model_type!r}, not one of {', '.join(SUPPORTED_MODELS)}"
    parameter = next(model.parameters())
    if parameter.dtype != torch.float32:
        return f"its weights are {parameter.dtype}, not torch.float32 (load it with dtype=torch.float32)"
    if parameter.device.type != "cpu":
        return f"it is on {parameter.device}, not on the CPU"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act!r}, not 'silu'"
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if width % 4:
        return f"its heads are {width} wide, not a multiple of 4"
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") in ("dynamic", "longrope"):
        return f"its rotary tables change with the length ({rope['rope_type']})"
    return None


class _Matrix:
    """``y = x W^T + b`` with the weight stored ``[in, out]``."""

    def __init__(self, weights: list[torch.Tensor], biases: list[torch.Tensor] | None) -> None:
        self.weight = torch.cat([weight.detach() for weight in weights]).t().contiguous().clone()
        self.bias = None if biases is None else torch.cat([bias.detach() for bias in biases]).clone()

    @property
    def width(self) -> int:
        return int(self.weight.shape[1])


class _Layer:
    """One transformer block's weights (copies: later changes of the model do not reach them)."""

    def __init__(self, state: Mapping[str, torch.Tensor], index: int, window: int) -> None:
        prefix = f"model.layers.{index}."

        def matrix(*names: str) -> _Matrix:
            weights = [state[f"{prefix}{name}.weight"] for name in names]
            biases = [state[key] for name in names if (key := f"{prefix}{name}.bias") in state]
            if biases and len(biases) != len(names):
                raise ValueError(f"layer {index}: only some of {', '.join(names)} have a bias; cannot merge them")
            return _Matrix(weights, biases or None)

        def optional(name: str) -> FloatArray:
            key = prefix + name
            return _array(state[key]) if key in state else np.empty(0, dtype=np.float32)

        self.window = window
        self.attention_norm = _array(state[f"{prefix}input_layernorm.weight"])
        self.project = matrix("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        self.query_norm = optional("self_attn.q_norm.weight")
        self.key_norm = optional("self_attn.k_norm.weight")
        self.output = matrix("self_attn.o_proj")
        self.mlp_norm = _array(state[f"{prefix}post_attention_layernorm.weight"])
        self.gate_up = matrix("mlp.gate_proj", "mlp.up_proj")
        self.down = matrix("mlp.down_proj")


class InvariantForward:
    """One immutable version of a model, ready to compute rows.

    Attributes:
        vocabulary_size: V.
        product_mode: How rows enter matrix products, see `ProductMode`.
    """

    def __init__(
        self,
        model: Any,
        *,
        max_context: int,
        max_rows: int,
        product_mode: ProductMode = "stacked",
        state: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """Copy the weights of a Hugging Face model.

        Args:
            model: A Llama, Qwen2 or Qwen3 causal language model, float32 on the CPU.
            max_context: Most tokens of a trajectory (T).
            max_rows: Most rows of one call.
            product_mode: How rows enter matrix products.
            state: Weights to take instead of the model's own (same names).

        Raises:
            ValueError: The model is not supported, or ``state`` does not fit it.
        """
        if (reason := supports(model)) is not None:
            raise ValueError(f"the invariant forward pass cannot run this model: {reason}")
        config = model.config
        weights = _checked_state(model, state)
        self.product_mode: ProductMode = product_mode
        self.vocabulary_size = int(config.vocab_size)
        self._epsilon = float(config.rms_norm_eps)
        self._heads = int(config.num_attention_heads)
        self._groups = int(config.num_key_value_heads)
        self._head_width = int(getattr(config, "head_dim", None) or config.hidden_size // self._heads)
        self._length = max_context
        self._embedding = _array(weights["model.embed_tokens.weight"])
        windows = _windows(config, max_context)
        self._layers = [_Layer(weights, index, window) for index, window in enumerate(windows)]
        self._norm = _array(weights["model.norm.weight"])
        self._head = _Matrix([weights.get("lm_head.weight", weights["model.embed_tokens.weight"])], None)
        self._cosine, self._sine = _rotary_tables(model, max_context)
        self._scratch(max_rows, int(config.hidden_size))

    def new_cache(self) -> SlotCache:
        """An empty slot cache of this model's shape."""
        return SlotCache(
            layers=len(self._layers), groups=self._groups, head_width=self._head_width, length=self._length
        )

    def rows(
        self, cache: SlotCache, tokens: IntArray, slots: IntArray, positions: IntArray, wanted: IntArray
    ) -> FloatArray:
        """Feed tokens and return the logits of some of them.

        A slot may have several rows (consecutive positions, in order): that is a block prefill, and its bits equal
        those of one token at a time.

        Args:
            cache: Where earlier keys and values are and these go.
            tokens: ``int64[R]``, R ≤ max_rows.
            slots: ``int64[R]``.
            positions: ``int64[R]``: tokens already in the slot before each row.
            wanted: ``int64[n]``: indices of rows whose logits are returned.

        Returns:
            ``float32[n, V]``, a fresh array.
        """
        count = len(tokens)
        hidden = self._hidden[:count]
        hidden[:] = self._embedding[tokens]
        for index, layer in enumerate(self._layers):
            kernels.root_mean_square_norm(hidden, layer.attention_norm, self._epsilon, self._normed[:count])
            projected = self._product(self._normed, count, layer.project, self._projected)
            kernels.attend(
                projected, slots, positions, self._cosine, self._sine, layer.query_norm, layer.key_norm,
                self._epsilon, cache.keys[index], cache.values[index], layer.window, self._scores, self._weights,
                self._power, self._attended[:count],
            )  # fmt: skip
            hidden += self._product(self._attended, count, layer.output, self._narrow)
            kernels.root_mean_square_norm(hidden, layer.mlp_norm, self._epsilon, self._normed[:count])
            gate_up = self._product(self._normed, count, layer.gate_up, self._wide)
            kernels.gate(gate_up, self._power_wide, self._gated[:count])
            hidden += self._product(self._gated, count, layer.down, self._narrow)
        chosen = len(wanted)
        if not chosen:
            return np.empty((0, self.vocabulary_size), dtype=np.float32)
        kernels.root_mean_square_norm(hidden[wanted], self._norm, self._epsilon, self._normed[:chosen])
        return self._product(self._normed, chosen, self._head, self._logits).copy()

    def _scratch(self, max_rows: int, hidden_size: int) -> None:
        """Buffers of padded length, so that no step allocates."""
        rows = -(-max_rows // TILE) * TILE
        layer = self._layers[0]

        def buffer(width: int) -> FloatArray:
            return np.zeros((rows, width), dtype=np.float32)

        self._hidden = buffer(hidden_size)
        self._normed = buffer(hidden_size)
        self._projected = buffer(layer.project.width)
        self._attended = buffer(self._heads * self._head_width)
        self._narrow = buffer(hidden_size)
        self._wide = buffer(layer.gate_up.width)
        self._gated = buffer(layer.gate_up.width // 2)
        self._logits = buffer(self.vocabulary_size)
        padded = -(-self._length // kernels.BLOCK) * kernels.BLOCK
        self._scores = np.zeros(padded, dtype=np.float32)
        self._weights = np.zeros(padded, dtype=np.float32)
        self._power = np.zeros(padded, dtype=np.int32)
        self._power_wide = np.zeros(layer.gate_up.width // 2, dtype=np.int32)

    def _product(self, x: FloatArray, count: int, matrix: _Matrix, out: FloatArray) -> FloatArray:
        """The first ``count`` rows of ``x`` times a matrix, in ``out``; further rows of both are dummies."""
        inputs, outputs = torch.from_numpy(x), torch.from_numpy(out)
        padded = -(-count // TILE) * TILE
        if self.product_mode == "stacked":
            torch.mm(inputs[:padded], matrix.weight, out=outputs[:padded])
        elif self.product_mode == "tiled":
            for start in range(0, padded, TILE):
                torch.mm(inputs[start : start + TILE], matrix.weight, out=outputs[start : start + TILE])
        else:
            tile = torch.zeros(TILE, x.shape[1])
            for row in range(count):
                tile[0] = inputs[row]
                outputs[row] = torch.mm(tile, matrix.weight)[0]
        result = out[:count]
        if matrix.bias is not None:
            result += matrix.bias.numpy()
        return result


def choose_product_mode(forward: InvariantForward, *, rows: int) -> ProductMode:
    """Find the fastest way of multiplying that keeps rows independent on this machine, and set it.

    Rows of random tokens are computed one at a time, 16 at a time and all at once, shuffled, at mixed positions and as
    blocks; logits must agree bit by bit. How far a BLAS keeps rows apart depends on the library and the CPU, so this is
    checked at every start (tens of milliseconds for a tiny model).

    Args:
        forward: The model; its ``product_mode`` is set to the result.
        rows: Most rows a step will have.

    Returns:
        ``stacked`` where that passes, else ``tiled``, else ``single`` (which needs no check).
    """
    modes: tuple[ProductMode, ...] = ("stacked", "tiled")
    for mode in modes:
        forward.product_mode = mode
        if _rows_are_independent(forward, rows):
            return mode
    forward.product_mode = "single"
    return "single"


def _rows_are_independent(forward: InvariantForward, rows: int) -> bool:
    large = sum(layer.gate_up.weight.numel() for layer in forward._layers) > 10_000_000
    length = 2 if large else 12
    noise = words(0x5EED, rows * (length + 1)).astype(np.int64)
    tokens = (noise[: rows * length] % forward.vocabulary_size).reshape(rows, length)
    order = np.argsort(noise[rows * length :], kind="stable")
    together = _stepped(forward, tokens[order], rows)
    reference = np.empty_like(together)
    reference[order] = together
    for group in (16, 1):
        few = min(rows, 4 if group == 1 else rows)
        if not np.array_equal(_stepped(forward, tokens[:few], group), reference[:few]):
            return False
    return np.array_equal(_block(forward, tokens[: max(1, rows // length)]), reference[: max(1, rows // length)])


def _stepped(forward: InvariantForward, tokens: IntArray, group: int) -> FloatArray:
    """Logits ``[n, length, V]`` of sequences fed one token at a time, ``group`` sequences a step, starts staggered."""
    count, length = tokens.shape
    out = np.empty((count, length, forward.vocabulary_size), dtype=np.float32)
    for first in range(0, count, group):
        members = np.arange(first, min(first + group, count))
        cache = forward.new_cache()
        slots = np.array([cache.take() for _ in members], dtype=np.int64)
        delay = members % 3 if group > 1 else np.zeros_like(members)
        for step in range(length + int(delay.max())):
            position = step - delay
            live = np.flatnonzero((position >= 0) & (position < length))
            if len(live):
                at = position[live]
                logits = forward.rows(cache, tokens[members[live], at], slots[live], at, np.arange(len(live)))
                out[members[live], at] = logits
    return out


def _block(forward: InvariantForward, tokens: IntArray) -> FloatArray:
    """Logits of whole sequences fed as one block."""
    count, length = tokens.shape
    cache = forward.new_cache()
    slots = np.repeat(np.array([cache.take() for _ in range(count)], dtype=np.int64), length)
    positions = np.tile(np.arange(length, dtype=np.int64), count)
    logits = forward.rows(cache, tokens.reshape(-1), slots, positions, np.arange(count * length))
    return logits.reshape(count, length, -1)


def _array(tensor: torch.Tensor) -> FloatArray:
    array: FloatArray = tensor.detach().to(torch.float32).contiguous().clone().numpy()
    return array


def _windows(config: Any, length: int) -> list[int]:
    """Each layer's attention window: the sliding one, or the whole context."""
    types = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    window = getattr(config, "sliding_window", None)
    return [int(window) if kind == "sliding_attention" and window else length for kind in types]


def _rotary_tables(model: Any, length: int) -> tuple[FloatArray, FloatArray]:
    """Cosines and sines ``[T, head_width]`` from the model's own rotary module."""
    with torch.no_grad():
        cosine, sine = model.model.rotary_emb(torch.zeros(1, length, 1), torch.arange(length)[None])
    return _array(cosine[0]), _array(sine[0])


def _checked_state(model: Any, state: Mapping[str, torch.Tensor] | None) -> dict[str, torch.Tensor]:
    own: dict[str, torch.Tensor] = model.state_dict()
    if state is None:
        return own
    optional = "lm_head.weight" if model.config.tie_word_embeddings else None
    missing = sorted(name for name in own if name not in state and name != optional)
    wrong = sorted(name for name, tensor in state.items() if name not in own or own[name].shape != tensor.shape)
    if missing or wrong:
        raise ValueError(
            f"the published weights do not fit the model: missing {missing[:3]}, unknown or of another shape "
            f"{wrong[:3]}; publish model.state_dict() (merge adapters first)"
        )
    # A learner may hold its weights elsewhere or in another type.
    return {name: tensor.detach().to("cpu", torch.float32) for name, tensor in state.items()}
