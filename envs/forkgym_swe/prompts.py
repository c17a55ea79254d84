"""What agents are told: one system message for each scaffold, and the task's text."""

from __future__ import annotations

from forkgym_swe.instance import Instance

__all__ = ["BASH_SYSTEM", "SUBMIT_COMMAND", "SUBMIT_MARK", "TOOLS_SYSTEM", "task_text"]

SUBMIT_MARK = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
SUBMIT_COMMAND = f"echo {SUBMIT_MARK}"
"""How an agent of the ``bash`` scaffold submits: the mark as the first line of a command's output."""

TOOLS_SYSTEM = """\
You are a software engineer who works alone on one issue of a code repository. Read the code, change the source files
that cause the issue, check your change with the project's tests, and submit it.

Each turn you make exactly one tool call, as a JSON object: {"tool": NAME, "arguments": {...}}. The tools:
- view_file(path, start, end): shows up to 200 numbered lines of a file.
- edit_file(path, start, end, replacement): replaces lines start to end by the replacement and shows the difference.
  With end = start - 1 the replacement is inserted before line start. A new file is made with start 1 and end 0.
- run_shell(command, timeout): runs a shell command in the repository's top directory; 60 seconds unless you say.
- run_tests(test_filter): runs the project's tests, or those of a file, of an id such as
  tests/test_a.py::TestB::test_c, or of a pytest expression such as "parse and not slow". What tests write is undone.
- submit_patch(): submits your change and ends the episode. Hidden tests then decide.

Change source files, not tests: changes of tests and of the test configuration do not count. Edit as little as is
needed."""

BASH_SYSTEM = f"""\
You are a software engineer who works alone on one issue of a code repository, through a shell.

Each turn holds exactly one command in a block of three backticks, after your thoughts:

```bash
your_command_here
```

Each command runs in a new shell in the repository's top directory: directories and variables do not last, files do.
When you are done, submit by a block that holds nothing but

```bash
{SUBMIT_COMMAND}
```

Hidden tests then decide. Change source files, not tests: changes of tests and of the test configuration do not
count."""


def task_text(instance: Instance, *, hints: bool = False) -> str:
    """The first message of an episode.

    Args:
        instance: The task.
        hints: Add what was said about the issue besides.
    """
    parts = [
        f"Repository: {instance.repository}, in /testbed (your working directory).",
        f"<issue>\n{instance.problem_statement.strip()}\n</issue>",
    ]
    if hints and instance.hints.strip():
        parts.append(f"<hints>\n{instance.hints.strip()}\n</hints>")
    return "\n\n".join(parts)
