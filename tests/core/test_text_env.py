"""Text environments: conversation, parsing that never fails, tools, tasks, and all of it forked."""

import hypothesis.strategies as st
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from hypothesis import given

from forkgym import TextEnv
from forkgym.core import ActionError, ResetNeededError, TaskError, TextSpace, ToolCallSpace
from tests.core.core_worlds import Guess

CALL = '{"tool": "guess", "arguments": {"number": 3}}'


def started(**options):
    env = Guess()
    env.reset(seed=4, options=options)
    return env


def test_the_conversation_holds_system_task_turns_and_observations_in_order():
    env = started(task=2)
    env.step(f"Let me think. {CALL}")
    roles = [message["role"] for message in env.messages()]
    assert roles == ["system", "user", "assistant", "tool"]
    assert env.messages()[1]["content"] == "Which number is it? (task 2 of train)"
    assert env.messages()[2]["content"] == f"Let me think. {CALL}"
    assert env.messages()[3]["content"] in ("higher", "lower", "right")


def test_a_tool_call_appears_as_text_in_the_conversation():
    env = started()
    env.step({"tool": "guess", "arguments": {"number": 3}})
    assert env.messages()[2]["content"] == '{"arguments": {"number": 3}, "tool": "guess"}'


def test_a_text_and_the_call_that_it_means_have_the_same_effect():
    said, called = started(), started()
    assert said.step(CALL)[:4] == called.step({"tool": "guess", "arguments": {"number": 3}})[:4]
    assert said.state_hash() == called.state_hash()


def test_writing_to_the_returned_messages_does_not_change_the_conversation():
    env = started()
    env.messages()[0]["content"] = "x"
    env.messages().clear()
    assert env.messages()[0]["content"] == "You guess numbers."


def test_a_fork_and_a_restore_carry_the_conversation():
    env = started()
    env.step("one")
    snapshot = env.snapshot()
    child = env.fork()
    child.step("two")
    assert len(env.messages()) == 4
    assert len(child.messages()) == 6
    child.restore(snapshot)
    assert child.messages() == env.messages()


def test_there_is_no_conversation_before_the_first_reset():
    with pytest.raises(ResetNeededError):
        Guess().messages()


@given(st.text() | st.text().map(lambda text: text + "{" * 50) | st.text().map(lambda text: CALL + text))
def test_parsing_never_raises_and_a_bad_text_gets_an_observation(text):
    action = Guess().parse(text)
    assert set(action) == {"tool", "arguments"}
    env = started()
    observation, reward, _, _, info = env.step(text)
    assert isinstance(observation, str)
    if action["tool"] == "invalid":
        assert info["action_kind"] == "invalid"
        assert reward == 0.0


@pytest.mark.parametrize(
    ("text", "tool", "arguments"),
    [
        (CALL, "guess", {"number": 3}),
        (f"first {CALL} then " + CALL.replace("3", "4"), "guess", {"number": 4}),
        ('{"tool": "guess"}', "guess", {}),
        ('{"tool": "guess", "arguments": [1]}', "guess", {}),
        ('{"tool": 3}', "invalid", {"text": '{"tool": 3}'}),
        ("", "invalid", {"text": ""}),
        ("{" * 5000, "invalid", {"text": "{" * 5000}),
        ('{"a":' * 5000, "invalid", {"text": '{"a":' * 5000}),
    ],
    ids=["a call", "the last call counts", "no arguments", "odd arguments", "odd tool", "nothing", "braces", "nesting"],
)
def test_what_the_default_parser_reads(text, tool, arguments):
    assert Guess().parse(text) == {"tool": tool, "arguments": arguments}


@pytest.mark.parametrize(
    "action",
    [3, None, ["guess"], {"tool": 3}, {"tool": "x", "arguments": []}, {"arguments": {}}, {"tool": "x", "y": 1}],
)
def test_an_action_that_is_neither_text_nor_call_is_refused_with_the_remedy(action):
    with pytest.raises(ActionError, match=r"takes a text or a tool call.*env.parse\(text\) makes a call"):
        started().step(action)


def test_an_unknown_tool_is_not_an_error_but_an_observation():
    assert started().step({"tool": "format_disk", "arguments": {}})[0] == "Please call guess."


def test_the_episode_is_truncated_at_max_turns_or_at_the_time_limit_whichever_is_first():
    env = started()
    assert [env.step("x")[3] for _ in range(4)] == [False, False, False, True]
    env = Guess()
    env._limit_given = 2
    env.reset(seed=0)
    assert [env.step("x")[3] for _ in range(2)] == [False, True]


def test_a_task_is_chosen_by_the_options_or_drawn_from_the_seed():
    assert started(split="test", task=1).task == 1
    drawn = []
    for seed in range(30):
        env = Guess()
        env.reset(seed=seed, options={"split": "test"})
        drawn.append(env.task)
        again = Guess()
        again.reset(seed=seed, options={"split": "test"})
        assert again.task == env.task
    assert set(drawn) == {0, 1, 2}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"split": "tset"}, r"no split 'tset'; this environment has \['test', 'train'\]"),
        ({"task": 10}, r"Task 10 is not one of the 10 tasks of split 'train' \(0 to 9\)"),
        ({"task": -1}, "Task -1"),
        ({"task": "1"}, "Task '1'"),
        ({"task": True}, "Task True"),
    ],
)
def test_a_task_that_does_not_exist_is_refused(options, said):
    with pytest.raises(TaskError, match=said):
        started(**options)


def test_sampled_actions_are_keyed_and_call_the_declared_tools():
    env = started()
    actions = [env.sample_action(np.random.default_rng(seed)) for seed in range(20)]
    assert all(action["tool"] == "guess" and 0 <= action["arguments"]["number"] <= 9 for action in actions)
    assert data_equivalence(actions[3], env.sample_action(np.random.default_rng(3)))


def test_spaces_hold_what_they_sample():
    tools = [
        {
            "name": "all",
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string"},
                    "number": {"type": "number"},
                    "flag": {"type": "boolean"},
                    "many": {"type": "array", "items": {"type": "integer"}},
                    "inner": {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}},
                },
            },
        }
    ]
    space = ToolCallSpace(tools, seed=0)
    for _ in range(20):
        assert space.contains(space.sample())
    assert TextSpace(seed=0).contains(TextSpace(seed=1).sample())
    assert isinstance(ToolCallSpace(seed=0).sample(), str)
    assert not TextSpace().contains(3)
    assert ToolCallSpace(tools) == ToolCallSpace(tools) != ToolCallSpace()
    assert TextSpace() == TextSpace()
    assert "all" in repr(space)
    assert not space.is_np_flattenable
    assert not TextSpace().is_np_flattenable


def test_warm_start_hooks_are_optional_and_say_so():
    with pytest.raises(NotImplementedError, match="Guess has no vocabulary"):
        Guess().vocabulary()
    with pytest.raises(NotImplementedError, match="Guess has no scripted expert"):
        Guess().demonstrations(1, seed=0)


def test_an_environment_may_bring_an_action_space_of_its_own():
    env = TextEnv()
    env.action_space = TextSpace()
    assert env.action_space == TextSpace()
