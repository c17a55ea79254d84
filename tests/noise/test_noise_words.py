"""Words and noise: every backend reproduces Random123's known answers and agrees with numpy word for word."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkgym.noise import gumbel, philox4x32, words
from forkgym.noise.gumbel import LARGEST_NOISE, needed_noise, noise_of_words, smallest_winning_word
from forkgym.noise.philox import philox_blocks, words_at

numba_backend = pytest.importorskip("forkgym.noise.numba_backend", reason="numba is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")
torch_backend = pytest.importorskip("forkgym.noise.torch_backend")

U64 = st.integers(0, 2**64 - 1)
# Random123's kat_vectors, philox4x32-10: counter, key, output (32-bit words, least significant first).
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def joined(parts):
    return sum(part << 32 * index for index, part in enumerate(parts))


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN_ANSWERS)
def test_every_backend_gives_random123s_known_answers(counter, key, output):
    key64 = joined(key)
    assert philox4x32(key64, joined(counter)) == output
    block = numba_backend.philox_block(np.uint64(key64), np.array(counter, dtype=np.uint64))
    assert tuple(block.tolist()) == output
    signed = torch.from_numpy(np.array([key64], dtype=np.uint64).view(np.int64))
    parts = torch_backend.philox_torch(signed, tuple(torch.tensor([word]) for word in counter))
    assert tuple(int(part) for part in parts) == output


def test_numpy_and_torch_words_begin_with_the_known_answer():
    assert tuple(words(0, 4).tolist()) == KNOWN_ANSWERS[0][2]
    assert tuple(torch_backend.words_torch([0], 4)[0].tolist()) == KNOWN_ANSWERS[0][2]


@settings(max_examples=60, deadline=None)
@given(U64, st.integers(0, 3000))
def test_backends_agree_word_for_word(key, count):
    reference = words(key, count)
    assert reference.dtype == np.uint32
    assert reference.shape == (count,)
    assert np.array_equal(numba_backend.words(key, count), reference)
    assert np.array_equal(torch_backend.words_torch([key], count)[0].numpy(), reference)


def test_backends_agree_word_for_word_at_a_large_vocabulary():
    reference = words(2**63 + 5, 151_936)
    assert np.array_equal(numba_backend.words(2**63 + 5, 151_936), reference)
    keys = np.array([1, 2**63 + 5], dtype=np.uint64)
    assert np.array_equal(torch_backend.words_torch(keys, 151_936)[1].numpy(), reference)


@given(U64, st.lists(st.integers(0, 10**6), min_size=1, max_size=20))
def test_a_tokens_word_is_one_lane_of_its_block(key, ids):
    expected = [philox4x32(key, token // 4)[token % 4] for token in ids]
    assert words_at(key, np.array(ids)).tolist() == expected


def test_counters_beyond_32_bits_use_the_second_counter_word():
    blocks = philox_blocks(9, np.array([2**40 + 3], dtype=np.uint64))
    assert tuple(blocks[0].tolist()) == philox4x32(9, 2**40 + 3)


@settings(max_examples=30, deadline=None)
@given(U64, st.integers(1, 500))
def test_noise_agrees_between_backends_to_the_last_bits(key, count):
    reference = gumbel(key, count)
    np.testing.assert_allclose(numba_backend.gumbel(key, count), reference, rtol=1e-14, atol=1e-15)
    noise = torch_backend.gumbel_torch([key], count)[0]
    assert noise.dtype == torch.float64
    np.testing.assert_allclose(noise.numpy(), reference, rtol=1e-14, atol=1e-15)


EXTREME = np.array([0, 1, 2, 2**31 - 1, 2**31, 2**32 - 3, 2**32 - 2, 2**32 - 1], dtype=np.uint32)


def test_extreme_words_give_finite_noise_in_order_on_every_backend():
    reference = noise_of_words(EXTREME)
    assert reference[0] == pytest.approx(-math.log(33 * math.log(2)))
    assert reference[-1] == pytest.approx(33 * math.log(2))
    assert reference[-1] < LARGEST_NOISE
    compiled = [numba_backend._noise(np.uint64(word)) for word in EXTREME]
    tensor = torch.from_numpy(EXTREME.astype(np.int64))
    double = torch_backend.noise_of_words_torch(tensor).numpy()
    single = torch_backend.noise_of_words_torch(tensor, torch.float32).numpy().astype(np.float64)
    for noise, tolerance in ((compiled, 1e-14), (double, 1e-14), (single, 1e-6)):
        assert np.all(np.isfinite(noise))
        np.testing.assert_allclose(noise, reference, rtol=tolerance, atol=tolerance)
    # Below 2³¹ neighbouring words share a float32; the right tail, where choices are made, keeps its order.
    assert np.all(np.diff(single[-3:]) > 0.4)


def test_float32_noise_follows_float64_everywhere():
    tensor = torch.from_numpy(words(77, 100_000).astype(np.int64))
    single = torch_backend.noise_of_words_torch(tensor, torch.float32).double()
    assert float((single - torch_backend.noise_of_words_torch(tensor)).abs().max()) < 3e-6
    with pytest.raises(ValueError, match="float64 or float32"):
        torch_backend.noise_of_words_torch(tensor, torch.float16)


def test_gumbel_noise_has_the_gumbel_distribution():
    """Kolmogorov–Smirnov at N = 100,000: false alarm probability below 2·exp(−2·2.5²) = 7.5e-6 (the key is fixed)."""
    count = 100_000
    ordered = np.sort(gumbel(123, count))
    distance = np.abs(np.exp(-np.exp(-ordered)) - (np.arange(count) + 0.5) / count).max()
    assert distance < 2.5 / math.sqrt(count)


@given(st.floats(-30, 30), st.integers(0, 2**32 - 1))
def test_the_word_bound_never_excludes_a_word_that_reaches_the_need(need, word):
    if noise_of_words(np.array([word], dtype=np.uint32))[0] >= need:
        assert word >= smallest_winning_word(need)
        assert word >= int(numba_backend._smallest_winning_word(need))


@given(st.floats(-5, 22.8))
def test_the_word_bound_is_tight_to_two_words(need):
    bound = smallest_winning_word(need)
    assert bound <= 2 or noise_of_words(np.array([bound - 2], dtype=np.uint32))[0] < need


def test_the_needed_noise_allows_for_rounding():
    assert needed_noise(3.0, 1.0) < 2.0
    assert needed_noise(1e9 + 2, 1e9) < 2 - 1e-6
    assert needed_noise(3.0, -math.inf) == math.inf


def test_device_keys_hash_like_the_host():
    from forkgym.noise.keys import splitmix64

    prefixes = [0, 5, 2**63, 2**64 - 1]
    places = [0, 2**32 + 7, 2**63 + 1, 2**64 - 1]
    keys = torch_backend.splitmix64_torch(torch_backend.keys_tensor(prefixes), torch_backend.keys_tensor(places))
    expected = [splitmix64(prefix, place) for prefix, place in zip(prefixes, places, strict=True)]
    assert keys.numpy().view(np.uint64).tolist() == expected


@pytest.mark.parametrize("key", [-1, 2**64])
def test_keys_out_of_range_are_refused(key):
    for call in (lambda: words(key, 3), lambda: gumbel(key, 3), lambda: philox4x32(key, 0)):
        with pytest.raises(ValueError, match=r"2\*\*64"):
            call()


def test_other_malformed_arguments_are_refused():
    with pytest.raises(TypeError, match="integer"):
        words("key", 3)
    with pytest.raises(ValueError, match="negative"):
        words(1, -1)
    with pytest.raises(ValueError, match="negative"):
        torch_backend.words_torch([1], -1)
    with pytest.raises(ValueError, match=r"2\*\*128"):
        philox4x32(0, 2**128)
    with pytest.raises(TypeError, match="int64"):
        torch_backend.keys_tensor(torch.zeros(3))
