"""What agents can do in a repository: the tools' schemas, and each tool as a function of a sandbox and arguments.

A bad call is an answer that the agent can read. Episodes, rewards and forks stand in ``task_env``.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from forkgym.sandbox import TREE, CompletedCommand, Sandbox, SandboxPathError
from forkgym_swe.harness import harness
from forkgym_swe.runner import TestReport, run_tests

__all__ = ["BASH_TOOLS", "LARGEST_VIEW", "TOOLS", "Answer", "BadCall", "Workbench", "cut", "normalise", "render_report"]

LARGEST_VIEW = 200
LONGEST_LINE = 2_000
SHELL_SECONDS = 60.0
LONGEST_SHELL = 600.0


def _tool(name: str, description: str, properties: dict[str, Any], required: Sequence[str]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return {"name": name, "description": description, "parameters": parameters}


_PATH = {"type": "string", "description": "Path of a file, relative to the repository."}
_LINE = {"type": "integer", "minimum": 1}
_COMMAND = {"type": "string", "description": "A shell command."}

TOOLS: list[dict[str, Any]] = [
    _tool(
        "view_file",
        f"Shows up to {LARGEST_VIEW} lines of a file with their numbers.",
        {
            "path": _PATH,
            "start": {**_LINE, "description": "First line; 1 if left out."},
            "end": {**_LINE, "description": "Last line; as many as can be shown if left out."},
        },
        ["path"],
    ),
    _tool(
        "edit_file",
        "Replaces lines start to end of a file and shows the difference. With end = start - 1 it inserts before start.",
        {
            "path": _PATH,
            "start": {**_LINE, "description": "First line to replace."},
            "end": {"type": "integer", "minimum": 0, "description": "Last line to replace."},
            "replacement": {"type": "string", "description": "The new lines; empty to delete."},
        },
        ["path", "start", "end", "replacement"],
    ),
    _tool(
        "run_shell",
        "Runs a shell command in the top directory of the repository.",
        {
            "command": _COMMAND,
            "timeout": {"type": "number", "description": f"Seconds; {SHELL_SECONDS:.0f} if left out."},
        },
        ["command"],
    ),
    _tool(
        "run_tests",
        "Runs the project's tests on a copy of the repository.",
        {
            "test_filter": {
                "type": "string",
                "description": "A file, a test id such as tests/test_a.py::test_b, several of them separated by "
                "spaces, or a pytest -k expression; all tests if left out.",
            }
        },
        [],
    ),
    _tool("submit_patch", "Submits the repository as it is and ends the episode. Hidden tests decide.", {}, []),
]
BASH_TOOLS: list[dict[str, Any]] = [
    _tool("bash", "Runs a shell command in the top directory of the repository.", {"command": _COMMAND}, ["command"])
]


class BadCall(ValueError):
    """The agent's call cannot be carried out; the text is for the agent."""


class Answer(msgspec.Struct, frozen=True):
    """What a tool says.

    Attributes:
        text: For the agent.
        kind: Of the action, as selectors know it: ``read``, ``edit``, ``shell`` or ``test``.
        command: The command that ran, for those who need more than the text.
        report: The tests that ran.
    """

    text: str
    kind: str
    command: CompletedCommand | None = None
    report: TestReport | None = None


