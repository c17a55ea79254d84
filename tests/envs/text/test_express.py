"""`text/TextWorldExpress-v0`: forks by history, against the engine itself; skipped without the engine or Java."""

import importlib.util
import shutil

import numpy as np
import pytest

import forkgym
from forkgym import testing

if importlib.util.find_spec("textworld_express") is None or shutil.which("java") is None:
    pytest.skip("needs Java and pip install 'forkgym[express]'", allow_module_level=True)

PARAMS = {"game": "coin", "params": "numLocations=4"}


def begun(task=0, **kwargs):
    env = forkgym.make("text/TextWorldExpress-v0", **{**PARAMS, **kwargs})
    env.reset(seed=0, options={"split": "train", "task": task})
    return env


def random_walk(env, seed, turns):
    rng = np.random.default_rng(seed)
    answers = []
    for _ in range(turns):
        observation, reward, terminated, truncated, info = env.step(env.scripted_action("random", rng))
        answers.append((observation, reward, terminated, truncated, info, env.state_hash()))
        if terminated or truncated:
            break
    return answers


@pytest.mark.parametrize("game", ["coin", "cookingworld", "twc", "mapreader"])
def test_the_engines_solution_wins(game):
    env = begun(game=game, params="")
    terminated = truncated = False
    while not (terminated or truncated):
        _, reward, terminated, truncated, info = env.step(env.advice())
    assert (reward, info["success"]) == (1.0, True)


def test_forks_played_in_turns_answer_as_if_alone():
    env = begun()
    random_walk(env, 0, 3)
    alone = random_walk(env.fork(), 5, 6)
    one, other = env.fork(), env.fork()
    rng, noise, mixed = np.random.default_rng(5), np.random.default_rng(8), []
    for _ in alone:
        if other.step(other.scripted_action("random", noise))[2]:
            other = env.fork()
        observation, reward, terminated, truncated, info = one.step(one.scripted_action("random", rng))
        mixed.append((observation, reward, terminated, truncated, info, one.state_hash()))
    assert mixed == alone
    assert env.turn == 3


def test_it_keeps_every_promise():
    testing.check_env("text/TextWorldExpress-v0", seeds=2, steps=8, **PARAMS, max_turns=10)


def test_wrong_arguments_are_refused_in_words():
    with pytest.raises(ValueError, match="cookingworld"):
        forkgym.make("text/TextWorldExpress-v0", game="chess")
    with pytest.raises(ValueError, match="max_turns"):
        forkgym.make("text/TextWorldExpress-v0", max_turns=0)
