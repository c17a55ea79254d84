"""A journal beside an output file: what was tried and what became of it, one JSON line each, so that work resumes."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

import msgspec

from forkgym_swe.instance import InstanceError

__all__ = ["Journal", "JournalError", "journal_path"]

Entry = TypeVar("Entry", bound=msgspec.Struct)


class JournalError(InstanceError):
    """A journal belongs to other work, or is damaged; the text says what to do."""


def journal_path(output: str | os.PathLike[str]) -> Path:
    """Where the journal of an output file lies."""
    target = Path(output)
    return target.with_name(f"{target.name}.journal")


class Journal(Generic[Entry]):
    """Entries that are on the disk once `add` has returned. A context manager.

    A process that is killed loses the entry that it was writing; its torn line is dropped when the journal is opened.

    Args:
        path: The file; made if it is not there.
        kind: Type of the entries.
        purpose: What the work is about. A journal of other work is refused.

    Raises:
        JournalError: The file is a journal of something else, or damaged before its end.
    """

    def __init__(self, path: Path, kind: type[Entry], purpose: str) -> None:
        self.path, self.entries = path, list[Entry]()
        self._encoder, decoder = msgspec.json.Encoder(), msgspec.json.Decoder(kind)
        data = path.read_bytes() if path.exists() else b""
        whole = data.rfind(b"\n") + 1
        lines = data[:whole].splitlines()
        if lines:
            self._check(lines[0], purpose)
            for number, line in enumerate(lines[1:], 2):
                try:
                    self.entries.append(decoder.decode(line))
                except msgspec.DecodeError as error:
                    raise JournalError(
                        f"{path}, line {number} is damaged ({error}); delete the file to begin anew"
                    ) from error
        self._file = path.open("r+b" if path.exists() else "w+b")
        self._file.truncate(whole)
        self._file.seek(whole)
        if not lines:
            self._write(self._encoder.encode(purpose))

    def _check(self, line: bytes, purpose: str) -> None:
        try:
            found = msgspec.json.decode(line, type=str)
        except msgspec.DecodeError as error:
            raise JournalError(f"{self.path} is no journal; name another output file") from error
        if found != purpose:
            raise JournalError(
                f"{self.path} belongs to other work ({found}), not to this ({purpose}); "
                "give the same options to resume it, name another output file, or delete it to begin anew"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, entry: Entry) -> None:
        """Write an entry through to the disk."""
        self._write(self._encoder.encode(entry))
        self.entries.append(entry)

    def _write(self, data: bytes) -> None:
        self._file.write(data + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
