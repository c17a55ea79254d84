"""The canonical form: equal exactly for equal values, the same in every process, and copies share nothing."""

import collections
import dataclasses
import enum
import random

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given

from forkgym.core import StateError, canonical, copy_state, digest

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=12,
)


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Point(msgspec.Struct):
    x: int
    tags: list[str] = []


@dataclasses.dataclass
class Pair:
    left: list[int]
    right: dict[str, float]


def typed(value):
    """A comparable that tells True from 1, 1 from 1.0, -0.0 from 0.0 and a list from a tuple."""
    if isinstance(value, dict):
        return ("dict", sorted(((typed(k), typed(v)) for k, v in value.items()), key=repr))
    if isinstance(value, list | tuple):
        return (type(value).__name__, [typed(item) for item in value])
    return (type(value).__name__, repr(value))


@given(PLAIN, PLAIN)
def test_two_values_share_a_form_exactly_when_they_are_equal_type_for_type(first, second):
    assert (canonical(first) == canonical(second)) == (typed(first) == typed(second))


@given(PLAIN)
def test_a_copy_has_the_same_form(value):
    assert canonical(copy_state(value)) == canonical(value)


@given(st.dictionaries(st.text(), st.integers(), min_size=2))
def test_the_order_of_a_mapping_does_not_matter(mapping):
    assert canonical(dict(reversed(mapping.items()))) == canonical(mapping)


def test_the_form_is_pinned_so_that_it_is_the_same_on_every_machine_and_in_every_release():
    state = {"words": ["a", "ß"], "n": -(2**70), "x": -0.0, "flag": True, "none": None, "a": np.arange(3, dtype=">i2")}
    assert digest(state) == "be5bf031f01c323819d9dd96b2a7c10dd4276332bd68b6116a3c4b1df892704f"


def test_a_set_of_strings_is_ordered_by_content_and_not_by_pythons_string_hash():
    assert canonical({"b", "a", "c"}) == canonical({"c", "b", "a"})


def test_all_nans_are_one_and_minus_zero_is_not_zero():
    other_nan = np.frombuffer(b"\x01\x00\x00\x00\x00\x00\xf8\x7f", dtype="<f8")[0]
    assert canonical(float("nan")) == canonical(-float("nan"))
    assert canonical(np.array([np.nan])) == canonical(np.array([other_nan]))
    assert canonical(0.0) != canonical(-0.0)
    assert canonical(np.array([0.0])) != canonical(np.array([-0.0]))


def test_arrays_differ_by_dtype_and_shape_and_not_by_memory_layout_or_byte_order():
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert canonical(array) == canonical(np.asfortranarray(array)) == canonical(array.astype(">i4"))
    assert canonical(array) != canonical(array.astype(np.int64))
    assert canonical(array) != canonical(array.reshape(3, 2))


@pytest.mark.parametrize(
    "value",
    [
        Point(1, ["a"]),
        Pair([1], {"a": 0.5}),
        Colour.RED,
        {1, 2},
        frozenset({"x"}),
        np.array([["a", "b"]]),
        np.array([1, "x", None], dtype=object),
        np.float32(0.5),
        1 + 2j,
        bytearray(b"xyz"),
        np.random.default_rng(3),
        random.Random(3),
        collections.OrderedDict(b=[1], a=2),
        collections.Counter("abca"),
        collections.namedtuple("Place", "x y")(1, [2]),
        type("Names", (list,), {})(["a"]),
        type("Number", (int,), {})(7),
        enum.IntFlag("Flags", "A B").A,
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_declared_type_has_a_form_and_a_faithful_copy(value):
    assert canonical(copy_state(value)) == canonical(value)


def test_structs_and_enums_differ_by_class_field_and_member():
    assert canonical(Point(1)) != canonical(Point(2))
    assert canonical(Colour.RED) != canonical(Colour.BLUE)
    assert canonical(Pair([1], {})) != canonical({"left": [1], "right": {}})


def test_a_generator_changes_its_form_with_each_draw_and_its_copy_does_not():
    rng = np.random.default_rng(0)
    copied = copy_state(rng)
    before = canonical(rng)
    rng.random()
    assert canonical(rng) != before
    assert canonical(copied) == before


def test_writing_to_a_copy_leaves_the_original_alone_at_every_depth():
    original = {"list": [[1]], "array": np.zeros(2), "set": {1}, "struct": Point(1, ["a"]), "pair": Pair([1], {})}
    before = canonical(original)
    copied = copy_state(original)
    copied["list"][0].append(2)
    copied["array"][0] = 1
    copied["set"].add(2)
    copied["struct"].tags.append("b")
    copied["pair"].left.append(3)
    assert canonical(original) == before


def test_a_value_without_a_form_is_named_by_its_path_with_the_remedy():
    with pytest.raises(StateError, match=r"state\['world'\]\[1\] is a builtins\.object.*return such a description"):
        canonical({"world": [1, object()]})
    with pytest.raises(StateError, match="no canonical form"):
        copy_state({"f": lambda: 0})


def test_a_state_that_refers_to_itself_is_refused_instead_of_overflowing_the_stack():
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(StateError, match="refers to itself"):
        canonical(loop)
