"""Anybody's environment gets the verbs: each of Gymnasium's small ones, simulators by their own state, and refusals."""

import itertools
import secrets
import threading

import gymnasium
import numpy as np
import pytest
from gymnasium.utils import EzPickle
from gymnasium.wrappers import FrameStackObservation, NormalizeReward, RecordEpisodeStatistics, TimeAwareObservation

import forkgym
from forkgym import Luck, testing
from forkgym.core import ForkUnsupportedError

IDS = [
    "Blackjack-v1",
    "FrozenLake-v1",
    "FrozenLake8x8-v1",
    "CliffWalking-v1",
    "CliffWalkingSlippery-v1",
    "Taxi-v4",
    "CartPole-v0",
    "CartPole-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
    "Acrobot-v1",
]


def story(env, seed=0, length=6):
    rng = np.random.default_rng(seed)
    answers = []
    for _ in range(length):
        env.action_space.seed(int(rng.integers(2**31)))
        answer = env.step(env.action_space.sample())
        answers.append(repr(answer[:4]))
        if answer[2] or answer[3]:
            break
    return answers


def test_the_list_holds_every_toy_text_and_classic_control_environment():
    places = ("gymnasium.envs.toy_text", "gymnasium.envs.classic_control")
    known = [spec.id for spec in gymnasium.registry.values() if str(spec.entry_point).startswith(places)]
    assert sorted(known) == sorted(IDS)


@pytest.mark.filterwarnings("ignore:.*out of date")
@pytest.mark.parametrize("env_id", IDS)
def test_each_small_gymnasium_environment_keeps_every_promise(env_id):
    testing.check_env(env_id, seeds=2, steps=12)


@pytest.mark.filterwarnings("ignore:.*out of date")
@pytest.mark.parametrize("env_id", IDS)
def test_each_is_copied_by_a_verified_way_and_not_by_replay(env_id):
    env = forkgym.make(env_id)
    env.reset(seed=0)
    assert env.way == ("table" if hasattr(env.unwrapped, "P") else "deepcopy")
    assert env.fork_support == "state"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*out of date")
@pytest.mark.parametrize("env_id", IDS)
def test_the_fork_machine_finds_nothing_wrong_with_them(env_id):
    testing.fork_machine(env_id, max_examples=100).TestCase("runTest").debug()


@pytest.mark.parametrize("env_id", ["Taxi-v4", "CartPole-v1"])
def test_what_gymnasium_made_forks_with_its_wrappers(env_id):
    env = gymnasium.make(env_id, max_episode_steps=4)
    env.reset(seed=3)
    story(env, length=1)
    child = forkgym.fork(env)
    assert str(child) == str(env)
    assert child.unwrapped is not env.unwrapped
    expected = story(forkgym.fork(env))
    assert story(child) == expected
    assert story(env) == expected
    assert len(expected) == 3, "the time limit was not carried"


def test_a_plain_chain_takes_fresh_luck():
    env = gymnasium.make("FrozenLake-v1")
    env.reset(seed=3)
    first, again, other = (forkgym.fork(env, luck=Luck.fresh(stream)) for stream in (1, 1, 2))
    states = [fork.unwrapped.np_random.bit_generator.state for fork in (first, again, other, env)]
    assert states[0] == states[1]
    assert states[0] != states[2]
    assert states[0] != states[3]


@pytest.mark.parametrize(
    "around",
    [
        lambda env: TimeAwareObservation(env),
        lambda env: FrameStackObservation(env, 3),
        lambda env: RecordEpisodeStatistics(NormalizeReward(env)),
    ],
    ids=["TimeAwareObservation", "FrameStackObservation", "NormalizeReward"],
)
def test_wrappers_with_state_of_their_own_fork(around):
    def make():
        return forkgym.wrap(around(gymnasium.make("CartPole-v1")))

    env = make()
    env.reset(seed=3)
    story(env, length=4)
    child = env.fork()
    with env.snapshot() as snapshot:
        expected = story(env, seed=1)
        assert story(child, seed=1) == expected
        env.restore(snapshot)
        assert story(env, seed=1) == expected


