"""`text/Jericho-v0` with a story file of the test's own (one that TextWorld made, which Jericho does not know)."""

import shutil

import numpy as np
import pytest

import forkgym
from forkgym import Luck, testing


@pytest.fixture
def shelf(textworld_games, tmp_path, monkeypatch):
    shutil.copy(textworld_games["coin-collector"] / "game.z8", tmp_path / "coin.z8")
    monkeypatch.setenv("FORKGYM_STORIES", str(tmp_path))
    return tmp_path


def begun(**kwargs):
    env = forkgym.make("text/Jericho-v0", story="coin.z8", **kwargs)
    env.reset(seed=0)
    return env


def test_a_story_is_played_to_its_end(shelf):
    env = begun()
    assert env.messages()[0]["content"].endswith("that entranceway is unguarded.")
    for command in ("go south", "go east", "go north", "go north"):
        _, _, terminated, _, info = env.step(command)
        assert not terminated
    observation, reward, terminated, _, info = env.step("take coin")
    assert (terminated, info["success"], info["failure"], reward) == (True, False, "lost", 0.0)
    assert "*** The End ***" in observation


def test_forks_and_rewinds_are_exact(shelf):
    env = begun()
    env.step("south")
    with env.snapshot() as before:
        expected = [env.fork().step("east"), env.fork(luck=Luck.fresh(3)).step("east")]
        env.step("north")
        env.restore(before)
        assert env.step("east") == expected[0]
    assert expected[0][0] == expected[1][0]


def test_it_keeps_every_promise(shelf):
    testing.check_env("text/Jericho-v0", seeds=2, steps=6, story="coin.z8", max_turns=8)


def test_the_interpreters_own_commands_never_reach_it(shelf):
    env = begun()
    for command in ("save", "restore", "script", "look. save"):
        assert env.step(command)[4]["action_kind"] == "invalid"
    assert sorted(path.name for path in shelf.iterdir()) == ["coin.z8"]


def test_random_play_uses_common_commands(shelf):
    env = begun()
    rng = np.random.default_rng(0)
    assert env.scripted_action("random", rng) in env.admissible_commands
    assert "inventory" in env.admissible_commands


def test_a_changed_story_is_noticed_by_a_replay(shelf):
    env = begun()
    env.step("south")
    handle = env.handle()
    assert forkgym.replay(handle).state_hash() == env.state_hash()
    story = bytearray((shelf / "coin.z8").read_bytes())
    story[0x12] += 1
    (shelf / "coin.z8").write_bytes(story)
    with pytest.raises(forkgym.ReplayDivergence) as caught:
        forkgym.replay(handle)
    assert caught.value.turn == 0


@pytest.mark.parametrize(
    ("story", "error"), [("nothing.z5", FileNotFoundError), ("picture.png", ValueError), (5, ValueError)]
)
def test_what_is_no_story_is_refused_in_words(shelf, story, error):
    with pytest.raises(error, match="story"):
        forkgym.make("text/Jericho-v0", story=story)
