"""Run methods in processes of their own, one a core, and gather their results.

A method is a training run under ``run.directory``; an interrupted demonstration resumes where it stopped.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.resources import as_file, files
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec

from forkgym.core.errors import ForkgymError
from forkgym.store import RunStore, StoreError
from forkgym.train.config import TrainConfig, parse_config
from forkgym.train.evaluate import CouplingResult
from forkgym.train.preflight import preflight
from forkgym.train.progress import TrainResult
from forkgym.train.tables import read_table

__all__ = ["DemoError", "DemoPlan", "MethodResult", "load_plan", "run_demo"]

RESULT_FILE = "result.msgpack"  # not JSON, which has no NaN
POLL_SECONDS = 10.0


class DemoError(ForkgymError):
    """A method's process failed; the message holds the end of what it printed."""


class MethodResult(msgspec.Struct, kw_only=True):
    """What one method came to.

    Attributes:
        training: The run's result.
        coupling: ρ at non-terminal decisions of the final policy, or ``None`` for methods without branches.
    """

    training: TrainResult
    coupling: CouplingResult | None = None


class DemoPlan(msgspec.Struct, kw_only=True):
    """Which methods are compared.

    Attributes:
        base: Tables of the configuration that all methods share.
        methods: Preset name → its arguments.
    """

    base: dict[str, Any]
    methods: dict[str, dict[str, Any]]

    def config(self, method: str, overrides: Sequence[str] = ()) -> TrainConfig:
        """Configuration of one method."""
        table = {
            **self.base,
            "run": {**self.base.get("run", {}), "name": method},
            "algorithm": {**self.methods[method], "name": method},
        }
        return parse_config(table, source="demo", overrides=overrides)


def load_plan(path: Path | None = None) -> DemoPlan:
    """Read a plan: a training configuration without ``[algorithm]`` and with one ``[methods.NAME]`` per method.

    Args:
        path: TOML file; the package's own demonstration by default.

    Raises:
        ConfigError: The file cannot be read or is not TOML.
        DemoError: It names no method.
    """
    if path is None:
        with as_file(files("forkgym.demo") / "demo.toml") as own:
            table = read_table(own)
    else:
        table = read_table(path)
    methods = table.pop("methods", {})
    if not isinstance(methods, dict) or not methods or not all(isinstance(one, dict) for one in methods.values()):
        raise DemoError("the demonstration names no method; add tables such as [methods.grpo]")
    return DemoPlan(base=table, methods=methods)


def run_demo(
    plan: DemoPlan,
    *,
    overrides: Sequence[str] = (),
    workers: int | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, MethodResult]:
    """Train every method of the plan, at most one a core at a time.

    Args:
        plan: What to compare.
        overrides: ``section.key=value`` strings for every method.
        workers: Processes at a time; by default the number of cores this process may use.
        say: Told a line now and then.

    Returns:
        Results in the plan's order.

    Raises:
        ConfigError: The plan or an override is wrong (before anything is started).
        DemoError: A method failed; the others were stopped.
    """
    configs = {method: plan.config(method, overrides) for method in plan.methods}
    for method, config in configs.items():
        preflight(config, source=f"demo, method {method}")
    lock = Lock()

    def say_alone(line: str) -> None:
        with lock:
            say(line)

    pool_size = workers or len(os.sched_getaffinity(0))
    processes: dict[str, subprocess.Popen[str]] = {}
    results: dict[str, MethodResult] = {}
    with ThreadPoolExecutor(max_workers=pool_size) as pool:
        tasks = {
            pool.submit(_run_method, method, config, processes, say_alone): method for method, config in configs.items()
        }
        try:
            for task in as_completed(tasks):
                results[tasks[task]] = task.result()
        except BaseException:
            for waiting in tasks:
                waiting.cancel()
            for process in processes.values():
                process.terminate()
            raise
    return {method: results[method] for method in plan.methods}


def _run_method(
    method: str, config: TrainConfig, processes: dict[str, subprocess.Popen[str]], say: Callable[[str], None]
) -> MethodResult:
    directory = config.run_directory
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "output.txt"
    started = time.monotonic()
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "forkgym.demo.worker"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        processes[method] = process
        if process.stdin is not None:
            process.stdin.write(msgspec.json.encode(config).decode())
            process.stdin.close()
        while True:
            try:
                code = process.wait(timeout=POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                line = _latest(directory)
                if line:
                    say(f"{method:<15} {line}")
    if code != 0:
        tail = log.read_text("utf-8", errors="replace")[-2000:]
        raise DemoError(f"{method} stopped with exit code {code}; the end of {log}:\n{tail}")
    say(f"{method:<15} done in {time.monotonic() - started:.0f} s")
    return msgspec.msgpack.decode((directory / RESULT_FILE).read_bytes(), type=MethodResult)


def _latest(directory: Path) -> str:
    """One line on a run in progress; empty while it has recorded nothing."""
    try:
        with RunStore.open(directory) as store:
            rows: Sequence[Mapping[str, Any]] = store.metrics()
    except StoreError:
        # The run's process has not written its record yet; there is nothing to tell.
        return ""
    if not rows:
        return ""
    recent = rows[-5:]
    success = sum(float(row["success"]) for row in recent) / len(recent)
    return f"{100 * float(rows[-1]['progress']):3.0f} % of the tokens, training success {success:.2f}"
