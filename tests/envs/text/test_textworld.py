"""`text/TextWorld-v0` against TextWorld's own environment, and its forks against each other and other processes."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import forkgym
from forkgym import Luck
from tests.envs.text.conftest import GAMES

families = pytest.mark.parametrize(("family", "level"), GAMES)


def begun(family, level, **kwargs):
    env = forkgym.make("text/TextWorld-v0", family=family, level=level, games=2, **kwargs)
    env.reset(seed=0, options={"split": "train", "task": 0})
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


def of_textworld(place, commands):
    """What TextWorld's own environment says: (text, admissible commands, score, won, lost, first step to win)."""
    import textworld
    from forkgym_text.tracking import read_answer

    infos = textworld.EnvInfos(admissible_commands=True, policy_commands=True, score=True, won=True, lost=True)
    env = textworld.start(str(place / "game.z8"), infos)
    state = env.reset()
    told = [(None, state["admissible_commands"], 0, False, False, state["policy_commands"][0])]
    for command in commands:
        state, _, _ = env.step(command)
        text = read_answer(state["feedback"]).text
        advice = next(iter(state["policy_commands"]), None)
        told.append((text, state["admissible_commands"], state["score"], state["won"], state["lost"], advice))
    env.close()
    return told


@families
@pytest.mark.parametrize("seed", range(3))
def test_it_says_what_textworlds_own_environment_says(textworld_games, family, level, seed):
    env = begun(family, level)
    told = [(None, list(env.admissible_commands), 0, False, False, env.advice())]
    rng = np.random.default_rng(seed)
    over = False
    while not over and env.turn < 12:
        observation, _, over, _, info = env.step(env.scripted_action("random", rng))
        lost = info.get("failure") == "lost"
        told.append((observation, info["admissible_commands"], info["score"], over and not lost, lost, env.advice()))
    commands = [env.parse(action)["arguments"]["command"] for action in env.handle().actions]
    assert told == of_textworld(textworld_games[family], commands)


@families
def test_the_walkthrough_wins(textworld_games, family, level):
    env = begun(family, level)
    rng = np.random.default_rng(0)
    terminated = truncated = False
    while not (terminated or truncated):
        _, reward, terminated, truncated, info = env.step(env.scripted_action("walkthrough", rng))
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    assert "failure" not in info


def test_the_walkthrough_finds_its_way_back_from_a_random_detour(textworld_games):
    env = begun("coin-collector", 5)
    random_walk(env, 1, 8)
    while (command := env.advice()) is not None:
        _, reward, terminated, _, _ = env.step(command)
        if terminated:
            break
    assert reward == 1.0


@families
def test_forks_at_every_turn_continue_like_their_parent_and_never_touch_it(textworld_games, family, level):
    env = begun(family, level)
    rng = np.random.default_rng(3)
    for _ in range(6):
        child = env.fork(luck=Luck.fresh(7))
        random_walk(child, 5, 4)
        with env.snapshot() as snapshot:
            expected = random_walk(env.fork(), 11, 5)
            random_walk(env, 12, 5)
            env.restore(snapshot)
            assert env.state_hash() == snapshot.state_hash
        assert random_walk(env.fork(), 11, 5) == expected
        _, _, terminated, truncated, _ = env.step(env.scripted_action("random", rng))
        if terminated or truncated:
            break


def test_two_episodes_of_one_game_played_in_turns_do_not_disturb_each_other(textworld_games):
    alone = random_walk(begun("treasure-hunter", 4), 0, 8)
    one, other = begun("treasure-hunter", 4), begun("treasure-hunter", 4, max_turns=100)
    rng, noise = np.random.default_rng(0), np.random.default_rng(9)
    mixed = []
    for _ in alone:
        _, _, terminated, _, _ = other.step(other.scripted_action("random", noise))
        if terminated:
            other.reset(seed=1, options={"split": "train", "task": 0})
        observation, reward, terminated, truncated, info = one.step(one.scripted_action("random", rng))
        mixed.append((observation, reward, terminated, truncated, info, one.state_hash()))
    assert mixed == alone


PROGRAM = """
import json, sys, numpy as np, forkgym
env = forkgym.replay(forkgym.Handle.from_json(sys.stdin.read()))
advice = []
for seed in range(3):
    fork = env.fork()
    rng = np.random.default_rng(seed)
    for _ in range(5):
        advice.append(fork.advice())
        if fork.step(fork.scripted_action("random", rng))[2]:
            break
print(json.dumps([env.state_hash(), advice]))
"""


