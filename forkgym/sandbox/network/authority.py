"""A certificate authority that only sandboxes trust, so that a cassette can answer https.

Made by the openssl program; what is answered is not decided here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections import OrderedDict
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from ..images import ImageStore, process_mark
from ..inside.trees import remove_tree
from .exchange import NetworkError

if TYPE_CHECKING:
    import ssl

__all__ = ["Authority"]

_DAYS = "7300"
_KEPT = 256
_CONFIG = """\
[req]
distinguished_name = name
[name]
[authority]
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""


def _openssl(*arguments: str, text: str = "") -> str:
    program = shutil.which("openssl")
    if program is None:
        raise NetworkError(
            "https needs the program openssl on this machine, and it was not found; http works without it"
        )
    done = subprocess.run([program, *arguments], input=text, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise NetworkError(f"openssl {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout


class Authority:
    """The authority of one store, made at first use and kept. Its key never leaves the store's folder.

    Args:
        store: The store of images; the authority lies in a folder of it that only this user may read.

    Raises:
        NetworkError: There is no openssl here, or it failed.
    """

    def __init__(self, store: ImageStore) -> None:
        self._folder = store.root / "authority"
        self._work = store.root / "work"
        self._lock = threading.Lock()
        self._contexts: OrderedDict[str, ssl.SSLContext] = OrderedDict()
        if not (self._folder / "authority.pem").exists():
            self._make()

    @staticmethod
    def available() -> bool:
        """Whether there is an openssl to make one with."""
        return shutil.which("openssl") is not None

    @property
    def certificate(self) -> Path:
        """The file with the certificate that sandboxes trust."""
        return self._folder / "authority.pem"

    def _make(self) -> None:
        partial = self._work / f"authority-{process_mark(os.getpid())}-{os.urandom(4).hex()}"
        partial.mkdir(mode=0o700)
        try:
            config = partial / "openssl.cnf"
            config.write_text(_CONFIG)
            for name in ("authority", "server"):
                _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{partial}/{name}.key")
            shared = ("-config", str(config), "-new", "-sha256")
            authority = ("-subj", "/CN=forkgym sandbox", "-x509", "-days", _DAYS, "-extensions", "authority")
            _openssl("req", *shared, *authority, "-key", f"{partial}/authority.key", "-out", f"{partial}/authority.pem")
            server = ("-subj", "/CN=recorded", "-key", f"{partial}/server.key", "-out", f"{partial}/server.csr")
            _openssl("req", *shared, *server)
            try:
                partial.rename(self._folder)
            except OSError as error:
                # Another process may have made one meanwhile, which is as good as ours.
                if not self.certificate.exists():
                    raise NetworkError(f"the authority could not be stored in {self._folder}: {error}") from error
        finally:
            remove_tree(str(partial))

    def context(self, host: str) -> ssl.SSLContext:
        """What a server of this name needs for a TLS connection.

        Raises:
            NetworkError: It is no host name.
        """
        with self._lock:
            if host not in self._contexts:
                self._contexts[host] = self._new_context(host)
                if len(self._contexts) > _KEPT:
                    self._contexts.popitem(last=False)
            self._contexts.move_to_end(host)
            return self._contexts[host]

    def _new_context(self, host: str) -> ssl.SSLContext:
        try:
            name = f"IP:{ip_address(host)}"
        except ValueError:
            if not re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9_])?", host):
                raise NetworkError(f"{host!r} is no host name") from None
            name = f"DNS:{host}"
        folder = self._folder
        extensions = f"{_CONFIG}subjectAltName = {name}\n"
        certificate = _openssl(
            *("x509", "-req", "-sha256", "-days", _DAYS, "-in", f"{folder}/server.csr"),
            *("-CA", f"{folder}/authority.pem", "-CAkey", f"{folder}/authority.key"),
            *("-set_serial", str(int.from_bytes(os.urandom(15), "big") + 1)),
            *("-extensions", "server", "-extfile", "/dev/stdin"),
            text=extensions,
        )
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["http/1.1"])
        file = self._work / f"certificate-{process_mark(os.getpid())}-{os.urandom(4).hex()}"
        try:
            file.write_text(certificate)
            context.load_cert_chain(file, folder / "server.key")
        finally:
            file.unlink(missing_ok=True)
        return context