class Workbench(msgspec.Struct, frozen=True):
    """How tools run.

    Attributes:
        environment: Variables of commands.
        python_path: Import paths of the tree.
        site: Requirements of the tests.
        test_paths: Where tests lie when no filter is given.
        longest: Characters of an answer.
        test_seconds: Time of a test run.
    """

    environment: dict[str, str]
    python_path: tuple[str, ...]
    site: str | None
    test_paths: tuple[str, ...]
    longest: int
    test_seconds: float

    def call(self, sandbox: Sandbox, tool: str, arguments: Mapping[str, Any]) -> Answer:
        """Carry out a call of any tool but the one that submits.

        Raises:
            BadCall: The call is odd, or asks for what is not there.
        """
        known: dict[str, Callable[[Sandbox, Mapping[str, Any]], Answer]] = {
            "view_file": self._view,
            "edit_file": self._edit,
            "run_shell": self._shell,
            "run_tests": self._tests,
            "bash": self._shell,
        }
        answer = known[tool](sandbox, arguments)
        return msgspec.structs.replace(answer, text=cut(answer.text, self.longest))

    def _view(self, sandbox: Sandbox, arguments: Mapping[str, Any]) -> Answer:
        path = _text(arguments, "path")
        lines = _lines(_read(sandbox, path))
        start = _integer(arguments, "start", 1)
        end = _integer(arguments, "end", start + LARGEST_VIEW - 1)
        if not lines:
            return Answer(f"{path} is empty.", "read")
        if start < 1 or end < start:
            raise BadCall(f"start must be at least 1 and end at least start; got {start} and {end}.")
        if start > len(lines):
            raise BadCall(f"{path} has {len(lines)} lines; there is no line {start}.")
        last = min(end, start + LARGEST_VIEW - 1, len(lines))
        shown = [f"{number:6d}\t{_clip(lines[number - 1])}" for number in range(start, last + 1)]
        return Answer("\n".join([f"{path}, lines {start} to {last} of {len(lines)}:", *shown]), "read")

    def _edit(self, sandbox: Sandbox, arguments: Mapping[str, Any]) -> Answer:
        path, replacement = _text(arguments, "path"), _text(arguments, "replacement", empty=True)
        start, end = _integer(arguments, "start"), _integer(arguments, "end")
        try:
            before = _read(sandbox, path)
        except FileNotFoundError:
            if (start, end) != (1, 0):
                raise BadCall(f"{path} is not there. A new file is made with start 1 and end 0.") from None
            before = ""
        after = _replaced(path, before, start, end, replacement)
        if after == before and before:
            raise BadCall(f"The replacement is what stands there already; {path} was not changed.")
        try:
            sandbox.write(f"{TREE}/{path}" if not path.startswith("/") else path, after)
        except SandboxPathError as error:
            raise BadCall(f"{error}.") from None
        except OSError as error:
            raise BadCall(f"{path} cannot be written: {error.strerror}.") from None
        return Answer(_difference(path, before, after), "edit")

    def _shell(self, sandbox: Sandbox, arguments: Mapping[str, Any]) -> Answer:
        command = _text(arguments, "command")
        timeout = _seconds(arguments)
        done = sandbox.run(command, timeout=timeout, env=self.environment, cwd=TREE, merge_stderr=True)
        parts = [f"exit code {done.exit_code}"]
        if done.timed_out:
            parts = [f"stopped after {timeout:g} seconds"]
        elif done.output_exceeded:
            parts = ["stopped: too much output"]
        return Answer("\n".join([*parts, done.stdout]).rstrip("\n"), "shell", command=done)

    def _tests(self, sandbox: Sandbox, arguments: Mapping[str, Any]) -> Answer:
        wanted = _text(arguments, "test_filter", empty=True) if arguments.get("test_filter") is not None else ""
        words = wanted.split()
        places = all("::" in word or "/" in word or word.endswith(".py") for word in words)
        # Tests leave files behind; what an agent looked at should not depend on how often it looked.
        with sandbox.fork() as copy:
            report = run_tests(
                copy,
                [_inside(word) for word in words] if places else (),
                keyword="" if places else wanted,
                python_path=self.python_path,
                site=self.site,
                paths=self.test_paths,
                timeout=self.test_seconds,
            )
        text = render_report(report, self.longest)
        return Answer(text.replace(self.site, "<requirements>") if self.site else text, "test", report=report)


# ---------------------------------------------------------------------- arguments


