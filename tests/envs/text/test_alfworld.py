"""`text/ALFWorld-v0` against ALFWorld's own engine, its forks, and the reading of its data.

The real games are looked for in `$ALFWORLD_DATA`, else beside the repository; tests skip without them.
"""

import gzip
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from forkgym_text.household import plain_names
from forkgym_text.household_data import TASK_TYPES, data_directory, load_household, load_index

import forkgym

BESIDE = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "alfworld"
GAMES = Path(os.environ.get("ALFWORLD_DATA") or BESIDE)  # read now: the package alfworld sets the variable
DOMAIN, GRAMMAR = "(define (domain alfred))", 'task :: "@@TASK@@"'


@pytest.fixture(scope="session")
def games():
    """Directory of real games."""
    if importlib.util.find_spec("fast_downward") is None or importlib.util.find_spec("textworld") is None:
        pytest.skip("the planner is not installed: pip install 'forkgym[alfworld]'")
    if not GAMES.is_dir():
        pytest.skip(f"no games of ALFWorld at {GAMES}; set ALFWORLD_DATA to their directory")
    return GAMES


@pytest.fixture
def begun(games, monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(games))

    def begin(task, split="valid_seen", **kwargs):
        env = forkgym.make("text/ALFWorld-v0", **kwargs)
        env.reset(seed=0, options={"split": split, "task": task})
        return env

    return begin


def random_walk(env, seed, turns):
    rng = np.random.default_rng(seed)
    answers = []
    for _ in range(turns):
        observation, reward, terminated, truncated, info = env.step(env.scripted_action("random", rng))
        answers.append((observation, reward, terminated, truncated, info, env.state_hash()))
        if terminated or truncated:
            break
    return answers


def play_out(env, policy="walkthrough"):
    rng = np.random.default_rng(0)
    terminated = truncated = False
    while not (terminated or truncated):
        _, reward, terminated, truncated, info = env.step(env.scripted_action(policy, rng))
    return reward, info


# ---------------------------------------------------------------------- data


def packed(place, split="train"):
    game = {
        "gamefile": f"json_2.1.1/{split}/pick_and_place_simple-Mug-None-Desk-1/trial_1/game.tw-pddl",
        "task": "put a mug on a desk.",
        "domain_id": "d",
        "grammar_id": "g",
        "pddl_problem": "(define (problem p))",
        "solvable": True,
        "walkthrough": ["go to desk 1"],
    }
    shared = {"domains": {"d": DOMAIN}, "grammars": {"g": GRAMMAR}}
    (place / "shared.json.gz").write_bytes(gzip.compress(json.dumps(shared).encode()))
    (place / f"{split}_0.jsonl.gz").write_bytes(gzip.compress(json.dumps(game).encode() + b"\n"))
    return game


def test_the_packed_and_the_original_form_give_the_same_game(tmp_path):
    (tmp_path / "packed").mkdir()
    game = packed(tmp_path / "packed")
    file = tmp_path / "original" / game["gamefile"]
    file.parent.mkdir(parents=True)
    grammar = GRAMMAR.replace("@@TASK@@", game["task"])
    file.write_text(
        json.dumps(
            {"pddl_domain": DOMAIN, "grammar": grammar}
            | {name: game[name] for name in ("pddl_problem", "solvable", "walkthrough")}
        )
    )
    found = [
        load_household(place, load_index(place)["train"][0]) for place in (tmp_path / "packed", tmp_path / "original")
    ]
    assert found[0] == found[1]
    assert found[0].walkthrough == ("go to desk 1",)


def test_games_are_chosen_by_type(tmp_path):
    packed(tmp_path, "valid_seen")
    assert {split: len(games) for split, games in load_index(tmp_path).items()} == {"valid_seen": 1}
    with pytest.raises(LookupError, match="holds no games of look_at_obj_in_light"):
        load_index(tmp_path, ("look_at_obj_in_light",))


def test_a_directory_without_games_and_a_torn_file_are_said_in_words(tmp_path, monkeypatch):
    with pytest.raises(LookupError, match="packed form"):
        load_index(tmp_path)
    packed(tmp_path)
    (tmp_path / "train_0.jsonl.gz").write_bytes(gzip.compress(b'{"gamefile": 3}\n'))
    load_index.cache_clear()
    with pytest.raises(LookupError, match="train_0"):
        load_index(tmp_path)
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(LookupError, match="alfworld-download"):
        data_directory(None)


