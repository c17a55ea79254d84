"""The promises on every registered environment, whoever wrote it."""

import functools
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

import forkgym
from forkgym import Handle, Luck, ReplayDivergence, testing

HERE = Path(__file__).parent
INSTALLED = importlib.metadata.entry_points(group="forkgym.envs")  # list_envs() also has what other tests register
ENVIRONMENTS = sorted(point.name for point in INSTALLED)
COSTLY = {"swe/Task-v0"}  # a step is a command in a sandbox; longer programs: tests/envs/swe/test_programs.py
every_environment = pytest.mark.parametrize("env_id", ENVIRONMENTS)
costly_ones_slow = pytest.mark.parametrize(
    "env_id", [pytest.param(name, marks=pytest.mark.slow) if name in COSTLY else name for name in ENVIRONMENTS]
)


@functools.cache
def arguments(env_id):
    """Arguments that the environment offers for tests; skips where this machine lacks what they need."""
    try:
        return testing.example_kwargs(env_id)
    except LookupError as lacking:
        pytest.skip(f"{env_id}: {lacking}")


def random_episode(env_id, number):
    """An environment after a random episode: any task, any actions, fresh luck at random turns."""
    rng = np.random.default_rng([number, *env_id.encode()])
    env = forkgym.make(env_id, **arguments(env_id))
    splits = env.splits
    options = {}
    if splits and rng.random() < 0.7:
        split = sorted(splits)[int(rng.integers(len(splits)))]
        options = {"split": split, "task": int(rng.integers(splits[split]))}
    env.reset(seed=int(rng.integers(2**63)), options=options)
    for _ in range(int(rng.integers(0, 12))):
        if rng.random() < 0.2:
            env = env.fork(luck=Luck.fresh(int(rng.integers(1, 2**63))))
        _, _, terminated, truncated, _ = env.step(env.sample_action(rng))
        if terminated or truncated:
            break
    return env


def replayed_elsewhere(handles, verify="every"):
    """State hashes after a replay in another process."""
    lines = "".join(handle.to_json() + "\n" for handle in handles)
    result = subprocess.run(
        [sys.executable, str(HERE / "replay_in_another_process.py"), verify],
        input=lines,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def test_there_are_environments_to_test():
    assert {"toy", "retrieval"} <= {name.split("/")[0] for name in ENVIRONMENTS}


@costly_ones_slow
def test_it_keeps_every_promise(env_id):
    testing.check_env(env_id, **arguments(env_id))


@every_environment
def test_the_fork_machine_finds_nothing_wrong(env_id):
    examples, steps = (2, 8) if env_id in COSTLY else (15, 20)
    testing.fork_machine(env_id, max_examples=examples, steps=steps, **arguments(env_id)).TestCase("runTest").debug()


@pytest.mark.slow
@every_environment
def test_the_fork_machine_finds_nothing_wrong_in_hundreds_of_programs(env_id):
    examples, steps = (25, 20) if env_id in COSTLY else (500, 40)
    testing.fork_machine(env_id, max_examples=examples, steps=steps, **arguments(env_id)).TestCase("runTest").debug()


def available_here(env_id):
    """Whether this machine has what the environment needs."""
    try:
        testing.example_kwargs(env_id)
    except LookupError:
        return False
    return True


def _replay_random_handles(count):
    here = [env_id for env_id in ENVIRONMENTS if available_here(env_id)]
    numbers = [(here[number % len(here)], number) for number in range(count)]
    episodes = [random_episode(env_id, number) for env_id, number in numbers]
    assert replayed_elsewhere([env.handle() for env in episodes]) == [env.state_hash() for env in episodes]


def test_thirty_random_handles_lead_to_equal_state_hashes_in_another_process():
    _replay_random_handles(30)


@pytest.mark.slow
def test_a_thousand_random_handles_lead_to_equal_state_hashes_in_another_process():
    _replay_random_handles(1000)


@costly_ones_slow
def test_a_handle_is_as_small_as_promised(env_id):
    for number in range(10):
        handle = random_episode(env_id, number).handle()
        own = len(msgspec.msgpack.encode((handle.actions, handle.kwargs)))
        assert len(handle.to_bytes()) <= own + 1024 + 16 * len(handle.actions)


@every_environment
def test_a_corrupted_handle_names_the_first_diverging_turn(env_id):
    tried = 0
    for number in range(40):
        handle = random_episode(env_id, number).handle()
        for turn in range(len(handle.links)):
            links = [bytes(16) if at >= turn else link for at, link in enumerate(handle.links)]
            with pytest.raises(ReplayDivergence) as caught:
                forkgym.replay(msgspec.structs.replace(handle, chain=b"".join(links)))
            assert caught.value.turn == turn
            tried += 1
        if tried > 10:
            return
    pytest.fail("no episode was long enough")


@every_environment
def test_a_changed_action_is_named_by_its_turn(env_id):
    rng = np.random.default_rng(0)
    for number in range(200):
        env = random_episode(env_id, number)
        handle = env.handle()
        if not handle.actions:
            continue
        turn = int(rng.integers(len(handle.actions))) + 1
        other = next(a for a in (env.sample_action(rng) for _ in range(1000)) if a != handle.actions[turn - 1])
        actions = [other if at == turn - 1 else action for at, action in enumerate(handle.actions)]
        with pytest.raises(ReplayDivergence) as caught:
            forkgym.replay(Handle.from_json(msgspec.structs.replace(handle, actions=actions).to_json()))
        assert caught.value.turn == turn
        return
    pytest.fail("no episode had an action")
