"""The verbs on environments of every kind: fork, fork_many, snapshot, restore, state_hash, and misuse."""

import gc

import gymnasium
import numpy as np
import pytest

import forkgym
from forkgym import SAME, Env, Forkable, Luck
from forkgym.core import (
    ActionError,
    ClosedEnvironmentError,
    EpisodeEndedError,
    ForkUnsupportedError,
    MisuseError,
    ReplayDivergence,
    ResetNeededError,
    SnapshotError,
    StateError,
)
from tests.core.core_worlds import Dice, NativeDice, ReplayedDice

KINDS = [Dice, lambda: Dice(numpy_too=True), ReplayedDice, NativeDice]
every_kind = pytest.mark.parametrize("make", KINDS, ids=["state", "state and np_random", "replay", "native"])


def started(make, turns=3, seed=5):
    env = make()
    env.reset(seed=seed)
    for turn in range(turns):
        env.step(turn % 4)
    return env


def story(env, actions=(1, 0, 3, 2)):
    return [(*env.step(action)[:4], env.state_hash()) for action in actions]


@pytest.mark.parametrize(("make", "support"), [(Dice, "state"), (ReplayedDice, "replay"), (NativeDice, "native")])
def test_an_environment_says_how_it_forks(make, support):
    assert make().fork_support == support
    assert isinstance(make(), Forkable)


@every_kind
def test_a_fork_and_its_parent_answer_alike_under_the_same_luck(make):
    env = started(make)
    child = env.fork(luck=SAME)
    assert child.state_hash() == env.state_hash()
    assert story(child) == story(env)


@every_kind
def test_neither_sees_the_others_steps(make):
    env = started(make)
    child = env.fork()
    before = env.state_hash()
    story(child)
    assert env.state_hash() == before
    after = child.state_hash()
    story(env, (2, 2))
    assert child.state_hash() == after


@every_kind
def test_forks_of_forks_live_on_whoever_is_closed_first(make):
    env = started(make)
    child = env.fork()
    grandchild = child.fork()
    expected = story(env.fork())
    env.close()
    assert story(grandchild.fork()) == expected
    child.close()
    assert story(grandchild) == expected


@every_kind
def test_fresh_luck_is_another_future_and_a_reproducible_one(make):
    env = started(make)
    shared, one, again, other = env.fork(), *(env.fork(luck=Luck.fresh(stream)) for stream in (1, 1, 2))
    rewards = [[answer[1] for answer in story(fork, (0,) * 8)] for fork in (shared, one, again, other)]
    assert rewards[1] == rewards[2]
    assert rewards[0] != rewards[1] != rewards[3]


@every_kind
def test_the_states_of_shared_and_fresh_luck_are_told_apart_at_once(make):
    env = started(make)
    assert env.fork(luck=Luck.fresh(1)).state_hash() != env.state_hash()


def test_the_numpy_generator_is_refreshed_too():
    env = started(lambda: Dice(sides=1, numpy_too=True))
    assert story(env.fork(luck=Luck.fresh(1))) != story(env.fork())


def test_fork_many_shares_luck_or_gives_each_its_own():
    env = started(Dice)
    assert env.fork_many(0) == []
    assert len({fork.state_hash() for fork in env.fork_many(3)}) == 1
    fresh = env.fork_many(4, luck=Luck.fresh(9))
    assert len({fork.state_hash() for fork in fresh}) == 4
    assert fresh[0].state_hash() == env.fork(luck=Luck.fresh(9)).state_hash()
    with pytest.raises(ValueError, match="at least 0"):
        env.fork_many(-1)


# ---------------------------------------------------------------------- snapshots


@every_kind
def test_restore_rewinds_state_actions_chain_luck_and_turn_as_often_as_asked(make):
    env = started(make)
    snapshot = env.snapshot()
    handle = env.handle()
    first = story(env)
    for _ in range(2):
        env.restore(snapshot)
        assert env.state_hash() == snapshot.state_hash
        assert env.turn == snapshot.turn == 3
        assert env.handle() == handle
        assert story(env) == first


@every_kind
def test_a_snapshot_can_be_restored_into_another_environment_of_the_same_arguments(make):
    env = started(make)
    snapshot = env.snapshot()
    expected = story(env)
    env.close()
    other = make()
    other.restore(snapshot)
    assert story(other) == expected


