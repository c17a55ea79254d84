"""``forkgym make-tasks``: tasks of folders, archives, git checkouts and catalogued projects."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from forkgym.cli.command import NO, OK, Command, UsageError, bad_input, positive
from forkgym.console import Console
from forkgym_swe.instance import Instance, InstanceError, dump_instances

from .history import take_history
from .injection import Attempt, InjectionOptions, Subject
from .journal import Journal, journal_path
from .operators import OPERATORS, operator_names
from .production import inject_bugs, purpose_of, summarise
from .progress import Progress
from .projects import PROJECTS
from .subjects import catalogued, find_subject
from .suites import Tests

__all__ = ["MAKE_TASKS"]


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sources", nargs="*", metavar="SOURCE", help="folder, NAME-VERSION.tar.gz, git checkout, "
                        "project of the catalogue, or sample:NAME")  # fmt: skip
    parser.add_argument("--output", type=Path, help="task file to write (JSON, one task a line)")
    parser.add_argument("--catalogue", action="store_true", help="every project of the catalogue")
    parser.add_argument("--list", action="store_true", help="show the catalogue and the operators, and stop")
    parser.add_argument("--fetch", action="store_true", help="get missing sources and requirements by pip")
    parser.add_argument("--count", type=positive, default=24, help="tasks of one source (default: 24)")
    parser.add_argument("--attempts", type=positive, default=6, help="try at most this many times COUNT (default: 6)")
    parser.add_argument("--seed", type=int, default=0, help="of all choices (default: 0)")
    parser.add_argument("--operator", action="append", default=[], metavar="NAME", help="only bugs of this operator")
    parser.add_argument(
        "--keep-passing", type=positive, default=150, help="list at most this many passing tests a task"
    )
    parser.add_argument("--split", choices=("train", "validation", "test"), default="train",
                        help="of sources that are not catalogued (default: train)")  # fmt: skip
    parser.add_argument("--python-path", action="append", default=[], metavar="DIR", help="import from this directory")
    parser.add_argument("--test-path", action="append", default=[], metavar="PATH", help="where the tests are")
    parser.add_argument("--require", action="append", default=[], metavar="REQUIREMENT", help="the tests need it")
    parser.add_argument(
        "--history", action="store_true", help="from commits of a git checkout instead of injected bugs"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object, too")


def _run(arguments: argparse.Namespace, console: Console) -> int:
    if arguments.list:
        _list(console)
        return OK
    if arguments.output is None or not (arguments.sources or arguments.catalogue):
        raise UsageError("name one or more sources (or --catalogue) and an --output file; --list shows the catalogue")
    if arguments.output.is_dir():
        raise UsageError(f"--output {arguments.output} is a directory; name a file")
    if not all(arguments.sources):
        raise UsageError("a SOURCE is empty; name a folder, an archive, a checkout or a project")
    began = time.monotonic()
    with bad_input(ValueError, OSError):
        options = InjectionOptions(
            count=arguments.count,
            attempts=arguments.attempts,
            seed=arguments.seed,
            operators=operator_names(arguments.operator) if arguments.operator else (),
            keep_passing=arguments.keep_passing,
        )
        subjects = _subjects(arguments, console)
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        method = "history" if arguments.history else "injection"
        journal = Journal(journal_path(arguments.output), Attempt, purpose_of(options, subjects, method))
    attempts = _make(arguments, options, subjects, journal, console)
    rows = summarise(attempts)
    console.table(rows, title="Tasks and discarded candidates by project")
    made = sum(attempt.instance is not None for attempt in attempts)
    seconds = time.monotonic() - began
    for attempt in attempts:
        if attempt.reason.startswith("unusable: "):
            console.line(f"{attempt.project} makes no tasks: {attempt.reason.removeprefix('unusable: ')}")
    after = f"Next: forkgym check-tasks {arguments.output}" if made else "Nothing to check."
    console.line(f"{made} tasks in {arguments.output}, {seconds:.0f} s. {after}")
    if arguments.json:
        console.json({"tasks": made, "projects": rows, "seconds": round(seconds, 1), "output": str(arguments.output)})
    return OK if made else NO


def _make(
    arguments: argparse.Namespace,
    options: InjectionOptions,
    subjects: list[Subject],
    journal: Journal[Attempt],
    console: Console,
) -> list[Attempt]:
    attempts: list[Attempt] = []
    instances: list[Instance] = []
    done: set[str] = set()
    with journal, Progress(console, options.count * len(subjects), "tasks") as progress:

        def tell(attempt: Attempt) -> None:
            attempts.append(attempt)
            progress.advance(attempt.project, steps=attempt.instance is not None)

        for subject in subjects:
            make = take_history if arguments.history else inject_bugs
            made = make(subject, options, journal, tell)
            instances += made
            # After each source, so that there is something to work with early; and what an earlier run made of the
            # sources that are still to come, so that the file never shrinks.
            done.add(subject.name)
            waiting = [entry for entry in journal.entries if entry.project not in done]
            known = [entry.instance for entry in waiting if entry.instance is not None]
            dump_instances(arguments.output, [*instances, *known])
            progress.advance(subject.name, steps=options.count - len(made))
            spent = sum(attempt.seconds for attempt in attempts if attempt.project == subject.name)
            progress.say(f"{subject.name}: {len(made)} tasks, {spent:.0f} s")
    return attempts


def _subjects(arguments: argparse.Namespace, console: Console) -> list[Subject]:
    tests = None
    if arguments.python_path or arguments.test_path or arguments.require:
        tests = Tests(
            python_path=tuple(arguments.python_path or ["."]),
            test_paths=tuple(arguments.test_path),
            requires=tuple(arguments.require),
        )
    fetch, say = arguments.fetch, console.message
    found = [catalogued(project, fetch=fetch, say=say) for project in (PROJECTS if arguments.catalogue else ())]
    found += [
        find_subject(named, tests=tests, split=arguments.split, fetch=fetch, say=say) for named in arguments.sources
    ]
    names = [subject.name for subject in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InstanceError(f"named twice: {', '.join(twice)}; each source makes its tasks once")
    return found


def _list(console: Console) -> None:
    rows = [
        {
            "project": project.name,
            "version": project.version,
            "split": project.split,
            "license": project.license,
            "requires": " ".join(project.requires) or None,
        }
        for project in PROJECTS
    ]
    console.table(rows, title="Projects of the catalogue")
    console.line()
    operators = [{"operator": one.name, "makes": one.description} for _, one in sorted(OPERATORS.items())]
    console.table(operators, title="Bug operators")


MAKE_TASKS = Command(
    description="Make repository tasks: inject bugs into a tested project, or take them from its git history.\n"
    "Work resumes where it stopped: a journal lies beside the output file.",
    configure=_configure,
    run=_run,
)
