"""A frozen package index: a folder of files with pinned hashes, as installers ask for it (PEP 503, PEP 691)."""

from __future__ import annotations

import html
import json
import os
import re
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from email.parser import HeaderParser
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote, unquote

import msgspec

from .exchange import Answer, NetworkError

__all__ = ["LOCK_NAME", "PackageMirror"]

LOCK_NAME = "packages.lock.json"
_JSON = "application/vnd.pypi.simple.v1+json"
_KINDS = (".whl", ".tar.gz", ".zip")
_METADATA_LIMIT = 1 << 20


class _Pinned(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    sha256: str
    size: int
    requires_python: str = ""


class _Lock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    files: dict[str, _Pinned]


def project_name(name: str) -> str:
    """The form in which installers compare names (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def project_of(file: str) -> str:
    """The project that a wheel or an sdist belongs to, by its file name.

    Raises:
        NetworkError: The name is of neither form.
    """
    stem = next((file[: -len(kind)] for kind in _KINDS if file.endswith(kind)), "")
    parts = stem.split("-")
    enough = len(parts) in (5, 6) if file.endswith(".whl") else len(parts) >= 2
    if not enough or not all(parts) or not re.fullmatch(r"[A-Za-z0-9._+!-]+", stem):
        raise NetworkError(f"{file!r} is named neither like a wheel nor like an sdist")
    return project_name(parts[0] if file.endswith(".whl") else "-".join(parts[:-1]))


def _requires_python(path: Path) -> str:
    """What the file's own metadata says of the Python that it needs; empty if nothing."""
    try:
        if path.name.endswith(".tar.gz"):
            with tarfile.open(path) as archive:
                # An sdist's metadata lie near its beginning or its end; the first at depth one is the one that counts.
                member = next((m for m in archive if re.fullmatch(r"[^/]+/PKG-INFO", m.name) and m.isfile()), None)
                stream = archive.extractfile(member) if member is not None else None
                text = stream.read(_METADATA_LIMIT) if stream is not None else b""
        else:
            wanted = r"[^/]+\.dist-info/METADATA" if path.suffix == ".whl" else r"[^/]+/PKG-INFO"
            with zipfile.ZipFile(path) as archive_zip:
                name = next((n for n in archive_zip.namelist() if re.fullmatch(wanted, n)), None)
                text = b""
                if name is not None:
                    with archive_zip.open(name) as stream_zip:
                        text = stream_zip.read(_METADATA_LIMIT)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, ValueError) as error:
        raise NetworkError(f"{path} cannot be read as a package: {error}") from None
    found = HeaderParser().parsestr(text.decode(errors="replace"), headersonly=True).get("Requires-Python", "")
    return str(found).strip()


def _package_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.endswith(_KINDS) and path.is_file())


