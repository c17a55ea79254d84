"""Tasks by bug injection: which mutants to try in which order, and which of them make a task.

The choice is a pure function of the tree, what its tests cover and a seed; the tests decide what is kept.
"""

from __future__ import annotations

import ast
import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec

from forkgym_swe.checkout import hide_tests, make_patch
from forkgym_swe.instance import Difficulty, Instance, InstanceError, Source
from forkgym_swe.runner import TestReport

from .defining import Definitions
from .mutants import MutableModule, Mutant, MutationError, Site
from .statements import Failing, StatementError, leaks, write_statement
from .suites import Baseline, Suite, Tests

__all__ = ["Attempt", "InjectionOptions", "Injector", "Subject", "choose_passing", "order_sites"]


class InjectionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for.

    Attributes:
        count: Tasks of one project.
        attempts: Mutants tried at most, in multiples of `count`.
        seed: Of all choices.
        operators: Names of operators; empty for all.
        most_failing: Largest share of all tests that may fail.
        keep_passing: Tests that must go on passing which a task lists at most.
    """

    count: int = 30
    attempts: int = 6
    seed: int = 0
    operators: tuple[str, ...] = ()
    most_failing: float = 0.5
    keep_passing: int = 150


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A project that tasks are made of.

    Attributes:
        name: Of the project.
        source: Where its files come from.
        tests: How its tests run.
        split: Where its tasks belong.
    """

    name: str
    source: Source
    tests: Tests
    split: Literal["train", "validation", "test"] = "train"


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one candidate.

    Attributes:
        project: Of the subject.
        key: The candidate, for a journal.
        reason: Why it makes no task; "" if it does.
        instance: The task.
        seconds: Wall clock spent on it.
    """

    project: str
    key: str
    reason: str = ""
    instance: Instance | None = None
    seconds: float = 0.0


class Injector:
    """Mutants of one project in the order to try them, and the judgement of each.

    Args:
        subject: The project.
        suite: Its tree and tests.
        baseline: What `Suite.baseline` gave.
        options: What is asked for.

    Raises:
        ValueError: No operator has one of the names.
    """

    def __init__(self, subject: Subject, suite: Suite, baseline: Baseline, options: InjectionOptions) -> None:
        self.subject, self.suite, self.baseline, self.options = subject, suite, baseline, options
        self._modules: dict[str, MutableModule] = {}
        for path in sorted(baseline.covering):
            if suite.is_code(path):
                try:
                    source = suite.files[path].decode()
                    self._modules[path] = MutableModule(path, source, options.operators)
                except (MutationError, UnicodeDecodeError):
                    continue  # such as a template that is no module of this version of Python
        self._definitions = Definitions(suite.files)
        self._seen: set[str] = set()

    def sites(self) -> list[Site]:
        """The sites to try, best spread first, as many as the options allow."""
        found = [site for _, module in sorted(self._modules.items()) for site in module.sites]
        covered = [site for site in found if self._is_covered(site)]
        rng = random.Random(f"{self.options.seed} {self.subject.name} {self.subject.source.version}")
        return order_sites(covered, rng, self.options.count * self.options.attempts)

    def _is_covered(self, site: Site) -> bool:
        lines = self.baseline.covering[site.path]
        return any(line in lines for line in range(site.line, site.last_line + 1)) or not site.function

    def try_site(self, site: Site) -> tuple[str, Instance | None]:
        """Run the tests on one mutant.

        Returns:
            Why it makes no task ("" if it does), and the task.
        """
        mutant = self._modules[site.path].apply(site)
        if mutant is None:
            return "the change makes no other program", None
        shape = _shape(mutant)
        if shape in self._seen:
            return "the same bug as another candidate", None
        self._seen.add(shape)
        changes = {site.path: mutant.source.encode()}
        covering = self.baseline.tests_of(site.path, site.line, site.last_line)
        limit = max(4.0, 4 * self.baseline.seconds)
        first = self.suite.run(changes, covering, timeout=limit)
        reason, failing = self._judge(first, covering or self.baseline.passing)
        if reason:
            return reason, None
        passing = choose_passing(self.baseline.passing, set(failing), covering, self.options.keep_passing, shape)
        rest = [id for id in passing if id not in set(covering)] if covering else []
        if rest:
            second = self.suite.run(changes, rest, timeout=limit)
            reason, also = self._judge(second, rest, may_pass=True)
            if reason:
                return reason, None
            failing, passing = tuple(sorted({*failing, *also})), tuple(id for id in passing if id not in set(also))
            first = msgspec.structs.replace(first, failures={**second.failures, **first.failures})
        if len(failing) > self.options.most_failing * len(self.baseline.passing):
            return "too many tests fail", None
        if not passing:
            return "no test still passes", None
        return self._task(mutant, first, failing, passing)

    def note(self, site: Site) -> None:
        """A site was tried in an earlier run: later ones that make the same program are not tried again."""
        mutant = self._modules[site.path].apply(site)
        if mutant is not None:
            self._seen.add(_shape(mutant))

    @staticmethod
    def _judge(report: TestReport, expected: Sequence[str], *, may_pass: bool = False) -> tuple[str, tuple[str, ...]]:
        if report.timed_out:
            return "the tests run too long", ()
        if report.collection_errors or any(id not in report.outcomes for id in expected):
            return "tests cannot be collected", ()
        if not report.trusted:
            return "the test run was cut short", ()
        wanted = set(expected)
        failing = sorted(id for id, outcome in report.outcomes.items() if outcome != "passed" and id in wanted)
        if any(report.outcomes[id] == "skipped" for id in failing):
            return "tests are skipped", ()
        return ("" if failing or may_pass else "no test fails"), tuple(failing)

    def _task(
        self, mutant: Mutant, report: TestReport, failing: tuple[str, ...], passing: tuple[str, ...]
    ) -> tuple[str, Instance | None]:
        site, files = mutant.site, self.suite.files
        broken = {**files, site.path: mutant.source.encode()}
        bug, patch = make_patch(files, broken), make_patch(broken, files)
        found = [self._definitions.find(id) for id in failing]
        hidden = tuple(sorted({id for id in found if id is not None}))
        if None in found:
            return "the failing tests cannot be hidden", None
        try:
            hide_tests(broken, hidden)
            told = [failing_of(report, id) for id in failing]
            statement = write_statement(self.subject.name, told, files)
        except StatementError:
            return "the failing tests cannot be told", None
        except InstanceError:
            return "the failing tests cannot be hidden", None
        if leaks(statement, patch=patch, operator=site.operator, paths=[site.path]):
            return "the issue text would give the repair away", None
        name, version = self.subject.name, self.subject.source.version
        lines = sum(line[:1] in "+-" and line[:3] not in ("+++", "---") for line in patch.splitlines() if line)
        mark = hashlib.sha256(f"{name} {version} {bug}".encode()).hexdigest()[:10]
        return "", Instance(
            id="-".join(part for part in (name, version[:12], mark) if part),
            repository=name,
            split=self.subject.split,
            source=self.subject.source,
            bug_patch=bug,
            patch=patch,
            hidden_tests=hidden,
            fail_to_pass=failing,
            pass_to_pass=passing,
            problem_statement=statement,
            operator=site.operator,
            difficulty=Difficulty(files=1, lines=lines, tests=len(failing)),
            python_path=self.subject.tests.python_path,
            requires=self.subject.tests.requires,
            test_paths=self.subject.tests.test_paths,
            provenance={
                "method": "injection",
                "file": site.path,
                "function": site.function,
                "line": str(site.line),
                "seed": str(self.options.seed),
            },
        )

    def key(self, site: Site) -> str:
        """A site in a journal."""
        return f"{site.path}:{site.line}:{site.operator}:{site.index}"


def order_sites(sites: Sequence[Site], rng: random.Random, count: int) -> list[Site]:
    """Sites spread over functions, operators and files: each next one is of what was taken least so far.

    Args:
        sites: All there are.
        rng: Breaks ties.
        count: How many are wanted.
    """
    waiting = list(sites)
    rng.shuffle(waiting)
    taken: list[Site] = []
    functions: Counter[tuple[str, str]] = Counter()
    operators: Counter[str] = Counter()
    files: Counter[str] = Counter()
    sizes = Counter(site.path for site in sites)
    while waiting and len(taken) < count:
        # A large file deserves more bugs than a small one, but not in proportion.
        best = min(
            range(len(waiting)),
            key=lambda place: (
                functions[waiting[place].path, waiting[place].function],
                operators[waiting[place].operator],
                files[waiting[place].path] / sizes[waiting[place].path] ** 0.5,
            ),
        )
        site = waiting[best]
        waiting[best] = waiting[-1]
        waiting.pop()
        taken.append(site)
        # Code that runs on import has no function of its own; it counts threefold, since it seldom makes a task.
        functions[site.path, site.function] += 1 if site.function else 3
        operators[site.operator] += 1
        files[site.path] += 1
    return taken


def choose_passing(
    passing: Sequence[str], failing: set[str], covering: Sequence[str], most: int, seed: str
) -> tuple[str, ...]:
    """Tests that a task lists as passing before and after: those nearest to the change first, then a seeded sample.

    Args:
        passing: All tests that pass in the unchanged tree.
        failing: Those that fail now.
        covering: Those that run the changed lines.
        most: How many may be listed.
        seed: Of the sample.
    """
    near = [id for id in covering if id not in failing]
    chosen = near if len(near) <= most else random.Random(seed).sample(near, most)
    far = [id for id in passing if id not in failing and id not in set(near)]
    room = most - len(chosen)
    chosen = [*chosen, *(far if len(far) <= room else random.Random(seed).sample(far, room))]
    return tuple(sorted(chosen))


def _shape(mutant: Mutant) -> str:
    """Equal for equal programs of one file."""
    return hashlib.sha256(f"{mutant.site.path} {ast.dump(ast.parse(mutant.source))}".encode()).hexdigest()


def failing_of(report: TestReport, id: str) -> Failing:
    """What a run says about one failing test."""
    failure = report.failures.get(id)
    if failure is None:
        return Failing(id, "the test run ended")
    path = id.split("::", 1)[0]
    lines = [line for place, line in failure.places if place == path]
    return Failing(id, failure.message, lines[0] if lines else 0)
