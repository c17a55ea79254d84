"""Handles: small, portable, verified turn by turn, and harmless when they come from a stranger."""

import json

import msgspec
import pytest

import forkgym
from forkgym import Handle, Luck, ReplayDivergence
from forkgym.core import HandleError, UnknownArgumentError, UnknownEnvironmentError
from tests.core.core_worlds import Dice, Guess, ReplayedDice

forkgym.register("core/Dice-v0", "tests.core.core_worlds:Dice")
forkgym.register("core/Guess-v0", "tests.core.core_worlds:Guess")


def played(turns=6, **kwargs):
    env = forkgym.make("core/Dice-v0", **kwargs)
    env.reset(seed=11, options={"rolls": [1]})
    for turn in range(turns):
        if turn == 3:
            env = env.fork(luck=Luck.fresh(77))
        env.step(turn % 4)
    return env


@pytest.mark.parametrize("encode", [lambda h: Handle.from_json(h.to_json()), lambda h: Handle.from_bytes(h.to_bytes())])
def test_a_handle_survives_both_encodings_and_rebuilds_the_state(encode):
    env = played(sides=9)
    handle = encode(env.handle())
    assert handle == env.handle()
    again = forkgym.replay(handle)
    assert again.state_hash() == env.state_hash()
    assert again.step(0)[:4] == env.step(0)[:4]


def test_a_handle_shows_itself_briefly():
    assert repr(played(turns=2).handle()) == "<Handle of core/Dice-v0: seed 11, 2 actions>"


def test_make_takes_a_handle():
    env = played()
    assert forkgym.make(env.handle()).state_hash() == env.state_hash()
    with pytest.raises(UnknownArgumentError, match="holds them all"):
        forkgym.make(env.handle(), sides=3)


def test_a_handle_records_arguments_limit_options_luck_and_versions():
    env = forkgym.make("core/Dice-v0", sides=9, max_episode_steps=4)
    env.reset(seed=1)
    env.step(0)
    handle = env.handle()
    assert (handle.env, handle.kwargs, handle.max_episode_steps) == ("core/Dice-v0", {"sides": 9}, 4)
    assert (handle.env_version, handle.forkgym) == ("1", forkgym.__version__)
    again = forkgym.replay(handle)
    assert [again.step(0)[3] for _ in range(3)] == [False, False, True]
    assert played().handle().luck == [(3, 77)]


def test_fresh_luck_at_the_very_end_is_part_of_the_state():
    env = played(turns=2).fork(luck=Luck.fresh(5)).fork(luck=Luck.fresh(6))
    assert env.handle().luck == [(2, 6)]
    assert forkgym.replay(env.handle()).state_hash() == env.state_hash()


@pytest.mark.parametrize("turns", [0, 1, 19])
def test_a_handle_takes_its_actions_and_at_most_one_kilobyte_and_16_bytes_a_turn(turns):
    env = played(turns=turns)
    actions = len(msgspec.msgpack.encode(env.handle().actions))
    assert len(env.handle().to_bytes()) <= actions + 1024 + 16 * turns


def test_a_text_episode_is_recorded_as_it_was_said():
    env = forkgym.make("core/Guess-v0")
    env.reset(seed=3, options={"split": "test"})
    env.step('I think {"tool": "guess", "arguments": {"number": 11}}')
    env.step({"tool": "guess", "arguments": {"number": 12}})
    env.step("gibberish ß")
    again = forkgym.replay(Handle.from_bytes(env.handle().to_bytes()))
    assert again.messages() == env.messages()
    assert again.state_hash() == env.state_hash()


# ---------------------------------------------------------------------- divergence


@pytest.mark.parametrize("turn", range(1, 7))
def test_a_changed_action_is_noticed_at_its_own_turn(turn):
    handle = played().handle()
    actions = list(handle.actions)
    actions[turn - 1] = (actions[turn - 1] + 1) % 4
    with pytest.raises(ReplayDivergence) as caught:
        forkgym.replay(msgspec.structs.replace(handle, actions=actions))
    assert caught.value.turn == turn
    assert f"at turn {turn}" in str(caught.value)
    assert str(actions[turn - 1]) in caught.value.diff