def test_a_wrapped_environment_replays_from_a_handle_in_which_its_wrappers_stand():
    env = forkgym.make("CartPole-v1", max_episode_steps=7)
    env.reset(seed=3)
    story(env, length=3)
    handle = forkgym.Handle.from_json(env.handle().to_json())
    assert handle.wrappers == ["TimeLimit", "OrderEnforcing", "PassiveEnvChecker"]
    assert handle.env_version == gymnasium.__version__
    assert forkgym.replay(handle).state_hash() == env.state_hash()


def test_a_handle_taken_under_other_wrappers_is_refused_with_the_remedy():
    env = forkgym.wrap(TimeAwareObservation(gymnasium.make("CartPole-v1")))
    env.reset(seed=3)
    with pytest.raises(forkgym.core.HandleError, match=r"recorded under the wrappers.*maker="):
        forkgym.replay(env.handle())
    again = forkgym.replay(
        env.handle(), maker=lambda: forkgym.wrap(TimeAwareObservation(gymnasium.make("CartPole-v1")))
    )
    assert again.state_hash() == env.state_hash()


def test_a_reset_without_seed_is_recorded_for_them_too():
    env = forkgym.make("Blackjack-v1")
    env.reset()
    assert forkgym.replay(env.handle()).state_hash() == env.state_hash()


def test_wrap_leaves_an_environment_with_verbs_alone():
    env = forkgym.make("CartPole-v1")
    assert forkgym.wrap(env) is env


def test_fork_asks_for_an_environment():
    with pytest.raises(ForkUnsupportedError, match="not a str"):
        forkgym.fork("CartPole-v1")


# ---------------------------------------------------------------------- simulators and hard cases


class Foreign(gymnasium.Env):
    """A Gymnasium environment that was not written for forkgym; a counter with a generator."""

    action_space = gymnasium.spaces.Discrete(3)
    observation_space = gymnasium.spaces.Discrete(10**6)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.total = 0
        return 0, {}

    def step(self, action):
        self.total += int(action) + int(self.np_random.integers(100))
        return self.total, 1.0, False, False, {}


class Console:
    """A simulator that cannot be copied."""

    def __init__(self):
        self.device = threading.Lock()
        self.memory = 0


class Emulator(Foreign):
    """As ALE: the world is in an object that cannot be copied; clone_state and restore_state."""

    def __init__(self):
        self.ale = Console()

    def reset(self, *, seed=None, options=None):
        self.ale.memory = 0
        return super().reset(seed=seed)

    def step(self, action):
        self.ale.memory += int(action) + int(self.np_random.integers(100))
        return self.ale.memory, 1.0, False, False, {}

    def clone_state(self, include_rng=False):
        return (self.ale.memory, include_rng)

    def restore_state(self, state):
        assert state[1], "the generator's state was not asked for"
        self.ale.memory = state[0]


class Simulator(Foreign):
    """get_state and set_state, and an object that cannot be copied."""

    def __init__(self):
        self.window = threading.Lock()

    def get_state(self):
        return {"total": self.total}

    def set_state(self, state):
        self.total = state["total"]


class LyingEmulator(Emulator):
    """restore_state forgets something: only a test against the truth notices."""

    def restore_state(self, state):
        self.ale.memory = 0


class Unpicklable(Foreign):
    """Nothing can copy it; it can be re-executed."""

    def __init__(self):
        self.handle_of_a_device = threading.Lock()


class Hopeless(Foreign):
    """Cannot be copied, and re-execution does not give the same."""

    def __init__(self):
        self.handle_of_a_device = threading.Lock()

    def step(self, action):
        return secrets.randbelow(10**6), 0.0, False, False, {}


class Part(EzPickle):
    """Something inside an environment whose copy is re-created."""

    def __init__(self):
        EzPickle.__init__(self)
        self.total = 0


class WithPart(Foreign):
    def __init__(self):
        self.part = Part()

    def step(self, action):
        self.part.total += int(action) + 1
        return self.part.total, 0.0, False, False, {}

    def reset(self, *, seed=None, options=None):
        self.part.total = 0
        return super().reset(seed=seed)


class EzPickled(Foreign, EzPickle):
    """copy.deepcopy would re-create it; its attributes are copied instead."""

    def __init__(self, start=0):
        EzPickle.__init__(self, start)
        self.list = [start]

    def step(self, action):
        self.list.append(int(action))
        return len(self.list), float(sum(self.list)), False, False, {}


