"""Random programs on repository tasks: what agents do, forked in the middle, on the shipped and on real repositories.

Each program has a beginning and two ends. The fork gets one end and its parent the other, in turns; then both ends are
run once more from the snapshot of the fork, and in another process from their handles. All that was seen must be equal.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import hypothesis
import pytest
from forkgym_swe.catalogue import SAMPLES, load_tasks
from forkgym_swe.checkout import broken_files, prepare
from forkgym_swe.instance import Instance, dump_instances
from forkgym_swe.making.fetching import is_fetched, source_of
from forkgym_swe.making.projects import PROJECTS, Project
from forkgym_swe.task_env import TaskEnv
from hypothesis import HealthCheck, strategies

import forkgym
from forkgym.sandbox import BackendUnavailableError, engine_for

ID = "swe-programs/Task-v0"
SMALL = 20_000
SHARE = 1.0 if os.environ.get("FORKGYM_ALL_PROGRAMS") else 0.2  # all of them: make test-programs
Seen = list[tuple[str, str, str]]
REPLAY = f"""
import json, sys
import forkgym
from forkgym_swe.task_env import TaskEnv
forkgym.register("{ID}", TaskEnv)
for line in sys.stdin:
    env = forkgym.replay(forkgym.Handle.from_json(json.loads(line)))
    print(env.state_hash(), flush=True)
    env.close()
