"""Task files of other projects, read and written: SWE-bench, SWE-Gym, SWE-rebench, SWE-smith; JSON lines or Parquet.

Repositories are never fetched: tasks refer to a local checkout or mirror, which is looked for when a task is prepared.
"""

from __future__ import annotations

import datetime
import importlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from forkgym_swe.instance import Difficulty, Instance, InstanceError, Source, dump_instances, load_instances
from forkgym_swe.patching import PatchError, patched_paths, reverse_patch

__all__ = ["FORMATS", "convert", "detect_format", "read_tasks", "write_tasks"]

Format = Literal["own", "swe-bench", "swe-gym", "swe-rebench", "swe-smith"]
Split = Literal["train", "validation", "test"]

FORMATS: tuple[Format, ...] = ("own", "swe-bench", "swe-gym", "swe-rebench", "swe-smith")
_BENCH = ("instance_id", "repo", "base_commit", "patch", "test_patch", "problem_statement")
_TESTS = ("FAIL_TO_PASS", "PASS_TO_PASS")
_REQUIRED: dict[str, tuple[str, ...]] = {
    "swe-bench": (*_BENCH, *_TESTS),
    "swe-gym": (*_BENCH, *_TESTS),
    "swe-rebench": (*_BENCH, *_TESTS),
    "swe-smith": ("instance_id", "repo", "patch", *_TESTS),
}
_COMMON = {"hints_text", "created_at", "version", "environment_setup_commit", "difficulty", "text", "image_name"}
_OPTIONAL: dict[str, set[str]] = {
    "swe-bench": _COMMON | {"problem_statement_zh", "docker_image"},
    "swe-gym": _COMMON | {"docker_image"},
    "swe-rebench": _COMMON
    | {"FAIL_TO_FAIL", "PASS_TO_FAIL", "meta", "license", "license_name", "environment", "install_config"}
    | {"requirements", "docker_image", "interface", "test_cmd", "language"},
    "swe-smith": {"problem_statement", "image_name", "base_commit", "hints_text", "created_at", "version", "test_patch"}
    | {"strategy", "bug_type", "cost", "license"},
}
_SPLIT: dict[str, Split] = {"swe-bench": "test", "swe-gym": "train", "swe-rebench": "train", "swe-smith": "train"}
_REBENCH = {"FAIL_TO_FAIL", "PASS_TO_FAIL", "meta", "license_name", "install_config", "environment"}


def read_tasks(
    path: str | os.PathLike[str],
    *,
    format: Format | None = None,
    repository: str | os.PathLike[str] | None = None,
    split: Split | None = None,
    python_path: Sequence[str] | None = None,
    requires: Sequence[str] = (),
    unknown: Literal["error", "ignore"] = "error",
    other_runners: Literal["error", "skip"] = "error",
) -> list[Instance]:
    """Read a task file of any known format.

    Args:
        path: JSON lines, a JSON list, or Parquet (``.parquet``; needs pyarrow).
        format: By default found from the fields of each task.
        repository: A checkout of the tasks' one repository, or a directory of mirrors named ``OWNER__NAME``; by
            default ``mirrors`` in the cache.
        split: Of the tasks; by default ``test`` for SWE-bench and ``train`` for the others.
        python_path: Import paths of the repositories; by default ``src`` where the gold patch changes files there.
        requires: Requirements of the tests, which these formats do not state.
        unknown: What a field that the format does not have is: an error, or nothing.
        other_runners: What a task whose tests are not pytest's is (SWE-bench has some): an error, or left out.

    Raises:
        InstanceError: The file cannot be read, or a task lacks a field, has an unknown one, or one that is wrong;
            names the task and the field.
    """
    place = Path(path)
    records = _records(place)
    if format == "own" or (format is None and records and _is_own(records[0])):
        return load_instances(place)
    found = [
        convert(
            record,
            where=f"{place}, task {number}",
            format=format,
            repository=repository,
            split=split,
            python_path=python_path,
            requires=requires,
            unknown=unknown,
        )
        for number, record in enumerate(records, 1)
        if other_runners == "error" or _is_for_pytest(record)
    ]
    seen: set[str] = set()
    for instance in found:
        if instance.id in seen:
            raise InstanceError(f"{place} holds the instance_id {instance.id!r} twice")
        seen.add(instance.id)
    return found


def detect_format(record: Mapping[str, Any], where: str = "the task") -> Format:
    """Which format a task has, from its fields.

    Raises:
        InstanceError: It is none of them; says which fields are missing.
    """
    if _is_own(record):
        return "own"
    repo = record.get("repo")
    if isinstance(repo, str) and (repo.startswith("swesmith/") or "base_commit" not in record):
        return "swe-smith"
    if _REBENCH & record.keys():
        return "swe-rebench"
    if set(_BENCH[:3]) <= record.keys():
        return "swe-bench" if isinstance(record.get("FAIL_TO_PASS"), str) else "swe-gym"
    missing = [name for name in _REQUIRED["swe-bench"] if name not in record]
    raise InstanceError(
        f"{where} is of no known format ({', '.join(FORMATS)}): for SWE-bench it lacks {', '.join(missing)}"
    )


