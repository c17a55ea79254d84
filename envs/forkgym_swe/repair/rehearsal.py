"""Rehearsals: bugs in the standard library with imagined test results, for the teacher's demonstrations only.

A small policy has to see many kinds of code to read a new project's. The code, the bug, the candidate edits and which
of them undoes the bug are real; how tests fail and which other lines are suspected is drawn. No episode of training or
judgement is one of these.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import textwrap
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from forkgym.noise import generator, stream_id
from forkgym_swe.making.mutants import MutableModule, Mutant, MutationError
from forkgym_swe.repair.candidates import LineEdits, apply_edit, line_edits
from forkgym_swe.repair.memo import Memo
from forkgym_swe.repair.running import Comparison, Failure
from forkgym_swe.repair.source import ModuleSource, Statement
from forkgym_swe.repair.study import LINES, Study, StudyEdit, StudyLine
from forkgym_swe.repair.words import EXCEPTIONS, Names
from forkgym_swe.repair.workplace import RunNote, VerdictNote

__all__ = ["REHEARSED", "Rehearsal", "make_rehearsals", "rehearsals_key"]

MODULES: Final = (
    "argparse ast bdb bisect calendar cmd codeop collections colorsys configparser contextlib copy csv difflib dis "
    "doctest email.header email.message email.utils fileinput fnmatch fractions ftplib functools getopt gettext glob "
    "gzip heapq html.parser http.cookies imaplib inspect ipaddress json.decoder json.encoder linecache locale mailbox "
    "mimetypes netrc nntplib optparse pathlib pdb pickle pickletools platform plistlib poplib posixpath pprint profile "
    "pstats queue quopri random reprlib sched shelve shlex shutil smtplib statistics string stringprep subprocess "
    "symtable tarfile tempfile textwrap timeit tokenize trace traceback turtle typing urllib.parse urllib.robotparser "
    "uuid wave weakref wsgiref.headers xml.dom.minidom xml.sax.saxutils zipfile"
)
_VERSION = "rehearsals/2"
REHEARSED: Final = 3000
"""How many rehearsals demonstrations draw on by default; as many are in the package."""
_SHORTEST, _LONGEST = 5, 40
_BUGS_OF_A_FUNCTION = 3
_NUMBERS = ("int", "float")
_SIZED = ("list", "str", "tuple", "dict")


class Rehearsal:
    """A task whose tests are imagined; see `tasks.RepairTask` for what it stands in for.

    Attributes:
        study: What is known of it.
    """

    def __init__(self, study: Study) -> None:
        self.study = study

    @property
    def digest(self) -> str:
        """Names it."""
        return self.study.base

    @property
    def name(self) -> str:
        """For people."""
        return self.study.instance

    @property
    def repository(self) -> str:
        """Where its code comes from."""
        return "standard library"

    def focused_run(self, memo: Memo | None, edit: tuple[int, int] | None) -> list[RunNote]:
        """What a test run would say: it passes with the right edit, and not with another."""
        del memo
        note = self.study.note or RunNote(0, 1, "AssertionError", 0.0)
        if edit is None:
            return [note]
        made = self.study.lines[edit[0]].edits[edit[1]]
        if made.repairs:
            return [RunNote(note.total, note.total, "", 0.0), RunNote(9, 9, "", 0.0)]
        chance = int(hashlib.blake2b(f"{self.digest} {edit}".encode(), digest_size=2).hexdigest(), 16) / 65536
        other = EXCEPTIONS[int(chance * 997) % len(EXCEPTIONS)]
        return [msgspec.structs.replace(note, exception=other if chance < 0.3 else note.exception)]

    def verdict(self, memo: Memo | None, edit: tuple[int, int] | None) -> VerdictNote:
        """What the hidden tests would say."""
        del memo
        right = edit is not None and self.study.lines[edit[0]].edits[edit[1]].repairs
        return VerdictNote(resolved=right, failure="" if right else "wrong localisation", seconds=0.0)


@lru_cache(maxsize=4)
def make_rehearsals(count: int, memo: Memo, seed: int = 0) -> tuple[Rehearsal, ...]:
    """Rehearsals, as many as there are at most; made once (some 20 seconds for a thousand), then in the memo.

    The default ones come with the package. Others are a function of the numbers and of the version of Python.

    Args:
        count: How many.
        memo: Where they are kept.
        seed: Of all draws.
    """
    key = rehearsals_key(count, seed)
    value = memo.get(key)
    if value is None:
        value = memo.put(key, msgspec.msgpack.encode(_made(count, seed)))
    return tuple(Rehearsal(study) for study in msgspec.msgpack.decode(value, type=list[Study]))


def rehearsals_key(count: int, seed: int = 0) -> str:
    """Key of the rehearsals in the memo."""
    return f"{_VERSION}/{count}/{seed}"


def _made(count: int, seed: int) -> list[Study]:
    rng = generator(stream_id(0, 0, "rehearsals", seed))
    functions = [found for name in MODULES.split() for found in _functions(name)]
    found: list[Study] = []
    for place in rng.permutation(len(functions)).tolist():
        name, source = functions[place]
        found += _studies(name, source, rng)
        if len(found) >= count:
            break
    return found[:count]


def _functions(name: str) -> Iterator[tuple[str, str]]:
    """Functions of a module of the standard library, each with the module's imports above it."""
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        found = None
    if found is None or found.origin is None or not found.origin.endswith(".py"):
        return  # not of this version of Python
    text = Path(found.origin).read_text(encoding="utf-8")
    lines = text.split("\n")
    tree = ast.parse(text)
    imports = "\n".join(ast.unparse(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= _SHORTEST:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            body = textwrap.dedent("\n".join(lines[first - 1 : node.end_lineno]))
            if body.count("\n") <= _LONGEST:
                yield f"{name}.{node.name}", f"{imports}\n\n\n{body}\n"


def _studies(name: str, source: str, rng: np.random.Generator) -> Iterator[Study]:
    try:
        module = MutableModule(name, source)
    except MutationError:
        return
    sites = [site for site in module.sites if site.function]
    shape = ast.dump(ast.parse(source))
    made = 0
    for place in rng.permutation(len(sites)).tolist()[: 3 * _BUGS_OF_A_FUNCTION]:
        mutant = module.apply(sites[place])
        study = _study(f"{name}:{place}", mutant, shape, rng) if mutant is not None else None
        if study is not None:
            yield study
            made += 1
        if made == _BUGS_OF_A_FUNCTION:
            return


def _study(name: str, mutant: Mutant, shape: str, rng: np.random.Generator) -> Study | None:
    """The study of a broken function, or None where no candidate undoes the bug."""
    module, names = ModuleSource(mutant.source.encode()), Names()
    near = range(mutant.site.line, mutant.site.last_line + 1)
    inner = [statement for statement in module.statements if statement.function is not None or statement.kind == "def"]
    lines = [(statement, made) for statement in inner if (made := line_edits(module, statement, names)).edits]
    right = {
        (line, number)
        for line, (_, made) in enumerate(lines)
        if made.first <= near.stop and near.start <= made.last
        for number, edit in enumerate(made.edits)
        if ast.dump(ast.parse(apply_edit(module.content, edit))) == shape
    }
    if not right:
        return None
    place = min(right)[0]
    others = [line for line in range(len(lines)) if line != place]
    most = LINES - 1 if rng.random() < 0.7 else int(rng.integers(1, LINES))
    kept = sorted(rng.permutation(others).tolist()[:most]) if others else []
    position = min(int(rng.geometric(0.5)) - 1, len(kept))
    order = [*kept[:position], place, *kept[position:]]
    return _imagined(name, [(line, *lines[line]) for line in order], right, position, rng)


def _imagined(
    name: str,
    lines: Sequence[tuple[int, Statement, LineEdits]],
    right: set[tuple[int, int]],
    position: int,
    rng: np.random.Generator,
) -> Study:
    total = int(rng.integers(1, 6))
    failure, traced = _failure(rng)
    bands = _bands(len(lines), position, rng)
    trace = [place for place in range(len(lines)) if traced and rng.random() < (0.6 if place == position else 0.3)]
    return Study(
        instance=name,
        base=hashlib.blake2b(f"{name} {rng.integers(2**62)}".encode(), digest_size=16).hexdigest(),
        all_failing=total if rng.random() < 0.7 else 11,
        all_passing=int(rng.integers(1, 40)),
        failure=failure,
        lines=tuple(
            StudyLine(
                path="",
                line=made.line,
                last=made.last,
                kind=statement.kind,
                band=bands[place],
                score=0.0,
                on_trace=trace.index(place) + 1 if place in trace else 0,
                code=made.code,
                edits=tuple(
                    StudyEdit(edit.family, edit.words, (), "", repairs=(line, number) in right)
                    for number, edit in enumerate(made.edits)
                ),
            )
            for place, (line, statement, made) in enumerate(lines)
        ),
        note=RunNote(0, total, next((n for n in failure.exception if n in EXCEPTIONS), "OtherError"), 0.0),
    )


def _bands(count: int, position: int, rng: np.random.Generator) -> list[str]:
    """Bands that only fall; mostly the right line is in the first one."""
    top = position + 1 if rng.random() < 0.8 else max(1, position)
    top = min(count, top + int(rng.geometric(0.5)) - 1)
    rest = sorted(rng.integers(1, 4, size=count - top).tolist())
    return ["top"] * top + [("high", "middle", "low")[band - 1] for band in rest]


def _failure(rng: np.random.Generator) -> tuple[Failure, bool]:
    """How a test might fail, and whether the project's code raised it."""
    comparison = None
    if rng.random() < 0.6:
        exception = "AssertionError"
        if rng.random() < 0.8:
            kinds = _NUMBERS if rng.random() < 0.4 else _SIZED
            kind = kinds[int(rng.integers(len(kinds)))]
            relations = ("less", "greater") if kinds is _NUMBERS else ("shorter", "longer", "same")
            relation = relations[int(rng.integers(len(relations)))]
            got = "NoneType" if rng.random() < 0.15 else kind
            relation, by = (relation, int(rng.integers(1, 3))) if got == kind else ("different", 0)
            comparison = Comparison("==", (got,), (kind,), relation, 0 if relation == "same" else by)
        in_code = False
    else:
        exception = EXCEPTIONS[1 + int(rng.integers(9))] if rng.random() < 0.85 else "NotRaised"
        in_code = exception != "NotRaised" and rng.random() < 0.8
    return Failure("", (exception,), in_code, comparison, ()), in_code