@pytest.mark.parametrize("turn", range(7))
def test_a_changed_link_is_noticed_at_its_own_turn(turn):
    handle = played().handle()
    chain = bytearray(handle.chain)
    chain[16 * turn] ^= 1
    with pytest.raises(ReplayDivergence) as caught:
        forkgym.replay(msgspec.structs.replace(handle, chain=bytes(chain)))
    assert caught.value.turn == turn
    assert caught.value.expected != caught.value.got


@pytest.mark.parametrize(
    "change",
    [{"seed": 12}, {"options": {"rolls": [2]}}, {"kwargs": {"sides": 5}}, {"luck": [(3, 78)]}, {"luck": []}],
    ids=str,
)
def test_a_change_of_any_other_field_is_noticed_too(change):
    with pytest.raises(ReplayDivergence):
        forkgym.replay(msgspec.structs.replace(played().handle(), **change))


def test_final_verification_looks_at_the_last_turn_only_and_off_at_none():
    handle = played().handle()
    middle = bytearray(handle.chain)
    middle[16 * 2] ^= 1
    corrupted = msgspec.structs.replace(handle, chain=bytes(middle))
    forkgym.replay(corrupted, verify="final").close()
    last = bytearray(handle.chain)
    last[-1] ^= 1
    corrupted = msgspec.structs.replace(handle, chain=bytes(last))
    with pytest.raises(ReplayDivergence) as caught:
        forkgym.replay(corrupted, verify="final")
    assert caught.value.turn == 6
    forkgym.replay(corrupted, verify="off").close()
    with pytest.raises(ValueError, match="'every', 'final' or 'off'"):
        forkgym.replay(handle, verify="some")


def test_a_divergence_names_the_versions_that_differ():
    handle = msgspec.structs.replace(played().handle(), seed=12, env_version="0", forkgym="0.0.1")
    with pytest.raises(ReplayDivergence, match=r"version '0', here is '1'. It was written by forkgym 0.0.1"):
        forkgym.replay(handle)


def test_actions_after_the_end_of_the_episode_are_a_divergence():
    env = forkgym.make("core/Dice-v0", horizon=2)
    env.reset(seed=0)
    env.step(0)
    env.step(0)
    handle = env.handle()
    longer = msgspec.structs.replace(handle, actions=[*handle.actions, 0], chain=handle.chain + bytes(16))
    with pytest.raises(ReplayDivergence, match="already over") as caught:
        forkgym.replay(longer)
    assert caught.value.turn == 3


# ---------------------------------------------------------------------- strangers


def test_an_unregistered_environment_is_replayed_with_a_maker_and_otherwise_refused():
    env = ReplayedDice()
    env.reset(seed=0)
    env.step(1)
    assert forkgym.replay(env.handle(), maker=ReplayedDice).state_hash() == env.state_hash()
    with pytest.raises(UnknownEnvironmentError, match=r"forkgym.register, or pass replay\(handle, maker="):
        forkgym.replay(env.handle())


def good_json():
    return json.loads(played(turns=2).handle().to_json())


BAD_FIELDS = {
    "a module prefix in the id": {"env": "os:system-v0"},
    "a path as the id": {"env": "../../etc/passwd"},
    "an endless id": {"env": "a" * 300},
    "a missing id": {"env": None},
    "a negative seed": {"seed": -1},
    "a huge seed": {"seed": 2**64},
    "a seed that is text": {"seed": "1"},
    "kwargs that are a list": {"kwargs": []},
    "actions that are text": {"actions": "0123"},
    "a chain that is too short": {"chain": "AAAA"},
    "a chain that is not base64": {"chain": "§"},
    "an unknown field": {"entry_point": "os:system"},
    "another format": {"format": 2},
    "luck in the future": {"luck": [[9, 5]]},
    "luck out of order": {"luck": [[1, 5], [0, 6]]},
    "luck without a stream": {"luck": [[1, 0]]},
    "luck of three numbers": {"luck": [[1, 2, 3]]},
    "a negative limit": {"max_episode_steps": -5},
    "a limit of zero": {"max_episode_steps": 0},
    "wrappers that are numbers": {"wrappers": [1]},
}


@pytest.mark.parametrize("change", BAD_FIELDS.values(), ids=BAD_FIELDS.keys())
def test_a_malformed_handle_is_one_clear_error(change):
    text = json.dumps({**good_json(), **change})
    with pytest.raises(HandleError, match=r"not a handle in JSON: .*get a fresh one from where it came"):
        Handle.from_json(text)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b"cposix\nsystem\n(S'true'\ntR.", b"null", b"9" * 50])