def _text(arguments: Mapping[str, Any], name: str, *, empty: bool = False) -> str:
    value = arguments.get(name)
    if value is None:
        raise BadCall(f"The argument {name!r} is missing.")
    if not isinstance(value, str):
        raise BadCall(f"The argument {name!r} must be a text.")
    if not empty and not value.strip():
        raise BadCall(f"The argument {name!r} is empty.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadCall(f"The argument {name!r} holds characters that no file can hold.") from None
    if "\0" in value:
        raise BadCall(f"The argument {name!r} holds a zero byte.")
    return value


def _integer(arguments: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = arguments.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, str) and re.fullmatch(r"\s*\d{1,9}\s*", value):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None:
        raise BadCall(f"The argument {name!r} is missing.")
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > 10**9:
        raise BadCall(f"The argument {name!r} must be a whole number.")
    return value


def _seconds(arguments: Mapping[str, Any]) -> float:
    value = arguments.get("timeout")
    if value is None:
        return SHELL_SECONDS
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LONGEST_SHELL:
        raise BadCall(f"The argument 'timeout' must be a number of seconds above 0, at most {LONGEST_SHELL:.0f}.")
    return float(value)


def _inside(path: str) -> str:
    return path.removeprefix(f"{TREE}/").removeprefix("./")


def _read(sandbox: Sandbox, path: str) -> str:
    """A file's text; FileNotFoundError goes through in case the file may be made."""
    try:
        return sandbox.read(path if path.startswith("/") else f"{TREE}/{path}").decode(errors="surrogateescape")
    except SandboxPathError as error:
        raise BadCall(f"{error}.") from None
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(f"{path} is not there.") from error
    except OSError as error:
        raise BadCall(f"{path} cannot be read: {error.strerror}.") from None


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _clip(line: str) -> str:
    plain = line.rstrip("\r").encode(errors="surrogateescape").decode(errors="replace")
    return plain if len(plain) <= LONGEST_LINE else f"{plain[:LONGEST_LINE]} [... {len(plain)} characters]"


def _replaced(path: str, before: str, start: int, end: int, replacement: str) -> str:
    lines = before.split("\n")
    closed = lines[-1] == ""
    if closed:
        lines.pop()
    if not 1 <= start <= len(lines) + 1:
        raise BadCall(f"{path} has {len(lines)} lines; start must be from 1 to {len(lines) + 1}, got {start}.")
    if not start - 1 <= end <= len(lines):
        raise BadCall(f"{path} has {len(lines)} lines; end must be from start - 1 to {len(lines)}, got {end}.")
    new = replacement.split("\n") if replacement else []
    if replacement.endswith("\n"):
        new.pop()
    # A file of Windows keeps its line ends.
    if lines and all(line.endswith("\r") for line in lines):
        new = [line if line.endswith("\r") else f"{line}\r" for line in new]
    result = [*lines[: start - 1], *new, *lines[end:]]
    touched_end = end >= len(lines)
    ends = closed if not touched_end else closed or replacement.endswith("\n") or not before
    return "\n".join(result) + ("\n" if result and ends else "")


def _difference(path: str, before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), f"a/{path}", f"b/{path}", lineterm="", n=3)
    return "\n".join(_clip(line) for line in lines) or f"{path} is now an empty file."


# ---------------------------------------------------------------------- texts


def cut(text: str, longest: int) -> str:
    """The text, or its first and last half with a line between that says how much is missing."""
    if len(text) <= longest:
        return text
    head, tail = longest - longest // 2, longest // 2
    return f"{text[:head]}\n[... {len(text) - longest} characters left out ...]\n{text[-tail:]}"


def normalise(text: str) -> str:
    """Without what differs from run to run or from machine to machine: addresses, times, places of Python."""
    text = re.sub(r"\b0x[0-9a-fA-F]{4,}", "0x...", text)
    text = re.sub(r"\bin \d+\.\d+s\b", "in ...s", text)
    text = re.sub(r"(?<=/)pytest-of-[\w-]+/pytest-\d+", "pytest", text)
    tools = str(harness().root)
    places = (f"{tools}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages", tools, sys.base_prefix)
    for place, name in zip(places, ("<site-packages>", "<python>", "<python>"), strict=True):
        text = text.replace(place, name)
    return text


def render_report(report: TestReport, longest: int) -> str:
    """A test run as text: counts, then each failure in the order of its id, each with its share of the room."""
    counts = [(kind, report.count(kind)) for kind in ("failed", "error", "passed", "skipped")]
    said = ", ".join(f"{count} {kind}" for kind, count in counts if count) or "no tests ran"
    lines = [f"{said} (exit code {report.exit_code})"]
    if report.timed_out:
        lines[0] = f"{said} (stopped: out of time)"
    problems = [*sorted(report.collection_errors.items())]
    problems += [(id, failure.text) for id, failure in sorted(report.failures.items())]
    unknown = sorted(id for id, outcome in report.outcomes.items() if outcome == "error" and id not in report.failures)
    lines += [f"{id}: the process ended in this test" for id in unknown]
    lines += [f"FAILED {id}" for id, _ in problems[:50]]
    room = max(400, (longest - sum(map(len, lines)) - 200) // max(1, min(len(problems), 10)))
    for id, text in problems[:10]:
        lines += ["", f"--- {id}", cut(text.strip("\n"), room)]
    if not report.outcomes and not problems:
        lines.append(cut(report.output.strip("\n"), longest // 2))
    return normalise("\n".join(lines))
