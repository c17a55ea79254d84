"""Which backend this machine can carry: real probes, the reasons, and the engines of this process."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence

import msgspec

from .broker import BrokerEngine
from .engine import Engine
from .errors import BackendUnavailableError, SandboxError
from .images import ImageStore, process_mark
from .inside import seccomp as system_calls
from .inside.trees import remove_tree
from .limits import Limits, is_own_place, visible_directories
from .local import LocalEngine, supports_reflink
from .repeat import compiled_repeat

__all__ = ["BACKENDS", "ProbeResult", "close_engines", "engine_for", "image_store", "probe"]

BACKENDS = ("overlay", "overlay-root", "reflink", "copy")
"""In the order in which ``auto`` tries them."""

_Key = tuple[int, str, str, str, tuple[str, ...], bool, tuple[tuple[str, str], ...], bool]
_engines: dict[_Key, Engine] = {}
_failures: dict[_Key, str] = {}
_stores: dict[tuple[int, str], ImageStore] = {}
_lock = threading.RLock()


class ProbeResult(msgspec.Struct, frozen=True):
    """Whether one backend works here, found by using it.

    Attributes:
        backend: Its name.
        isolation: ``namespaces`` or ``none``.
        available: It worked.
        reason: What happened.
    """

    backend: str
    isolation: str
    available: bool
    reason: str


def _store_name() -> str:
    """Part of every engine's key: an engine shows the images of one store only."""
    return os.environ.get("FORKGYM_SANDBOX_STORE", "")


def image_store() -> ImageStore:
    """The store of this process, cleaned of what dead processes left."""
    key = (os.getpid(), _store_name())
    with _lock:
        if key not in _stores:
            _stores[key] = ImageStore()
            _stores[key].clean()
        return _stores[key]


def _make(
    backend: str,
    isolation: str,
    visible: tuple[str, ...],
    seccomp: bool,
    etc: tuple[tuple[str, str], ...] = (),
    repeat: bool = False,
) -> Engine:
    store = image_store()
    preload = compiled_repeat(store) if repeat else None
    if isolation == "none":
        if backend not in ("reflink", "copy"):
            raise BackendUnavailableError(f"backend {backend} always isolates; isolation='none' goes with copies")
        if backend == "reflink" and not supports_reflink(store.root / "work"):
            raise BackendUnavailableError(
                f"the file system of {store.root} shares no blocks (btrfs, XFS and bcachefs do)"
            )
        return LocalEngine(store, reflink=backend == "reflink", preload=preload)
    if seccomp and not system_calls.supported():
        raise BackendUnavailableError(f"there is no system-call table for {os.uname().machine}; use seccomp=False")
    if backend == "reflink":
        raise BackendUnavailableError("reflink copies go with isolation='none'; isolated copies lie on a tmpfs")
    if backend == "overlay-root" and os.geteuid() != 0:
        raise BackendUnavailableError("overlay-root needs root; this is user " + str(os.geteuid()))
    kind = "copy" if backend == "copy" else "overlay"
    try:
        engine = BrokerEngine(
            store,
            backend=kind,
            user_namespace=backend != "overlay-root",
            visible=visible,
            seccomp=seccomp,
            etc=dict(etc),
            preload=preload,
        )
    except OSError as error:
        raise BackendUnavailableError(f"the broker could not start: {error}") from None
    try:
        _try(engine)
    except BaseException:
        engine.close()
        raise
    return engine


def _try(engine: BrokerEngine) -> None:
    """Use an engine once: replace a directory of a base and look at it from a command."""
    from .sandbox import Sandbox, Snapshot

    store = image_store()
    source = store.root / "work" / f"probe-{process_mark(os.getpid())}-{os.urandom(4).hex()}"
    (source / "folder").mkdir(parents=True)
    try:
        (source / "folder" / "file").write_text("base")
        image = store.admit(source)
    finally:
        remove_tree(str(source))
    sandbox = Sandbox(Snapshot(engine, image, (), "/testbed", {}), Limits(), (), "/bin/sh")
    try:
        done = sandbox.run("rm -r folder && mkdir folder && echo new > folder/other && ls folder && id -u")
    except OSError as error:
        raise BackendUnavailableError(f"a command could not be started: {error.strerror}") from None
    if done.exit_code or done.stdout.split()[0] != "other":
        raise BackendUnavailableError(f"replacing a directory of the base failed: {done.stderr.strip()}")


