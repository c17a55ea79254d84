"""The closed forms of coupling: margins, symmetry, and agreement with choices that really share noise."""

import numpy as np
import pytest
from forkgym_toy.coupling import gumbel_coupling, luck_coupling
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

laws = st.lists(st.integers(0, 9), min_size=2, max_size=7).filter(lambda weights: sum(weights) > 0)


def distribution(weights):
    return np.array(weights) / sum(weights)


@given(first=laws, data=st.data())
@settings(max_examples=80, deadline=None)
def test_the_joint_law_has_the_right_margins(first, data):
    size = len(first)
    second = data.draw(st.lists(st.integers(0, 9), min_size=size, max_size=size).filter(lambda w: sum(w) > 0))
    p, q = distribution(first), distribution(second)
    for joint in (gumbel_coupling(p, q), luck_coupling(p, q)):
        assert joint.min() >= 0
        np.testing.assert_allclose(joint.sum(axis=1), p, atol=1e-12)
        np.testing.assert_allclose(joint.sum(axis=0), q, atol=1e-12)
    np.testing.assert_allclose(gumbel_coupling(p, q), gumbel_coupling(q, p).T, atol=1e-12)


def test_equal_laws_always_agree():
    p = np.array([0.2, 0.5, 0.0, 0.3])
    np.testing.assert_allclose(gumbel_coupling(p, p), np.diag(p), atol=1e-15)
    np.testing.assert_allclose(luck_coupling(p, p), np.diag(p), atol=1e-15)


@pytest.mark.parametrize(
    ("p", "q"),
    [([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]), ([0.7, 0.0, 0.1, 0.2], [0.1, 0.6, 0.3, 0.0]), ([0.6, 0.4], [0.5, 0.5])],
)
def test_shared_gumbel_noise_chooses_as_computed(p, q):
    """χ² of 200,000 pairs of choices; error rate 0.1 %."""
    joint = gumbel_coupling(np.array(p), np.array(q))
    noise = np.random.default_rng(7).gumbel(size=(200_000, len(p)))
    with np.errstate(divide="ignore"):
        first, second = (np.log(p) + noise).argmax(axis=1), (np.log(q) + noise).argmax(axis=1)
    seen = np.zeros_like(joint)
    np.add.at(seen, (first, second), 1)
    possible = joint > 0
    assert not seen[~possible].any()
    expected = joint[possible] * 200_000
    statistic = ((seen[possible] - expected) ** 2 / expected).sum()
    assert statistic < chi2.ppf(0.999, possible.sum() - 1)


def test_what_is_no_distribution_is_refused():
    with pytest.raises(ValueError, match="no distribution"):
        gumbel_coupling(np.array([0.5, 0.4]), np.array([0.5, 0.5]))
    with pytest.raises(ValueError, match="one length"):
        gumbel_coupling(np.array([1.0]), np.array([0.5, 0.5]))