def test_bytes_that_are_no_handle_are_one_clear_error(data):
    with pytest.raises(HandleError, match="not a handle"):
        Handle.from_json(data)
    with pytest.raises(HandleError, match="not a handle"):
        Handle.from_bytes(data)


def test_deep_nesting_and_huge_data_are_refused_before_they_hurt():
    deep = "[" * 150 + "]" * 150
    with pytest.raises(HandleError, match=r"kwargs of this handle is nested"):
        Handle.from_json('{"env":"core/Dice-v0","seed":0,"kwargs":{"x":' + deep + "}}")
    with pytest.raises(HandleError):
        Handle.from_json('{"env":"core/Dice-v0","seed":0,"kwargs":{"x":' + "[" * 100_000 + "]" * 100_000 + "}}")
    with pytest.raises(HandleError, match="the limit is"):
        Handle.from_bytes(bytes(64 * 2**20 + 1))
    with pytest.raises(HandleError, match="more than 1000000 actions"):
        Handle.from_bytes(msgspec.msgpack.encode({"env": "core/Dice-v0", "seed": 0, "actions": [0] * 1_000_001}))
    with pytest.raises(HandleError, match="from text or bytes"):
        Handle.from_bytes(3)


def test_an_unknown_environment_or_argument_in_a_handle_names_the_nearest():
    handle = played(turns=1).handle()
    with pytest.raises(UnknownEnvironmentError, match="Did you mean 'core/Dice-v0'"):
        forkgym.replay(msgspec.structs.replace(handle, env="core/Dise-v0"))
    with pytest.raises(UnknownArgumentError, match="Did you mean 'sides'"):
        forkgym.replay(msgspec.structs.replace(handle, kwargs={"side": 3}))
    with pytest.raises(HandleError, match="takes a Handle, not a dict"):
        forkgym.replay(good_json())


def test_an_encoded_value_that_is_malformed_is_a_data_error():
    handle = played(turns=1).handle()
    for field in ({"actions": [{"$array": ["|O", [1], "AAAAAAAAAAA="]}]}, {"options": {"$pickle": "x"}}):
        with pytest.raises(HandleError, match="malformed"):
            forkgym.replay(msgspec.structs.replace(handle, **field))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kwargs": {"$int": "5"}}, "kwargs of this handle is not a mapping"),
        ({"kwargs": {"$dict": [[1, 2]]}}, "kwargs of this handle is not a mapping from names"),
        ({"kwargs": {"id": "core/Guess-v0"}}, "holds 'id'"),
        ({"kwargs": {"max_episode_steps": 3}}, "holds 'max_episode_steps'"),
        ({"kwargs": {"sides": "six"}}, "core/Dice-v0 raised TypeError after 0 turns"),
        ({"options": {"$tuple": [1]}}, "options of this handle is not a mapping"),
        ({"env": "FrozenLake-v1", "kwargs": {"map_name": "9x9"}}, "FrozenLake-v1 cannot be made .* KeyError: '9x9'"),
    ],
)
def test_data_that_makes_an_environment_raise_is_a_data_error(change, said):
    handle = played(turns=1).handle()
    with pytest.raises(HandleError, match=said):
        forkgym.replay(msgspec.structs.replace(handle, **change))


def test_an_action_that_somebody_elses_environment_cannot_take_is_a_data_error():
    lake = forkgym.make("FrozenLake-v1")
    lake.reset(seed=0)
    lake.step(1)
    bad = msgspec.structs.replace(lake.handle(), actions=["north"], chain=b"")
    with pytest.raises(HandleError, match=r"raised .* after 0 turns of this handle"):
        forkgym.replay(bad)


def test_a_maker_must_return_an_environment_with_verbs():
    with pytest.raises(HandleError, match="the maker returned None"):
        forkgym.replay(played(turns=1).handle(), maker=lambda **_: None)


def test_classes_of_these_tests_are_what_the_ids_name():
    assert type(forkgym.make("core/Dice-v0")).__name__ == Dice.__name__
    assert type(forkgym.make("core/Guess-v0")).__name__ == Guess.__name__
