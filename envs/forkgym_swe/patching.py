"""Patches as pure functions over trees of files in memory: apply, make, list. Nothing here touches a disk.

A tree is a map from a path with ``/`` to the file's bytes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping

import msgspec

from forkgym_swe.instance import InstanceError

__all__ = ["PatchError", "apply_patch", "changed_lines", "make_patch", "patched_paths", "reverse_patch"]

_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_ESCAPE = re.compile(r'\\([0-7]{3}|[abtnvfr"\\])')
_LETTERS = {"a": "\a", "b": "\b", "t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", '"': '"', "\\": "\\"}


class PatchError(InstanceError):
    """A patch cannot be read, or does not fit the files; the text says where."""


class _Hunk(msgspec.Struct):
    start: int
    before: list[str]
    after: list[str]


class _FilePatch(msgspec.Struct):
    old: str | None
    new: str | None
    hunks: list[_Hunk]
    # What git's headers said; a rename, a mode change or an empty file has no hunks.
    removed: bool = False
    added: bool = False
    copied: bool = False


def apply_patch(files: Mapping[str, bytes], patch: str) -> dict[str, bytes]:
    """The tree after a unified diff, git's or plain.

    Strict: every line of a hunk must be there. A hunk whose text stands elsewhere in the file is applied at the nearest
    such place, as git does; a hunk whose text stands nowhere is an error. File modes are ignored.

    Args:
        files: The tree before; not changed.
        patch: The diff; "" changes nothing.

    Raises:
        PatchError: It cannot be read or does not fit; names the file and the line.
    """
    after = dict(files)
    for change in _read(patch):
        name = change.old if change.old is not None else change.new
        if name is None:
            raise PatchError("a file of the patch has neither an old nor a new name")
        if change.old is None:
            if change.new in after and (change.hunks or after[change.new]):
                raise PatchError(f"the patch adds {change.new}, which is there already")
            content = ""
        elif change.old in after:
            content = after[change.old].decode(errors="surrogateescape")
        else:
            raise PatchError(f"the patch changes {change.old}, which is not there")
        content = _patch_text(content, change.hunks, name)
        if change.old is not None and not change.copied:
            del after[change.old]
        if change.new is not None:
            after[change.new] = content.encode(errors="surrogateescape")
        elif content:
            raise PatchError(f"the patch deletes {name}, but lines of it would be left")
    return after


def make_patch(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str:
    """The difference of two trees as git would write it, without index lines; "" if there is none.

    Raises:
        PatchError: A file that differs is not text.
    """
    parts = []
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old == new:
            continue
        if b"\0" in (old or b"") or b"\0" in (new or b""):
            raise PatchError(f"{path} differs and is no text file")
        parts.append(_render(path, old, new))
    return "".join(parts)


def patched_paths(patch: str) -> tuple[str, ...]:
    """Paths that a diff touches, old and new names, sorted.

    Raises:
        PatchError: It cannot be read.
    """
    names = {name for change in _read(patch) for name in (change.old, change.new) if name is not None}
    return tuple(sorted(names))


def changed_lines(patch: str) -> dict[str, tuple[int, ...]]:
    """Which lines of the old files a diff removes or replaces, by path; an insertion counts as the line before it.

    Raises:
        PatchError: It cannot be read.
    """
    found: dict[str, set[int]] = {}
    for change in _read(patch):
        if change.old is None:
            continue
        lines = found.setdefault(change.old, set())
        for hunk in change.hunks:
            matcher = difflib.SequenceMatcher(None, hunk.before, hunk.after, autojunk=False)
            for kind, first, last, _, _ in matcher.get_opcodes():
                if kind == "insert":
                    lines.add(max(1, hunk.start + first - 1))
                elif kind != "equal":
                    lines.update(range(hunk.start + first, hunk.start + last))
    return {path: tuple(sorted(lines)) for path, lines in sorted(found.items())}


def reverse_patch(patch: str) -> str:
    """The patch that undoes a patch.

    Raises:
        PatchError: It cannot be read.
    """
    parts = []
    for change in _read(patch):
        old, new = change.new, change.old
        name, other = old or new, new or old
        parts.append(f"diff --git {_quote(f'a/{name}')} {_quote(f'b/{other}')}\n")
        if old is None:
            parts.append("new file mode 100644\n")
        elif new is None:
            parts.append("deleted file mode 100644\n")
        elif old != new:
            parts.append(f"rename from {_quote(old)}\nrename to {_quote(new)}\n")
        if change.hunks:
            parts.append(f"--- {'/dev/null' if old is None else _quote(f'a/{old}')}\n")
            parts.append(f"+++ {'/dev/null' if new is None else _quote(f'b/{new}')}\n")
        shift = 0
        for hunk in change.hunks:
            parts.append(_render_hunk(hunk, shift))
            shift += len(hunk.after) - len(hunk.before)
    return "".join(parts)


# ---------------------------------------------------------------------- writing


def _render_hunk(hunk: _Hunk, shift: int) -> str:
    """A hunk backwards; `shift` is how far earlier hunks moved the lines."""
    first = hunk.start + shift
    counts = (len(hunk.after), len(hunk.before))
    starts = [line if count else line - 1 for line, count in zip((first, hunk.start), counts, strict=True)]
    lines = [f"@@ -{starts[0]},{counts[0]} +{starts[1]},{counts[1]} @@\n"]
    matcher = difflib.SequenceMatcher(None, hunk.after, hunk.before, autojunk=False)
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind == "equal":
            lines += [f" {line}" for line in hunk.after[a:b]]
        else:
            lines += [f"-{line}" for line in hunk.after[a:b]] + [f"+{line}" for line in hunk.before[c:d]]
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _quote(name: str) -> str:
    if all(" " <= character <= "~" and character not in '"\\' for character in name):
        return name
    back = {value: f"\\{key}" for key, value in _LETTERS.items()}
    raw = name.encode(errors="surrogateescape").decode("latin-1")
    return '"' + "".join(back.get(c) or (c if " " <= c <= "~" else f"\\{ord(c):03o}") for c in raw) + '"'


def _lines(data: bytes) -> list[str]:
    lines = data.decode(errors="surrogateescape").split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _render(path: str, old: bytes | None, new: bytes | None) -> str:
    source, target = _quote(f"a/{path}"), _quote(f"b/{path}")
    head = f"diff --git {source} {target}\n"
    if old is None:
        head, source = f"{head}new file mode 100644\n", "/dev/null"
    if new is None:
        head, target = f"{head}deleted file mode 100644\n", "/dev/null"
    lines = difflib.unified_diff(_lines(old or b""), _lines(new or b""), source, target)
    body = [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]
    if body and " " in path:  # git ends a name with spaces by a tab
        body[:2] = [f"{line[:-1]}\t\n" if not line.endswith("/dev/null\n") else line for line in body[:2]]
    return head + "".join(body)


# ---------------------------------------------------------------------- reading


def _read(patch: str) -> list[_FilePatch]:
    lines = patch.split("\n")
    found: list[_FilePatch] = []
    current: _FilePatch | None = None
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.startswith("diff --git "):
            current = _git_header(line)
            found.append(current)
        elif line.startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ "):
            current = _plain_header(line, lines[at + 1], current, found)
            at += 1
        elif line.startswith("@@ "):
            if current is None:
                raise PatchError(f"line {at + 1} of the patch begins a hunk before any file was named")
            hunk, at = _read_hunk(lines, at)
            current.hunks.append(hunk)
            continue
        elif current is not None and not current.hunks:
            _extended_header(line, current)
        at += 1
    if patch.strip() and not found:
        raise PatchError("this is no unified diff: it names no file")
    for change in found:
        change.old, change.new = (None if change.added else change.old), (None if change.removed else change.new)
    return found


def _git_header(line: str) -> _FilePatch:
    rest = line.removeprefix("diff --git ")
    if rest.startswith('"'):
        quoted = re.match(r'("(?:[^"\\]|\\.)*") (.*)$', rest)
        names = quoted.groups() if quoted else ("", "")
    else:
        # Both names are equal except for a rename, and then lines of their own give them.
        half = re.match(r"a/(.*) b/\1$", rest)
        names = (f"a/{half[1]}", f"b/{half[1]}") if half else tuple(rest.split(" b/", 1))
        if not half and len(names) == 2:
            names = (names[0], f"b/{names[1]}")
    if len(names) != 2 or not all(names):
        raise PatchError(f"the patch has a header that names no two files: {line!r}")
    return _FilePatch(old=_name(names[0]), new=_name(names[1]), hunks=[])


def _plain_header(old: str, new: str, current: _FilePatch | None, found: list[_FilePatch]) -> _FilePatch:
    source, target = _name(old[4:]), _name(new[4:])
    if current is None or current.hunks:
        current = _FilePatch(old=None, new=None, hunks=[])
        found.append(current)
    current.old, current.new = source, target
    current.added, current.removed = source is None, target is None
    return current


def _extended_header(line: str, current: _FilePatch) -> None:
    if line.startswith("new file mode"):
        current.added = True
    elif line.startswith("deleted file mode"):
        current.removed = True
    elif line.startswith(("rename from ", "copy from ")):
        current.old = _safe(_unquote(line.split(" from ", 1)[1]))
        current.copied = line.startswith("copy")
    elif line.startswith(("rename to ", "copy to ")):
        current.new = _safe(_unquote(line.split(" to ", 1)[1]))
    elif line.startswith(("GIT binary patch", "Binary files ")):
        raise PatchError(
            f"the patch changes {current.new or current.old}, which is no text file; that is not supported"
        )


def _name(text: str) -> str | None:
    text = text.split("\t", 1)[0].rstrip("\r") if not text.startswith('"') else text.rstrip()
    name = _unquote(text)
    if name == "/dev/null":
        return None
    return _safe(name[2:] if name.startswith(("a/", "b/")) else name)


def _safe(name: str) -> str:
    parts = name.split("/")
    if not name or name.startswith("/") or ".." in parts or "" in parts or "\0" in name:
        raise PatchError(f"the patch names {name!r}, which is no path inside the repository")
    return name


def _unquote(text: str) -> str:
    if not (text.startswith('"') and text.endswith('"') and len(text) > 1):
        return text

    def one(match: re.Match[str]) -> str:
        return _LETTERS.get(match[1]) or chr(int(match[1], 8))

    plain = _ESCAPE.sub(one, text[1:-1])
    try:
        return plain.encode("latin-1").decode(errors="surrogateescape")
    except UnicodeEncodeError:
        return plain


def _read_hunk(lines: list[str], at: int) -> tuple[_Hunk, int]:
    match = _HUNK.match(lines[at])
    if match is None:
        raise PatchError(f"line {at + 1} of the patch is no hunk header: {lines[at]!r}")
    start, old, new = int(match[1]), int(match[2] or 1), int(match[4] or 1)
    before: list[str] = []
    after: list[str] = []
    first, at = at, at + 1
    while (len(before) < old or len(after) < new) and at < len(lines):
        line = lines[at]
        mark, text = (line[0], line[1:]) if line else (" ", "")
        if mark not in " +-\\":
            break
        if mark == "\\":
            _no_newline(lines[at - 1], before, after)
        if mark in " -":
            before.append(f"{text}\n")
        if mark in " +":
            after.append(f"{text}\n")
        at += 1
    if len(before) != old or len(after) != new:
        raise PatchError(f"the hunk at line {first + 1} of the patch is cut short: {lines[first]!r}")
    if at < len(lines) and lines[at].startswith("\\"):
        _no_newline(lines[at - 1], before, after)
        at += 1
    return _Hunk(start=start if old else start + 1, before=before, after=after), at


def _no_newline(previous: str, before: list[str], after: list[str]) -> None:
    if previous[:1] in ("-", " ", "") and before:
        before[-1] = before[-1].removesuffix("\n")
    if previous[:1] in ("+", " ", "") and after:
        after[-1] = after[-1].removesuffix("\n")


def _patch_text(text: str, hunks: list[_Hunk], name: str) -> str:
    lines = _lines(text.encode(errors="surrogateescape"))
    shift = floor = 0
    for hunk in hunks:
        wanted = hunk.start - 1 + shift
        # An insertion without context says nothing about where it belongs but its number.
        places = _places(wanted, floor, len(lines)) if hunk.before else (wanted,)
        place = next((p for p in places if 0 <= p <= len(lines) and _fits(lines, p, hunk.before)), None)
        if place is None:
            raise PatchError(f"the patch does not fit {name} at line {hunk.start}: the text there differs")
        lines[place : place + len(hunk.before)] = hunk.after
        floor = place + len(hunk.after)
        shift = place - (hunk.start - 1) + len(hunk.after) - len(hunk.before)
    return "".join(lines)


def _places(wanted: int, floor: int, end: int) -> Iterator[int]:
    """The stated place first, then nearer before farther."""
    if floor <= wanted <= end:
        yield wanted
    for distance in range(1, max(end - wanted, wanted - floor) + 1):
        if floor <= wanted - distance <= end:
            yield wanted - distance
        if floor <= wanted + distance <= end:
            yield wanted + distance


def _fits(lines: list[str], place: int, before: list[str]) -> bool:
    return lines[place : place + len(before)] == before
