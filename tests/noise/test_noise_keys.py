"""Keys, streams, coins: their bytes are pinned by golden vectors, because every stored run depends on them."""

import hashlib
import struct
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkgym.noise import FACTUAL_STREAM, Key, coin, episode_id, generator, luck_key, stream_id
from forkgym.noise.keys import splitmix64

U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (Key(0, 0), 0x60E46FA0F8E84C2D),
        (Key(1, 0), 0xC20887DED02415E2),
        (Key(1, 2, 3, 4, 5), 0x39A5C70B894DA191),
        (Key(2**64 - 1, 2**64 - 1, 2**64 - 1, 2**32 - 1, 2**32 - 1), 0xD2899AF619B3568C),
    ],
)
def test_hash64_is_pinned_by_golden_vectors(key, expected):
    assert key.hash64() == expected


def test_splitmix64_gives_the_published_outputs_of_seed_1234567():
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [splitmix64(1234567, index) for index in range(5)] == published


@given(U64, U64, U64, U32, U32)
def test_hash64_is_what_its_docstring_says_byte_by_byte(episode, turn, branch, line, position):
    data = b"\x00" + struct.pack("<Q", episode) + struct.pack("<Q", turn) + struct.pack("<Q", branch)
    prefix = int.from_bytes(hashlib.blake2b(data, digest_size=8, person=b"forkgym.noise/1").digest(), "little")
    z = (prefix + (line * 2**32 + position + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    assert Key(episode, turn, branch, line, position).hash64() == z ^ z >> 31


@given(st.sets(st.tuples(U32, U32), min_size=2, max_size=20))
def test_keys_of_one_turn_never_collide(places):
    assert len({Key(1, 2, 3, line, position).hash64() for line, position in places}) == len(places)


def test_ids_coins_and_luck_are_pinned_by_golden_vectors():
    assert episode_id(0, "train", 0, 0, 0) == 0xCC156E838CD9CA62
    assert episode_id(7, "test", 3, 17, 4) == 0x7F8150A3913C40EB
    assert stream_id(0, 3, "alternative", 1) == 0x77A2F006CC33A9B2
    assert stream_id(0, 3, "alternative", 1, 2) == 0x17F194B8073D48A8
    assert luck_key(1, 0, 2, "dice", 0) == 0xEAB0A71B4754EA6E
    assert coin(1, 2, "branch") == 0.36009564241765657


def test_every_argument_of_an_id_matters():
    base = (1, 2, "oracle", 3, 4)
    others = [(9, 2, "oracle", 3, 4), (1, 9, "oracle", 3, 4), (1, 2, "value", 3, 4), (1, 2, "oracle", 9, 4)]
    assert len({stream_id(*arguments) for arguments in [base, *others, (1, 2, "oracle", 3, 9)]}) == 6
    assert FACTUAL_STREAM not in {stream_id(*arguments) for arguments in [base, *others]}


def test_strings_are_length_prefixed_so_that_parts_cannot_run_into_each_other():
    assert luck_key(1, 0, 2, "a", 0x62) != luck_key(1, 0, 2, "ab", 0)
    assert luck_key(1, 0, 2, "ü", 0) != luck_key(1, 0, 2, "u", 0)


@settings(max_examples=50)
@given(U64, U64, st.text(max_size=8), U64)
def test_a_coin_lies_strictly_inside_the_unit_interval(episode, turn, purpose, index):
    assert 0.0 < coin(episode, turn, purpose, index) < 1.0


def test_coins_are_uniform_and_uncorrelated():
    """N = 20,000; each bound is 4 standard errors, so a correct coin fails with probability 2·6e-5 (fixed keys)."""
    count = 20_000
    coins = np.array([coin(5, turn, "branch") for turn in range(count)])
    assert abs(coins.mean() - 0.5) < 4 / np.sqrt(12 * count)
    assert abs(np.corrcoef(coins[:-1], coins[1:])[0, 1]) < 4 / np.sqrt(count)


def test_a_generator_is_a_function_of_its_key():
    assert generator(3).permutation(50).tolist() == generator(3).permutation(50).tolist()
    assert generator(3).permutation(50).tolist() != generator(4).permutation(50).tolist()


@pytest.mark.parametrize(
    "broken",
    [Key(-1, 0), Key(0, 2**64), Key(0, 0, -5), Key(0, 0, 0, 2**32), Key(0, 0, 0, 0, -1), Key("a", 0), Key(0.5, 0)],
)
def test_a_key_that_does_not_fit_its_bytes_is_refused(broken):
    with pytest.raises(ValueError, match="must"):
        broken.hash64()


def test_ids_refuse_negative_numbers_and_generators_refuse_non_keys():
    with pytest.raises(ValueError, match=r"forkgym\.episode needs integers"):
        episode_id(-1, "train", 0, 0, 0)
    with pytest.raises(ValueError, match=r"2\*\*64"):
        generator(2**64)
    with pytest.raises(TypeError, match="integer"):
        generator(1.5)
    with pytest.raises(TypeError, match="integer"):
        generator(True)


def test_importing_the_package_loads_neither_numba_nor_torch():
    code = "import sys, forkgym.noise; print([m for m in ('numba', 'torch', 'llvmlite') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
