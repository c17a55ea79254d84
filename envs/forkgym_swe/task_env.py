"""``swe/Task-v0``: one issue of a repository, tools to work on it, hidden tests that judge.

What the tools do stands in ``tools``, what a verdict is in ``verdict``; here are the episode, its state and its forks.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import msgspec
import numpy as np

from forkgym.core import Action, ResetNeededError, TaskError, TextEnv
from forkgym.sandbox import TREE, BackendUnavailableError, Limits, Sandbox, engine_for
from forkgym_swe.catalogue import SAMPLES, load_tasks
from forkgym_swe.checkout import Prepared, broken_files, prepare
from forkgym_swe.instance import Instance
from forkgym_swe.patching import apply_patch
from forkgym_swe.prompts import BASH_SYSTEM, SUBMIT_COMMAND, SUBMIT_MARK, TOOLS_SYSTEM, task_text
from forkgym_swe.tools import BASH_TOOLS, TOOLS, Answer, BadCall, Workbench
from forkgym_swe.verdict import Verdict, grade

__all__ = ["TaskEnv"]

_BLOCK = re.compile(r"```(?:bash|sh|shell)?[ \t]*\r?\n(.*?)\r?\n?```", re.DOTALL)
_READERS = frozenset({"cat", "find", "grep", "head", "ls", "nl", "pwd", "rg", "tail", "tree", "wc"})
_SPLITS = ("train", "validation", "test")
_UNSHARED = ("_journal", "_luck", "_conversation", "_np_random", "_action_space", "_sampling_space", "_sandbox")


class TaskEnv(TextEnv):
    """An agent resolves an issue of a repository, in a sandbox that forks.

    ``info`` holds ``action_kind`` ("read", "edit", "shell", "test", "submit" or "invalid"; with the bash scaffold the
    kind is read off the command and its effect), ``evidence`` (the state's hash and a digest of what was shown) and, at
    the end, ``success``, ``verdict`` (numbers), ``subverted`` (what was done to the test harness) and after a failure
    ``failure``, by the taxonomy. A verdict taken from the memo adds ``charged_seconds``.

    The reward is 1 if the submitted repository passes the hidden tests, else 0. Running out of turns submits nothing.

    Args:
        tasks: "samples", or the path of a task file in any format that `load_tasks` reads.
        scaffold: "tools" (five tools) or "bash" (one shell).
        max_turns: Turns of an episode.
        hide_tests: Take the tests that decide out of the agent's tree.
        hints: Show what was said about the issue besides.
        subversion: "report" (changes of the harness are undone and named) or "fail" (and no such patch succeeds).
        submit_at_end: Judge what is there when the turns run out.
        memo: Judge equal trees once in a process.
        observation_length: Characters of an observation; more is cut in the middle.
        test_seconds: Time of a test run, and of the verdict's.
        limits: What commands may use, by the names of `forkgym.sandbox.Limits`.

    Raises:
        ValueError: An argument is out of range.
        InstanceError: There are no such tasks.
    """

    version: ClassVar[str] = "1"
    runs_in: ClassVar[str] = "thread"
    tools: ClassVar[list[dict[str, Any]]] = TOOLS
    scripted_policies: ClassVar[tuple[str, ...]] = ("random", "gold", "empty")

    def __init__(
        self,
        *,
        tasks: str = "samples",
        scaffold: Literal["tools", "bash"] = "tools",
        max_turns: int = 50,
        hide_tests: bool = True,
        hints: bool = False,
        subversion: Literal["report", "fail"] = "report",
        submit_at_end: bool = False,
        memo: bool = True,
        observation_length: int = 10_000,
        test_seconds: float = 120.0,
        limits: Mapping[str, float] | None = None,
    ) -> None:
        _check(scaffold, max_turns, subversion, observation_length, test_seconds)
        self.max_turns = max_turns
        self._bash = scaffold == "bash"
        object.__setattr__(self, "tools", BASH_TOOLS if self._bash else TOOLS)
        self.system_prompt = BASH_SYSTEM if self._bash else TOOLS_SYSTEM
        self.observation_role = "user" if self._bash else "tool"
        self._hide, self._hints, self._strict = hide_tests, hints, subversion == "fail"
        self._at_end, self._memo = submit_at_end, memo
        self._length, self._test_seconds = observation_length, float(test_seconds)
        self._limits = msgspec.convert(dict(limits or {}), Limits)
        self._tasks = {name: [task for task in load_tasks(tasks) if task.split == name] for name in _SPLITS}
        self._instance: Instance | None = None
        self._prepared: Prepared | None = None
        self._sandbox: Sandbox | None = None

    # ------------------------------------------------------------------ tasks

    @property
    def splits(self) -> dict[str, int]:
        """Number of tasks in each split that has any."""
        return {split: len(found) for split, found in self._tasks.items() if found}

    @property
    def instance(self) -> Instance:
        """The task of this episode, for graders and scripted policies; agents must not see it.

        Raises:
            ResetNeededError: Before the first reset.
        """
        if self._instance is None:
            raise ResetNeededError("There is no task before the first reset. Call env.reset(seed=...) once.")
        return self._instance

    @property
    def sandbox(self) -> Sandbox:
        """The agent's repository; whoever writes to it changes the episode.

        Raises:
            ResetNeededError: Before the first reset.
        """
        if self._sandbox is None:
            raise ResetNeededError("There is no repository before the first reset. Call env.reset(seed=...) once.")
        return self._sandbox

    def _choose(self, seed: int, options: dict[str, Any]) -> tuple[str, int]:
        wanted = options.get("task")
        default = next(iter(self.splits))
        if not isinstance(wanted, str):
            return self.pick_task(seed, options, default)
        splits = [options["split"]] if "split" in options else list(self.splits)
        for split in splits:
            for number, task in enumerate(self._tasks.get(split, ())):
                if task.id == wanted:
                    return split, number
        raise TaskError(f"There is no task {wanted!r} in {', '.join(map(str, splits))}.")

    # ------------------------------------------------------------------ episode

    def _reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        split, number = self._choose(seed, options)
        instance = self._tasks[split][number]
        self._close()
        self._prepared = prepare(instance, hide_tests=self._hide)
        self._instance = instance
        self._sandbox = self._prepared.open(limits=self._limits)
        info = {"split": split, "task": number, "instance_id": instance.id, "repository": instance.repository}
        return task_text(instance, hints=self._hints), info

    def _step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        limit = self._limit()
        last = limit is not None and self.turn + 1 >= limit
        tool, arguments = action["tool"], action["arguments"]
        before = self.sandbox.state_hash()
        try:
            self._check_call(tool, arguments)
            if tool == "submit_patch":
                return self._end("submit", "The patch was submitted.")
            answer = self._bench().call(self.sandbox, tool, arguments)
        except BadCall as problem:
            text, kind = str(problem), "invalid"
        except FileNotFoundError as problem:
            text, kind = str(problem), "invalid"
        else:
            if self._bash and _submits(answer):
                return self._end("submit", "The patch was submitted.")
            text, kind = self._text_of(answer), self._kind(answer, arguments, before)
        if last and self._at_end:
            return self._end(kind, text)
        evidence = f"{self.sandbox.state_hash()}:{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"
        info: dict[str, Any] = {"action_kind": kind, "evidence": evidence}
        if last:
            info |= {"success": False, "failure": "other"}
        return text, 0.0, False, False, info

    def _check_call(self, tool: str, arguments: Mapping[str, Any]) -> None:
        schema = next((known for known in self.tools if known["name"] == tool), None)
        names = ", ".join(known["name"] for known in self.tools)
        if schema is None:
            raise BadCall(_BASH_HINT if self._bash else _hint(names) if tool == "invalid" else _unknown(tool, names))
        allowed = schema["parameters"]["properties"]
        odd = sorted(name for name in arguments if name not in allowed)
        if odd:
            raise BadCall(f"{tool} has no argument {odd[0]!r}; it takes {', '.join(allowed) or 'none'}.")

    def _bench(self) -> Workbench:
        prepared, instance = self._prepared, self.instance
        if prepared is None:
            raise ResetNeededError("There is no task before the first reset. Call env.reset(seed=...) once.")
        return Workbench(
            environment=prepared.environment(),
            python_path=prepared.python_path,
            site=prepared.site,
            test_paths=instance.test_paths,
            longest=self._length,
            test_seconds=self._test_seconds,
        )

    def _text_of(self, answer: Answer) -> str:
        if not self._bash or answer.command is None:
            return answer.text
        _, _, output = answer.text.partition("\n")
        return f"<returncode>{answer.command.exit_code}</returncode>\n<output>\n{output}\n</output>"

    def _kind(self, answer: Answer, arguments: Mapping[str, Any], before: str) -> str:
        """Of a shell command of the bash scaffold: what it changed, then what it is called."""
        if not self._bash:
            return answer.kind
        if self.sandbox.state_hash() != before:
            return "edit"
        words = str(arguments["command"]).split()
        if "pytest" in words[0] or words[1:3] == ["-m", "pytest"]:
            return "test"
        return "read" if words[0] in _READERS or words[:2] == ["sed", "-n"] else "shell"

    def _end(self, kind: str, text: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        verdict = self.verdict()
        success = verdict.resolved and not (self._strict and verdict.subverted)
        info: dict[str, Any] = {
            "action_kind": kind,
            "evidence": f"{self.sandbox.state_hash()}:{kind}",
            "success": success,
            "verdict": _numbers(verdict),
            "subverted": list(verdict.subverted),
        }
        if not success:
            info["failure"] = verdict.failure or "harness subversion"
        if verdict.remembered:
            info["charged_seconds"] = verdict.report.seconds
        return text, float(success), True, False, info

    def verdict(self) -> Verdict:
        """What the hidden tests say about the repository as it is now; for graders. The episode goes on."""
        if self._prepared is None:
            raise ResetNeededError("There is no task before the first reset. Call env.reset(seed=...) once.")
        return grade(self.sandbox, self.instance, self._prepared, timeout=self._test_seconds, memo=self._memo)

    # ------------------------------------------------------------------ state

    def _get_state(self) -> dict[str, Any]:
        # The digest lets a replay with another task file of the same name fail at once, not by chance later. Where a
        # repository lies differs from machine to machine.
        source = msgspec.structs.replace(self.instance.source, location="")
        plain = msgspec.structs.replace(self.instance, source=source)
        digest = hashlib.blake2b(msgspec.json.encode(plain, order="sorted"), digest_size=16).hexdigest()
        return {"task": self.instance.id, "digest": digest, "repository": self.sandbox.state_hash()}

    def _fork(self) -> Self:
        args, kwargs = self._init_args
        child = type(self).__new__(type(self), *args, **kwargs)
        child.__dict__.update({name: value for name, value in self.__dict__.items() if name not in _UNSHARED})
        child._sandbox = self._sandbox.fork() if self._sandbox is not None else None
        return child

    def _close(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    @classmethod
    def example_kwargs(cls) -> dict[str, Any]:
        """The shipped samples, if this machine can isolate."""
        try:
            engine_for()
        except BackendUnavailableError as error:
            raise LookupError(str(error)) from error
        if not SAMPLES.is_file():
            raise LookupError(f"{SAMPLES} is not there")
        return {"max_turns": 8}

    # ------------------------------------------------------------------ texts and scripted policies

    def parse(self, text: str) -> Action:
        """Reads a text as a call: a JSON object, or with the bash scaffold exactly one block of a command."""
        if not self._bash:
            return super().parse(text)
        blocks = _BLOCK.findall(text)
        if len(blocks) == 1:
            return {"tool": "bash", "arguments": {"command": blocks[0]}}
        found = super().parse(text) if not blocks else {"tool": "invalid", "arguments": {}}
        return found if found["tool"] == "bash" else {"tool": "invalid", "arguments": {"text": text}}

    def render_action(self, action: Action) -> str:
        """The text that means a call."""
        command = action["arguments"].get("command")
        if self._bash and action["tool"] == "bash" and isinstance(command, str) and "```" not in command:
            return f"```bash\n{command}\n```"
        return json.dumps(action, ensure_ascii=False, sort_keys=True)

    def sample_action(self, rng: np.random.Generator) -> Any:
        """A likely call on a file of the repository; now and then nonsense or the submission."""
        files = sorted(self._prepared.tests) if self._prepared is not None else ["README.md"]
        path = files[int(rng.integers(len(files)))]
        if self._instance is not None and rng.random() < 0.5:
            path = path if not self._instance.patch else _first_path(self._instance.patch)
        line = int(rng.integers(1, 12))
        draw = rng.random()
        if self._bash:
            commands = (f"cat {path}", "ls -R", f"sed -i {line}d {path}", "false", SUBMIT_COMMAND, "rm -rf src")
            weights = (0.35, 0.2, 0.2, 0.1, 0.05, 0.1)
            command = commands[int(rng.choice(len(commands), p=weights))]
            return f"I will look.\n```bash\n{command}\n```" if draw < 0.9 else "no command"
        if draw < 0.4:
            return _call("view_file", path=path, start=line)
        if draw < 0.7:
            return _call("edit_file", path=path, start=line, end=line, replacement="# changed\n")
        if draw < 0.85:
            return _call("run_shell", command=f"head -n {line} {path} > note.txt; ls")
        if draw < 0.9:
            return _call("run_tests", test_filter=path)
        return _call("submit_patch") if draw < 0.93 else ("", "look", '{"tool": "view_file"}')[int(rng.integers(3))]

    def scripted_action(self, name: str, rng: np.random.Generator) -> Any:
        """What "gold" (applies the gold patch file by file, then submits), "empty" (submits) or "random" does."""
        if name not in ("gold", "empty"):
            return super().scripted_action(name, rng)
        submit = _call("bash", command=SUBMIT_COMMAND) if self._bash else _call("submit_patch")
        return submit if name == "empty" else self._repair() or submit

    def _repair(self) -> Action | None:
        """The next call on the way to the repaired repository; None when it is there."""
        broken = broken_files(self.instance)
        repaired = apply_patch(broken, self.instance.patch)
        for path in sorted(path for path in broken.keys() | repaired.keys() if broken.get(path) != repaired.get(path)):
            try:
                now: bytes | None = self.sandbox.read(f"{TREE}/{path}")
            except OSError:
                now = None
            target = repaired.get(path)
            if now == target:
                continue
            if target is None:
                return self._command(f"rm -- {shlex.quote(path)}")
            if not self._bash and target.endswith(b"\n") and (not now or now.endswith(b"\n")):
                return _minimal_edit(path, now, target)
            text = shlex.quote(target.decode(errors="surrogateescape"))
            folder = shlex.quote(path.rpartition("/")[0] or ".")
            return self._command(f"mkdir -p {folder} && printf %s {text} > {shlex.quote(path)}")
        return None

    def _command(self, command: str) -> Action:
        return _call("bash" if self._bash else "run_shell", command=command)


_BASH_HINT = "Please give exactly one command, in one block of three backticks:\n\n```bash\nyour_command_here\n```"


def _hint(names: str) -> str:
    return f'This is no tool call. Write one JSON object {{"tool": NAME, "arguments": {{...}}}}; the tools are {names}.'


def _unknown(tool: str, names: str) -> str:
    return f"There is no tool {tool[:80]!r}; the tools are {names}."


def _call(tool: str, **arguments: Any) -> Action:
    return {"tool": tool, "arguments": arguments}


def _submits(answer: Answer) -> bool:
    done = answer.command
    return done is not None and done.exit_code == 0 and done.stdout.lstrip().split("\n", 1)[0].strip() == SUBMIT_MARK


def _numbers(verdict: Verdict) -> dict[str, Any]:
    def passed(outcomes: Mapping[str, str]) -> list[int]:
        return [sum(outcome == "passed" for outcome in outcomes.values()), len(outcomes)]

    return {
        "fail_to_pass": passed(verdict.fail_to_pass),
        "pass_to_pass": passed(verdict.pass_to_pass),
        "exit_code": verdict.report.exit_code,
        "trusted": verdict.report.trusted,
    }


def _first_path(patch: str) -> str:
    found = re.search(r"^\+\+\+ b/(.*?)\t?$", patch, re.MULTILINE)
    return found[1] if found else "README.md"


def _minimal_edit(path: str, now: bytes | None, target: bytes) -> Action:
    """The call that replaces the lines between what both begin and end with."""
    new = target.decode(errors="surrogateescape").split("\n")
    if now is None:
        return _call("edit_file", path=path, start=1, end=0, replacement="\n".join(new))
    old = now.decode(errors="surrogateescape").split("\n")
    old, new = (lines[:-1] if lines[-1] == "" else lines for lines in (old, new))
    first = _common(old, new)
    last = _common(old[first:][::-1], new[first:][::-1])
    middle = new[first : len(new) - last]
    replacement = "\n".join(middle) + ("\n" if middle else "")
    return _call("edit_file", path=path, start=first + 1, end=len(old) - last, replacement=replacement)


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count


# The arguments come from configurations and handles, so their types are not to be trusted.
def _check(scaffold: Any, max_turns: Any, subversion: Any, length: Any, seconds: Any) -> None:
    if scaffold not in ("tools", "bash"):
        raise ValueError(f"scaffold must be 'tools' or 'bash', got {scaffold!r}")
    if type(max_turns) is not int or max_turns < 1:
        raise ValueError(f"max_turns must be a whole number of at least 1, got {max_turns!r}")
    if subversion not in ("report", "fail"):
        raise ValueError(f"subversion must be 'report' or 'fail', got {subversion!r}")
    if type(length) is not int or length < 200:
        raise ValueError(f"observation_length must be a whole number of at least 200, got {length!r}")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds <= 0:
        raise ValueError(f"test_seconds must be a number above 0, got {seconds!r}")
