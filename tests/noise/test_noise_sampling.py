"""Sampling: every sampler returns the token of the full float64 argmax, and that token follows the distribution."""

import importlib.util

import numpy as np
import pytest
from scipy import stats

from forkgym.noise import (
    Key,
    KeyStream,
    Layout,
    behaviour_logprobs,
    greedy,
    nucleus,
    sample,
    sample_batch,
    sample_full,
    token_statistics,
    words,
)

BACKENDS = ["numpy", "numba"]
pytest.importorskip("numba", reason="numba is not installed")


def random_case(rng):
    """A row of logits with ties, masks, offsets and vocabulary sizes around the chunk borders; key, τ and top-p."""
    size = int(rng.choice([1, 2, 3, 5, 511, 512, 513, 1025, 4097, *rng.integers(1, 6000, size=4)]))
    if rng.random() < 0.03:
        size = int(rng.choice([32_768, 32_769, 50_000, 70_001]))
    logits = rng.standard_normal(size) * rng.choice([0, 0.1, 1, 3, 10, 100])
    if rng.random() < 0.3:
        logits = np.round(logits)
    logits += rng.choice([0, 0, 0, -1e4, 1e4])
    logits = logits.astype(rng.choice([np.float32, np.float32, np.float32, np.float64]))
    masked = rng.random(size) < rng.choice([0, 0, 0.5, 0.99, 1])
    masked[rng.integers(size)] = False
    logits[masked] = -np.inf
    temperature = float(rng.choice([0.05, 0.3, 1, 1, 2.5, 50]))
    top_p = float(rng.choice([1, 1, 1, 0.999, 0.9, 0.5, 0.01, 1 - 1e-12]))
    return logits, int(rng.integers(2**64, dtype=np.uint64)), temperature, top_p


def mismatches(rng, cases):
    found = []
    for number in range(cases):
        logits, key, temperature, top_p = random_case(rng)
        expected = sample_full(logits, key, temperature, top_p)
        for backend in BACKENDS:
            token = sample(logits, key, temperature, top_p, backend=backend)
            if token != expected:
                found.append((number, backend, expected, token))
    return found


def test_bounded_and_full_argmax_agree_on_400_random_cases():
    assert mismatches(np.random.default_rng(1), 400) == []


@pytest.mark.slow
def test_bounded_and_full_argmax_agree_on_12000_random_cases():
    assert mismatches(np.random.default_rng(2), 12_000) == []


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.0, 1.0, 2.5, 6.0])
def test_bounded_and_full_argmax_agree_at_a_vocabulary_of_151936(scale):
    rng = np.random.default_rng(3)
    for number in range(75):
        logits = (rng.standard_normal(151_936) * scale).astype(np.float32)
        logits[rng.integers(151_936, size=8)] += np.linspace(0, 16, 8, dtype=np.float32)
        if number % 3 == 0:
            logits[rng.random(151_936) < 0.9] = -np.inf
        key = Key(number, 0).hash64()
        top_p = 1.0 if number % 5 else 0.9
        expected = sample_full(logits, key, 1.0, top_p)
        assert [sample(logits, key, 1.0, top_p, backend=backend) for backend in BACKENDS] == [expected] * 2


def equal_words(key, size):
    """Two tokens that read the same word under this key, or None."""
    values = words(key, size)
    order = np.argsort(values, kind="stable")
    pairs = np.flatnonzero(np.diff(values[order].astype(np.int64)) == 0)
    return sorted(order[pairs[0] : pairs[0] + 2].tolist()) if pairs.size else None


