"""`swe/Task-v0`: tools that answer whatever they are asked, episodes that fork, rewind and replay."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from forkgym_swe.instance import Instance, dump_instances
from forkgym_swe.prompts import SUBMIT_COMMAND
from forkgym_swe.task_env import TaskEnv

import forkgym
from forkgym import testing
from forkgym.core import TaskError

from .conftest import FIRST

HEAP = "src/box/heap.py"
ID = "swe-tests/Task-v0"


@pytest.fixture(scope="session")
def tasks(task: Instance, prepared: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tasks") / "tasks.jsonl"
    dump_instances(path, [task])
    return str(path)


@pytest.fixture(scope="session", autouse=True)
def _registered() -> None:
    if ID not in gymnasium.registry:
        forkgym.register(ID, TaskEnv)


@pytest.fixture
def env(tasks: str) -> Iterator[TaskEnv]:
    found = TaskEnv(tasks=tasks)
    found.reset(seed=0)
    yield found
    found.close()


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"tool": tool, "arguments": arguments}


def test_an_episode_from_reading_to_success(env: TaskEnv) -> None:
    text, _, _, _, info = env.step(call("view_file", path=HEAP, start=14, end=18))
    assert text.startswith(f"{HEAP}, lines 14 to 18 of ")
    assert "    16\t            raise IndexError" in text
    assert info["action_kind"] == "read"
    text, *_, info = env.step(
        call("edit_file", path=HEAP, start=17, end=17, replacement="        return self.items.pop(0)")
    )
    assert "-        return self.items.pop()\n+        return self.items.pop(0)" in text
    assert info["action_kind"] == "edit"
    text, *_, info = env.step(call("run_tests"))
    assert (text, info["action_kind"]) == ("5 passed (exit code 0)", "test")
    text, reward, terminated, truncated, info = env.step(call("submit_patch"))
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["success"] is True
    assert info["verdict"] == {"fail_to_pass": [1, 1], "pass_to_pass": [5, 5], "exit_code": 0, "trusted": True}
    assert (info["action_kind"], info["subverted"], "failure" in info) == ("submit", [], False)


def test_the_task_is_told_and_the_gold_patch_is_not(env: TaskEnv) -> None:
    texts = " ".join(message["content"] for message in env.messages())
    assert "A heap gives the largest item first." in texts
    assert "pop(0)" not in texts
    assert FIRST not in texts


def test_submitting_at_once_fails_for_a_named_reason(env: TaskEnv) -> None:
    _, reward, terminated, _, info = env.step(call("submit_patch"))
    assert (reward, terminated, info["success"], info["failure"]) == (0.0, True, False, "other")


@pytest.mark.parametrize("scaffold", ["tools", "bash"])
@pytest.mark.parametrize(("name", "reward"), [("gold", 1.0), ("empty", 0.0)])
def test_the_gold_policy_succeeds_and_the_empty_one_fails(tasks: str, scaffold: Any, name: str, reward: float) -> None:
    env = TaskEnv(tasks=tasks, scaffold=scaffold)
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    earned, done = 0.0, False
    while not done:
        _, earned, done, _, _ = env.step(env.scripted_action(name, rng))
    assert earned == reward
    env.close()


def test_a_failing_test_is_shown_without_times_and_addresses(env: TaskEnv) -> None:
    env.step(
        call(
            "edit_file",
            path="tests/test_new.py",
            start=1,
            end=0,
            replacement="def test_new():\n    assert object() is None\n",
        )
    )
    text = env.step(call("run_tests", test_filter="tests/test_new.py::test_new"))[0]
    assert text.startswith("1 failed (exit code 1)\nFAILED tests/test_new.py::test_new\n")
    assert "tests/test_new.py:2: in test_new\n    assert object() is None" in text
    assert "0x..." in text
    assert "in 0." not in text


@pytest.mark.slow
def test_tests_are_chosen_by_file_id_or_expression(env: TaskEnv) -> None:
    for chosen, wanted in {
        "tests/test_other.py": "1 passed (exit code 0)",
        "tests/test_heap.py::test_smallest": "2 passed (exit code 0)",
        "tests/test_other.py tests/test_heap.py::TestHeap": "2 passed (exit code 0)",
        "smallest": "2 passed (exit code 0)",
        "tests/test_gone.py": "no tests ran (exit code 4)\nthere is no such file",
    }.items():
        assert env.step(call("run_tests", test_filter=chosen))[0] == wanted


def test_tests_leave_nothing_behind(env: TaskEnv) -> None:
    env.step(
        call("edit_file", path="tests/test_w.py", start=1, end=0, replacement="def test_w():\n    open('left', 'w')\n")
    )
    before = env.sandbox.state_hash()
    assert env.step(call("run_tests", test_filter="tests/test_w.py"))[0].startswith("1 passed")
    assert env.sandbox.state_hash() == before


@pytest.mark.slow
def test_a_shell_command_says_how_it_ended(env: TaskEnv) -> None:
    text, *_, info = env.step(call("run_shell", command="echo out; echo err >&2; exit 3"))
    assert (text, info["action_kind"]) == ("exit code 3\nout\nerr", "shell")
    assert env.step(call("run_shell", command="pwd; python -c 'import box; print(box.__file__)'"))[0].split("\n")[
        1:
    ] == [
        "/testbed",
        "/testbed/src/box/__init__.py",
    ]
    assert env.step(call("run_shell", command="sleep 9", timeout=0.2))[0].startswith("stopped after 0.2 seconds")
    assert "passed" in env.step(call("run_shell", command="pytest -q -o addopts= tests"))[0]


def test_long_answers_are_cut_in_the_middle(tasks: str) -> None:
    env = TaskEnv(tasks=tasks, observation_length=300)
    env.reset(seed=0)
    text = env.step(call("run_shell", command="seq 100000"))[0]
    assert "characters left out" in text
    assert len(text) < 400
    env.close()


BAD: list[Any] = [
    "nonsense",
    '{"tool": 3}',
    call("no_such_tool"),
    call("view_file"),
    call("view_file", path="gone.py"),
    call("view_file", path="src"),
    call("view_file", path="/etc/passwd"),
    call("view_file", path="../../etc/passwd"),
    call("view_file", path="a\0b"),
    call("view_file", path=HEAP, start=0),
    call("view_file", path=HEAP, start=10_000),
    call("view_file", path=HEAP, start="x"),
    call("view_file", path=HEAP, start=True),
    call("view_file", path=HEAP, other=1),
    call("view_file", path=f"{HEAP}/x"),
    call("edit_file", path=HEAP, start=5, end=2, replacement=""),
    call("edit_file", path=HEAP, start=1, end=9_999, replacement=""),
    call("edit_file", path="new/file.py", start=4, end=4, replacement=""),
    call("edit_file", path="/etc/passwd", start=1, end=0, replacement="x"),
    call("edit_file", path=HEAP, start=1, end=1, replacement="\ud800"),
    call("edit_file", path=HEAP, start=1, end=1, replacement='"""A heap."""'),
    call("edit_file", path="src", start=1, end=0, replacement="x"),
    call("run_shell", command=""),
    call("run_shell", command="a\0b"),
    call("run_shell", command=["ls"]),
    call("run_shell", command="ls", timeout=-1),
    call("run_shell", command="ls", timeout=1e9),
    call("run_tests", test_filter=7),
    call("submit_patch", now=True),
]


@pytest.mark.parametrize("action", BAD, ids=lambda action: str(action)[:60])
def test_every_bad_call_gets_an_answer_and_changes_nothing(env: TaskEnv, action: Any) -> None:
    before = env.sandbox.state_hash()
    text, reward, terminated, truncated, info = env.step(action)
    assert text
    assert (reward, terminated, truncated, info["action_kind"]) == (0.0, False, False, "invalid")
    assert env.sandbox.state_hash() == before


def test_an_edit_inserts_deletes_and_appends(env: TaskEnv) -> None:
    steps = [
        (1, 0, "one\nthree\n", b"one\nthree\n"),
        (2, 1, "two", b"one\ntwo\nthree\n"),
        (4, 3, "four", b"one\ntwo\nthree\nfour\n"),
        (2, 3, "", b"one\nfour\n"),
        (1, 2, "", b""),
        (1, 0, "end", b"end\n"),
    ]
    for start, end, text, wanted in steps:
        env.step(call("edit_file", path="notes.txt", start=start, end=end, replacement=text))
        assert env.sandbox.read("notes.txt") == wanted


# ---------------------------------------------------------------------- the bash scaffold


@pytest.fixture
def shell(tasks: str) -> Iterator[TaskEnv]:
    found = TaskEnv(tasks=tasks, scaffold="bash")
    found.reset(seed=0)
    yield found
    found.close()


def test_one_block_is_one_command(shell: TaskEnv) -> None:
    text, *_, info = shell.step("I look.\n\n```bash\ncat README.md\n```\n")
    assert text == "<returncode>0</returncode>\n<output>\n# queue\n</output>"
    assert info["action_kind"] == "read"
    kinds = {
        "sed -i s/queue/heap/ README.md": "edit",
        "python -m pytest -q -o addopts= tests/test_other.py -p no:cacheprovider": "test",
        "false": "shell",
    }
    for command, kind in kinds.items():
        assert shell.step(f"```bash\n{command}\n```")[4]["action_kind"] == kind


@pytest.mark.parametrize("text", ["", "ls", "```bash\nls\n```\nand\n```bash\npwd\n```", '{"tool": "view_file"}'])
def test_anything_else_gets_a_hint(shell: TaskEnv, text: str) -> None:
    said, *_, info = shell.step(text)
    assert "exactly one command" in said
    assert info["action_kind"] == "invalid"


def test_the_magic_command_submits(shell: TaskEnv) -> None:
    shell.step("```bash\nsed -i 's/items.pop()/items.pop(0)/' src/box/heap.py\n```")
    assert shell.step(f"```bash\nfalse && {SUBMIT_COMMAND}\n```")[2] is False
    _, reward, terminated, _, info = shell.step(f"Done.\n```bash\n{SUBMIT_COMMAND}\n```")
    assert (reward, terminated, info["action_kind"]) == (1.0, True, "submit")


# ---------------------------------------------------------------------- tasks, ends, forks


def test_tasks_are_chosen_by_number_or_id(tasks: str) -> None:
    env = TaskEnv(tasks=tasks)
    assert env.splits == {"train": 1}
    assert env.reset(options={"task": "box-1"})[1]["task"] == 0
    assert env.reset(options={"split": "train", "task": 0})[1]["instance_id"] == "box-1"
    for wrong in ({"task": "box-2"}, {"task": 4}, {"split": "test"}, {"split": "test", "task": "box-1"}):
        with pytest.raises(TaskError):
            env.reset(options=wrong)
    env.close()


def test_out_of_turns_nothing_is_submitted_unless_asked(tasks: str) -> None:
    for at_end, reward in ((False, 0.0), (True, 1.0)):
        env = TaskEnv(tasks=tasks, max_turns=1, submit_at_end=at_end)
        env.reset(seed=0)
        _, earned, terminated, truncated, info = env.step(
            call("run_shell", command="sed -i 's/items.pop()/items.pop(0)/' src/box/heap.py")
        )
        assert (earned, terminated, truncated, info["success"]) == (reward, at_end, True, at_end)
        env.close()


def test_a_changed_harness_is_reported_or_fails(tasks: str) -> None:
    for how, reward in (("report", 1.0), ("fail", 0.0)):
        env = TaskEnv(tasks=tasks, subversion=how)  # type: ignore[arg-type]
        env.reset(seed=0)
        env.step(
            call("run_shell", command="sed -i 's/items.pop()/items.pop(0)/' src/box/heap.py; echo > tests/test_heap.py")
        )
        _, earned, _, _, info = env.step(call("submit_patch"))
        assert earned == reward
        assert info["subverted"] == ["tests/test_heap.py: modified (tests)"]
        assert info.get("failure") == (None if reward else "harness subversion")
        env.close()


def test_a_fork_and_its_parent_do_not_see_each_other(env: TaskEnv) -> None:
    env.step(call("run_shell", command="echo shared > note"))
    child = env.fork()
    assert child.fork_support == "native"
    env.step(call("run_shell", command="echo parent > note"))
    child.step(call("run_shell", command="echo child > note"))
    assert env.sandbox.read("note") == b"parent\n"
    assert child.sandbox.read("note") == b"child\n"
    env.close()
    assert child.step(call("run_shell", command="cat note"))[0] == "exit code 0\nchild"
    child.close()


def test_a_rewind_brings_files_back(env: TaskEnv) -> None:
    with env.snapshot() as before:
        env.step(call("run_shell", command="rm -r src"))
        env.restore(before)
        assert env.sandbox.read(HEAP)
        env.step(call("run_shell", command="rm -r tests"))
        env.restore(before)
        assert env.state_hash() == before.state_hash


def test_scratch_files_fork_too(env: TaskEnv) -> None:
    env.step(call("run_shell", command="echo kept > /tmp/note"))
    assert env.fork().step(call("run_shell", command="cat /tmp/note"))[0] == "exit code 0\nkept"


def test_equal_repositories_have_equal_state_hashes_only_with_equal_tasks(
    tasks: str, task: Instance, tmp_path: Path
) -> None:
    import msgspec

    other = tmp_path / "tasks.jsonl"
    dump_instances(other, [msgspec.structs.replace(task, fail_to_pass=(*task.fail_to_pass, task.pass_to_pass[0]))])
    hashes = []
    for path in (tasks, str(other)):
        env = TaskEnv(tasks=path)
        env.reset(seed=0)
        hashes.append(env.state_hash())
        env.close()
    assert hashes[0] != hashes[1]


REPLAY = """
import json, sys
import forkgym
from forkgym_swe.task_env import TaskEnv
forkgym.register("{id}", TaskEnv)
env = forkgym.replay(forkgym.Handle.from_json(sys.stdin.read()))
print(env.state_hash())
env.close()
"""


@pytest.mark.slow
def test_a_handle_replays_in_another_process(tasks: str) -> None:
    env = forkgym.make(ID, tasks=tasks)
    env.reset(seed=3)
    for action in (
        call("view_file", path=HEAP),
        call("run_shell", command="mkdir -p a/b && ln -s ../c a/b/d && chmod 700 a && python -c 'print(hash(\"x\"))'"),
        call("run_tests"),
        call("edit_file", path=HEAP, start=17, end=17, replacement="        return 1 / 0"),
        call("run_tests", test_filter="tests/test_heap.py"),
        call("submit_patch"),
    ):
        env.step(action)
    done = subprocess.run(
        [sys.executable, "-c", REPLAY.format(id=ID)],
        input=env.handle().to_json(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == env.state_hash()
    env.close()


def test_gymnasium_accepts_it(tasks: str) -> None:
    from gymnasium.utils.env_checker import check_env

    env = forkgym.make(ID, tasks=tasks)
    check_env(env.unwrapped, skip_render_check=True)
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize("scaffold", ["tools", "bash"])
def test_it_keeps_the_promises(tasks: str, scaffold: str) -> None:
    testing.check_env(lambda: forkgym.make(ID, tasks=tasks, scaffold=scaffold, max_turns=8), seeds=2, steps=8)


@pytest.mark.parametrize(
    "arguments",
    [
        {"scaffold": "x"},
        {"max_turns": 0},
        {"subversion": "x"},
        {"observation_length": 3},
        {"test_seconds": 0},
        {"tasks": "/nowhere.jsonl"},
        {"limits": {"no_such": 1}},
    ],
)
def test_wrong_arguments_are_refused(tasks: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        TaskEnv(**{"tasks": tasks, **arguments})


def test_actions_and_texts_mean_each_other(env: TaskEnv, shell: TaskEnv) -> None:
    action = call("view_file", path="ü", start=3)
    assert env.parse(env.render_action(action)) == action
    action = call("bash", command="cat <<X\n```\nX")
    assert shell.parse(shell.render_action(action)) == action
    assert json.loads(json.dumps(env.tools)) == env.tools


@pytest.mark.slow
@pytest.mark.parametrize("scaffold", ["tools", "bash"])
def test_random_programs_of_steps_forks_rewinds_and_replays_agree(tasks: str, scaffold: str) -> None:
    machine = testing.fork_machine(
        lambda: forkgym.make(ID, tasks=tasks, scaffold=scaffold, max_turns=8), max_examples=4, steps=10
    )
    case = machine.TestCase("runTest")
    case.runTest()
