"""`Network`: what commands of a sandbox reach instead of the world, and the engine that gives each command its own."""

from __future__ import annotations

import os
import selectors
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, cast

import msgspec

from ..broker import BrokerEngine
from ..engine import Command, Engine, Layer
from ..engines import engine_for, image_store
from ..errors import SandboxClosedError
from ..output import CompletedCommand
from .authority import Authority
from .cassette import HttpCassette
from .exchange import NetworkError
from .mirror import PackageMirror

__all__ = ["PORT", "Network"]

PORT = 887
"""Where commands find their proxy and package index, on their own loopback; below 1024, so no command can take it."""
_CERTIFICATES = "ssl/certs/ca-certificates.crt"
_CONNECTIONS = 32


class _Listener:
    """A listening socket, and how many of its connections are open."""

    def __init__(self, number: int, socket: socket.socket) -> None:
        self.number, self.socket = number, socket
        self.room = threading.Semaphore(_CONNECTIONS)


class Network:
    """Recorded answers and a package index, for all sandboxes that are created with it and their forks.

    Commands still have no network. Each has a loopback of its own, and on that this process listens: no process inside,
    no way out. The variables that name it are set for every command and are no part of a state.

    Args:
        cassette: Answers requests to the world by ``http_proxy`` and ``https_proxy``.
        mirror: Answers package installers.
        https: Answer https from the cassette, by a certificate authority that is made on this machine with openssl and
            that only commands in these sandboxes trust. By default where there is an openssl.

    Raises:
        NetworkError: ``https`` was asked for and there is no openssl.
    """

    def __init__(
        self, cassette: HttpCassette | None = None, mirror: PackageMirror | None = None, *, https: bool | None = None
    ) -> None:
        from .handler import Service

        self.cassette, self.mirror = cassette, mirror
        wanted = cassette is not None and (Authority.available() if https is None else https)
        self._authority = Authority(image_store()) if wanted else None
        why = "https is answered where openssl is installed, and not with https=False; use http, or allow it"
        self._service = Service(cassette, mirror, self._authority, why)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._engines: dict[int, tuple[Engine, Engine]] = {}
        self._spare: dict[int, list[_Listener]] = {}
        self._all: list[tuple[Engine, _Listener]] = []
        self._selector = selectors.EpollSelector()
        self._wake_read, self._wake_write = os.pipe()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._thread: threading.Thread | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"Network({self.cassette!r}, {self.mirror!r}, https={self._authority is not None})"

    def engine(
        self,
        backend: str,
        *,
        isolation: str = "namespaces",
        visible: Sequence[str] | None = None,
        seccomp: bool = True,
        repeat: bool = False,
    ) -> Engine:
        """The engine of `engine_for` with this network: what `Sandbox.create` asks for."""
        if isolation == "none" and self.mirror is not None and self.mirror.prefix is not None:
            raise NetworkError(
                "without namespaces a package would be installed outside; use PackageMirror(…, prefix=None)"
            )
        etc: dict[str, str] = {}
        if self._authority is not None and isolation != "none":
            etc[_CERTIFICATES] = self._authority.certificate.read_text()
        inner = engine_for(backend, isolation=isolation, visible=visible, seccomp=seccomp, etc=etc, repeat=repeat)
        with self._lock:
            if self._closed:
                raise SandboxClosedError("this network is closed; make a new one")
            if id(inner) not in self._engines:
                self._engines[id(inner)] = (inner, cast(Engine, _NetworkEngine(inner, self)))
            return self._engines[id(inner)][1]

    @contextmanager
    def lease(self, inner: Engine) -> Iterator[_Listener]:
        """A listener for one command, in a network of its own where the engine has namespaces."""
        if os.getpid() != self._pid:
            raise NetworkError(
                f"this network belongs to process {self._pid}, and a forked process uses it; make one here"
            )
        with self._lock:
            if self._closed:
                raise SandboxClosedError("this network is closed; create sandboxes with a new one")
            spare = self._spare.setdefault(id(inner), [])
            listener = spare.pop() if spare else None
        if listener is None:
            listener = self._listen(inner)
        try:
            yield listener
        finally:
            with self._lock:
                self._spare[id(inner)].append(listener)

    def _listen(self, inner: Engine) -> _Listener:
        if isinstance(inner, BrokerEngine):
            listener = _Listener(*inner.listen(PORT))
        else:
            listener = _Listener(-1, socket.create_server(("127.0.0.1", 0), backlog=128))
        listener.socket.setblocking(False)
        with self._lock:
            self._all.append((inner, listener))
            self._selector.register(listener.socket, selectors.EVENT_READ, listener)
            if self._thread is None:
                self._thread = threading.Thread(target=self._accept, name="forkgym-network", daemon=True)
                self._thread.start()
        return listener

    def _accept(self) -> None:
        from .handler import serve_connection

        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                listener: _Listener = key.data
                try:
                    connection, _ = listener.socket.accept()
                except OSError:
                    continue  # it was closed, or the one who called is gone already
                if not listener.room.acquire(blocking=False):
                    connection.close()  # one command has all its connections open: it gets no more until one ends
                    continue
                connection.setblocking(True)
                arguments = (connection, self._service, listener.room.release)
                threading.Thread(target=serve_connection, args=arguments, daemon=True).start()

    def variables(self, listener: _Listener, present: Mapping[str, str]) -> dict[str, str]:
        """What is set for a command beside its own variables, which come first.

        Args:
            listener: Its lease.
            present: Its own variables.
        """
        host, port = listener.socket.getsockname()
        url = f"http://{host}:{port}"
        found: dict[str, str] = {}
        if self.cassette is not None:
            for name, value in (("http_proxy", url), ("https_proxy", url), ("no_proxy", "localhost,127.0.0.1,::1")):
                found |= {name: value, name.upper(): value}
        if self._authority is not None:
            inside = f"/etc/{_CERTIFICATES}" if listener.number >= 0 else str(self._authority.certificate)
            trusting = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO")
            found |= dict.fromkeys((*trusting, "NODE_EXTRA_CA_CERTS"), inside)
        own = {name: value for name, value in present.items() if name not in ("PATH", "PYTHONPATH")}
        if self.mirror is not None:
            found |= self.mirror.variables(url, present)
        return found | own

    def close(self) -> None:
        """Stop listening. Sandboxes of this network cannot run commands any more; twice is no error."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            everything, self._all, self._spare = self._all, [], {}
        os.write(self._wake_write, b"x")
        if self._thread is not None:
            self._thread.join()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        for inner, listener in everything:
            listener.socket.close()
            if isinstance(inner, BrokerEngine) and inner.alive:
                inner.unlisten(listener.number)

    def __enter__(self) -> Network:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _NetworkEngine:
    """An engine whose commands have a network: everything else is the inner engine's."""

    def __init__(self, inner: Engine, network: Network) -> None:
        self._inner, self._network = inner, network

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run(self, layer: Layer, command: Command) -> CompletedCommand:
        with self._network.lease(self._inner) as listener:
            variables = {**command.environment, **self._network.variables(listener, command.environment)}
            changed = msgspec.structs.replace(command, environment=variables, network=listener.number)
            return self._inner.run(layer, changed)
