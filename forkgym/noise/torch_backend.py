"""Keyed sampling of device tensors: the words, noise and choices of the numpy reference, on any torch device.

Imported only by code that already uses torch. Words agree bit for bit with every backend; the whole noise is
computed, because on a GPU that is cheaper than branching over it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch

from forkgym.noise.distribution import check_sampling
from forkgym.noise.keys import GAMMA, MIX_1, MIX_2
from forkgym.noise.philox import MASK_32, MULTIPLIER_0, MULTIPLIER_1, ROUNDS, WEYL_0, WEYL_1
from forkgym.noise.sampling import check_keys

# Rows are handled in groups of about this many values, so that temporaries stay below a few hundred megabytes.
_GROUP: Final = 1 << 22


def keys_tensor(keys: Any, device: torch.device | str | None = None) -> torch.Tensor:
    """64-bit keys as a tensor; torch's integers are signed, so a key of 2**63 or more is negative there.

    Args:
        keys: ``int64[B]`` tensor (returned as it is, but for the device), ``uint64[B]`` array or list of integers.
        device: where to; the tensor's own device, or the CPU, where it is None.

    Returns:
        ``int64[B]``, the same 64 bits.

    Raises:
        TypeError: not integers.
        ValueError: wrong shape or out of range.
    """
    if isinstance(keys, torch.Tensor):
        if keys.dtype != torch.int64 or keys.ndim != 1:
            raise TypeError(f"a tensor of keys must be int64[B], got {keys.dtype}{list(keys.shape)}")
        return keys if device is None else keys.to(device)
    array = check_keys(keys, len(keys))
    return torch.from_numpy(array.view(np.int64).copy()).to(device or "cpu")


def splitmix64_torch(prefixes: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The integer half of a key on the device: `forkgym.noise.keys.splitmix64` of many prefixes and places.

    Args:
        prefixes: ``int64[B]``, the 64 bits of `forkgym.noise.keys.turn_prefix`.
        places: ``int64[B]``, ``line·2³² + position`` (or the counter of another layout).

    Returns:
        ``int64[B]`` keys.
    """
    z = prefixes + (places + 1) * _signed(GAMMA)
    z = (z ^ _shift_right(z, 30)) * _signed(MIX_1)
    z = (z ^ _shift_right(z, 27)) * _signed(MIX_2)
    return z ^ _shift_right(z, 31)


