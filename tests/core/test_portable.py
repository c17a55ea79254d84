"""Actions survive the trip through a handle exactly, and hostile data does nothing but raise."""

import json

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from forkgym.core import HandleError, StateError, canonical
from forkgym.core.portable import from_portable, plain, to_portable

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=12,
)


@given(VALUES)
def test_any_action_comes_back_from_json_exactly(value):
    through = json.loads(json.dumps(to_portable(value), allow_nan=False))
    assert canonical(from_portable(through)) == canonical(value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array(3.5),
        np.float32(1.25),
        np.zeros((0, 4)),
        np.array([True, False]),
        np.array(["ab", "c"]),
        np.array([1.0, np.nan, -np.inf]),
        np.arange(3, dtype=">i8"),
    ],
    ids=repr,
)
def test_numpy_actions_come_back_with_dtype_and_shape(array):
    back = from_portable(json.loads(json.dumps(to_portable(array))))
    assert canonical(back) == canonical(array)


def test_numpy_integers_and_booleans_are_pythons_own_before_an_environment_sees_them():
    assert type(plain(np.int64(3))) is int
    assert type(plain(np.bool_(True))) is bool
    assert plain("x") == "x"


def test_half_a_surrogate_pair_survives_though_json_has_none():
    for value in ("\ud800", {"\udfff": "x"}, ["a\ud83d"]):
        assert from_portable(json.loads(json.dumps(to_portable(value)).encode())) == value


def test_a_mapping_that_looks_like_an_encoded_value_is_not_mistaken_for_one():
    assert from_portable(to_portable({"$bytes": "AAAA"})) == {"$bytes": "AAAA"}


def test_the_portable_form_shares_no_list_with_the_action():
    action = {"arguments": {"path": ["a"]}}
    recorded = to_portable(action)
    action["arguments"]["path"].append("b")
    assert recorded == {"arguments": {"path": ["a"]}}


def test_an_action_that_no_handle_can_carry_is_refused_with_the_remedy():
    with pytest.raises(StateError, match=r"holds a builtins\.object, which a handle cannot carry. Use"):
        to_portable({"x": object()})
    with pytest.raises(StateError):
        to_portable(np.array([object()], dtype=object))
    deep: list[object] = []
    for _ in range(200):
        deep = [deep]
    with pytest.raises(StateError, match="nested more than 100 deep"):
        to_portable(deep)


@pytest.mark.parametrize(
    "hostile",
    [
        {"$pickle": "gASVJAAAAA=="},
        {"$bytes": "not base64 !"},
        {"$bytes": 7},
        {"$int": "9" * 5000},
        {"$int": "0x10"},
        {"$float": "zz"},
        {"$float": "00"},
        {"$array": ["|O", [1], "AAAAAAAAAAA="]},
        {"$array": ["<f8", [10**12], "AAAA"]},
        {"$array": ["<f8", [-1], "AAAAAAAAAAA="]},
        {"$array": []},
        {"$scalar": ["os.system", "AAAA"]},
        {"$tuple": 3},
        {"$dict": [[1]]},
        {"$dict": [[[1], 2]]},
        {"$tuple": [], "more": 1},
    ],
    ids=lambda hostile: json.dumps(hostile)[:40],
)
def test_malformed_encoded_values_are_data_errors_with_the_remedy(hostile):
    with pytest.raises(HandleError, match="do not edit the encoded values by hand"):
        from_portable(hostile)
