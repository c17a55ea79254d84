"""The digest of weights is a function of their names, types, shapes and bits, and of nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from forkgym.learn import equal_weights, weights_digest

BASE = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1, 2])}


@pytest.mark.parametrize(
    "other",
    [
        {"a": BASE["a"], "c": BASE["b"]},
        {"a": BASE["a"].reshape(3, 2), "b": BASE["b"]},
        {"a": BASE["a"].double(), "b": BASE["b"]},
        {"a": BASE["a"] + torch.tensor([[0.0, 0, 0], [0, 0, 1e-6]]), "b": BASE["b"]},
        {"a": BASE["a"]},
        {"a": BASE["a"] * torch.tensor([[-1.0, 1, 1], [1, 1, 1]]), "b": BASE["b"]},  # only the sign of a zero
    ],
)
def test_any_difference_changes_the_digest(other):
    assert weights_digest(other) != weights_digest(BASE)
    assert not equal_weights(other, BASE)


def test_order_and_memory_layout_do_not_matter():
    transposed = {"b": BASE["b"], "a": BASE["a"].T.contiguous().T}
    assert weights_digest(transposed) == weights_digest(BASE)
    assert equal_weights(transposed, BASE)


def test_bfloat16_and_scalars_and_empty_tensors_have_digests():
    odd = {"half": torch.ones(3, dtype=torch.bfloat16), "scalar": torch.tensor(2.0), "empty": torch.zeros(0, 4)}
    assert weights_digest(odd) == weights_digest({name: tensor.clone() for name, tensor in odd.items()})
    assert equal_weights(odd, odd)


def test_the_digest_is_fixed():
    """A golden value: stored digests stay valid across releases."""
    assert weights_digest({"w": torch.tensor([1.0, -2.0])}) == GOLDEN


GOLDEN = "5b41c8c943569a53b7d7c0ebc4c73f2f8dbb9d57ec6102904a38610ed9b8243e"


def test_importing_the_package_alone_does_not_import_torch():
    code = "import sys, forkgym.learn; print('torch' in sys.modules, forkgym.learn.LearnerConfig().epochs)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "1"]


def test_an_unknown_name_is_an_attribute_error():
    import forkgym.learn

    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = forkgym.learn.nothing_of_the_kind
