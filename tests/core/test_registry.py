"""Names to environments: make, register, discovery without imports, Gymnasium's make, and a light import."""

import os
import subprocess
import sys

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec, WrapperSpec

import forkgym
from forkgym import ForkgymError, testing
from forkgym.core import UnknownArgumentError, UnknownEnvironmentError, nearest
from tests.core.core_worlds import Dice

PLACE = "tests.core.core_worlds:Dice"
TIME_AWARE = WrapperSpec("TimeAwareObservation", "gymnasium.wrappers:TimeAwareObservation", {})
forkgym.register("registry/Dice-v0", PLACE)
forkgym.register("registry/Short-v0", PLACE, max_episode_steps=3, kwargs={"sides": 4})
forkgym.register("registry/Wrapped-v0", PLACE, additional_wrappers=[TIME_AWARE], max_episode_steps=3)
forkgym.register("registry/Nowhere-v0", "no_such_module:Env")


def in_a_new_process(code, env=None):
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120, env=env
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_make_gives_the_environment_itself_with_its_arguments():
    env = forkgym.make("registry/Dice-v0", sides=9)
    assert type(env) is Dice
    assert env.sides == 9
    assert env.spec.id == "registry/Dice-v0"


def test_make_takes_a_gymnasium_spec():
    env = forkgym.make(gymnasium.spec("registry/Short-v0"), sides=5)
    assert env.sides == 5
    assert env._limit() == 3


@pytest.mark.parametrize(("given", "steps"), [(None, 3), (2, 2)])
def test_the_registered_time_limit_holds_unless_another_is_given(given, steps):
    env = forkgym.make("registry/Short-v0", max_episode_steps=given)
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(steps)] == [False] * (steps - 1) + [True]


def test_a_time_limit_of_zero_is_refused():
    with pytest.raises(ForkgymError, match="or -1 for no limit; not 0"):
        forkgym.make("registry/Short-v0", max_episode_steps=0)


def test_minus_one_means_no_time_limit():
    env = forkgym.make("registry/Short-v0", max_episode_steps=-1)
    env.reset(seed=0)
    assert not any(env.step(0)[3] for _ in range(5))


def test_additional_wrappers_fork_replay_and_keep_the_verbs():
    env = forkgym.make("registry/Wrapped-v0")
    env.reset(seed=0)
    env.step(1)
    child = env.fork()
    assert str(child.step(0)) == str(env.step(0))
    assert child.state_hash() == env.state_hash()
    assert forkgym.replay(env.handle()).state_hash() == env.state_hash()
    assert env.step(0)[3]


def test_the_wrapped_environment_keeps_every_promise_whoever_made_it():
    testing.check_env("registry/Wrapped-v0", seeds=2)
    testing.check_env(lambda: forkgym.wrap(gymnasium.make("registry/Wrapped-v0")), seeds=2)
    testing.check_env(lambda: forkgym.wrap(gymnasium.make("registry/Short-v0")), seeds=2)


def test_gymnasium_makes_the_same_environment_and_it_forks():
    env = gymnasium.make("registry/Short-v0")
    assert "TimeLimit" in str(env)
    env.reset(seed=0)
    env.step(0)
    child = forkgym.fork(env)
    assert child is not env
    assert [child.step(1)[3] for _ in range(2)] == [False, True]
    assert [env.step(1)[3] for _ in range(2)] == [False, True]
    assert child.unwrapped.state_hash() == env.unwrapped.state_hash()


def test_an_unknown_id_names_the_nearest():
    with pytest.raises(UnknownEnvironmentError, match="Did you mean 'registry/Dice-v0'"):
        forkgym.make("registry/Dise-v0")
    with pytest.raises(UnknownEnvironmentError, match="Did you mean 'CartPole-v1'"):
        forkgym.make("cartpole-v1")
    with pytest.raises(UnknownEnvironmentError, match=r"forkgym.list_envs\(\)"):
        forkgym.make("zzzzzzzzzzzz")
    with pytest.raises(UnknownEnvironmentError, match="not a int"):
        forkgym.make(3)


def test_an_unknown_argument_names_the_nearest_and_lists_all():
    with pytest.raises(UnknownArgumentError, match=r"no argument 'side'. Did you mean 'sides'\? It takes: sides"):
        forkgym.make("registry/Dice-v0", side=3)
    with pytest.raises(UnknownArgumentError, match="CartPole-v1 takes no argument 'gravity'"):
        forkgym.make("CartPole-v1", gravity=3)


