"""`retrieval/QA-v0` on its example questions: the rules, the reward, tasks, noise, and that it forks and replays."""

import json

import pytest
from scipy import stats

pytest.importorskip("bm25s", reason="needs the extra forkgym[retrieval]")

import numpy as np
from forkgym_retrieval.data import DataError
from forkgym_retrieval.protocol import INVALID_HINT, split_tokens
from forkgym_retrieval.qa import QAEnv, SettingError

import forkgym
from forkgym import testing
from forkgym.core import ForkgymError, Handle, Luck, TaskError

ENV_ID = "retrieval/QA-v0"
SEARCH = "<think> I look. </think> <search> {} </search>"
ANSWER = "<answer> {} </answer>"


def start(task="train-6", split="train", seed=0, **kwargs):
    env = forkgym.make(ENV_ID, **kwargs)
    observation, info = env.reset(seed=seed, options={"split": split, "task": task})
    return env, observation, info


@pytest.fixture
def write(tmp_path):
    def write(name, rows):
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return write


# ---------------------------------------------------------------- the rules


def test_an_episode_searches_and_answers():
    env, task, info = start()
    assert "Which river crosses the city where Kepler worked with Tycho Brahe?" in task
    assert info == {"split": "train", "task": 5, "question_id": "train-6"}
    observation, reward, terminated, _, info = env.step(SEARCH.format("Kepler Tycho Brahe city"))
    assert observation.startswith('\n\n<information>Doc 1(Title: "')
    assert observation.endswith("</information>\n\n")
    assert observation.count("\nDoc ") == 2
    assert (reward, terminated, info["action_kind"], info["searches"]) == (0.0, False, "search", 1)
    observation, reward, terminated, truncated, info = env.step(ANSWER.format("the Vltava"))
    assert (observation, reward, terminated, truncated) == ("", 1.0, True, False)
    assert (info["success"], info["answer"], info["em"], info["f1"]) == (True, "the Vltava", 1.0, 1.0)
    assert info["golden_answers"] == ["Vltava"]


def test_the_conversation_is_prompt_turn_observation_turn():
    env, task, _ = start()
    turn = SEARCH.format("Prague")
    observation, *_ = env.step(turn)
    env.step(ANSWER.format("x"))
    assert [m["role"] for m in env.messages()] == ["user", "assistant", "tool", "assistant"]
    assert [m["content"] for m in env.messages()] == [task, turn, observation, ANSWER.format("x")]


def test_evidence_is_the_sorted_ids_of_what_was_shown():
    env, _, _ = start(top_k=2)
    observation, *_, info = env.step(SEARCH.format("Prague Vltava"))
    shown = {p.id for p in env.passages if f'(Title: "{p.title}")' in observation}
    assert info["evidence"] == sorted(shown)
    assert len(shown) == 2
    *_, info = env.step("no action")
    assert info["evidence"] == []


def test_two_queries_that_find_the_same_have_the_same_evidence():
    env, _, _ = start()
    twin = env.fork()
    assert (
        env.step(SEARCH.format("Vltava Smetana Prague"))[4]["evidence"]
        == (twin.step(SEARCH.format("prague, smetana; VLTAVA"))[4]["evidence"])
    )


def test_at_most_four_searches_are_answered_and_the_fifth_ends_the_episode():
    env, _, _ = start()
    assert env.max_turns == 5
    for number in range(1, 5):
        observation, _, terminated, truncated, info = env.step(SEARCH.format("Prague"))
        assert "<information>Doc 1" in observation
        assert (terminated, truncated, info["searches"]) == (False, False, number)
    observation, reward, terminated, _, info = env.step(SEARCH.format("Prague"))
    assert (observation, reward, terminated) == ("", 0.0, True)
    assert (info["action_kind"], info["evidence"], info["searches"]) == ("search", [], 4)
    assert (info["success"], info["answer"]) == (False, None)


def test_after_four_searches_an_answer_still_counts():
    env, _, _ = start()
    for _ in range(4):
        env.step(SEARCH.format("Prague"))
    _, reward, terminated, _, info = env.step(ANSWER.format("Vltava"))
    assert (reward, terminated, info["success"]) == (1.0, True, True)


def test_an_invalid_turn_gets_the_hint_and_uses_up_a_turn_but_no_search():
    env, _, _ = start(max_searches=2)
    observation, reward, terminated, _, info = env.step("I have no idea")
    assert (observation, reward, terminated) == (INVALID_HINT, 0.0, False)
    assert (info["action_kind"], info["searches"]) == ("invalid", 0)
    env.step(SEARCH.format("Prague"))
    observation, reward, terminated, _, info = env.step("still no idea")
    assert (observation, reward, terminated, info["success"]) == ("", 0.0, True, False)