class PackageMirror:
    """The files of a folder that its lock file names, with their hashes; nothing else is offered.

    Fill a folder (``pip download --dest FOLDER NAME==VERSION``), freeze it by `PackageMirror.lock`, keep both.

    Args:
        folder: With the files and ``packages.lock.json``.
        prefix: Where commands install to, since the interpreter's own directory is read-only; also put on their
            ``PATH`` and ``PYTHONPATH``. ``/tmp`` stays out of a state's hash by default; a place in the tree does not.
            None leaves it to the command (a virtual environment in the tree).

    Raises:
        NetworkError: There is no lock file, or a file is missing, changed, or not in the lock.
    """

    def __init__(self, folder: str | os.PathLike[str], *, prefix: str | None = "/tmp/packages") -> None:  # noqa: S108
        self.folder, self.prefix = Path(folder).absolute(), prefix
        if prefix is not None and not prefix.startswith("/"):
            raise NetworkError(f"prefix {prefix!r} is no absolute path in the sandbox")
        path = self.folder / LOCK_NAME
        try:
            lock = msgspec.json.decode(path.read_bytes(), type=_Lock)
        except FileNotFoundError:
            raise NetworkError(f"{self.folder} is not frozen; call PackageMirror.lock({str(folder)!r}) once") from None
        except msgspec.MsgspecError as error:
            raise NetworkError(f"{path} cannot be used: {error}") from None
        if lock.version != 1:
            raise NetworkError(f"{path} has version {lock.version}, and 1 is known")
        self._files = dict(sorted(lock.files.items()))
        self._projects: dict[str, list[str]] = {}
        for name in self._files:
            self._projects.setdefault(project_of(name), []).append(name)
        unknown = [path.name for path in _package_files(self.folder) if path.name not in self._files]
        if unknown:
            raise NetworkError(f"not in the lock of {self.folder}: {', '.join(unknown)}; lock again or remove them")
        for name in self._files:
            self._content(name)

    @classmethod
    def lock(cls, folder: str | os.PathLike[str]) -> Path:
        """Write the lock file: every wheel and sdist of the folder with its hash. Replaces an older one.

        Raises:
            NetworkError: A file is no package.
        """
        found = {}
        for path in _package_files(Path(folder)):
            project_of(path.name)
            content = path.read_bytes()
            found[path.name] = _Pinned(sha256(content).hexdigest(), len(content), _requires_python(path))
        target = Path(folder) / LOCK_NAME
        partial = target.with_suffix(".partial")
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(_Lock(1, found)), indent=1) + b"\n")
        partial.rename(target)
        return target

    def __repr__(self) -> str:
        return f"PackageMirror({str(self.folder)!r}, {len(self._files)} files)"

    @property
    def projects(self) -> dict[str, tuple[str, ...]]:
        """Normalised name of each project → its files."""
        return {name: tuple(files) for name, files in sorted(self._projects.items())}

    def _content(self, name: str) -> bytes:
        pinned = self._files[name]
        try:
            content = (self.folder / name).read_bytes()
        except FileNotFoundError:
            raise NetworkError(f"the mirror {self.folder} has lost {name}; put it back or lock again") from None
        digest = sha256(content).hexdigest()
        if digest != pinned.sha256:
            raise NetworkError(
                f"{name} in the mirror {self.folder} has changed: its SHA-256 is {digest}, pinned is {pinned.sha256}; "
                "put the old file back, or lock again if the change is meant"
            )
        return content

    def answer(self, path: str, accept: str = "") -> Answer:
        """The answer to a GET of a path of the index.

        Args:
            path: ``/simple/``, ``/simple/NAME/`` or ``/files/FILE``.
            accept: The request's header of that name: JSON is sent to those who name its type.
        """
        parts = [unquote(part) for part in path.partition("?")[0].strip("/").split("/")]
        as_json = _JSON in accept
        if parts[0] == "files" and len(parts) == 2 and parts[1] in self._files:
            try:
                return Answer(200, (("Content-Type", "application/octet-stream"),), self._content(parts[1]))
            except NetworkError as error:
                return _text(410, str(error))
        if parts == ["simple"]:
            return self._page(list(self._projects), as_json)
        if parts[0] == "simple" and len(parts) == 2:
            name = project_name(parts[1])
            if name in self._projects:
                return self._project(name, as_json)
            return _text(
                404, f"the mirror has no project {name}; it has: {', '.join(sorted(self._projects)) or 'none'}"
            )
        return _text(404, "this is a package index: /simple/, /simple/NAME/, /files/FILE")

    @staticmethod
    def _page(names: list[str], as_json: bool) -> Answer:
        if as_json:
            found = {"meta": {"api-version": "1.0"}, "projects": [{"name": name} for name in sorted(names)]}
            return Answer(200, (("Content-Type", _JSON),), json.dumps(found).encode())
        return _html("Simple index", [f'<a href="/simple/{name}/">{name}</a><br>' for name in sorted(names)])

    def _project(self, name: str, as_json: bool) -> Answer:
        files = [(file, self._files[file]) for file in self._projects[name]]
        if as_json:
            listed = []
            for file, pinned in files:
                entry = {"filename": file, "url": f"/files/{quote(file)}", "hashes": {"sha256": pinned.sha256}}
                listed.append(entry | ({"requires-python": pinned.requires_python} if pinned.requires_python else {}))
            found = {"meta": {"api-version": "1.0"}, "name": name, "files": listed}
            return Answer(200, (("Content-Type", _JSON),), json.dumps(found).encode())
        lines = []
        for file, pinned in files:
            needs = f' data-requires-python="{html.escape(pinned.requires_python)}"' if pinned.requires_python else ""
            lines.append(f'<a href="/files/{quote(file)}#sha256={pinned.sha256}"{needs}>{html.escape(file)}</a><br>')
        return _html(f"Links for {name}", lines)

    def variables(self, url: str, present: Mapping[str, str]) -> dict[str, str]:
        """Variables by which installers find the index and install in the same way each time.

        Args:
            url: Where commands reach the network's answers.
            present: What is set already; ``PATH`` and ``PYTHONPATH`` are extended.
        """
        found = {
            "PIP_INDEX_URL": f"{url}/simple/",
            "PIP_NO_CACHE_DIR": "1",
            # pip reads the variables of these two as "compile" and "warn".
            "PIP_NO_COMPILE": "0",
            "PIP_NO_WARN_SCRIPT_LOCATION": "0",
            "PIP_NO_INPUT": "1",
            "PIP_PROGRESS_BAR": "off",
            "PIP_RETRIES": "0",
            "UV_DEFAULT_INDEX": f"{url}/simple/",
            "UV_NO_CACHE": "1",
        }
        if self.prefix is not None:
            found |= {"PIP_PREFIX": self.prefix, "PIP_BREAK_SYSTEM_PACKAGES": "1"}
            version = f"python{sys.version_info.major}.{sys.version_info.minor}"
            places = {"PATH": f"{self.prefix}/bin", "PYTHONPATH": f"{self.prefix}/lib/{version}/site-packages"}
            for name, place in places.items():
                found[name] = f"{present[name]}:{place}" if present.get(name) else place
        return found


def _text(status: int, text: str) -> Answer:
    return Answer(status, (("Content-Type", "text/plain; charset=utf-8"),), f"forkgym: {text}\n".encode(), text[:200])


def _html(title: str, lines: list[str]) -> Answer:
    body = "\n".join(
        [
            "<!DOCTYPE html>",
            '<html><head><meta name="pypi:repository-version" content="1.0">',
            f"<title>{title}</title></head><body>",
            *lines,
            "</body></html>\n",
        ]
    )
    return Answer(200, (("Content-Type", "text/html; charset=utf-8"),), body.encode())