def test_an_entry_point_that_cannot_be_imported_is_explained():
    with pytest.raises(ForkgymError, match=r"registry/Nowhere-v0 is registered as no_such_module:Env.*Install"):
        forkgym.make("registry/Nowhere-v0")
    with pytest.raises(ForkgymError, match="without an entry point"):
        forkgym.make(EnvSpec("registry/Hollow-v0"))


def test_registering_twice_is_fine_and_stealing_an_id_is_not():
    forkgym.register("registry/Dice-v0", PLACE)
    with pytest.raises(ForkgymError, match="already registered for"):
        forkgym.register("registry/Dice-v0", "tests.core.core_worlds:Guess")
    with pytest.raises(ForkgymError, match="already registered"):
        forkgym.register("CartPole-v1", Dice)


def test_a_wrapper_that_does_not_record_its_arguments_is_refused():
    forkgym.register("registry/Odd-v0", PLACE, additional_wrappers=[WrapperSpec("Odd", "x:Odd", None)])
    with pytest.raises(ForkgymError, match="Odd does not record its arguments"):
        forkgym.make("registry/Odd-v0")


def test_a_module_before_the_id_is_imported_first():
    out = in_a_new_process(
        "import sys, types, forkgym\n"
        "module = types.ModuleType('late'); sys.modules['late'] = module\n"
        "try: forkgym.make('late:Late-v0')\n"
        "except forkgym.ForkgymError as error: print('refused', error)\n"
        f"forkgym.register('Late-v0', '{PLACE}')\n"
        "print(forkgym.make('late:Late-v0'))"
    )
    assert out.splitlines()[0].startswith("refused")
    assert out.splitlines()[1] == "<Late-v0: not reset>"


def test_list_envs_names_ours_sorted_and_not_gymnasiums():
    names = forkgym.list_envs()
    assert names == sorted(names)
    assert "registry/Dice-v0" in names
    assert "CartPole-v1" not in names


def test_installed_environments_are_known_to_gymnasium_after_the_import_and_not_imported_by_it():
    out = in_a_new_process(
        "import sys, forkgym, gymnasium\n"
        "print(all(name in gymnasium.registry for name in forkgym.list_envs()), len(forkgym.list_envs()) > 0)\n"
        "print(sorted(m for m in sys.modules if m.startswith(('forkgym_', 'torch', 'numba', 'hypothesis', 'bm25s'))))\n"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('transformers', 'pickle5', 'scipy')))"
    )
    assert out.splitlines() == ["True True", "[]", "[]"]


def test_check_env_needs_no_hypothesis():
    out = in_a_new_process(
        "import sys\nfrom forkgym import testing\ntesting.check_env('Blackjack-v1')\nprint('hypothesis' in sys.modules)"
    )
    assert out == "False"


def test_importing_forkgym_takes_at_most_one_and_a_half_times_as_long_as_gymnasium(tmp_path):
    """The least of five runs, in CPU time, so that a busy machine does not decide; what forkgym adds comes after.

    Bytecode is written first, as an installer does: an editable checkout may not have any.
    """
    code = (
        "import time; start = time.process_time(); import gymnasium; middle = time.process_time(); import forkgym;"
        "print((time.process_time() - start) / (middle - start))"
    )
    compiled = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    ratios = [float(in_a_new_process(code, env=compiled)) for _ in range(6)][1:]
    assert min(ratios) <= 1.5, ratios


def test_a_class_without_a_constructor_takes_no_argument():
    with pytest.raises(UnknownArgumentError, match=r"toy/Chain-v0 takes no argument 'depht'. It takes: none"):
        forkgym.make("toy/Chain-v0", depht=3)


def test_every_public_name_is_there():
    assert [name for name in forkgym.__all__ if not hasattr(forkgym, name)] == []
    assert [name for name in forkgym.core.__all__ if not hasattr(forkgym.core, name)] == []
    assert sorted(forkgym.__all__) == sorted(set(forkgym.__all__))


def test_nearest_says_nothing_when_nothing_is_near():
    assert nearest("abc", ["xyz"]) == ""
    assert nearest("sidse", ["sides"]) == " Did you mean 'sides'?"
