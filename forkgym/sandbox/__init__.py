"""Forkable sandboxes: a directory tree, commands in it, snapshots and forks in a fraction of a millisecond.

Start with `Sandbox.create`. A state is a tuple of frozen overlay layers, a working directory and variables; a broker
process keeps the layers and runs the commands of all sandboxes in namespaces of their own.
"""

from __future__ import annotations

from .collecting import Collected, StoredImage, collect, stored_images
from .engines import BACKENDS, ProbeResult, close_engines, engine_for, image_store, probe
from .errors import BackendUnavailableError, SandboxClosedError, SandboxError, SandboxPathError
from .images import Image, ImageStore
from .limits import DETERMINISTIC_ENVIRONMENT, Limits
from .network import HttpCassette, Miss, Network, NetworkError, PackageMirror
from .output import CompletedCommand
from .repeat import Clock
from .sandbox import DEFAULT_SCRATCH, MAXIMUM_DEPTH, TREE, Change, Sandbox, Snapshot

__all__ = [
    "BACKENDS",
    "DEFAULT_SCRATCH",
    "DETERMINISTIC_ENVIRONMENT",
    "MAXIMUM_DEPTH",
    "TREE",
    "BackendUnavailableError",
    "Change",
    "Clock",
    "Collected",
    "CompletedCommand",
    "HttpCassette",
    "Image",
    "ImageStore",
    "Limits",
    "Miss",
    "Network",
    "NetworkError",
    "PackageMirror",
    "ProbeResult",
    "Sandbox",
    "SandboxClosedError",
    "SandboxError",
    "SandboxPathError",
    "Snapshot",
    "StoredImage",
    "close_engines",
    "collect",
    "engine_for",
    "image_store",
    "prepare",
    "probe",
    "stored_images",
]


def prepare(base: str, *, skip: tuple[str, ...] = ()) -> Image:
    """Make a base image of a directory, once, to create many sandboxes on.

    Args:
        base: The directory.
        skip: Names left out wherever they occur.
    """
    return image_store().admit(base, skip=skip)
