"""Row kernels: right, and compiled code does bit for bit what the Python source says in the order it says it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkgym.policy import invariant_kernels as kernels

SOURCE = np.random.default_rng(0)


def normal(*shape):
    return SOURCE.standard_normal(shape).astype(np.float32)


def exponential(x):
    out = np.empty_like(x)
    kernels._exponential(x, np.empty(len(x), dtype=np.int32), out)
    return out


def test_the_exponential_is_right_to_one_unit_in_the_last_place_and_cut_at_87():
    x = np.linspace(-87, 87, 100_001).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    assert np.abs(exponential(x) / exact - 1).max() < 1.2e-7
    far = exponential(np.array([-1e30, -88, 0, 88, 1e30], dtype=np.float32))
    assert far[0] == far[1] == exponential(np.array([-87], dtype=np.float32))[0]
    assert far[2] == 1.0
    assert np.isfinite(far).all()


@given(start=st.integers(0, 40), count=st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_a_value_does_not_depend_on_its_neighbours_or_its_place_in_a_vector(start, count):
    x = np.linspace(-20, 3, 80).astype(np.float32)
    assert np.array_equal(exponential(x[start : start + count]), exponential(x)[start : start + count])


def test_the_norm_and_the_gate_are_what_they_are_called():
    x, weight, out = normal(3, 32), normal(32), np.empty((3, 32), dtype=np.float32)
    kernels.root_mean_square_norm(x, weight, 1e-6, out)
    np.testing.assert_allclose(out, weight * x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-6), rtol=1e-5)
    both, gated = normal(3, 20), np.empty((3, 10), dtype=np.float32)
    expected = both[:, :10] / (1 + np.exp(-both[:, :10])) * both[:, 10:]
    kernels.gate(both.copy(), np.empty(10, dtype=np.int32), gated)
    np.testing.assert_allclose(gated, expected, rtol=1e-5)


def attention_arguments(*, norms, window):
    """Two slots, five rows (a block of three in one slot), two groups of two heads of width 8, across a block edge."""
    length = 2 * kernels.BLOCK
    keys, values = normal(2, 2, 2, 8, kernels.BLOCK), normal(2, 2, length, 8)
    empty = np.empty(0, dtype=np.float32)
    edge = kernels.BLOCK - 1
    return {
        "projected": normal(5, (4 + 2 * 2) * 8),
        "slots": np.array([1, 1, 1, 0, 0]),
        "positions": np.array([edge - 1, edge, edge + 1, 0, 1]),
        "cosine": normal(length, 8),
        "sine": normal(length, 8),
        "query_norm": normal(8) if norms else empty,
        "key_norm": normal(8) if norms else empty,
        "epsilon": 1e-6,
        "keys": keys,
        "values": values,
        "window": window,
        "scores": np.empty(length, dtype=np.float32),
        "weights": np.empty(length, dtype=np.float32),
        "power": np.empty(length, dtype=np.int32),
        "out": np.empty((5, 32), dtype=np.float32),
    }


def reference_attention(a):
    """Softmax attention in float64, straight from the definition."""

    def norm(x, weight):
        return weight * x / np.sqrt((x**2).mean() + a["epsilon"]) if len(weight) else x

    def rotate(x, position):
        turned = np.concatenate([-x[4:], x[:4]])
        return x * a["cosine"][position] + turned * a["sine"][position]

    projected = a["projected"].astype(np.float64).reshape(5, 8, 8)
    keys = a["keys"].astype(np.float64).transpose(0, 1, 2, 4, 3).reshape(2, 2, -1, 8)
    values = a["values"].astype(np.float64)
    out = np.empty((5, 4, 8))
    for row, (slot, position) in enumerate(zip(a["slots"], a["positions"], strict=True)):
        for group in range(2):
            keys[slot, group, position] = rotate(norm(projected[row, 4 + group], a["key_norm"]), position)
            values[slot, group, position] = projected[row, 6 + group]
    for row, (slot, position) in enumerate(zip(a["slots"], a["positions"], strict=True)):
        seen = slice(max(0, position + 1 - a["window"]), position + 1)
        for head in range(4):
            query = rotate(norm(projected[row, head], a["query_norm"]), position)
            scores = keys[slot, head // 2, seen] @ query / np.sqrt(8)
            weights = np.exp(scores - scores.max())
            out[row, head] = weights @ values[slot, head // 2, seen] / weights.sum()
    return out.reshape(5, 32)


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("window", [3, 10_000])
def test_attention_is_attention_across_blocks_groups_and_windows(norms, window):
    arguments = attention_arguments(norms=norms, window=window)
    expected = reference_attention(arguments)
    kernels.attend(*arguments.values())
    np.testing.assert_allclose(arguments["out"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("window", [3, 10_000])
def test_compiled_attention_equals_its_python_source_bit_for_bit(monkeypatch, norms, window):
    arguments = attention_arguments(norms=norms, window=window)
    again = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in arguments.items()}
    kernels.attend(*arguments.values())
    for name in ("_rotate", "_scores", "_exponential", "_mix"):
        monkeypatch.setattr(kernels, name, getattr(kernels, name).py_func)
    kernels.attend.py_func(*again.values())
    for name in ("out", "keys", "values"):
        assert np.array_equal(arguments[name], again[name])


def test_compiled_norm_and_gate_equal_their_python_source_bit_for_bit(monkeypatch):
    x, weight = normal(3, 32), normal(32)
    ours, source = np.empty_like(x), np.empty_like(x)
    kernels.root_mean_square_norm(x, weight, 1e-6, ours)
    kernels.root_mean_square_norm.py_func(x, weight, 1e-6, source)
    assert np.array_equal(ours, source)
    both, power = normal(3, 20), np.empty(10, dtype=np.int32)
    ours, source = np.empty((3, 10), dtype=np.float32), np.empty((3, 10), dtype=np.float32)
    kernels.gate(both.copy(), power, ours)
    monkeypatch.setattr(kernels, "_exponential", kernels._exponential.py_func)
    kernels.gate.py_func(both.copy(), power, source)
    assert np.array_equal(ours, source)