def test_without_searches_the_agent_must_answer_at_once():
    env, prompt, _ = start(max_searches=0)
    assert "cannot search" in prompt
    observation, _, terminated, _, info = env.step(SEARCH.format("Prague"))
    assert (observation, terminated, info["searches"]) == ("", True, 0)


def test_a_search_without_known_words_is_answered_by_an_empty_block():
    env, _, _ = start()
    for query in ("zzz qqq", "the of", ""):
        observation, *_, info = env.step(SEARCH.format(query))
        assert observation == "\n\n<information></information>\n\n"
        assert info["evidence"] == []
    assert info["searches"] == 3


def test_text_and_tool_calls_mean_the_same():
    env, _, _ = start()
    twin = env.fork()
    call = {"tool": "search", "arguments": {"query": "Prague"}}
    assert env.parse("<search> Prague </search>") == call
    assert env.step("<search> Prague </search>") == twin.step(call)
    assert twin.messages()[1]["content"] == "<search> Prague </search>"
    call = {"tool": "answer", "arguments": {"answer": "Vltava"}}
    assert env.parse(ANSWER.format("Vltava")) == call
    assert env.step(ANSWER.format("Vltava")) == twin.step(call)


@pytest.mark.parametrize(
    "call",
    [
        {"tool": "invalid", "arguments": {"text": "x"}},
        {"tool": "invalid", "arguments": {}},
        {"tool": "fly", "arguments": {}},
        {"tool": "search", "arguments": {}},
        {"tool": "search", "arguments": {"query": 7}},
        {"tool": "search", "arguments": {"query": None}},
        {"tool": "answer", "arguments": {"query": "x"}},
    ],
)
def test_a_malformed_tool_call_gets_the_hint(call):
    env, _, _ = start()
    observation, *_, info = env.step(call)
    assert (observation, info["action_kind"]) == (INVALID_HINT, "invalid")


@pytest.mark.parametrize("text", ["", "\x00", "<search>" * 1000, "</answer>", "{}", "<search> a </answer>", "ß" * 9999])
def test_parsing_never_raises(text):
    env, _, _ = start()
    assert env.parse(text)["tool"] == "invalid"
    assert env.step(text)[0] == INVALID_HINT


def test_the_observation_limit_holds_and_a_subclass_may_bring_its_tokenizer():
    env, _, _ = start(observation_tokens=40)
    observation, *_ = env.step(SEARCH.format("Prague"))
    assert len(split_tokens(observation)) == 40
    assert observation.endswith("</information>\n\n")

    class Characters(QAEnv):
        def split_tokens(self, text):
            return list(text)

    env = Characters(observation_tokens=70)
    env.reset(seed=0)
    assert len(env.fork().step(SEARCH.format("Prague"))[0]) == 70


# ---------------------------------------------------------------- utility


def test_f1_pays_for_a_partial_answer_and_em_does_not():
    for reward, expected in (("em", 0.0), ("f1", 2 / 3)):
        env, _, _ = start("train-2", reward=reward)
        *_, info = (result := env.step(ANSWER.format("Vistula Beskid")))
        assert result[1] == pytest.approx(expected)
        assert info["f1"] == pytest.approx(2 / 3)
        assert info["success"] is False


@pytest.mark.parametrize(("searches", "answer", "expected"), [(0, "Vistula", 1.0), (3, "Vistula", 0.7), (2, "x", -0.2)])
def test_each_search_costs_its_price_whether_the_answer_is_right_or_not(searches, answer, expected):
    env, _, _ = start("train-2", reward="f1", search_cost=0.1)
    for _ in range(searches):
        assert env.step(SEARCH.format("Vistula"))[1] == 0.0
    env_reward = env.step(ANSWER.format(answer))[1]
    assert env_reward == pytest.approx(expected)


# ---------------------------------------------------------------- tasks


def test_splits_count_their_questions():
    assert forkgym.make(ENV_ID).splits == {"train": 10, "test": 6}


