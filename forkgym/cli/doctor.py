"""``forkgym doctor``: versions, processor, extras, data, and whether this machine keeps the bit-exact promise."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from forkgym._version import __version__
from forkgym.cli.command import OK, Command
from forkgym.cli.extras import installed_version, missing_by_extra
from forkgym.console import Console

__all__ = ["DOCTOR", "examine"]

_PACKAGES = (
    "gymnasium",
    "numpy",
    "msgspec",
    "torch",
    "transformers",
    "tokenizers",
    "peft",
    "numba",
    "scipy",
    "bm25s",
    "matplotlib",
    "rich",
)
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-check", action="store_true", help="skip the self-check of the engine (a few seconds)")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")


def _doctor(arguments: argparse.Namespace, console: Console) -> int:
    found = examine(check_engine=not arguments.no_check)
    if arguments.json:
        console.json(found)
        return OK
    for section, content in found.items():
        console.line(section)
        if not content:
            console.line("  (none)")
        for name, value in content.items():
            console.line(f"  {name:<24} {value}")
    return OK


def examine(*, check_engine: bool = True) -> dict[str, dict[str, Any]]:
    """What ``forkgym doctor`` prints: section → name → finding.

    Args:
        check_engine: Build a small random model and check that its engine is batch invariant.
    """
    found: dict[str, dict[str, Any]] = {
        "software": {"forkgym": __version__, "python": platform.python_version(), "executable": sys.executable}
        | {name: installed_version(name) or "not installed" for name in _PACKAGES},
        "machine": _machine(),
        "torch": _torch() if find_spec("torch") is not None else {},
        "data": _data(),
        "sandbox": _sandbox(),
        "missing extras": {
            extra: f"{', '.join(names)}  (pip install 'forkgym[{extra}]')"
            for extra, names in missing_by_extra().items()
        },
    }
    if check_engine:
        found["promises"] = _promises()
    return found


def _machine() -> dict[str, Any]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    rows: dict[str, Any] = {"system": platform.platform(), "processor": _processor(), "usable cores": cores}
    if hasattr(os, "sysconf"):
        rows["memory"] = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB"
    rows |= {name: os.environ[name] for name in _THREAD_VARIABLES if name in os.environ}
    return rows


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")


def _torch() -> dict[str, Any]:
    import torch

    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "build": f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only",
        "devices": ", ".join(devices) or "cpu",
        "threads": torch.get_num_threads(),
        "cpu capability": torch.backends.cpu.get_cpu_capability(),
    }


def _data() -> dict[str, Any]:
    folder = os.environ.get("FORKGYM_DATA")
    if folder is None:
        return {"FORKGYM_DATA": "not set (needed only for corpora and questions of your own)"}
    path = Path(folder).expanduser()
    if not path.is_dir():
        return {"FORKGYM_DATA": f"{folder} is not a directory; set it to the directory with your data"}
    return {"FORKGYM_DATA": f"{folder} ({sum(1 for _ in path.iterdir())} entries)"}


def _sandbox() -> dict[str, Any]:
    """Every way to keep and run sandboxes, tried on this machine."""
    from forkgym.sandbox import SandboxError, image_store, probe, stored_images

    try:
        results = probe()
        images = stored_images(image_store())
    except (SandboxError, OSError) as error:
        return {"sandbox": f"the probe failed: {error}"}
    return {
        f"{result.backend}, {'isolated' if result.isolation == 'namespaces' else 'files only'}": (
            f"{'yes' if result.available else 'no'}: {result.reason}"
        )
        for result in results
    } | {
        "base images": f"{len(images)}, {sum(image.bytes for image in images) >> 20} MiB in {image_store().root} "
        "(forkgym.sandbox.collect removes the unused)"
    }


def _promises() -> dict[str, Any]:
    """The noise's known answer, and the engine's own check at start: 64 rows against fewer, bit for bit."""
    from forkgym.noise import philox4x32

    words = " ".join(f"{word:08x}" for word in philox4x32(0, 0))
    correct = words == "6627e8d5 e169c58d bc57ac4c 9b00dbd8"
    rows: dict[str, Any] = {"noise, known answer": "correct" if correct else f"WRONG: {words}; do not use it"}
    if find_spec("torch") is None or find_spec("transformers") is None:
        return rows | {"batch invariance": "not checked (pip install 'forkgym[train]')"}
    from forkgym.policy.tiny import build_model
    from forkgym.policy.torch_engine import TorchEngine

    try:
        engine = TorchEngine(build_model(64, hidden_size=32, heads=2), device="cpu", forward="invariant")
    except (ValueError, RuntimeError) as error:
        return rows | {"batch invariance": f"the check failed: {error}"}
    if engine.batch_invariant:
        verdict = f"yes: a policy's logits do not depend on its batch (products: {engine.product_mode})"
    else:
        verdict = "no: results may depend on the batch; use policy.max_running = 1 for bit-exact runs"
    return rows | {"batch invariance": verdict}


DOCTOR = Command("Say what this machine and this installation can do, and what is missing.", _configure, _doctor)