def test_an_exact_tie_goes_to_the_lowest_id_on_every_backend():
    """At V = 151,936 some words repeat (birthday bound); equal logits there are an exact tie of scores."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from forkgym.noise.torch_backend import sample_torch

    candidates = ((key, equal_words(key, 151_936)) for key in (Key(episode, 0).hash64() for episode in range(8)))
    ties = [(key, pair) for key, pair in candidates if pair]
    assert len(ties) >= 4
    for key, (first, second) in ties:
        logits = np.zeros(151_936, dtype=np.float32)
        logits[[first, second]] = 60.0
        for top_p in (1.0, 0.999):
            assert sample_full(logits, key, 1.0, top_p) == first
            assert [sample(logits, key, 1.0, top_p, backend=backend) for backend in BACKENDS] == [first, first]
            assert sample_torch(torch.from_numpy(logits)[None], [key], 1.0, top_p).tolist() == [first]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_sample_batch_is_sample_row_by_row(backend, top_p):
    rng = np.random.default_rng(4)
    logits = (rng.standard_normal((17, 1500)) * 3).astype(np.float32)
    keys = rng.integers(2**64, size=17, dtype=np.uint64)
    tokens = sample_batch(logits, keys, 0.8, top_p, backend=backend)
    assert tokens.dtype == np.int64
    assert tokens.tolist() == [
        sample(row, int(key), 0.8, top_p, backend=backend) for row, key in zip(logits, keys, strict=True)
    ]
    order = rng.permutation(17)
    assert sample_batch(logits[order], keys[order], 0.8, top_p, backend=backend).tolist() == tokens[order].tolist()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_torch_chooses_the_reference_tokens(dtype):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from forkgym.noise.torch_backend import sample_torch

    rng = np.random.default_rng(5)
    for top_p in (1.0, 0.9, 0.3):
        logits = np.round(rng.standard_normal((40, 700)) * 3, 1).astype(np.float32)
        logits[:, rng.random(700) < 0.2] = -np.inf
        keys = rng.integers(2**64, size=40, dtype=np.uint64)
        expected = [sample_full(row, int(key), 0.7, top_p) for row, key in zip(logits, keys, strict=True)]
        tokens = sample_torch(torch.from_numpy(logits), keys, 0.7, top_p, dtype=getattr(torch, dtype))
        assert tokens.tolist() == expected


def test_torch_groups_of_rows_do_not_change_the_tokens():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from forkgym.noise import torch_backend

    logits = torch.from_numpy(np.random.default_rng(6).standard_normal((5, 900)).astype(np.float32))
    whole = torch_backend.sample_torch(logits, range(5)).tolist()
    alone = [int(torch_backend.sample_torch(logits[row : row + 1], [row])) for row in range(5)]
    assert whole == alone
    assert torch_backend.sample_torch(logits[:0], []).tolist() == []


def test_float16_logits_are_widened_exactly():
    logits = np.random.default_rng(7).standard_normal(300).astype(np.float16)
    assert [sample(logits, key, backend="numba") for key in range(50)] == [
        sample_full(logits.astype(np.float32), key) for key in range(50)
    ]


def test_the_kernels_mean_the_same_interpreted_as_compiled(monkeypatch):
    """Guards against arithmetic that numba types differently from numpy (and lets coverage see the kernels)."""
    import numba

    from forkgym.noise import numba_backend

    def results(kernels):
        rng = np.random.default_rng(9)
        tokens, statistics = [], []
        for dtype, top_p in ((np.float32, 1.0), (np.float32, 0.9), (np.float64, 1.0), (np.float64, 0.4)):
            rows = np.round(rng.standard_normal((4, 1027)) * 3, 1).astype(dtype)
            rows[:, rng.random(1027) < 0.3] = -np.inf
            rows[3] = np.nan
            tokens.append(kernels.sample_rows(rows, rng.integers(2**64, size=4, dtype=np.uint64), 0.7, top_p))
            failed, *values = kernels.statistics_rows(rows, np.arange(4), 0.7, top_p)
            assert failed == tokens[-1].argmin() == 3
            statistics.append(np.array(values)[:, :3])
        block = kernels.philox_block(np.uint64(0), np.zeros(4, dtype=np.uint64))
        return np.array(tokens), np.array(statistics), kernels.words(5, 103), block, kernels.gumbel(5, 103)

    compiled = results(numba_backend)  # before the switch: numba cannot compile while it is off
    monkeypatch.setattr(numba.config, "DISABLE_JIT", True)
    spec = importlib.util.spec_from_file_location("interpreted_kernels", numba_backend.__file__)
    interpreted = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(interpreted)
    for value, expected in zip(results(interpreted), compiled, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-13 if expected.dtype == np.float64 else 0)


def test_kernels_compile_where_nothing_can_be_cached():
    """numba refuses to cache a function that no file holds, as it does where no folder can be written."""
    from forkgym.noise.numba_backend import _jit

    names = {}
    exec("def double(x):\n    return 2 * x", names)
    assert _jit(names["double"])(21) == 42


# --- the distribution ---------------------------------------------------------------------------------------


def turn_line_keys(count):
    """The keys of a long trajectory, as a rollout would read them."""
    stream = KeyStream(Layout.TURN_LINE, 11, newlines=np.array([0, 1], dtype=np.uint8))
    keys = np.empty(count, dtype=np.uint64)
    for number in range(count):
        if number % 50 == 0:
            stream.start_turn(number // 50, 0)
        keys[number] = stream.key64()
        stream.advance(int(number % 7 == 3))
    return keys


def chi_square_p_value(counts, probabilities):
    """p-value of Pearson's test; tokens expected fewer than five times share one cell."""
    expected = probabilities * counts.sum()
    rare = expected < 5
    observed = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    if expected[-1] == 0:
        assert observed[-1] == 0, "a token of probability 0 was sampled"
        observed, expected = observed[:-1], expected[:-1]
    return stats.chisquare(observed, expected).pvalue if expected.size > 1 else 1.0