def convert(
    record: Mapping[str, Any],
    *,
    where: str = "the task",
    format: Format | None = None,
    repository: str | os.PathLike[str] | None = None,
    split: Split | None = None,
    python_path: Sequence[str] | None = None,
    requires: Sequence[str] = (),
    unknown: Literal["error", "ignore"] = "error",
) -> Instance:
    """One foreign task as an instance; for the arguments see `read_tasks`.

    Raises:
        InstanceError: A field is missing, unknown or wrong.
    """
    kind = format or detect_format(record, where)
    if kind == "own":
        raise InstanceError(f"{where} is in this project's own format; load_instances reads it")
    where = f"{where} ({record.get('instance_id', 'no instance_id')}, {kind})"
    missing = [name for name in _REQUIRED[kind] if record.get(name) is None]
    if missing:
        raise InstanceError(f"{where} lacks the field{'s' * (len(missing) > 1)} {', '.join(missing)}")
    odd = sorted(record.keys() - set(_REQUIRED[kind]) - _OPTIONAL[kind])
    if odd and unknown == "error":
        raise InstanceError(
            f"{where} has the unknown field{'s' * (len(odd) > 1)} {', '.join(odd)}; unknown='ignore' leaves them out"
        )
    fields = {name: _text(record, name, where) for name in (*_BENCH, "hints_text", "version") if name != "patch"}
    patch, bug = _patches(record, kind, where)
    name, commit = _repository(fields, kind, where)
    tests = {name: _tests(record, name, where) for name in _TESTS}
    paths = _paths(patch, where)
    if python_path is None:
        python_path = ("src",) if any(path.startswith("src/") for path in paths) else ()
    return Instance(
        id=fields["instance_id"],
        repository=name,
        split=split or _SPLIT[kind],
        source=Source(kind="git", name=name, version=commit, location=_location(repository, name)),
        bug_patch=bug,
        patch=patch,
        test_patch=fields["test_patch"],
        fail_to_pass=tests["FAIL_TO_PASS"],
        pass_to_pass=tests["PASS_TO_PASS"],
        problem_statement=fields["problem_statement"],
        hints=fields["hints_text"],
        created_at=_date(record.get("created_at")),
        difficulty=Difficulty(files=len(paths), lines=_size(patch), tests=len(tests["FAIL_TO_PASS"])),
        python_path=tuple(python_path),
        requires=tuple(requires),
        provenance={"format": kind} | ({"version": fields["version"]} if fields["version"] else {}),
    )


def write_tasks(path: str | os.PathLike[str], instances: Iterable[Instance], *, format: Format = "own") -> None:
    """Write tasks as JSON lines of a format; Parquet if the path ends so.

    SWE-bench, SWE-Gym and SWE-rebench tasks are commits, so only tasks of git sources without an injected bug can be
    written so; a SWE-smith task is a bug, so only tasks with one and without a test patch.

    Raises:
        InstanceError: A task cannot be said in the format; names it.
        OSError: The file cannot be written.
    """
    if format == "own":
        dump_instances(path, instances)
        return
    records = [_record(instance, format) for instance in instances]
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    if target.suffix == ".parquet":
        arrow, parquet = _arrow()
        parquet.write_table(arrow.Table.from_pylist(records), partial)
    else:
        partial.write_text("".join(json.dumps(record, sort_keys=True) + "\n" for record in records))
    os.replace(partial, target)


# ---------------------------------------------------------------------- reading


def _is_for_pytest(record: Mapping[str, Any]) -> bool:
    for name in _TESTS:
        value = record.get(name)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                return True  # convert names what is wrong
        if isinstance(value, list) and any(isinstance(id, str) and "::" not in id for id in value):
            return False
    return True


def _is_own(record: Mapping[str, Any]) -> bool:
    return "id" in record and "source" in record


