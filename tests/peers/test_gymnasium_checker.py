"""Gymnasium's own checker passes on every registered environment, made by forkgym or by Gymnasium."""

import functools
import warnings

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import forkgym
from forkgym import testing

ENVIRONMENTS = [name for name in forkgym.list_envs() if name.startswith(("toy/", "retrieval/"))]


@functools.cache
def arguments(env_id):
    try:
        return testing.example_kwargs(env_id)
    except LookupError as lacking:
        pytest.skip(f"{env_id}: {lacking}")


@pytest.mark.parametrize("make", [forkgym.make, gymnasium.make], ids=["forkgym.make", "gymnasium.make"])
@pytest.mark.parametrize("env_id", ENVIRONMENTS)
def test_gymnasiums_checker_passes(env_id, make):
    env = make(env_id, **arguments(env_id))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*different from the unwrapped version.*")
        check_env(env, skip_render_check=True)
    env.close()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "FrozenLake-v1", "Taxi-v4"])
def test_gymnasiums_checker_passes_on_wrapped_environments(env_id):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_env(forkgym.make(env_id), skip_render_check=True)
