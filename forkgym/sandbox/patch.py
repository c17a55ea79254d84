"""A difference as a patch that ``git apply`` takes: text hunks, modes, links, new, deleted and binary files."""

from __future__ import annotations

import base64
import difflib
import zlib
from collections.abc import Callable, Mapping
from hashlib import sha1

from .state import Difference, Entry

__all__ = ["render_patch"]

Reader = Callable[[str], bytes]


def render_patch(base: Mapping[str, Entry], difference: Difference, before: Reader, after: Reader) -> str:
    """The patch from the base to the state, for the working tree.

    Directories and pipes have no place in a patch; git keeps of modes only whether a file is executable.

    Args:
        base: Entries of the base.
        difference: What differs.
        before: Reads a file of the base (path relative to the image).
        after: Reads a file of the state.
    """
    parts = []
    for path in sorted(difference):
        if path.startswith("tree/"):
            old, new = base.get(path), difference[path]
            if old is not None and new is not None and old.kind != new.kind:
                # git knows no change of kind: it is a deletion and an addition.
                parts += [_one(path, old, None, before, after), _one(path, None, new, before, after)]
            else:
                parts.append(_one(path, old, new, before, after))
    return "".join(parts)


def _git_mode(entry: Entry) -> str:
    return "120000" if entry.kind == "l" else "100755" if entry.mode & 0o100 else "100644"


def _content(entry: Entry | None, path: str, read: Reader) -> bytes:
    if entry is None:
        return b""
    return entry.target.encode(errors="surrogateescape") if entry.kind == "l" else read(path)


def _one(path: str, old: Entry | None, new: Entry | None, before: Reader, after: Reader) -> str:
    old = old if old is not None and old.kind in "fl" else None
    new = new if new is not None and new.kind in "fl" else None
    if old is None and new is None:
        return ""
    left, right = _content(old, path, before), _content(new, path, after)
    head = []
    if old is None and new is not None:
        head.append(f"new file mode {_git_mode(new)}\n")
    elif new is None and old is not None:
        head.append(f"deleted file mode {_git_mode(old)}\n")
    elif old is not None and new is not None and _git_mode(old) != _git_mode(new):
        head += [f"old mode {_git_mode(old)}\n", f"new mode {_git_mode(new)}\n"]
    body = "" if left == right else _body(path, left, right, old is None, new is None)
    if not head and not body:
        return ""
    name = path.removeprefix("tree/")
    return f"diff --git {_quote('a/' + name)} {_quote('b/' + name)}\n" + "".join(head) + body


def _body(path: str, left: bytes, right: bytes, added: bool, deleted: bool) -> str:
    name = path.removeprefix("tree/")
    try:
        texts = left.decode(), right.decode()
    except UnicodeDecodeError:
        texts = ("\0", "\0")
    if any("\0" in text for text in texts):
        names = f"{_blob(left, added)}..{_blob(right, deleted)}"
        return f"index {names}\nGIT binary patch\n{_literal(right)}\n{_literal(left)}\n"
    lines = [text.split("\n") for text in texts]
    halves = [[f"{line}\n" for line in half[:-1]] + ([half[-1]] if half[-1] else []) for half in lines]
    source = "/dev/null" if added else _quote("a/" + name)
    target = "/dev/null" if deleted else _quote("b/" + name)
    rendered = []
    for number, line in enumerate(difflib.unified_diff(halves[0], halves[1], source, target)):
        if number < 2 and " " in name and not line.endswith("/dev/null\n"):
            line = line.rstrip("\n") + "\t\n"  # git ends a name with spaces by a tab
        rendered.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(rendered)


def _blob(data: bytes, absent: bool) -> str:
    """The name git gives a content; it applies a binary hunk only to the content that the hunk names."""
    return "0" * 40 if absent else sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _literal(data: bytes) -> str:
    packed = zlib.compress(data, 6)
    lines = [f"literal {len(data)}\n"]
    for start in range(0, len(packed), 52):
        block = packed[start : start + 52]
        length = chr(ord("A") + len(block) - 1) if len(block) <= 26 else chr(ord("a") + len(block) - 27)
        padded = block + b"\0" * (-len(block) % 4)
        lines.append(f"{length}{base64.b85encode(padded).decode()}\n")
    return "".join(lines)


def _quote(name: str) -> str:
    """A path as git writes it: quoted C-style if it holds anything but plain characters."""
    raw = name.encode(errors="surrogateescape")
    if all(0x20 <= byte < 0x7F and byte not in b'"\\' for byte in raw):
        return name
    escapes = {0x22: '\\"', 0x5C: "\\\\", 0x09: "\\t", 0x0A: "\\n"}
    plain = "".join(escapes.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}") for byte in raw)
    return f'"{plain}"'
