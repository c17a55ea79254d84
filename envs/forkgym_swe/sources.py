"""Read the files of a repository from where it lies: archive, git, folder or sample. Nothing is fetched here."""

from __future__ import annotations

import hashlib
import io
import os
import posixpath
import re
import subprocess
import tarfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from forkgym_swe.harness import cache_root
from forkgym_swe.instance import InstanceError, Source

__all__ = ["digest_files", "find_sdist", "source_files"]

SAMPLES = Path(__file__).parent / "samples"
_SKIPPED = frozenset({".git", ".hg", "__pycache__", ".pytest_cache", ".hypothesis", ".mypy_cache", ".tox", ".venv"})
_LARGEST = 64 << 20


def source_files(source: Source) -> dict[str, bytes]:
    """Every file of a source, by its path; links are followed inside the tree and left out if they lead elsewhere.

    Raises:
        InstanceError: It is not there, not what its digest says, or holds paths that lead out of it.
    """
    return dict(_read(source))


def digest_files(files: Mapping[str, bytes]) -> str:
    """SHA-256 of a tree's paths and contents in sorted order, in hex: the digest of a folder."""
    hasher = hashlib.sha256()
    for path in sorted(files):
        hasher.update(f"{len(files[path])} {path}\0".encode(errors="surrogateescape"))
        hasher.update(files[path])
    return hasher.hexdigest()


def find_sdist(source: Source) -> Path:
    """The archive of an sdist: its location, or the source cache's file of that name and version.

    Raises:
        InstanceError: It is not there; says where it was looked for.
    """
    if source.location:
        path = Path(source.location).expanduser()
        if path.is_file():
            return path
        raise InstanceError(f"the source archive {path} of {source.name} is not there")
    folder = cache_root() / "sources"
    wanted = (_plain(source.name), source.version)
    for path in sorted(folder.glob("*.tar.gz")) if folder.is_dir() else []:
        name, _, version = path.name.removesuffix(".tar.gz").rpartition("-")
        if (_plain(name), version) == wanted:
            return path
    raise InstanceError(
        f"the source of {source.name} {source.version} is not in {folder}; fetch it with "
        f"`pip download --no-deps --no-binary :all: {source.name}=={source.version}` or set FORKGYM_SWE_CACHE"
    )


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@lru_cache(maxsize=32)
def _read(source: Source) -> dict[str, bytes]:
    if source.kind == "sdist":
        path = find_sdist(source)
        data = path.read_bytes()
        _check_digest(source, hashlib.sha256(data).hexdigest(), str(path))
        return _unpack(data, f"{path}", strip=True)
    if source.kind == "git":
        return _from_git(source)
    folder = SAMPLES / source.name if source.kind == "sample" else Path(source.location).expanduser()
    if source.kind == "folder" and not source.location:
        raise InstanceError(f"the folder of {source.name} has no location")
    if not folder.is_dir():
        raise InstanceError(f"the {source.kind} {source.name} is not there: {folder} is no directory")
    files = _from_folder(folder)
    _check_digest(source, digest_files(files), str(folder))
    return files


def _check_digest(source: Source, found: str, place: str) -> None:
    if source.digest and source.digest != found:
        raise InstanceError(
            f"{place} is not the source that the task was made from: its SHA-256 is {found}, expected {source.digest}"
        )


def _from_folder(folder: Path) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    root = os.path.realpath(folder)
    for place, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED and not name.endswith(".egg-info"))
        for name in sorted(names):
            path = f"{place}/{name}"
            real = os.path.realpath(path)
            if name.endswith(".pyc") or not os.path.isfile(real) or not f"{real}/".startswith(f"{root}/"):
                continue
            if os.path.getsize(real) > _LARGEST:
                raise InstanceError(f"{path} is larger than {_LARGEST >> 20} MiB; a repository for tasks is smaller")
            files[os.path.relpath(path, root)] = Path(real).read_bytes()
    return files


def _from_git(source: Source) -> dict[str, bytes]:
    place = Path(source.location).expanduser() if source.location else _mirror(source.name)
    if not place.is_dir():
        raise InstanceError(f"there is no git repository of {source.name} at {place}")
    if not re.fullmatch(r"[0-9A-Za-z][0-9A-Za-z._/-]*", source.version):
        raise InstanceError(f"{source.version!r} is no commit of {source.name}")
    # No variable of the caller's may send git to another repository, and no configuration may run a program.
    environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "-c", f"safe.directory={place.resolve()}", "-C", str(place)]
    done = subprocess.run(  # noqa: S603
        [*command, "archive", "--format=tar", source.version], capture_output=True, env=environment, check=False
    )
    if done.returncode:
        text = done.stderr.decode(errors="replace").strip()
        raise InstanceError(f"git cannot give commit {source.version} of {source.name} from {place}: {text}")
    return _unpack(done.stdout, f"commit {source.version} of {place}", strip=False)


def _mirror(name: str) -> Path:
    folder = cache_root() / "mirrors"
    plain = name.replace("/", "__")
    if "/" in plain or plain in ("", ".", ".."):
        raise InstanceError(f"{name!r} names no repository")
    for found in (folder / plain, folder / f"{plain}.git"):
        if found.is_dir():
            return found
    return folder / plain


def _unpack(data: bytes, what: str, *, strip: bool) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    links: dict[str, str] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                name = _inside(member.name, what, strip)
                if name is None or _SKIPPED.intersection(name.split("/")):
                    continue
                if member.issym():
                    links[name] = posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))
                elif member.islnk():
                    links[name] = _inside(member.linkname, what, strip) or ""
                elif member.isfile():
                    if member.size > _LARGEST:
                        raise InstanceError(f"{name} in {what} is larger than {_LARGEST >> 20} MiB")
                    content = archive.extractfile(member)
                    files[name] = content.read() if content is not None else b""
    except (tarfile.TarError, EOFError, OSError) as error:
        raise InstanceError(f"{what} cannot be unpacked: {error}") from error
    for name, target in sorted(links.items()):
        if target in files:
            files[name] = files[target]
    return files


def _inside(name: str, what: str, strip: bool) -> str | None:
    """The path in the tree; None for the top directory itself."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise InstanceError(f"{what} holds {name!r}, which leads out of the archive; it was not unpacked")
    if strip:
        parts = parts[1:]
    return "/".join(parts) or None
