"""A file of recorded HTTP answers: replayed by default, recorded only when the user says so.

The request that recording sends is in `upstream`, and when two requests are the same in `exchange`.
"""

from __future__ import annotations

import base64
import fnmatch
import os
import re
import threading
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from .exchange import Answer, Key, NetworkError, Request, Rules, differences, request_key

__all__ = ["HttpCassette", "Miss"]

_VERSION = 1
_NEVER_STORED = {"set-cookie", "set-cookie2", "content-length", "transfer-encoding", "trailer", "te", "upgrade"} | {
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-connection",
    "alt-svc",
}


class Miss(msgspec.Struct, frozen=True):
    """A request that got no recorded answer.

    Attributes:
        request: Which, in words.
        reason: Why.
    """

    request: str
    reason: str


class _Head(msgspec.Struct, frozen=True, tag="cassette", tag_field="kind", forbid_unknown_fields=True):
    version: int
    rules: Rules


class _Body(msgspec.Struct, frozen=True, tag="body", tag_field="kind", forbid_unknown_fields=True, omit_defaults=True):
    digest: str
    text: str | None = None
    base64: str | None = None

    def content(self) -> bytes:
        return (self.text or "").encode() if self.base64 is None else base64.b64decode(self.base64, validate=True)


class _Recorded(msgspec.Struct, frozen=True, tag="answer", tag_field="kind", forbid_unknown_fields=True):
    request: Key
    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    body: str


_Line = _Head | _Body | _Recorded
_decoder: msgspec.json.Decoder[_Line] = msgspec.json.Decoder(_Line)


def _digest(body: bytes) -> str:
    return blake2b(body, digest_size=16, person=b"forkgym-body").hexdigest()