for kind in (Foreign, Emulator, Simulator, LyingEmulator, Unpicklable, Hopeless, WithPart, EzPickled):
    gymnasium.register(f"wraptest/{kind.__name__}-v0", kind)


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("Foreign", "deepcopy"),
        ("Emulator", "clone_state"),
        ("Simulator", "get_state"),
        ("LyingEmulator", "replay"),
        ("Unpicklable", "replay"),
        ("WithPart", "replay"),
        ("EzPickled", "deepcopy"),
    ],
)
def test_the_way_is_chosen_by_test_and_the_promises_hold(name, way):
    env = forkgym.make(f"wraptest/{name}-v0")
    env.reset(seed=1)
    story(env)
    assert env.way == way
    testing.check_env(f"wraptest/{name}-v0", seeds=2, steps=8)


def test_what_can_neither_be_copied_nor_re_executed_fails_loudly_and_says_why():
    env = forkgym.make("wraptest/Hopeless-v0")
    env.reset(seed=1)
    env.step(0)
    assert env.fork_support == "none"
    with pytest.raises(ForkUnsupportedError):
        env.fork()
    with pytest.raises(ForkUnsupportedError, match=r"replay: .*deepcopy: .*lock.*_get_state and _set_state"):
        env._way()


def test_a_plain_chain_that_cannot_be_copied_is_refused_with_every_reason_and_the_remedy():
    env = gymnasium.make("wraptest/Unpicklable-v0")
    env.reset(seed=1)
    with pytest.raises(ForkUnsupportedError, match=r"deepcopy: .*lock.*forkgym.wrap\(env\) before the first reset"):
        forkgym.fork(env)


def test_a_wrapper_that_cannot_be_copied_is_named():
    class Counting(gymnasium.Wrapper):
        def __init__(self, env):
            super().__init__(env)
            self.counter = threading.Lock()

    env = Counting(gymnasium.make("CartPole-v1"))
    env.reset(seed=1)
    with pytest.raises(ForkUnsupportedError, match="the wrapper Counting cannot be copied"):
        forkgym.fork(env)


def test_a_chain_without_spec_is_copied_or_rebuilt_by_the_given_function():
    env = forkgym.wrap(Foreign())
    env.reset(seed=1)
    assert story(env.fork()) == story(env)
    with pytest.raises(ForkUnsupportedError, match=r"rebuild=function_that_makes_it"):
        env._spawn()
    env = forkgym.wrap(Unpicklable(), rebuild=Unpicklable)
    env.reset(seed=1)
    env.step(1)
    assert env.way == "replay"
    assert story(env.fork()) == story(env)


def test_simulators_in_the_manner_of_mujoco_are_copied_with_their_python_side():
    pytest.importorskip("mujoco", reason="MuJoCo is not installed")
    env = forkgym.make("InvertedPendulum-v5")
    env.reset(seed=1)
    story(env)
    assert env.way == "mujoco"
    testing.check_env("InvertedPendulum-v5", seeds=2, steps=8)


def test_atari_games_are_copied_with_their_generator():
    ale_py = pytest.importorskip("ale_py", reason="the Arcade Learning Environment is not installed")
    gymnasium.register_envs(ale_py)
    env = forkgym.make("ALE/Breakout-v5")
    env.reset(seed=1)
    story(env)
    assert env.way == "clone_state"
    testing.check_env("ALE/Breakout-v5", seeds=1, steps=6)


def test_forks_may_be_closed_in_any_order():
    for order in itertools.permutations(range(3)):
        env = forkgym.make("FrozenLake-v1")
        env.reset(seed=1)
        child = env.fork()
        family = [env, child, child.fork()]
        expected = story(env.fork())
        for index in order[:2]:
            family[index].close()
        assert story(family[order[2]]) == expected


def test_sample_action_touches_no_generator():
    env = forkgym.make("Blackjack-v1")
    env.reset(seed=1)
    before = env.state_hash()
    assert env.sample_action(np.random.default_rng(1)) == env.sample_action(np.random.default_rng(1))
    assert env.state_hash() == before