def words_torch(keys: Any, n: int, device: torch.device | str | None = None) -> torch.Tensor:
    """The words of tokens 0 … n−1 under each key, see `forkgym.noise.words`.

    Args:
        keys: see `keys_tensor`.
        n: vocabulary size, at least 0.
        device: where to; where the keys are, or the CPU, where it is None.

    Returns:
        ``int64[B, n]``, each in [0, 2**32).

    Raises:
        TypeError: keys are not integers.
        ValueError: keys of a wrong shape or out of range, or a negative ``n``.
    """
    if n < 0:
        raise ValueError(f"the number of words must not be negative, got {n}")
    tensor = keys_tensor(keys, device)
    counters = torch.arange((n + 3) // 4, device=tensor.device, dtype=torch.int64)
    zero = torch.zeros((), device=tensor.device, dtype=torch.int64)
    blocks = philox_torch(tensor[:, None], (counters & MASK_32, counters >> 32, zero, zero))
    return torch.stack(blocks, dim=-1).reshape(tensor.shape[0], -1)[:, :n]


def philox_torch(
    keys: torch.Tensor, counter: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Philox4x32-10 in 64-bit integer arithmetic (products wrap, but their bits are right).

    Args:
        keys: int64 tensor.
        counter: four int64 tensors of 32-bit words, least significant first, that broadcast against ``keys``.

    Returns:
        Four int64 tensors of 32-bit words, of the broadcast shape.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = keys & MASK_32, _shift_right(keys, 32)
    for _ in range(ROUNDS):
        p0, p1 = c0 * MULTIPLIER_0, c2 * MULTIPLIER_1
        c0, c1, c2, c3 = (
            _shift_right(p1, 32) ^ c1 ^ k0,
            p1 & MASK_32,
            _shift_right(p0, 32) ^ c3 ^ k1,
            p0 & MASK_32,
        )
        k0, k1 = (k0 + WEYL_0) & MASK_32, (k1 + WEYL_1) & MASK_32
    return c0, c1, c2, c3


def noise_of_words_torch(words: torch.Tensor, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Gumbel noise of words.

    In float32, ``u`` near 1 would round to 1 and the noise to infinity: for words of 2³¹ and more the tail
    ``1 − u = (2³² − w − ½)·2⁻³²`` is formed from the integer and the noise is ``−log(−log1p(−(1 − u)))``.

    Args:
        words: int64, each in [0, 2**32).
        dtype: float64, or float32 for devices without it.

    Returns:
        A tensor of ``dtype`` and the words' shape; finite for every word.

    Raises:
        ValueError: another dtype.
    """
    if dtype == torch.float64:
        return -torch.log(-torch.log((words.to(dtype) + 0.5) * 2.0**-32))
    if dtype != torch.float32:
        raise ValueError(f"noise is computed in float64 or float32, not in {dtype}")
    body = torch.log((words.to(dtype) + 0.5) * 2.0**-32)
    tail = torch.log1p(-((2 * (2**32 - words) - 1).to(dtype) * 2.0**-33))
    return -torch.log(-torch.where(words < 2**31, body, tail))


def gumbel_torch(
    keys: Any, n: int, device: torch.device | str | None = None, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Gumbel noise of tokens 0 … n−1 under each key, see `forkgym.noise.gumbel`.

    Args:
        keys: see `keys_tensor`.
        n: vocabulary size.
        device: where to; where the keys are, or the CPU, where it is None.
        dtype: float64 by default where the device has it, else float32.

    Returns:
        ``dtype[B, n]``.

    Raises:
        TypeError: keys are not integers.
        ValueError: keys of a wrong shape or out of range, a negative ``n`` or another dtype.
    """
    words = words_torch(keys, n, device)
    return noise_of_words_torch(words, dtype or _default_dtype(words.device))


def sample_torch(
    logits: torch.Tensor,
    keys: Any,
    temperature: float = 1.0,
    top_p: float = 1.0,
    *,
    dtype: torch.dtype | None = None,
    check: bool = True,
) -> torch.Tensor:
    """One keyed token per row of a device tensor: the token of `forkgym.noise.sample` for the same logits.

    Args:
        logits: floating-point ``[B, V]`` (bfloat16 and float16 too), masked tokens −inf.
        keys: see `keys_tensor`.
        temperature: positive.
        top_p: in (0, 1].
        dtype: what the choice is computed in: float64 by default where the device has it. In float32 a choice may
            differ from the reference where two scores agree to about six digits.
        check: look for rows that allow no token; costs one synchronisation with the device.

    Returns:
        ``int64[B]`` on the logits' device; ties go to the lowest id.

    Raises:
        TypeError: logits are not floating-point, or keys are not integers.
        ValueError: wrong shapes, temperature or top_p, or (with ``check``) NaN, +inf or only −inf in a row.
    """
    temperature, top_p = check_sampling(temperature, top_p)
    if not logits.is_floating_point():
        raise TypeError(f"logits must be floating-point numbers, got {logits.dtype}")
    if logits.ndim != 2 or logits.shape[1] == 0:
        raise ValueError(f"logits must have the shape [B, V] with V > 0, got {list(logits.shape)}")
    tensor = keys_tensor(keys, logits.device)
    if tensor.shape[0] != logits.shape[0]:
        raise ValueError(f"{logits.shape[0]} rows of logits need as many keys, got {tensor.shape[0]}")
    if check:
        _check_rows(logits, temperature)
    dtype = dtype or _default_dtype(logits.device)
    step = max(1, _GROUP // logits.shape[1])
    chosen = [
        _choose(logits[start : start + step].to(dtype) / temperature, tensor[start : start + step], top_p)
        for start in range(0, logits.shape[0], step)
    ]
    return torch.cat(chosen) if chosen else torch.empty(0, dtype=torch.int64, device=logits.device)


def _choose(scaled: torch.Tensor, keys: torch.Tensor, top_p: float) -> torch.Tensor:
    """The winners of scaled logits ``[B, V]``."""
    scores = scaled + gumbel_torch(keys, scaled.shape[1], dtype=scaled.dtype)
    if top_p < 1:
        # A stable sort keeps equal probabilities in the order of their ids.
        probabilities, order = torch.sort(torch.softmax(scaled, dim=1), dim=1, descending=True, stable=True)
        sums = probabilities.cumsum(dim=1)
        dropped = torch.zeros_like(sums, dtype=torch.bool)
        dropped[:, 1:] = sums[:, :-1] >= top_p
        scores = scores.masked_fill(torch.zeros_like(dropped).scatter(1, order, dropped), -torch.inf)
    ids = torch.arange(scores.shape[1], device=scores.device)
    best = scores.max(dim=1, keepdim=True).values
    # argmax alone does not promise the lowest id on every device.
    return torch.where(scores == best, ids, scores.shape[1]).min(dim=1).values


def _check_rows(logits: torch.Tensor, temperature: float) -> None:
    """Say which row allows no token."""
    largest = logits.max(dim=1).values.double().cpu()  # NaN where there is one
    broken = torch.nonzero(~torch.isfinite(largest / temperature)).flatten()
    if broken.numel():
        index = int(broken[0])
        raise ValueError(
            f"row {index} of the logits allows no token: its largest logit is {float(largest[index])} at "
            f"temperature {temperature} (NaN or +inf: the model's output is broken; -inf: everything is masked)"
        )


def _default_dtype(device: torch.device) -> torch.dtype:
    """float64 except where the device has none (Apple's MPS)."""
    return torch.float32 if device.type == "mps" else torch.float64


def _shift_right(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift of 64-bit patterns: torch's own shift copies the sign."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    """The signed integer with the same 64 bits."""
    return value - (1 << 64) if value >= 1 << 63 else value
