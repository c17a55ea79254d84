"""What commands reach instead of the world: recorded HTTP answers and a frozen package index."""

from __future__ import annotations

from .cassette import HttpCassette, Miss
from .exchange import Answer, NetworkError, Request, Rules
from .gateway import Network
from .mirror import PackageMirror

__all__ = ["Answer", "HttpCassette", "Miss", "Network", "NetworkError", "PackageMirror", "Request", "Rules"]