def test_a_task_is_a_number_or_an_id_and_a_missing_one_is_drawn_from_the_seed():
    env = forkgym.make(ENV_ID)
    assert env.reset(seed=1, options={"split": "test", "task": 3})[1]["question_id"] == "test-4"
    assert env.reset(seed=1, options={"split": "test", "task": "test-4"})[1]["task"] == 3
    drawn = [env.reset(seed=seed)[1]["task"] for seed in range(60)]
    assert drawn == [env.reset(seed=seed)[1]["task"] for seed in range(60)]
    assert set(drawn) == set(range(10))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "dev"}, "no split 'dev'"),
        ({"task": 10}, "Task 10"),
        ({"task": -1}, "Task -1"),
        ({"task": 1.5}, "Task 1.5"),
        ({"task": "train-77"}, "no question with the id 'train-77'"),
        ({"split": "test", "task": "train-1"}, "no question with the id 'train-1'"),
        ({"tsak": 1}, "Did you mean 'task'"),
    ],
)
def test_a_wrong_task_is_an_error_that_names_it(options, message):
    env = forkgym.make(ENV_ID)
    with pytest.raises(TaskError, match=message):
        env.reset(seed=0, options=options)


def test_a_single_file_is_the_split_train_and_other_split_names_work_without_one(write):
    rows = [{"id": "1", "question": "Who?", "golden_answers": ["A"], "passages": [{"title": "T", "text": "text"}]}]
    path = write("q.jsonl", rows)
    assert forkgym.make(ENV_ID, questions=path).splits == {"train": 1}
    env = forkgym.make(ENV_ID, questions={"b": path, "a": path})
    assert env.reset(seed=0)[1]["split"] == "a"


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"max_searches": -1}, "max_searches"),
        ({"max_searches": 2.0}, "max_searches"),
        ({"max_searches": True}, "max_searches"),
        ({"top_k": 0}, "top_k"),
        ({"reward": "bleu"}, "'em' or 'f1'"),
        ({"search_cost": -0.1}, "search_cost"),
        ({"search_cost": float("nan")}, "search_cost"),
        ({"search_cost": float("inf")}, "search_cost"),
        ({"search_cost": "free"}, "search_cost"),
        ({"retrieval_noise": 1.1}, "retrieval_noise"),
        ({"retrieval_noise": -0.1}, "retrieval_noise"),
        ({"observation_tokens": 0}, "observation_tokens"),
        ({"observation_tokens": 3}, "observation_tokens"),
        ({"corpus": "c.jsonl"}, "needs questions"),
    ],
)
def test_a_setting_out_of_range_is_named(kwargs, message):
    with pytest.raises(SettingError, match=message) as caught:
        forkgym.make(ENV_ID, **kwargs)
    assert isinstance(caught.value, ForkgymError)


def test_a_missing_file_is_an_error_before_anything_else():
    with pytest.raises(DataError, match="nowhere"):
        forkgym.make(ENV_ID, questions="nowhere.jsonl")


# ---------------------------------------------------------------- noise


def shown_at(env, query):
    return env.fork().step(SEARCH.format(query))[4]["evidence"]


def test_without_noise_luck_changes_nothing():
    env, _, _ = start()
    assert env.fork().step(SEARCH.format("Prague")) == env.fork(luck=Luck.fresh(9)).step(SEARCH.format("Prague"))


def test_full_noise_shows_none_of_the_found_passages_and_no_passage_twice():
    clean, _, _ = start()
    noisy, _, _ = start(retrieval_noise=1.0)
    for query in ("Prague river", "Poland", "Lake Titicaca"):
        found, shown = shown_at(clean, query), shown_at(noisy, query)
        assert not set(found) & set(shown)
        assert len(set(shown)) == len(found) >= 2


def test_a_corpus_without_other_passages_cannot_be_noisy(write):
    rows = [{"id": "1", "question": "Who?", "golden_answers": ["A"], "passages": [{"title": "T", "text": "text"}]}]
    env = forkgym.make(ENV_ID, questions=write("q.jsonl", rows), retrieval_noise=1.0)
    env.reset(seed=0)
    assert "text" in env.step(SEARCH.format("text"))[0]


def test_a_fraction_epsilon_of_the_shown_passages_is_replaced():
    """N = 1,200 places at ε = 0.3: a right environment fails this two-sided test with probability 1e-4."""
    clean, _, _ = start()
    found = set(shown_at(clean, "Prague river"))
    env = forkgym.make(ENV_ID, retrieval_noise=0.3)
    kept = 0
    for seed in range(400):
        env.reset(seed=seed, options={"task": 0})
        kept += len(found & set(env.step(SEARCH.format("Prague river"))[4]["evidence"]))
    assert stats.binomtest(1200 - kept, 1200, 0.3).pvalue > 1e-4