@every_kind
def test_restore_brings_an_ended_episode_back_to_life(make, monkeypatch):
    monkeypatch.setattr(type(make()), "time_limit", 8)
    env = started(make)
    snapshot, expected = env.snapshot(), story(env.fork())
    assert [env.step(0)[3] for _ in range(5)] == [False] * 4 + [True]
    with pytest.raises(EpisodeEndedError):
        env.step(0)
    env.restore(snapshot)
    assert story(env) == expected


@every_kind
def test_a_closed_snapshot_is_refused_with_the_remedy(make):
    env = started(make)
    with env.snapshot() as snapshot:
        shared = snapshot.share()
    assert snapshot.closed
    env.restore(shared)
    with pytest.raises(SnapshotError, match=r"Take a new one with env.snapshot\(\)"):
        env.restore(snapshot)
    with pytest.raises(SnapshotError):
        snapshot.share()
    snapshot.close()
    assert "closed" in repr(snapshot)


def test_a_foreign_snapshot_is_refused_with_the_remedy():
    snapshot = started(Dice).snapshot()
    for foreign in (started(lambda: Dice(sides=7)), started(ReplayedDice), forkgym.make("CartPole-v1")):
        with pytest.raises(SnapshotError, match=r"taken from Dice\(\).*carry the state over with env.handle"):
            foreign.restore(snapshot)


def test_arguments_are_compared_by_value_however_they_were_passed():
    started(lambda: Dice(6)).restore(started(lambda: Dice(6)).snapshot())
    started(lambda: Dice(sides=6)).restore(started(lambda: Dice(6)).snapshot())


def test_a_native_snapshot_is_freed_with_its_last_reference():
    NativeDice.open_resources.clear()
    env = started(NativeDice)
    snapshot = env.snapshot()
    shared = snapshot.share()
    snapshot.close()
    assert len(NativeDice.open_resources) == 2
    shared.close()
    assert len(NativeDice.open_resources) == 1
    unused = env.snapshot()
    assert len(NativeDice.open_resources) == 2
    del unused
    gc.collect()
    assert len(NativeDice.open_resources) == 1


def test_a_native_restore_frees_what_it_replaces():
    NativeDice.open_resources.clear()
    env = started(NativeDice)
    with env.snapshot() as snapshot:
        env.restore(snapshot)
        env.restore(snapshot)
        assert len(NativeDice.open_resources) == 2
    env.close()
    assert not NativeDice.open_resources


# ---------------------------------------------------------------------- time limit


@pytest.mark.parametrize("kind", [Dice, ReplayedDice, NativeDice])
def test_the_time_limit_forks_and_rewinds(kind):
    env = kind()
    env._limit_given = 5
    env.reset(seed=1)
    env.step(0)
    snapshot = env.snapshot()
    env.step(0)
    env.step(0)
    child = env.fork()
    assert [child.step(0)[3] for _ in range(2)] == [False, True]
    env.restore(snapshot)
    assert [env.step(0)[3] for _ in range(4)] == [False, False, False, True]


def test_two_states_with_different_time_left_have_different_hashes():
    first, second = Dice(), Dice()
    second._limit_given = 7
    first.reset(seed=1)
    second.reset(seed=1)
    assert first.state_hash() != second.state_hash()


# ---------------------------------------------------------------------- hash


def test_equal_states_reached_by_different_ways_have_equal_hashes():
    class Sum(Dice):
        def _step(self, action):
            self.rolls = [sum(self.rolls) + action]
            return sum(self.rolls), 0.0, False, False, {}

    first, second = Sum(), Sum()
    for env, actions in ((first, (1, 2)), (second, (2, 1))):
        env.reset(seed=0)
        for action in actions:
            env.step(action)
    assert first.state_hash() == second.state_hash()
    assert first.handle().chain != second.handle().chain


def test_the_numpy_generator_counts_as_state_only_once_it_was_used():
    env = Dice()
    env.reset(seed=0)
    before = env.state_hash()
    _ = env.np_random
    used = env.state_hash()
    env.np_random.random()
    assert len({before, used, env.state_hash()}) == 3


def test_an_undeclared_state_is_the_interaction_so_far():
    env = started(ReplayedDice)
    same = started(ReplayedDice)
    other = started(ReplayedDice, seed=6)
    assert env.state_hash() == same.state_hash() != other.state_hash()


# ---------------------------------------------------------------------- reset


def test_a_reset_without_seed_draws_one_and_records_it():
    env = Dice()
    env.reset(seed=3)
    env.reset()
    drawn = env.handle().seed
    twin = Dice()
    twin.reset(seed=drawn)
    assert story(twin) == story(env)