"""


class Repository(NamedTuple):
    """A task file with one task, and what programs may name in it."""

    tasks: str
    files: tuple[str, ...]
    folders: tuple[str, ...]
    tests: tuple[str, ...]


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    try:
        engine_for()
    except BackendUnavailableError as error:
        pytest.skip(str(error))
    if ID not in gymnasium.registry:
        forkgym.register(ID, TaskEnv)


def repository(instance: Instance, folder: Path, tests: int = 1) -> Repository:
    folder.mkdir(parents=True, exist_ok=True)
    dump_instances(folder / "tasks.jsonl", [instance])
    contents = broken_files(instance)
    texts = sorted(path for path, content in contents.items() if b"\0" not in content and len(content) < SMALL)
    files = [path for path in texts if "\n" not in path and path.isascii()]
    fast = [path for path in files if path.rsplit("/", 1)[-1].startswith("test_") and path.endswith(".py")][:tests]
    kept = tuple(files[:: max(1, len(files) // 12)])
    folders = sorted({path.rpartition("/")[0] for path in kept} - {""}) or ["src"]
    return Repository(str(folder / "tasks.jsonl"), kept, tuple(folders), tuple(fast))


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"tool": tool, "arguments": arguments}


def actions(place: Repository) -> strategies.SearchStrategy[dict[str, Any]]:
    """What an agent may do: edits, shell, renames, deletions, links, modes, test runs, and looking."""
    sampled = strategies.sampled_from
    path = sampled((*place.files, "new.py", "new dir/ü.txt"))
    words = sampled(("x = 1", "# note", "raise SystemExit", ""))
    quoted = path.map(shlex.quote)
    shell = strategies.one_of(
        strategies.builds("mkdir -p 'new dir'; echo '{1}' >> {0}".format, quoted, words),
        strategies.builds("sed -i {1}d {0}".format, quoted, strategies.integers(1, 9)),
        strategies.builds("mv {0} {1}".format, quoted, quoted),
        strategies.builds("mv {0} moved && ls moved".format, sampled(place.folders).map(shlex.quote)),
        strategies.builds("rm -rf {0}".format, sampled((*place.files, *place.folders)).map(shlex.quote)),
        strategies.builds("ln -sfn {0} {1}; readlink {1}".format, quoted, quoted),
        strategies.builds("chmod {1} {0}; stat -c %a {0}".format, quoted, sampled(("600", "755", "640"))),
        strategies.builds("cp -r {0} copy; find . -name '*.py' | sort | head -n 20".format, sampled(place.folders)),
        strategies.just("git init -q . 2>/dev/null; rm -rf .git; find . -type l | sort"),
        strategies.just("python -c 'import os; print(sorted(os.listdir()), hash(\"x\"), os.getpid())'"),
        strategies.just("cat nothing; false"),
    ).map(lambda command: call("run_shell", command=command))
    edit = strategies.builds(
        lambda path, start, more, text: call("edit_file", path=path, start=start, end=start + more, replacement=text),
        path,
        strategies.integers(1, 20),
        strategies.integers(-1, 2),
        words,
    )
    look = path.map(lambda name: call("view_file", path=name))
    tests = sampled(place.tests or ("tests",)).map(lambda name: call("run_tests", test_filter=name))
    # Test runs take longer than all the rest, so they are rarer.
    kinds = [*[shell] * 9, *[edit] * 5, *[look] * 2, tests]
    return sampled(kinds).flatmap(lambda kind: kind)


def run(env: Any, program: list[dict[str, Any]]) -> Seen:
    """Run it; what the agent sees, and the state after each step."""
    seen = []
    for action in program:
        text, _, terminated, _, info = env.step(action)
        assert not terminated
        seen.append((text, info["action_kind"], env.state_hash()))
    return seen


def check_program(env: Any, start: list[Any], left: list[Any], right: list[Any]) -> list[str]:
    """One program; returns the handles of its two ends."""
    env.reset(seed=0)
    run(env, start)
    kept = env.snapshot()
    child = env.fork()
    assert child.state_hash() == env.state_hash()
    seen: tuple[Seen, Seen] = ([], [])
    for turn in range(max(len(left), len(right))):
        for mine, other, program, found in ((env, child, left, seen[0]), (child, env, right, seen[1])):
            before = other.state_hash()
            found += run(mine, program[turn : turn + 1])
            assert other.state_hash() == before, "a step of one side was seen on the other"
    handles = [side.handle().to_json() for side in (env, child)]
    ends = [env.state_hash(), child.state_hash()]
    env.restore(kept)
    twin = env.fork()
    assert run(twin, left) == seen[0], "the parent's end, run again in a fork"
    assert run(env, right) == seen[1], "the fork's end, run again after going back"
    assert [twin.state_hash(), env.state_hash()] == ends
    for side in (child, twin):
        side.close()
    kept.close()
    return [json.dumps([handle, end]) for handle, end in zip(handles, ends, strict=True)]


def check_programs(place: Repository, examples: int, steps: int = 3) -> int:
    """Many programs, then all their handles in another process; returns how many ran."""
    handles: list[str] = []
    env = forkgym.make(ID, tasks=place.tasks)
    programs = strategies.lists(actions(place), min_size=1, max_size=steps)

    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
    )
    @hypothesis.given(programs, programs, programs)
    def every(start: list[Any], left: list[Any], right: list[Any]) -> None:
        handles.extend(check_program(env, start, left, right))

    try:
        every()
    finally:
        env.close()
    pairs = [json.loads(text) for text in handles]
    # Both ends have their beginning in common; every other handle is enough for that, the rest are the forks'.
    done = subprocess.run(
        [sys.executable, "-c", REPLAY],
        input="".join(json.dumps(handle) + "\n" for handle, _ in pairs[1::2]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [end for _, end in pairs[1::2]]
    return len(pairs) // 2


@pytest.fixture(scope="module")
def own(task: Instance, prepared: Any, tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return repository(task, tmp_path_factory.mktemp("programs"))


def test_programs_on_a_small_project(own: Repository) -> None:
    assert check_programs(own, examples=3) >= 3


@pytest.mark.slow
def test_many_programs_on_a_small_project(own: Repository) -> None:
    count = round(120 * SHARE)
    assert check_programs(own, examples=count) >= count


@pytest.mark.slow
def test_many_programs_on_the_samples(tmp_path: Path) -> None:
    if not SAMPLES.is_file():
        pytest.skip("this package ships no samples")
    first: dict[str, Instance] = {}
    for instance in load_tasks("samples"):
        first.setdefault(instance.repository, instance)
    count = round(180 * SHARE)
    each = -(-count // len(first))
    ran = sum(
        check_programs(repository(instance, tmp_path / name.replace("/", "-")), examples=each)
        for name, instance in sorted(first.items())
    )
    assert ran >= count


def _real() -> Iterator[Project]:
    """Fetched projects whose sources are of a handy size, at most four of them."""
    yield from [project for project in PROJECTS if is_fetched(project)][:4]


@pytest.mark.slow
def test_many_programs_on_real_repositories(tmp_path: Path) -> None:
    """On real projects, as far as they were fetched; three hundred programs when all are asked for."""
    found = list(_real())
    if not found:
        pytest.skip("no real project was fetched: forkgym make-tasks fetches them when told to")
    ran, count = 0, round(300 * SHARE)
    for project in found:
        instance = Instance(
            id=f"{project.name}-programs",
            repository=project.name,
            source=source_of(project),
            patch="",
            fail_to_pass=("tests/test_none.py::test_none",),
            problem_statement="Nothing is wrong.",
            python_path=project.python_path,
            requires=project.requires,
            test_paths=project.test_paths,
        )
        prepare(instance)
        ran += check_programs(repository(instance, tmp_path / project.name), examples=-(-count // len(found)))
    assert ran >= count
