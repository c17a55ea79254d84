"""The only place from which a request leaves this machine: recording, when the user asked for it."""

from __future__ import annotations

import http.client
import ssl
import urllib.error
import urllib.request
import zlib
from typing import Any

from .exchange import Answer, NetworkError, Request

__all__ = ["fetch"]

_CONDITIONS = {"if-match", "if-modified-since", "if-none-match", "if-range", "if-unmodified-since"}
_OF_THE_CONNECTION = {"connection", "content-length", "expect", "host", "keep-alive", "te", "trailer", "upgrade"} | {
    "proxy-authorization",
    "proxy-connection",
    "transfer-encoding",
}
_NOT_SENT = _CONDITIONS | _OF_THE_CONNECTION | {"accept-encoding"}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Each step of a redirection is an answer of its own, which the command follows or not."""

    def redirect_request(self, *_: Any) -> None:
        return None


def fetch(request: Request, *, limit: int, timeout: float) -> Answer:
    """Ask the real server, by the host's own proxy settings.

    The answer is asked for without compression and without conditions, so that it is whole and plain.

    Args:
        request: Its ``Authorization`` is sent; it is stored nowhere.
        limit: Bytes of the largest body.
        timeout: Seconds.

    Raises:
        NetworkError: There was no answer, or it is too large or incomplete.
    """
    handlers = (_NoRedirect(), urllib.request.HTTPSHandler(context=ssl.create_default_context()))
    opener = urllib.request.build_opener(*handlers)
    opener.addheaders = []
    body = request.body if request.body or request.method in ("POST", "PUT", "PATCH") else None
    outgoing = urllib.request.Request(request.url, data=body, method=request.method)  # noqa: S310  http(s), see the key
    for name, value in request.headers:
        if name.lower() not in _NOT_SENT:
            outgoing.add_header(name, value)
    outgoing.add_header("Accept-Encoding", "identity")
    try:
        try:
            response = opener.open(outgoing, timeout=timeout)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            content = response.read(limit + 1)
            status, reason, headers = response.status, response.reason, tuple(response.headers.items())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NetworkError(f"the server gave no whole answer: {error}") from None
    if len(content) > limit:
        raise NetworkError(f"the answer is larger than the {limit} bytes that are recorded (body_limit)")
    declared = {name.lower(): value for name, value in headers}.get("content-length", "")
    if request.method != "HEAD" and status not in (204, 304) and declared.isdecimal() and len(content) < int(declared):
        raise NetworkError(f"the server gave no whole answer: {len(content)} of {declared} bytes")
    return _plain(Answer(status, headers, content, reason or ""), limit)


def _plain(answer: Answer, limit: int) -> Answer:
    """The answer without the compression that a server used though nobody asked for it."""
    coding = next((value.lower() for name, value in answer.headers if name.lower() == "content-encoding"), "")
    if coding not in ("gzip", "x-gzip", "deflate") or not answer.body:
        return answer
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        content = unpacker.decompress(answer.body, limit + 1)
    except zlib.error as error:
        raise NetworkError(f"the answer says that it is {coding} and is not: {error}") from None
    if len(content) > limit or not unpacker.eof:
        raise NetworkError(f"the answer is cut short, or larger than {limit} bytes when unpacked (body_limit)")
    headers = tuple((name, value) for name, value in answer.headers if name.lower() != "content-encoding")
    return Answer(answer.status, headers, content, answer.reason)
