"""Make tasks of many subjects, with a journal: what was tried is never tried again. The command is in ``commands``."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from forkgym_swe.checkout import source_files
from forkgym_swe.instance import Instance, InstanceError

from .injection import Attempt, InjectionOptions, Injector, Subject
from .journal import Journal
from .suites import Suite

__all__ = ["Tell", "inject_bugs", "mark_of", "purpose_of", "summarise"]

UNUSABLE = "*"
"""Key of the entry that says that a subject as a whole makes no tasks."""

Tell = Callable[[Attempt], None]


def mark_of(subject: Subject) -> str:
    """A name of a subject as it is: other files or other tests have another mark."""
    return hashlib.sha256(msgspec.json.encode(subject)).hexdigest()[:12]


def purpose_of(options: InjectionOptions, subjects: Sequence[Subject], method: str) -> str:
    """What a journal is about."""
    marks = " ".join(sorted(mark_of(subject) for subject in subjects))
    digest = hashlib.sha256(msgspec.json.encode(options) + marks.encode()).hexdigest()[:16]
    asked = f"{len(subjects)} sources, {options.count} a source, seed {options.seed}"
    return f"forkgym make-tasks, {method}, {asked}, {digest}"


def inject_bugs(
    subject: Subject, options: InjectionOptions, journal: Journal[Attempt], tell: Tell = lambda _: None
) -> list[Instance]:
    """Tasks of one project by bug injection, in the order of the attempts.

    Args:
        subject: The project.
        options: What is asked for.
        journal: Holds what was tried before, and takes what is tried now.
        tell: Is told about each attempt, also those that were made before.
    """
    prefix = f"{mark_of(subject)} "
    known = {entry.key: entry for entry in journal.entries if entry.key.startswith(prefix)}
    unusable = known.get(prefix + UNUSABLE)
    if unusable is not None:
        tell(unusable)
        return []
    began = time.monotonic()
    try:
        with Suite(source_files(subject.source), subject.tests) as suite:
            return _inject(Injector(subject, suite, suite.baseline(), options), prefix, known, journal, tell)
    except InstanceError as error:
        seconds = time.monotonic() - began
        entry = Attempt(project=subject.name, key=prefix + UNUSABLE, reason=f"unusable: {error}", seconds=seconds)
        journal.add(entry)
        tell(entry)
        return []


def _inject(
    injector: Injector, prefix: str, known: Mapping[str, Attempt], journal: Journal[Attempt], tell: Tell
) -> list[Instance]:
    kept: list[Instance] = []
    for site in injector.sites():
        if len(kept) == injector.options.count:
            break
        key = prefix + injector.key(site)
        entry = known.get(key)
        if entry is None:
            began = time.monotonic()
            reason, instance = injector.try_site(site)
            seconds = time.monotonic() - began
            entry = Attempt(
                project=injector.subject.name, key=key, reason=reason, instance=instance, seconds=round(seconds, 3)
            )
            journal.add(entry)
        else:
            injector.note(site)
        tell(entry)
        if entry.instance is not None:
            kept.append(entry.instance)
    return kept


def summarise(attempts: Iterable[Attempt]) -> list[dict[str, Any]]:
    """One row a project: attempts, tasks, and how many were discarded for each reason; the last row sums up."""
    by_project: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        by_project.setdefault(attempt.project, []).append(attempt)
    rows = [_row(name, found) for name, found in sorted(by_project.items())]
    if len(rows) > 1:
        rows.append(_row("all", [attempt for found in by_project.values() for attempt in found]))
    return rows


def _row(name: str, attempts: Sequence[Attempt]) -> dict[str, Any]:
    row: dict[str, Any] = {"project": name, "tried": len(attempts)}
    row["tasks"] = sum(attempt.instance is not None for attempt in attempts)
    row["seconds"] = round(sum(attempt.seconds for attempt in attempts))
    reasons = Counter(attempt.reason.partition(":")[0] for attempt in attempts if attempt.reason)
    return row | dict(sorted(reasons.items()))
