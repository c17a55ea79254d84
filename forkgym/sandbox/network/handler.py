"""One connection of a command: reading requests, opening tunnels for https, writing answers.

What is answered is decided in `cassette` and `mirror`; nothing here asks anybody else.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

import msgspec

from .authority import Authority
from .cassette import HttpCassette
from .exchange import Answer, NetworkError, Request
from .mirror import PackageMirror

__all__ = ["BODY_LIMIT", "Service", "serve_connection"]

BODY_LIMIT = 16 << 20
"""Bytes of the largest request body."""
_SECONDS = 60.0
_NO_BODY = frozenset({204, 304})


class Service(msgspec.Struct, frozen=True):
    """What answers a connection.

    Attributes:
        cassette: For requests to the world.
        mirror: For requests to the proxy itself.
        authority: For https; None refuses it.
        why_no_https: The text of the refusal.
    """

    cassette: HttpCassette | None = None
    mirror: PackageMirror | None = None
    authority: Authority | None = None
    why_no_https: str = ""

    def answer(self, request: Request) -> Answer:
        """The answer to an absolute URL."""
        if self.cassette is None:
            return _plain(504, "this sandbox has a package index and no recorded answers")
        return self.cassette.answer(request)

    def own(self, method: str, path: str, accept: str) -> Answer:
        """The answer to a path of the proxy itself."""
        if self.mirror is None:
            return _plain(404, "this is the proxy of a sandbox; it has no package index")
        if method not in ("GET", "HEAD"):
            return _plain(405, "the package index is read-only")
        return self.mirror.answer(path, accept)


class _Refused(Exception):
    """The request's body cannot be read; the connection ends after the answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _SECONDS
    service: Service
    tunnel = ""

    def do_GET(self) -> None:
        """Any method: read it whole, and answer."""
        try:
            body = self._body()
            answer = self._find(body)
        except _Refused as refused:
            self.close_connection = True
            answer = _plain(refused.status, str(refused))
        self._write(answer)

    do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_GET

    def do_CONNECT(self) -> None:
        """A tunnel: what runs through it is read here, under a certificate of the sandboxes' own authority."""
        host, _, port = self.path.rpartition(":")
        host = host.strip("[]").lower()
        authority = self.service.authority
        try:
            if authority is None:
                raise NetworkError(self.service.why_no_https)
            context = authority.context(host)
        except NetworkError as error:
            self._note(str(error))
            self.close_connection = True
            self._write(_plain(501, str(error)))
            return
        self.send_response_only(200, "Connection established")
        self.end_headers()
        self.wfile.flush()
        try:
            self.connection = context.wrap_socket(self.connection, server_side=True)
        except OSError as error:
            self._note(f"no TLS connection came about: {error}")
            self.close_connection = True
            return
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb", 0)
        self.tunnel = f"https://{f'[{host}]' if ':' in host else host}:{port or 443}"
        self.close_connection = False

    def _note(self, reason: str) -> None:
        if self.service.cassette is not None:
            self.service.cassette.note(f"CONNECT {self.path}", reason)

    def _find(self, body: bytes) -> Answer:
        own = f"{self.connection.getsockname()[0]}:{self.connection.getsockname()[1]}"
        url = self.path
        if self.tunnel:
            url = self.tunnel + self.path if self.path.startswith("/") else self.path
        elif self.path.startswith("/") or urlsplit(self.path).netloc == own:
            path = self.path if self.path.startswith("/") else urlsplit(self.path).path
            return self.service.own(self.command, path, self.headers.get("Accept", ""))
        request = Request(self.command, url, tuple(self.headers.items()), body)
        return self.service.answer(request)

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            return self._chunks()
        length = self.headers.get("Content-Length", "0").strip()
        if not re.fullmatch("[0-9]{1,18}", length):
            raise _Refused(400, f"the length {length!r} is no number")
        return self._exactly(int(length), BODY_LIMIT)

    def _exactly(self, size: int, room: int) -> bytes:
        if size > room:
            raise _Refused(413, f"a request may have {BODY_LIMIT} bytes of body")
        data = self.rfile.read(size)
        if len(data) != size:
            raise _Refused(400, "the body is shorter than the request says")
        return data

    def _chunks(self) -> bytes:
        found = bytearray()
        while True:
            line = self.rfile.readline(1024).partition(b";")[0].strip()
            if not re.fullmatch(rb"[0-9a-fA-F]{1,15}", line):
                raise _Refused(400, "a chunk has no length")
            size = int(line, 16)
            if size == 0:
                break
            found += self._exactly(size, BODY_LIMIT - len(found))
            self.rfile.readline(8)
        for _ in range(100):
            if self.rfile.readline(1 << 16) in (b"\r\n", b"\n", b""):
                return bytes(found)
        raise _Refused(400, "too many lines after the last chunk")

    def _write(self, answer: Answer) -> None:
        self.send_response_only(answer.status, _line(answer.reason) or None)
        names = {name.lower() for name, _ in answer.headers}
        for name, value in answer.headers:
            self.send_header(name, _line(value))
        if "content-length" not in names and answer.status not in _NO_BODY:
            self.send_header("Content-Length", str(len(answer.body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD" and answer.status not in _NO_BODY:
            self.wfile.write(answer.body)

    def finish(self) -> None:
        """Close the connection too: within a tunnel it is another one than at the beginning."""
        try:
            super().finish()
        finally:
            self.connection.close()

    def send_response(self, code: int, message: str | None = None) -> None:
        """Without the date and the server's name, which are no part of what was recorded."""
        self.send_response_only(code, message)

    def log_message(self, format: str, *_: Any) -> None:
        """Nothing is printed; what was missed stands in the cassette."""


def _plain(status: int, text: str) -> Answer:
    return Answer(status, (("Content-Type", "text/plain; charset=utf-8"),), f"forkgym: {text}\n".encode())


def _line(text: str) -> str:
    """One line that a header can hold, whatever stood in a file."""
    return re.sub(r"[\x00-\x1f\x7f]+", " ", text).encode("latin-1", errors="replace").decode("latin-1")


def serve_connection(connection: socket.socket, service: Service, ended: Callable[[], None]) -> None:
    """Answer the requests of one connection until it ends.

    Args:
        connection: Closed at the end.
        service: Who answers.
        ended: Called at the end.
    """
    handler: Any = type("_Handler", (_Handler,), {"service": service})
    try:
        handler(connection, ("", 0), None)
    except (OSError, ValueError):
        # The command went away, or spoke no HTTP that can be answered: there is nobody to tell.
        return
    finally:
        connection.close()
        ended()