class HttpCassette:
    """Recorded answers by method, normalised URL and body, and the few headers that count.

    The same request always gets the same recorded answer, the first one: there is no counter, so there is nothing that
    two forks could share or that a state would have to hold. All of it is held in memory. May be used by many threads.

    Args:
        path: The file, JSON lines; bodies stand in it once each, by digest.
        mode: ``replay`` answers from the file only. ``record`` also asks the real server for what is not in the file,
            from the host's network, and adds it; delete the file to record anew.
        hosts: Host names that may be asked while recording, with patterns (``*.example.org``); a port other than the
            scheme's own is part of the name (``127.0.0.1:8080``, ``example.org:*``). Recording needs at least one,
            since a command could otherwise ask anything that this machine can reach.
        rules: When two requests are the same. A recorded file brings its own.
        body_limit: Bytes of the largest answer that is recorded.
        timeout: Seconds for the real server.

    Raises:
        NetworkError: There is no such file to replay, it is damaged, or no host was named for recording.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        mode: Literal["replay", "record"] = "replay",
        *,
        hosts: Sequence[str] = (),
        rules: Rules | None = None,
        body_limit: int = 64 << 20,
        timeout: float = 30.0,
    ) -> None:
        if mode not in ("replay", "record"):
            raise NetworkError(f"a cassette's mode is 'replay' or 'record', not {mode!r}")
        if mode == "record" and not hosts:
            raise NetworkError("recording needs hosts=(…): the servers that commands may reach meanwhile")
        self.path, self.mode, self.hosts = Path(path), mode, tuple(hosts)
        self.body_limit, self.timeout = body_limit, timeout
        self.rules = rules or Rules()
        self._answers: dict[Key, _Recorded] = {}
        self._bodies: dict[str, bytes] = {}
        self._misses: list[Miss] = []
        self._lock = threading.Lock()
        self._asking: dict[Key, threading.Lock] = {}
        if self.path.exists():
            self._load(rules)
        elif mode == "replay":
            raise NetworkError(f"there is no cassette {self.path}; record one with mode='record' and hosts=(…)")
        else:
            self._append(_Head(_VERSION, self.rules))

    def __len__(self) -> int:
        return len(self._answers)

    def __repr__(self) -> str:
        return f"HttpCassette({str(self.path)!r}, {self.mode!r}, {len(self)} answers)"

    @property
    def misses(self) -> tuple[Miss, ...]:
        """Requests that got no recorded answer, in the order in which they came."""
        with self._lock:
            return tuple(self._misses)

    def requests(self) -> list[str]:
        """The recorded requests, in words, sorted."""
        with self._lock:
            return sorted(str(key) for key in self._answers)

    def answer(self, request: Request) -> Answer:
        """The recorded answer; or, if there is none, status 504 and a text that names the request.

        While recording, what is not there is asked of the real server and kept; if that fails, the status is 502 and
        nothing is kept.
        """
        try:
            key = request_key(request, self.rules)
        except NetworkError as error:
            return self._miss(f"{request.method} {request.url}", str(error), 400)
        known = self._find(key)
        if known is None and self.mode == "record":
            with self._lock:
                asking = self._asking.setdefault(key, threading.Lock())
            with asking:
                known = self._find(key) or self._record(request, key)
        if known is None:
            return self._not_recorded(key)
        return known

    def note(self, request: str, reason: str) -> None:
        """Keep a miss of something that never became a request (a tunnel that could not be opened)."""
        with self._lock:
            self._misses.append(Miss(request, reason))

    def _find(self, key: Key) -> Answer | None:
        with self._lock:
            known = self._answers.get(key)
            if known is None and key.method == "HEAD":
                known = self._answers.get(msgspec.structs.replace(key, method="GET"))
            return (
                None if known is None else Answer(known.status, known.headers, self._bodies[known.body], known.reason)
            )

    def _miss(self, request: str, reason: str, status: int) -> Answer:
        self.note(request, reason)
        text = f"forkgym: no answer for {request}\n{reason}\n"
        return Answer(
            status,
            (("Content-Type", "text/plain; charset=utf-8"), ("X-Forkgym-Miss", "1")),
            text.encode(),
            "Not Recorded",
        )

    def _not_recorded(self, key: Key) -> Answer:
        with self._lock:
            near = differences(key, self._answers)[:3]
        lines = ["It is not in the cassette, and commands of a sandbox have no network."]
        if self.mode == "record":
            lines = [f"Its host is not among the hosts that may be recorded: {', '.join(self.hosts)}."]
        lines += [f"A recorded request for this place differs: {text}." for text in near]
        return self._miss(str(key), "\n".join(lines), 504)

    def _may_ask(self, key: Key) -> bool:
        where = urlsplit(key.url).netloc
        return any(fnmatch.fnmatchcase(where, host.lower()) for host in self.hosts)

    def _record(self, request: Request, key: Key) -> Answer | None:
        from .upstream import fetch

        if not self._may_ask(key):
            return None
        try:
            answer = fetch(request, limit=self.body_limit, timeout=self.timeout)
        except NetworkError as error:
            return self._miss(str(key), str(error), 502)
        # The length of an answer to HEAD is the only one that does not follow from its body.
        dropped = _NEVER_STORED - ({"content-length"} if key.method == "HEAD" else set())
        headers = tuple((name, value) for name, value in answer.headers if name.lower() not in dropped)
        digest = _digest(answer.body)
        recorded = _Recorded(key, answer.status, answer.reason, headers, digest)
        with self._lock:
            lines: list[_Line] = [recorded]
            if digest not in self._bodies:
                lines.insert(0, _body_line(digest, answer.body))
            self._append(*lines)
            self._bodies[digest], self._answers[key] = answer.body, recorded
        return Answer(recorded.status, headers, answer.body, recorded.reason)

    def _append(self, *lines: _Line) -> None:
        data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        with open(self.path, "ab") as file:
            file.write(data)

    def _load(self, rules: Rules | None) -> None:
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) != len(content):
            if self.mode == "replay":
                raise NetworkError(
                    f"the cassette {self.path} ends in the middle of a line: its recording was cut. "
                    "Record again with mode='record': what is whole is kept"
                )
            os.truncate(self.path, len(whole))
        for number, text in enumerate(whole.splitlines(), 1):
            try:
                self._take(_decoder.decode(text), first=number == 1, rules=rules)
            except (msgspec.MsgspecError, ValueError) as error:
                raise NetworkError(f"line {number} of the cassette {self.path} cannot be used: {error}") from None
        if not whole:
            self._append(_Head(_VERSION, self.rules))

    def _take(self, line: _Line, *, first: bool, rules: Rules | None) -> None:
        if isinstance(line, _Head) != first:
            raise ValueError("the first line, and only that, says what the file is")
        if isinstance(line, _Head):
            if line.version != _VERSION:
                raise ValueError(f"it has version {line.version}, and {_VERSION} is known")
            if rules is not None and rules != line.rules:
                raise ValueError(f"it was recorded under other rules: {line.rules}")
            self.rules = line.rules
        elif isinstance(line, _Body):
            content = line.content()
            if _digest(content) != line.digest:
                raise ValueError(f"the body {line.digest} was changed: its digest is {_digest(content)}")
            self._bodies[line.digest] = content
        else:
            if line.body not in self._bodies:
                raise ValueError(f"its body {line.body} does not stand before it")
            if any(re.search(r"[\r\n\0]", text) for pair in line.headers for text in (*pair, line.reason)):
                raise ValueError("a header holds a line break")
            self._answers.setdefault(line.request, line)


def _body_line(digest: str, body: bytes) -> _Body:
    try:
        return _Body(digest, text=body.decode())
    except UnicodeDecodeError:
        return _Body(digest, base64=base64.b64encode(body).decode())
