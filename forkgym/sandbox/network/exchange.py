"""A request, its answer, and when two requests are the same one.

Pure functions; no socket and no file is touched here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from email.message import Message
from hashlib import blake2b
from urllib.parse import quote, urlsplit

import msgspec

from ..errors import SandboxError

__all__ = ["Answer", "Key", "NetworkError", "Request", "Rules", "differences", "normal_url", "request_key"]

_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_PORTS = {"http": 80, "https": 443}
_HIDDEN = "hidden"


class NetworkError(SandboxError):
    """A cassette, a package mirror or a request that cannot be used; the text says why and what to do."""


class Request(msgspec.Struct, frozen=True):
    """What a command asked for.

    Attributes:
        method: ``GET`` and the like.
        url: Absolute.
        headers: Names and values as they came.
        body: All of it.
    """

    method: str
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    def header(self, name: str) -> str:
        """The values of a header, joined; empty without one."""
        return ", ".join(value.strip() for key, value in self.headers if key.lower() == name)


class Answer(msgspec.Struct, frozen=True):
    """What a command gets.

    Attributes:
        status: ``200`` and the like.
        headers: Names and values; the length is left out, it follows from the body.
        body: All of it.
        reason: The words after the status.
    """

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    reason: str = ""


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When two requests are the same one.

    Attributes:
        headers: Request headers that count, in small letters; all others do not. A request without ``Accept`` counts
            as one with ``*/*``.
        secret_parameters: Names in the query, in a form or at the top of a JSON object whose values do not count and
            are never stored.
    """

    headers: tuple[str, ...] = ("accept", "range")
    secret_parameters: tuple[str, ...] = ("access_token", "api_key", "apikey", "client_secret", "password")

    def __post_init__(self) -> None:
        large = [name for name in self.headers if name != name.lower()]
        if large:
            raise NetworkError(f"headers that count are named in small letters, not {large[0]!r}")


class Key(msgspec.Struct, frozen=True):
    """Equal for two requests that get the same answer.

    Attributes:
        method: In capitals.
        url: Normalised.
        headers: Those that count.
        body: BLAKE2b-128 of the normalised body in hex; empty without a body.
    """

    method: str
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    body: str = ""

    def __str__(self) -> str:
        shown = [f"{name}: {value}" for name, value in self.headers if (name, value) != ("accept", "*/*")]
        if self.body:
            shown.append(f"body {self.body}")
        return f"{self.method} {self.url}" + (f" ({'; '.join(shown)})" if shown else "")


def _percent(text: str) -> str:
    """Percent signs in one form: capitals, and none for what needs none."""

    def one(match: re.Match[str]) -> str:
        letter = chr(int(match[1], 16))
        return letter if letter in _UNRESERVED else f"%{match[1].upper()}"

    # What comes from a request line is bytes, one a letter; what a person writes may be any text.
    raw = text.encode("latin-1" if all(ord(letter) < 256 for letter in text) else "utf-8", errors="replace")
    quoted = quote(raw, safe="%/:?#[]@!$&'()*+,;=~")
    return re.sub("%([0-9a-fA-F]{2})", one, quoted)


def _pairs(text: str, secret: Iterable[str]) -> str:
    """Pairs of a query or a form in order of their names; pairs of one name keep their order."""
    hidden = {name.lower() for name in secret}
    pairs = [pair.partition("=") for pair in text.split("&") if pair]
    pairs = [(name, sign, _HIDDEN if name.lower() in hidden and sign else value) for name, sign, value in pairs]
    return "&".join("".join(pair) for pair in sorted(pairs, key=lambda pair: pair[0]))


def normal_url(url: str, rules: Rules) -> str:
    """A URL in the one form under which it is stored.

    Scheme and host in small letters, no default port, no user, no fragment, percent signs in one form, parameters in
    order of their names.

    Raises:
        NetworkError: It is no absolute http or https URL.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise NetworkError(f"the URL {url!r} cannot be read: {error}") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise NetworkError(f"the URL {url!r} is no absolute http or https URL")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    where = host if port in (None, _PORTS[parts.scheme]) else f"{host}:{port}"
    query = _pairs(_percent(parts.query), rules.secret_parameters)
    return f"{parts.scheme}://{where}{_percent(parts.path) or '/'}" + (f"?{query}" if query else "")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _json(body: bytes, rules: Rules) -> bytes:
    try:
        value = json.loads(body, object_pairs_hook=_unique)
        if isinstance(value, dict):
            value = {name: _HIDDEN if name in rules.secret_parameters else part for name, part in value.items()}
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
    except (ValueError, RecursionError):
        return body  # what no parser agrees on is compared byte by byte


def _normal_body(request: Request, rules: Rules) -> bytes:
    message = Message()
    message["content-type"] = request.header("content-type")
    kind = message.get_content_type()
    if request.header("content-encoding") not in ("", "identity"):
        return request.body
    if kind == "application/json" or kind.endswith("+json"):
        return _json(request.body, rules)
    if kind == "application/x-www-form-urlencoded":
        return _pairs(request.body.decode("latin-1"), rules.secret_parameters).encode("latin-1")
    boundary = message.get_param("boundary")
    if kind.startswith("multipart/") and isinstance(boundary, str) and boundary:
        return request.body.replace(b"--" + boundary.encode("latin-1", "replace"), b"--boundary")
    return request.body


def request_key(request: Request, rules: Rules) -> Key:
    """What decides which answer a request gets.

    The body counts normalised: JSON by its values, a form by its pairs in order of their names, a multipart body
    without its random boundary, anything else byte by byte.

    Raises:
        NetworkError: The URL cannot be read.
    """
    body = ""
    if request.body:
        body = blake2b(_normal_body(request, rules), digest_size=16, person=b"forkgym-request").hexdigest()
    headers = []
    for name in rules.headers:
        value = re.sub(r"\s*([,;=])\s*", r"\1", request.header(name)) or ("*/*" if name == "accept" else "")
        if value:
            headers.append((name, value))
    return Key(request.method.upper(), normal_url(request.url, rules), tuple(headers), body)


def differences(asked: Key, known: Iterable[Key]) -> list[str]:
    """How recorded requests for the same place differ from one that was not recorded, for a person to read."""
    found = []
    for key in known:
        if key.url.partition("?")[0] != asked.url.partition("?")[0]:
            continue
        parts = [
            f"{name} is {mine!r}, recorded was {theirs!r}"
            for name, mine, theirs in (
                ("the method", asked.method, key.method),
                ("the query", asked.url.partition("?")[2], key.url.partition("?")[2]),
                ("the body's digest", asked.body, key.body),
                *((name, dict(asked.headers).get(name, ""), value) for name, value in key.headers),
            )
            if mine != theirs
        ]
        found.append("; ".join(parts) or "a header that counts is missing in the recorded request")
    return sorted(found, key=lambda text: (text.count(";"), text))