def test_noise_is_shared_by_a_fork_and_refreshed_by_fresh_luck():
    env, _, _ = start(retrieval_noise=0.5)
    query = SEARCH.format("Prague river")
    same = env.fork().step(query)
    assert env.fork().step(query) == same
    fresh = [env.fork(luck=Luck.fresh(stream)).step(query)[4]["evidence"] for stream in range(1, 13)]
    # Each of the twelve equals the factual one with probability < 0.35: all do by chance in < 4e-6 of runs.
    assert any(evidence != same[4]["evidence"] for evidence in fresh)


# ---------------------------------------------------------------- fork, replay, data identity


def test_random_episodes_fork_rewind_and_replay():
    env = forkgym.make(ENV_ID, retrieval_noise=0.3, search_cost=0.05, reward="f1")
    assert env.fork_support == "native"
    rng = np.random.default_rng(0)
    for seed in range(12):
        env.reset(seed=seed)
        ended = False
        while not ended:
            twin, snapshot = env.fork(), env.snapshot()
            action = env.sample_action(rng)
            result = env.step(action)
            assert twin.step(action) == result
            assert twin.state_hash() == env.state_hash()
            assert twin.messages() == env.messages()
            env.restore(snapshot)
            assert env.step(action) == result
            ended = result[2]
        copy = forkgym.replay(Handle.from_json(env.handle().to_json()))
        assert copy.state_hash() == env.state_hash()
        assert copy.handle() == env.handle()


def test_a_fork_does_not_look_at_the_files_again(write, tmp_path):
    rows = [{"id": "1", "question": "Who?", "golden_answers": ["A"], "passages": [{"title": "T", "text": "text"}]}]
    env = forkgym.make(ENV_ID, questions=write("q.jsonl", rows))
    env.reset(seed=0)
    (tmp_path / "q.jsonl").unlink()
    assert env.fork().step(ANSWER.format("A"))[1] == 1.0


def test_a_handle_is_refused_at_once_when_the_data_changed(write):
    row = {"id": "1", "question": "Who?", "golden_answers": ["A"], "passages": [{"title": "T", "text": "text"}]}
    path = write("q.jsonl", [row])
    env = forkgym.make(ENV_ID, questions=path)
    env.reset(seed=0)
    handle = env.handle()
    assert forkgym.replay(handle).state_hash() == env.state_hash()
    write("q.jsonl", [{**row, "golden_answers": ["Another"]}])
    with pytest.raises(DataError, match="hold other data"):
        forkgym.replay(handle)


def test_a_handle_is_small():
    env, _, _ = start()
    actions = [SEARCH.format("Prague river"), ANSWER.format("Vltava")]
    for action in actions:
        env.step(action)
    overhead = len(env.handle().to_bytes()) - sum(len(action.encode()) for action in actions)
    assert overhead < 1024 + 16 * 3


@pytest.mark.parametrize("kwargs", [{}, {"retrieval_noise": 0.5, "reward": "f1", "search_cost": 0.1}])
def test_the_environment_passes_the_conformance_check(kwargs):
    testing.check_env(ENV_ID, **kwargs)


NOISY = {"retrieval_noise": 0.4, "max_searches": 3}

TestForkMachine = testing.fork_machine(ENV_ID, max_examples=10, **NOISY).TestCase


@pytest.mark.slow
class TestForkMachineAtLength(testing.fork_machine(ENV_ID, max_examples=500, **NOISY).TestCase):
    """Promises 1 and 2 on 500 random sequences of verbs."""


def test_sampled_actions_are_mostly_searches_and_depend_on_the_generator_alone():
    env, _, _ = start()
    sample = [env.sample_action(np.random.default_rng(seed)) for seed in range(100)]
    assert sample == [env.sample_action(np.random.default_rng(seed)) for seed in range(100)]
    kinds = [(env.parse(a) if isinstance(a, str) else a)["tool"] for a in sample]
    assert set(kinds) == {"search", "answer", "invalid"}
    assert kinds.count("search") > 50


def test_every_example_question_can_be_answered_by_following_names():
    """A scripted reader that searches the question, then three times the names it has read, sees a golden answer."""
    env = forkgym.make(ENV_ID)
    for split, count in env.splits.items():
        for task in range(count):
            env.reset(seed=0, options={"split": split, "task": task})
            read = env.question.question + env.fork().step(SEARCH.format(env.question.question))[0]
            for _ in range(3):
                named = [p.title for p in env.passages if p.title.split()[-1] in read]
                read += "".join(env.fork().step(SEARCH.format(title))[0] for title in named)
            assert any(gold in read for gold in env.question.golden_answers), env.question