def test_consecutive_resets_without_seed_differ_and_follow_from_the_first_seed():
    def seeds():
        env = Dice()
        env.reset(seed=3)
        found = []
        for _ in range(3):
            env.reset()
            found.append(env.handle().seed)
        return found

    assert seeds() == seeds()
    assert len(set(seeds())) == 3


def test_a_never_seeded_environment_takes_entropy_once_and_still_replays():
    env = Dice()
    env.reset()
    env.step(1)
    assert forkgym.replay(env.handle(), maker=Dice).state_hash() == env.state_hash()


def test_options_are_recorded_and_not_shared_with_the_caller():
    env = Dice()
    options = {"rolls": [5]}
    assert env.reset(seed=0, options=options)[0] == 5
    options["rolls"].append(100)
    assert env.fork().step(0)[0] < 100
    assert env.handle().options == {"rolls": [5]}


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, "3", True])
def test_a_seed_is_an_unsigned_64_bit_integer(seed):
    with pytest.raises(MisuseError, match="from 0 to"):
        Dice().reset(seed=seed)


def test_any_64_bit_seed_will_do():
    env = Dice()
    env.reset(seed=2**64 - 1)
    assert forkgym.replay(env.handle(), maker=Dice).handle().seed == 2**64 - 1


def test_options_that_no_handle_can_carry_are_refused():
    with pytest.raises(StateError, match="the reset options holds"):
        Dice().reset(seed=0, options={"x": object()})


# ---------------------------------------------------------------------- misuse


@pytest.mark.parametrize("verb", ["step", "fork", "snapshot", "state_hash", "handle"])
def test_every_verb_before_the_first_reset_asks_for_it(verb):
    env = Dice()
    act = (lambda: env.step(0)) if verb == "step" else getattr(env, verb)
    with pytest.raises(ResetNeededError, match=r"Call env.reset\(seed=...\) once"):
        act()


@pytest.mark.parametrize("verb", ["reset", "step", "fork", "snapshot", "state_hash", "handle"])
def test_every_verb_of_a_closed_environment_says_so(verb):
    env = started(Dice)
    env.close()
    env.close()
    act = (lambda: env.step(0)) if verb == "step" else getattr(env, verb)
    with pytest.raises(ClosedEnvironmentError, match=r"is closed. Make a new one with forkgym.make"):
        act()


def test_restoring_into_a_closed_environment_says_so():
    env = started(Dice)
    snapshot = env.snapshot()
    env.close()
    with pytest.raises(ClosedEnvironmentError):
        env.restore(snapshot)


def test_a_step_after_the_end_names_the_ways_out():
    env = Dice(horizon=1)
    env.reset(seed=0)
    env.step(0)
    with pytest.raises(EpisodeEndedError, match=r"ended after 1 steps. Call env.reset\(\).*env.restore\(snapshot\)"):
        env.step(0)
    env.fork()


@pytest.mark.parametrize("action", ["left", 4, -1, None, 1.5, [0], np.array([1, 2])])
def test_an_action_outside_the_space_is_refused_and_nothing_has_happened(action):
    env = started(Dice)
    before = env.state_hash()
    with pytest.raises(ActionError, match=r"takes actions in Discrete\(4\).*env.sample_action\(rng\) shows one"):
        env.step(action)
    assert env.state_hash() == before


def test_numpy_integers_are_fine_as_actions_and_recorded_as_integers():
    env = started(Dice, turns=0)
    env.step(np.int64(2))
    assert env.handle().actions == [2]


def test_an_action_that_the_caller_changes_later_is_recorded_as_it_was():
    class Continuous(Dice):
        action_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)

        def _step(self, action):
            return int(action.sum() * 100), 0.0, False, False, {}

    env = Continuous()
    env.reset(seed=0)
    action = np.array([0.5, 0.25], np.float32)
    env.step(action)
    before = env.handle()
    action[:] = 0
    assert forkgym.replay(before, maker=Continuous).state_hash() == env.state_hash()


def test_a_step_that_raises_leaves_an_environment_that_wants_a_reset_or_a_restore():
    class Faulty(Dice):
        def _step(self, action):
            if action == 3:
                self.rolls.append(999)
                raise OSError("disk full")
            return super()._step(action)

    env = Faulty()
    env.reset(seed=0)
    snapshot = env.snapshot()
    with pytest.raises(OSError, match="disk full"):
        env.step(3)
    for act in (lambda: env.step(0), env.fork, env.snapshot):
        with pytest.raises(EpisodeEndedError, match="half-way"):
            act()
    env.restore(snapshot)
    assert env.step(0)[0] < 999