def engine_for(
    backend: str = "auto",
    *,
    isolation: str = "namespaces",
    visible: Sequence[str] | None = None,
    seccomp: bool = True,
    etc: Mapping[str, str] | None = None,
    repeat: bool = False,
) -> Engine:
    """The engine of this process for these options, started at first use.

    Args:
        backend: See `BACKENDS`.
        isolation: ``namespaces`` or ``none``.
        visible: Directories of the host that commands may read.
        seccomp: Filter system calls.
        etc: More files for the sandbox's own ``/etc``: path below it → text.
        repeat: With the library behind ``random_seed`` and ``clock``.

    Raises:
        BackendUnavailableError: It does not work on this machine, or with ``auto`` none does.
        SandboxError: An unknown name.
    """
    if isolation not in ("namespaces", "none"):
        raise SandboxError(f"isolation is {isolation!r}; it is 'namespaces' or 'none'")
    if backend not in ("auto", *BACKENDS):
        raise SandboxError(f"there is no backend {backend!r}; there are auto, {', '.join(BACKENDS)}")
    places = visible_directories() if visible is None else tuple(visible)
    for place in places:
        if not os.path.isabs(place) or not os.path.isdir(place):
            raise SandboxError(f"visible place {place!r} is no absolute path of a directory")
        if is_own_place(place):
            raise SandboxError(f"visible place {place!r} cannot be shown: the sandbox has its own files there")
    names = BACKENDS if backend == "auto" else (backend,)
    more = tuple(sorted((etc or {}).items()))
    reasons = []
    with _lock:
        for name in names:
            key = (os.getpid(), _store_name(), name, isolation, places, seccomp, more, repeat)
            if key in _engines and _engines[key].alive:
                return _engines[key]
            if key not in _failures:
                try:
                    _engines[key] = _make(name, isolation, places, seccomp, more, repeat)
                    return _engines[key]
                except BackendUnavailableError as error:
                    _failures[key] = str(error)
            reasons.append(f"{name}: {_failures[key]}")
    text = "; ".join(reasons)
    if isolation == "namespaces":
        text += (
            ". isolation='none' works anywhere: it keeps the files of forks apart and limits what commands use, but "
            "it does not keep them from the host's files, processes and network"
        )
    raise BackendUnavailableError(f"no isolated sandbox on this machine: {text}" if isolation != "none" else text)


def close_engines() -> None:
    """End all brokers of this process; its sandboxes are lost. Later sandboxes start new ones."""
    with _lock:
        for key in [key for key in _engines if key[0] == os.getpid()]:
            _engines.pop(key).close()
        _failures.clear()


def probe() -> list[ProbeResult]:
    """Try every backend on this machine and say what happened; engines that were not in use are ended again."""
    results = []
    for isolation in ("namespaces", "none"):
        for backend in BACKENDS:
            if isolation == "none" and backend.startswith("overlay"):
                continue
            if isolation == "namespaces" and backend == "reflink":
                continue
            results.append(_probe_one(backend, isolation))
    return results


def _probe_one(backend: str, isolation: str) -> ProbeResult:
    places = visible_directories()
    with _lock:
        used = _engines.get((os.getpid(), _store_name(), backend, isolation, places, True, (), False))
    if used is not None and not used.alive:
        used = None
    try:
        engine = used or _make(backend, isolation, places, True)
    except BackendUnavailableError as error:
        return ProbeResult(backend, isolation, False, str(error))
    spawner = ""
    if isinstance(engine, BrokerEngine):
        spawner = ", commands start by compiled code" if engine.compiled else ", commands start by Python (no compiler)"
    if used is None:
        engine.close()
    what = "files are kept apart; processes are NOT isolated" if isolation == "none" else f"isolated{spawner}"
    return ProbeResult(backend, isolation, True, what)