def _records(path: Path) -> list[dict[str, Any]]:
    try:
        if path.suffix == ".parquet":
            return [dict(row) for row in _arrow()[1].read_table(path).to_pylist()]
        data = path.read_bytes()
        if data.lstrip().startswith(b"["):
            return _objects(msgspec.json.decode(data), path)
        return _objects(
            [_line(line, number, path) for number, line in enumerate(data.splitlines(), 1) if line.strip()], path
        )
    except OSError as error:
        raise InstanceError(f"the task file {path} cannot be read: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InstanceError(f"the task file {path} is no JSON: {error}") from error


def _line(line: bytes, number: int, path: Path) -> Any:
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InstanceError(f"{path}, line {number} is no JSON: {error}") from error


def _objects(values: list[Any], path: Path) -> list[dict[str, Any]]:
    for number, value in enumerate(values, 1):
        if not isinstance(value, dict):
            raise InstanceError(f"{path}, task {number} is no JSON object")
    return values


def _arrow() -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise InstanceError("Parquet files need pyarrow: install forkgym[parquet], or use JSON lines") from error


def _text(record: Mapping[str, Any], name: str, where: str) -> str:
    value = record.get(name)
    if value is None:
        return ""
    if name == "version" and isinstance(value, int | float):
        return str(value)
    if not isinstance(value, str):
        raise InstanceError(f"{where}: the field {name} must be a text, not {type(value).__name__}")
    return value


def _tests(record: Mapping[str, Any], name: str, where: str) -> tuple[str, ...]:
    """SWE-bench keeps the list as a JSON text, the others as a list."""
    value = record[name]
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise InstanceError(f"{where}: the field {name} is neither a list nor the JSON text of one") from error
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(item, str) for item in value):
        raise InstanceError(f"{where}: the field {name} must be a list of test ids")
    odd = next((item for item in value if "::" not in item), None)
    if odd is not None:
        raise InstanceError(
            f"{where}: {odd!r} in {name} is no pytest id (path::Class::function); only projects tested by pytest work"
        )
    return tuple(dict.fromkeys(value))


def _patches(record: Mapping[str, Any], kind: str, where: str) -> tuple[str, str]:
    """Gold patch and bug. What SWE-smith calls the patch *is* the bug."""
    patch = _text(record, "patch", where)
    if kind != "swe-smith":
        return patch, ""
    try:
        return reverse_patch(patch), patch
    except PatchError as error:
        raise InstanceError(f"{where}: the field patch is wrong: {error}") from error


def _paths(patch: str, where: str) -> tuple[str, ...]:
    try:
        return patched_paths(patch)
    except PatchError as error:
        raise InstanceError(f"{where}: the field patch is wrong: {error}") from error


def _repository(fields: Mapping[str, str], kind: str, where: str) -> tuple[str, str]:
    """``owner/name`` and commit; SWE-smith writes both as ``swesmith/owner__name.commit``."""
    repo, commit = fields["repo"], fields["base_commit"]
    if kind == "swe-smith":
        match = re.fullmatch(r"(?:swesmith/)?([^/]+?)__(.+?)(?:\.([0-9a-f]{7,40}))?", repo)
        if match is not None:
            repo, commit = f"{match[1]}/{match[2]}", commit or match[3] or ""
        if not commit:
            raise InstanceError(f"{where}: neither repo ({fields['repo']!r}) nor base_commit names a commit")
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", repo):
        raise InstanceError(f"{where}: the field repo must look like owner/name, not {repo!r}")
    return repo, commit


def _location(repository: str | os.PathLike[str] | None, name: str) -> str:
    if repository is None:
        return ""
    place = Path(repository).expanduser().absolute()
    for mirror in (place / name.replace("/", "__"), place / f"{name.replace('/', '__')}.git"):
        if mirror.is_dir():
            return str(mirror)
    if (place / ".git").exists() or (place / "HEAD").is_file():
        return str(place)
    raise InstanceError(f"there is neither a repository in {place} nor a mirror of it named {name.replace('/', '__')}")


def _date(value: Any) -> str:
    if isinstance(value, datetime.datetime | datetime.date):
        return value.isoformat()
    return "" if value is None else str(value)


def _size(patch: str) -> int:
    lines = patch.split("\n")
    return sum(line[:1] in ("+", "-") and not line.startswith(("+++ ", "--- ")) for line in lines)


# ---------------------------------------------------------------------- writing


def _record(instance: Instance, format: Format) -> dict[str, Any]:
    tests: dict[str, Any] = {
        "FAIL_TO_PASS": list(instance.fail_to_pass),
        "PASS_TO_PASS": list(instance.pass_to_pass),
    }
    head = {"instance_id": instance.id, "problem_statement": instance.problem_statement}
    if format == "swe-smith":
        if not instance.bug_patch or instance.test_patch:
            raise InstanceError(f"task {instance.id} is no injected bug; SWE-smith's format has only those")
        plain = instance.repository.replace("/", "__")
        repo = f"swesmith/{plain if '__' in plain else f'{plain}__{plain}'}.{instance.source.version}"
        return head | {"repo": repo, "patch": instance.bug_patch, "image_name": ""} | tests
    if instance.source.kind != "git" or instance.bug_patch:
        raise InstanceError(f"task {instance.id} is no commit of a git repository; {format}'s format has only those")
    if format == "swe-bench":
        tests = {name: json.dumps(ids) for name, ids in tests.items()}
    return (
        head
        | tests
        | {
            "repo": instance.repository,
            "base_commit": instance.source.version,
            "patch": instance.patch,
            "test_patch": instance.test_patch,
            "hints_text": instance.hints,
            "created_at": instance.created_at,
            "version": instance.provenance.get("version", ""),
            "environment_setup_commit": instance.source.version,
        }
    )