@pytest.mark.slow
@families
def test_another_process_with_another_hash_seed_reaches_the_same_state_and_gives_the_same_advice(
    textworld_games, family, level
):
    env = begun(family, level)
    random_walk(env, 2, 6)
    found = set()
    for hash_seed in ("0", "1", "77"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            input=env.handle().to_json(),
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found.add(done.stdout)
    assert len(found) == 1
    assert json.loads(found.pop())[0] == env.state_hash()


@pytest.mark.slow
def test_a_game_made_again_has_the_same_bytes(textworld_games, tmp_path, monkeypatch):
    from forkgym_text.families import recipe
    from forkgym_text.making import fingerprint, make_games

    before = [fingerprint(textworld_games[family]) for family, _ in GAMES]
    monkeypatch.setenv("FORKGYM_TEXT_CACHE", str(tmp_path))
    monkeypatch.setenv("PYTHONHASHSEED", "5")
    again = make_games([recipe(family, level, "train", 0) for family, level in GAMES])
    assert [fingerprint(place) for place in again] == before
    assert all(tmp_path in place.parents for place in again)


def test_commands_that_reach_for_the_interpreter_change_nothing_but_the_turn(textworld_games, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = begun("treasure-hunter", 4)
    machine = env.situation.machine
    for command in ("save", "look. script", "undo", "restart", "tw-trace-actions", "quit"):
        _, _, terminated, _, info = env.step({"tool": "command", "arguments": {"command": command}})
        assert (info["action_kind"], terminated, env.situation.machine) == ("invalid", False, machine)
    assert not list(tmp_path.iterdir())
    assert not list(textworld_games["treasure-hunter"].glob("*.qzl"))


def test_any_text_is_answered_and_never_breaks_the_game(textworld_games):
    env = begun("coin-collector", 5, max_turns=400)
    rng = np.random.default_rng(0)
    words = ["go", "north", "take", "coin", "look", "all", "it", "again", "z", "then", "and", "oops", "9999999999"]
    words += list(".'\"#*/()[]<>0")
    for _ in range(150):
        text = " ".join(rng.choice(words, size=int(rng.integers(0, 8))))
        observation, _, terminated, _, info = env.step(text)
        assert isinstance(observation, str)
        assert info["action_kind"]
        if terminated:
            env.reset(seed=0, options={"split": "train", "task": 0})


def test_an_episode_that_runs_out_of_turns_is_named_and_earns_nothing(textworld_games):
    env = begun("treasure-hunter", 4, max_turns=3)
    for _ in range(3):
        _, reward, terminated, truncated, info = env.step("look")
    assert (reward, terminated, truncated, info["success"], info["failure"]) == (0.0, False, True, False, "no effect")


def test_partial_credit_is_the_share_of_the_points(textworld_games):
    env = begun("cooking", 5, max_turns=4, partial_credit=True)
    rng = np.random.default_rng(0)
    for _ in range(4):
        _, reward, _, _, info = env.step(env.scripted_action("walkthrough", rng))
    assert 0 < info["score"] < info["max_score"]
    assert reward == info["score"] / info["max_score"]


def test_equal_worlds_have_equal_anchors_however_they_were_reached(textworld_games):
    env = begun("coin-collector", 5)
    _, _, _, _, first = env.step("look")
    there = next(command for command in env.admissible_commands if command.startswith("go "))
    _, _, _, _, second = env.step(there)
    back = {"north": "south", "south": "north", "east": "west", "west": "east"}[there.split()[1]]
    _, _, _, _, third = env.step(f"go {back}")
    assert first["anchor"] == third["anchor"] != second["anchor"]


def test_observations_list_the_commands_where_asked_to(textworld_games):
    observation, info = forkgym.make("text/TextWorld-v0", family="coin-collector", level=5, show_commands=True).reset(
        seed=0, options={"task": 0}
    )
    assert observation.endswith("Possible commands: " + ", ".join(info["admissible_commands"]))


@pytest.mark.slow
def test_ten_thousand_live_snapshots_take_less_than_600_megabytes(textworld_games):
    program = """
import resource, numpy as np, forkgym
env = forkgym.make("text/TextWorld-v0", family="cooking", level=5, games=2)
rng, alive = np.random.default_rng(0), []
env.reset(seed=0, options={"task": 0})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
over = False
while len(alive) < 10_000:
    if over:
        env.reset(seed=0, options={"task": 0})
    _, _, terminated, truncated, _ = env.step(env.scripted_action("random", rng))
    over = terminated or truncated
    alive += [env.snapshot() for _ in range(5)]
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 600


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"family": "chess"}, "treasure-hunter"),
        ({"level": 31}, "levels 1 to 30"),
        ({"games": 0}, "games must be"),
        ({"max_turns": 2.5}, "max_turns must be"),
    ],
)
def test_wrong_arguments_are_refused_in_words(textworld_games, arguments, words):
    with pytest.raises(ValueError, match=words):
        forkgym.make("text/TextWorld-v0", **arguments)


# ---------------------------------------------------------------------- plain words

plain_families = pytest.mark.parametrize(("family", "level"), GAMES[:2])


@plain_families
@pytest.mark.parametrize("seed", range(4))
def test_the_rules_alone_lead_where_the_story_leads(textworld_games, family, level, seed):
    story, rules = begun(family, level), begun(family, level, words="plain")
    rng = np.random.default_rng(seed)
    over = False
    while not over and story.turn < 15:
        command = story.scripted_action("random" if rng.random() < 0.6 else "walkthrough", rng)
        _, reward, over, _, info = story.step(command)
        _, plain_reward, plain_over, _, plain_info = rules.step(command)
        assert (plain_reward, plain_over) == (reward, over)
        for name in ("anchor", "admissible_commands", "score", "success", "failure"):
            assert plain_info.get(name) == info.get(name)
        assert rules.advice() == story.advice()


def test_plain_words_say_what_is_there(textworld_games):
    env = begun("coin-collector", 5, words="plain")
    told = [env.messages()[0]["content"]]
    while env.turn < 4:
        told.append(env.step(env.advice())[0])
    told += [env.step("look")[0], env.step("dance")[0], env.step("save")[0], env.step("take coin")[0]]
    assert told == [
        "find coin . room cookhouse . exits south .",
        "room spare room . exits north , east .",
        "room studio . exits north , west .",
        "room dish-pit . exits north , south .",
        "room cookery . exits south . here coin .",
        "nothing happens .",
        "nothing happens .",
        "that is no command .",
        "you win .",
    ]


def small(**kwargs):
    return forkgym.make(
        "text/TextWorld-v0", family="coin-collector", level=5, games=2, held_out=1, words="plain", **kwargs
    )


def test_every_word_of_every_demonstration_is_in_the_vocabulary(textworld_games):
    env = small()
    vocabulary = env.vocabulary()
    names = sorted((name for group in vocabulary.entities.values() for name in group), key=len, reverse=True)
    for shown in env.demonstrations(12, seed=0, error_rate=0.4):
        texts = [shown.prompt[0]["content"], *[part for turn in shown.turns for part in turn]]
        for text in texts:
            padded = f" {text} "
            for name in names:
                padded = padded.replace(f" {name} ", " ")
            assert set(padded.split()) <= set(vocabulary.words), text
    assert len(set(names)) == len(names)
    assert not set(names) & set(vocabulary.words)


def test_demonstrations_follow_the_walkthrough_and_err_as_often_as_asked(textworld_games):
    env = small()
    right = env.demonstrations(6, seed=1)
    assert all(shown.utility == 1.0 and len(shown.turns) == 5 for shown in right)
    assert env.demonstrations(6, seed=1) == right
    wrong = env.demonstrations(6, seed=1, error_rate=1.0)
    assert sum(shown.utility for shown in wrong) < 6


def test_only_plain_words_have_a_vocabulary_and_only_of_as_many_games_as_can_be_made(textworld_games):
    with pytest.raises(NotImplementedError, match="plain"):
        begun("coin-collector", 5).vocabulary()
    with pytest.raises(ValueError, match="at most 600"):
        forkgym.make("text/TextWorld-v0", family="coin-collector", words="plain").vocabulary()
    with pytest.raises(ValueError, match="recipes"):
        forkgym.make("text/TextWorld-v0", family="cooking", words="plain")