def test_a_reset_that_raises_leaves_an_environment_that_wants_a_reset():
    class Faulty(Dice):
        def _reset(self, *, seed, options):
            if options:
                raise OSError("no corpus")
            return super()._reset(seed=seed, options=options)

    env = started(Faulty)
    with pytest.raises(OSError, match="no corpus"):
        env.reset(seed=0, options={"rolls": []})
    with pytest.raises(ResetNeededError):
        env.step(0)


def test_an_environment_that_can_neither_fork_nor_replay_says_what_to_write():
    class Live(ReplayedDice):
        replayable = False

    env = started(Live)
    assert env.fork_support == "none"
    for act in (env.fork, env.snapshot):
        with pytest.raises(ForkUnsupportedError, match="Write _get_state and _set_state"):
            act()


def test_a_fork_by_replay_is_verified_as_it_is_made():
    class Drifting(ReplayedDice):
        calls = 0

        def _step(self, action):
            Drifting.calls += 1
            return Drifting.calls, 0.0, False, False, {}

    env = started(Drifting)
    with pytest.raises(ReplayDivergence, match=r"turn 1.*check_env"):
        env.fork()


def test_a_native_fork_that_returns_itself_is_refused():
    class Lazy(NativeDice):
        def _fork(self):
            return self

    with pytest.raises(ForkUnsupportedError, match="must return a new Lazy"):
        started(Lazy).fork()


def test_a_native_fork_by_copying_attributes_does_not_share_the_generator():
    class Copied(NativeDice):
        def _fork(self):
            child = Copied()
            child.__dict__.update(self.__dict__)
            child.total = self.total.copy()
            return child

    env = started(Copied)
    child = env.fork()
    assert story(child) == story(env)


def test_an_author_who_writes_nothing_is_told_what_to_write():
    class Empty(Env):
        action_space = observation_space = gymnasium.spaces.Discrete(2)

    with pytest.raises(NotImplementedError, match="Empty must define _reset"):
        Empty().reset(seed=0)


def test_sample_action_is_keyed_and_touches_no_generator_of_the_environment():
    env = started(lambda: Dice(numpy_too=True))
    before = env.state_hash()
    first = [int(env.sample_action(np.random.default_rng(seed))) for seed in range(20)]
    assert first == [int(env.sample_action(np.random.default_rng(seed))) for seed in range(20)]
    assert len(set(first)) > 1
    assert env.state_hash() == before


def test_environments_show_where_they_stand():
    env = Dice()
    assert repr(env) == "<Dice: not reset>"
    env.reset(seed=0)
    env.step(0)
    assert repr(env) == "<Dice: turn 1>"
    env.close()
    assert repr(env) == "<Dice: closed>"


@pytest.mark.parametrize("verb", ["reset", "step", "close"])
def test_a_subclass_that_replaces_a_verb_is_told_what_to_write_instead(verb):
    with pytest.raises(TypeError, match=f"define _{verb} instead"):
        type("Confused", (Dice,), {verb: lambda self: None})


def test_an_observation_without_canonical_form_is_named_with_the_remedy():
    class Odd(Dice):
        def _reset(self, *, seed, options):
            return object(), {}

    with pytest.raises(StateError, match=r"the answer of turn 0.* is a builtins\.object"):
        Odd().reset(seed=0)


def test_a_restore_that_fails_leaves_an_environment_that_wants_a_reset():
    class Fragile(Dice):
        def _set_state(self, state):
            raise OSError("gone")

    env = started(Fragile)
    with pytest.raises(OSError, match="gone"):
        env.restore(env.snapshot())
    with pytest.raises(ResetNeededError):
        env.step(0)


def test_arguments_of_the_wrong_kind_are_refused_by_name():
    env = Dice()
    env.reset(seed=1)
    with pytest.raises(MisuseError, match=r"Luck\.fresh\(stream\), not 3"):
        env.fork(luck=3)
    with pytest.raises(MisuseError, match=r"Luck\.fresh\(stream\), not 3"):
        env.fork_many(2, luck=3)
    with pytest.raises(ValueError, match=r"an integer of at least 0, not 1\.5"):
        env.fork_many(1.5)
    with pytest.raises(SnapshotError, match=r"what env\.snapshot\(\) gave, not 'x'"):
        env.restore("x")
    with pytest.raises(MisuseError, match=r"not 1180591620717411303424\."):
        env.reset(seed=2**70)