KEYS = turn_line_keys(24_000)
TESTS = [(size, tau, top_p) for size in (5, 64, 1000) for tau in (0.6, 1.0, 1.7) for top_p in (1.0, 0.9)]


def sampled_counts(row, temperature, top_p):
    counts = np.zeros(row.size, dtype=np.int64)
    for keys in np.split(KEYS, 8):
        tokens = sample_batch(np.broadcast_to(row, (keys.size, row.size)), keys, temperature, top_p)
        counts += np.bincount(tokens, minlength=row.size)
    return counts


@pytest.mark.parametrize(("size", "temperature", "top_p"), TESTS)
def test_sampled_tokens_follow_the_behaviour_distribution(size, temperature, top_p):
    """χ² at N = 24,000; family-wise error rate 1e-3 (Bonferroni over 18 tests), and fixed keys: it cannot flake."""
    row = (np.random.default_rng(size).standard_normal(size) * 1.5).astype(np.float32)
    row[size // 2] = -np.inf
    probabilities = np.exp(behaviour_logprobs(row[None], temperature, top_p)[0])
    assert chi_square_p_value(sampled_counts(row, temperature, top_p), probabilities) > 1e-3 / len(TESTS)


def test_the_chi_square_test_notices_a_wrong_temperature():
    row = (np.random.default_rng(64).standard_normal(64) * 1.5).astype(np.float32)
    wrong = np.exp(behaviour_logprobs(row[None], 1.05)[0])
    assert chi_square_p_value(sampled_counts(row, 1.0, 1.0), wrong) < 1e-3 / len(TESTS)


# --- nucleus, greedy, statistics ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("probabilities", "top_p", "expected"),
    [
        ([0.5, 0.25, 0.25], 0.5, [0]),
        ([0.5, 0.25, 0.25], 0.51, [0, 1]),
        ([0.25, 0.5, 0.25], 0.75, [0, 1]),
        ([0.25, 0.25, 0.25, 0.25], 0.5, [0, 1]),
        ([0.1, 0.9], 1e-9, [1]),
        ([0.0, 1.0, 0.0], 0.999, [1]),
        ([0.2, 0.3, 0.5], 1.0, [0, 1, 2]),
    ],
)
def test_the_nucleus_by_hand(probabilities, top_p, expected):
    assert nucleus(np.array(probabilities), top_p).tolist() == expected
    if min(probabilities) > 0:
        logits = np.log(np.array([probabilities]))
        support = np.isfinite(behaviour_logprobs(logits, 1.0, top_p)[0])
        assert np.flatnonzero(support).tolist() == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_single_token_nucleus_is_always_chosen(backend):
    logits = np.array([0.0, 3.0, -np.inf, 3.0, 1.0], dtype=np.float32)
    assert {sample(logits, key, 1.0, 1e-6, backend=backend) for key in range(100)} == {1}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_nucleus_of_equal_tokens_takes_the_lowest_ids(backend):
    logits = np.zeros(1000, dtype=np.float32)
    tokens = {sample(logits, key, 1.0, 0.01, backend=backend) for key in range(400)}
    assert tokens == set(range(10))


def test_greedy_takes_the_lowest_id_among_equals():
    assert greedy([0.0, 2.0, 2.0]) == 1
    assert greedy(np.array([[0.0, 2.0, 2.0], [-np.inf, -5.0, -5.0]])).tolist() == [1, 1]


