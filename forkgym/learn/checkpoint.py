"""Checkpoints on disk: written whole or not at all, verified by digest when read, never pickled.

A checkpoint is a directory of safetensors and JSON. What the tensors mean is the learner's business; what ``extra``
means is the controller's.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import uuid
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "CheckpointWarning",
    "list_checkpoints",
    "load_latest",
    "read_checkpoint",
    "write_checkpoint",
]

_TENSORS = "tensors.safetensors"
_STATE = "state.json"
_DIGESTS = "digests.json"
_NAME = re.compile(r"checkpoint-(\d{8,})(?:\.(\d+))?")
_TEMPORARY = ".partial-"


class CheckpointError(RuntimeError):
    """A checkpoint cannot be read, or does not belong to what it is read into."""


class CheckpointWarning(UserWarning):
    """A damaged checkpoint was passed over."""


class Checkpoint(msgspec.Struct, kw_only=True):
    """What was saved.

    Attributes:
        step: Number the writer gave it (updates done).
        tensors: Tensors by name, on the CPU.
        state: JSON-able state that goes with the tensors (counters).
        extra: JSON-able state of the controller.
        path: Directory it was read from.
    """

    step: int
    tensors: dict[str, torch.Tensor]
    state: dict[str, Any]
    extra: dict[str, Any]
    path: str


def write_checkpoint(
    directory: str | Path,
    step: int,
    tensors: Mapping[str, torch.Tensor],
    state: Mapping[str, Any],
    extra: Mapping[str, Any] | None = None,
    *,
    keep: int = 3,
) -> Path:
    """Write a checkpoint atomically and delete all but the newest ``keep``.

    Files are written to a hidden directory, flushed to the disk, and the directory is renamed; a crash at any
    moment leaves the earlier checkpoints as they were. Writing a step again adds a newer attempt beside it.

    Args:
        directory: Where checkpoints live; made if missing.
        step: Non-negative number; the highest is the newest.
        tensors: Tensors by name.
        state: JSON-able.
        extra: JSON-able.
        keep: How many to keep, at least 1; 2 or more survive damage to the newest.

    Returns:
        The checkpoint's directory.

    Raises:
        ValueError: ``keep`` or ``step`` is out of range, or ``state`` or ``extra`` would not come back equal from
            JSON (NaN, infinities, keys that are not strings).
        OSError: The disk is full or not writable; nothing half-written is left under a checkpoint's name.
    """
    if keep < 1 or step < 0:
        raise ValueError(f"keep must be at least 1 and step at least 0, got {keep} and {step}")
    root = Path(directory)
    root.mkdir(parents=True, exist_ok=True)
    document = _json({"step": step, "state": dict(state), "extra": dict(extra or {})})
    temporary = root / f"{_TEMPORARY}{uuid.uuid4().hex}"
    temporary.mkdir()
    try:
        save_file(
            {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()},
            str(temporary / _TENSORS),
        )
        (temporary / _STATE).write_bytes(document)
        digests = {name: _file_digest(temporary / name) for name in (_TENSORS, _STATE)}
        (temporary / _DIGESTS).write_bytes(msgspec.json.encode(digests, order="deterministic"))
        for name in (_TENSORS, _STATE, _DIGESTS):
            _flush(temporary / name)
        _flush(temporary)
        target = root / _free_name(root, step)
        os.rename(temporary, target)
        _flush(root)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _prune(root, keep)
    return target


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read one checkpoint and verify every file against its digest.

    Raises:
        CheckpointError: A file is missing, torn or altered; the message names it.
    """
    folder = Path(path)
    try:
        digests = msgspec.json.decode((folder / _DIGESTS).read_bytes(), type=dict[str, str])
        for name in (_TENSORS, _STATE):
            if digests.get(name) != _file_digest(folder / name):
                raise CheckpointError(f"{folder / name} does not match its digest: it is torn or was altered")
        document = msgspec.json.decode((folder / _STATE).read_bytes(), type=dict[str, Any])
        tensors = load_file(str(folder / _TENSORS))
        step, state, extra = document["step"], document["state"], document["extra"]
    except (OSError, KeyError, msgspec.MsgspecError, SafetensorError) as error:
        raise CheckpointError(f"{folder} is not a complete checkpoint: {error}") from error
    return Checkpoint(step=step, tensors=tensors, state=state, extra=extra, path=str(folder))


def load_latest(directory: str | Path) -> Checkpoint | None:
    """The newest intact checkpoint, or ``None`` when the directory holds none at all.

    Each damaged one that is passed over is reported by a :class:`CheckpointWarning`.

    Raises:
        CheckpointError: There are checkpoints, but every one is damaged. Starting afresh would hide that; move the
            directory away to do so.
    """
    damage: list[str] = []
    for path in reversed(list_checkpoints(directory)):
        try:
            return read_checkpoint(path)
        except CheckpointError as error:
            damage.append(str(error))
            warnings.warn(f"damaged checkpoint passed over: {error}", CheckpointWarning, stacklevel=2)
    if damage:
        raise CheckpointError("every checkpoint is damaged:\n" + "\n".join(damage))
    return None


def list_checkpoints(directory: str | Path) -> list[Path]:
    """Checkpoint directories, oldest first; unfinished ones are not among them."""
    root = Path(directory)
    if not root.is_dir():
        return []
    numbered = [(match, path) for path in root.iterdir() if (match := _NAME.fullmatch(path.name)) and path.is_dir()]
    return [path for _, path in sorted(numbered, key=lambda pair: (int(pair[0][1]), int(pair[0][2] or 0)))]


def _free_name(root: Path, step: int) -> str:
    name, attempt = f"checkpoint-{step:08d}", 0
    while (root / (name if attempt == 0 else f"{name}.{attempt}")).exists():
        attempt += 1
    return name if attempt == 0 else f"{name}.{attempt}"


def _prune(root: Path, keep: int) -> None:
    for path in list_checkpoints(root)[:-keep]:
        # Renamed first, so that a crash while deleting leaves no half-empty checkpoint behind.
        doomed = root / f"{_TEMPORARY}{uuid.uuid4().hex}"
        os.rename(path, doomed)
        shutil.rmtree(doomed)
    for leftover in root.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _json(document: dict[str, Any]) -> bytes:
    try:
        encoded = msgspec.json.encode(document)
    except (TypeError, OverflowError, msgspec.MsgspecError) as error:
        raise ValueError(f"a checkpoint's state must be JSON-able: {error}") from error
    returned = msgspec.json.decode(encoded)
    difference = _difference(msgspec.to_builtins(document), returned, "state")
    if difference:
        raise ValueError(f"a checkpoint's state would not come back equal from JSON: {difference}")
    return encoded


def _difference(saved: Any, returned: Any, path: str) -> str | None:
    """Path of the first value that JSON changes, or ``None``; tuples may become lists."""
    if isinstance(saved, dict) and isinstance(returned, dict):
        for key, value in saved.items():
            if key not in returned:
                return f"{path}[{key!r}] has a key that is not a string"
            if found := _difference(value, returned[key], f"{path}[{key!r}]"):
                return found
        return None
    if isinstance(saved, (list, tuple)) and isinstance(returned, list):
        pairs = enumerate(zip(saved, returned, strict=True))
        return next((found for i, (a, b) in pairs if (found := _difference(a, b, f"{path}[{i}]"))), None)
    return None if type(saved) is type(returned) and saved == returned else f"{path} = {saved!r}"


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()


def _flush(path: Path) -> None:
    """Force a file or a directory to the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