def test_things_are_numbered_as_alfworld_numbers_them():
    ids = ["desk_bar__plus_01_dot_5", "desk_bar__minus_02", "sink_bar_1_bar_sinkbasin", "sink_bar_1", "agent1", "loc_1"]
    names = plain_names(ids)
    assert names["desk_bar__plus_01_dot_5"] == "desk 1"
    assert names["desk_bar__minus_02"] == "desk 2"
    assert names["sink_bar_1_bar_sinkbasin"] == "sinkbasin 1"
    if importlib.util.find_spec("alfworld") is not None:
        from alfworld.agents.utils.misc import Demangler
        from textworld.generator.game import EntityInfo

        theirs = Demangler(game_infos={name: EntityInfo(name, "o") for name in ids})
        assert names == {name: theirs.demangle_alfred_name(name) for name in ids}


# ---------------------------------------------------------------------- play


@pytest.mark.slow
@pytest.mark.parametrize("task", [3, 70])
def test_it_says_what_textworlds_own_engine_says(begun, task):
    import textworld
    from textworld.envs.pddl.pddl import PddlEnv

    env = begun(task)
    game = env.situation.house.game
    theirs = PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True))
    theirs.load({"pddl_domain": game.domain, "grammar": game.grammar, "pddl_problem": game.problem})
    for name, plain in plain_names(theirs._entity_infos).items():
        theirs._entity_infos[name].name = plain
    state = theirs.reset()
    assert state.feedback == env.messages()[0]["content"]
    rng = np.random.default_rng(task)
    for turn in range(7):
        command = "dance" if turn == 4 else env.scripted_action("random", rng)
        observation, reward, terminated, _, info = env.step(command)
        state, _, _ = theirs.step(command)
        assert state.feedback == observation
        assert state["admissible_commands"] == info["admissible_commands"]
        assert bool(state["won"]) == bool(reward) == terminated
        if terminated:
            break


@pytest.mark.slow
def test_walkthroughs_of_valid_seen_win_also_after_a_fork_in_the_middle_and_a_rewind(begun):
    """Every seventeenth game; all 140 (some minutes) with FORKGYM_ALL_GAMES=1."""
    won = 0
    env = begun(0)
    tasks = range(0, env.splits["valid_seen"], 1 if os.environ.get("FORKGYM_ALL_GAMES") else 17)
    for task in tasks:
        env.reset(seed=0, options={"split": "valid_seen", "task": task})
        steps = env.situation.house.game.walkthrough
        for command in steps[: len(steps) // 2]:
            env.step(command)
        fork = env.fork()
        with env.snapshot() as middle:
            random_walk(env, task, 3)
            env.restore(middle)
        results = [play_out(fork), play_out(env)]
        won += all(reward == 1.0 and info["success"] for reward, info in results)
    assert won == len(tasks)
    assert env.splits["valid_seen"] == 140


def test_a_walkthrough_wins_and_the_planner_helps_after_a_detour(begun):
    assert play_out(begun(5))[0] == 1.0
    env = begun(5)
    random_walk(env, 1, 4)
    assert env.situation.followed == -1
    assert play_out(env)[0] == 1.0


@pytest.mark.slow
def test_forks_continue_like_their_parent_and_never_touch_it(begun):
    env = begun(60)
    for seed in range(3):
        random_walk(env, seed, 2)
        with env.snapshot() as snapshot:
            expected = random_walk(env.fork(), 11, 4)
            random_walk(env, 12, 4)
            env.restore(snapshot)
            assert random_walk(env.fork(), 11, 4) == expected


PROGRAM = """
import sys, forkgym
for line in sys.stdin:
    env = forkgym.replay(forkgym.Handle.from_json(line))
    print(env.state_hash())
"""


@pytest.mark.slow
def test_handles_replay_in_another_process_with_another_hash_seed(begun, games):
    environments = [begun(task) for task in (1, 40, 80, 120)]
    for number, env in enumerate(environments):
        random_walk(env, number, 6)
    for hash_seed in ("0", "3"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            input="".join(env.handle().to_json() + "\n" for env in environments),
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "ALFWORLD_DATA": str(games)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == [env.state_hash() for env in environments]


def test_what_the_game_does_not_know_changes_nothing(begun):
    env = begun(10)
    room = env.situation.room
    observation, _, _, _, info = env.step("dance on the table")
    assert (observation, info["action_kind"], env.situation.room) == ("Nothing happens.", "other", room)
    observation, _, _, _, info = env.step("undo")
    assert info["action_kind"] == "invalid"


def test_running_out_of_turns_is_named(begun):
    env = begun(10, max_turns=2)
    env.step("inventory")
    _, reward, terminated, truncated, info = env.step("inventory")
    assert (reward, terminated, truncated, info["success"], info["failure"]) == (0.0, False, True, False, "no effect")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"task_types": ["cook"]}, TASK_TYPES[0]), ({"task_types": []}, "task_types"), ({"max_turns": 0}, "max_turns")],
)
def test_wrong_arguments_are_refused_in_words(begun, arguments, words):
    with pytest.raises(ValueError, match=words):
        forkgym.make("text/ALFWorld-v0", **arguments)