def test_behaviour_logprobs_by_hand():
    logits = np.log(np.array([[4.0, 2.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]))
    logits[1, 3] = -np.inf
    np.testing.assert_allclose(np.exp(behaviour_logprobs(logits, 1.0)[0]), [0.5, 0.25, 0.125, 0.125])
    np.testing.assert_allclose(np.exp(behaviour_logprobs(logits, 0.5)[0]), np.array([16, 4, 1, 1]) / 22)
    np.testing.assert_allclose(np.exp(behaviour_logprobs(logits, 1.0, 0.7)), [[2 / 3, 1 / 3, 0, 0], [1 / 3] * 3 + [0]])


@pytest.mark.parametrize("backend", BACKENDS)
def test_token_statistics_by_hand(backend):
    logits = np.log(np.array([[4.0, 2.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0], [8.0, 1.0, 1.0, 1.0]]))
    logits[2, 1:] = -np.inf
    logprobs, entropies, gini_impurities = token_statistics(logits, [1, 0, 0], backend=backend)
    np.testing.assert_allclose(logprobs, [np.log(0.25), np.log(0.25), 0.0], atol=1e-15)
    np.testing.assert_allclose(entropies, [1.75 * np.log(2), np.log(4), 0.0], atol=1e-15)
    np.testing.assert_allclose(gini_impurities, [1 - 11 / 32, 0.75, 0.0], atol=1e-15)
    logprobs, _, _ = token_statistics(logits, [3, 0, 0], 1.0, 0.6, backend=backend)
    assert logprobs[0] == -np.inf


def test_token_statistics_agree_between_backends_in_random_cases():
    rng = np.random.default_rng(8)
    for _ in range(200):
        logits, _, temperature, top_p = random_case(rng)
        token = [int(rng.integers(logits.size))]
        ours = token_statistics(logits[None], token, temperature, top_p, backend="numba")
        reference = token_statistics(logits[None], token, temperature, top_p, backend="numpy")
        for value, expected in zip(ours, reference, strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-11, atol=1e-11)


# --- hostile input ------------------------------------------------------------------------------------------

GOOD = np.zeros(8, dtype=np.float32)


def with_value(value):
    row = GOOD.copy()
    row[3] = value
    return row


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("top_p", [1.0, 0.9])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("row", "message"),
    [
        (with_value(np.nan), "1 NaN"),
        (with_value(-np.nan), "1 NaN"),
        (with_value(np.inf), "1 NaN or"),
        (np.full(8, np.nan), "8 NaN"),
        (np.full(8, -np.inf), "leaves no token"),
    ],
)
def test_a_row_without_a_possible_token_says_so(backend, top_p, dtype, row, message):
    rows = np.stack([GOOD, row]).astype(dtype)
    with pytest.raises(ValueError, match=message):
        sample(rows[1], 1, 1.0, top_p, backend=backend)
    with pytest.raises(ValueError, match=f"row 1.*{message}"):
        sample_batch(rows, [1, 2], 1.0, top_p, backend=backend)
    with pytest.raises(ValueError, match=f"row 1.*{message}"):
        token_statistics(rows, [0, 0], 1.0, top_p, backend=backend)
    with pytest.raises(ValueError, match=message):
        greedy(rows)
    with pytest.raises(ValueError, match=message):
        sample_full(rows[1], 1, 1.0, top_p)


@pytest.mark.parametrize("backend", BACKENDS)
def test_malformed_arguments_say_what_is_wrong(backend):
    def refused(error, message, logits=GOOD, key=1, temperature=1.0, top_p=1.0):
        with pytest.raises(error, match=message):
            sample(logits, key, temperature, top_p, backend=backend)

    for temperature in (0.0, -1.0, np.nan, np.inf):
        refused(ValueError, "temperature", temperature=temperature)
    for top_p in (0.0, -0.1, 1.1, np.nan):
        refused(ValueError, "top_p", top_p=top_p)
    refused(ValueError, "greedy", logits=GOOD + 10, temperature=1e-308)
    refused(ValueError, "empty", logits=GOOD[:0])
    refused(ValueError, "shape", logits=GOOD[None])
    refused(TypeError, "int64", logits=GOOD.astype(np.int64))
    refused(TypeError, "complex", logits=GOOD.astype(np.complex64))
    refused(TypeError, "object", logits=np.array([None, 1.0]))
    refused(ValueError, "key", key=-1)
    refused(TypeError, "key", key=1.0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_malformed_batches_say_what_is_wrong(backend):
    rows = np.stack([GOOD, GOOD])
    for keys, error in (([1], ValueError), ([1, -1], ValueError), (np.array([1, 2]), TypeError)):
        with pytest.raises(error, match="key"):
            sample_batch(rows, keys, backend=backend)
    with pytest.raises(ValueError, match="shape"):
        sample_batch(GOOD, [1], backend=backend)
    for tokens, error in (([0], ValueError), ([0, 8], ValueError), ([0, -1], ValueError), ([0.0, 1.0], TypeError)):
        with pytest.raises(error, match="tokens"):
            token_statistics(rows, tokens, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_batch_is_empty(backend):
    rows = np.zeros((0, 8), dtype=np.float32)
    assert sample_batch(rows, [], backend=backend).tolist() == []
    assert [part.tolist() for part in token_statistics(rows, np.empty(0, dtype=int), backend=backend)] == [[]] * 3


def test_an_unknown_backend_is_refused():
    with pytest.raises(ValueError, match="backend"):
        sample(GOOD, 1, backend="fortran")


def test_torch_refuses_what_numpy_refuses():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from forkgym.noise.torch_backend import sample_torch

    good = torch.zeros(2, 8)
    broken = good.clone()
    broken[1, 3] = torch.nan
    for logits, keys, error, message in (
        (broken, [1, 2], ValueError, "row 1.*nan"),
        (good - torch.inf, [1, 2], ValueError, "row 0.*-inf"),
        (good, [1], ValueError, "keys"),
        (good[0], [1], ValueError, "shape"),
        (good.long(), [1, 2], TypeError, "floating"),
    ):
        with pytest.raises(error, match=message):
            sample_torch(logits, keys)
    with pytest.raises(ValueError, match="temperature"):
        sample_torch(good, [1, 2], 0.0)
