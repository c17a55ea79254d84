"""Removing base images: by age, by size, the one unused for longest first, and never one that is in use."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from forkgym.sandbox import ImageStore, SandboxError, collect, stored_images
from forkgym.sandbox.images import process_mark

_DAY = 86_400


def _fill(store: ImageStore, folder: Path, ages: dict[str, float]) -> dict[str, str]:
    """Images last used so many days ago, and their ids; made as by a process that has ended."""
    ids, past = {}, ImageStore(store.root)
    for name, days in ages.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "content").write_text(name * 5_000)
        ids[name] = past.admit(folder / name).id
        then = time.time() - days * _DAY
        os.utime(store.root / "manifests" / f"{ids[name]}.json", (then, then))
    for mark in (store.root / "used").iterdir():
        mark.unlink()
    return ids


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "store")


def test_what_nobody_used_for_long_goes(store: ImageStore, tmp_path: Path) -> None:
    ids = _fill(store, tmp_path, {"young": 1, "old": 40, "older": 50})
    told = collect(store=ImageStore(store.root), dry_run=True)
    assert [image.id for image in stored_images(store)] == [ids["older"], ids["old"], ids["young"]]
    done = collect(store=ImageStore(store.root))
    assert done == told
    assert done.removed == (ids["older"], ids["old"])
    assert [image.id for image in stored_images(store)] == [ids["young"]]
    assert os.listdir(store.images) == [ids["young"]]
    assert done.kept == 1
    assert done.kept_bytes == stored_images(store)[0].bytes >= 25_000
    assert list((store.root / "work").iterdir()) == []
    assert collect(store=store, unused_days=None).removed == ()
    again = ImageStore(store.root).admit(tmp_path / "old")
    assert again.id == ids["old"]
    assert (again.path / "tree" / "content").read_text().startswith("old")


def test_a_size_removes_the_oldest_first(store: ImageStore, tmp_path: Path) -> None:
    ids = _fill(store, tmp_path, {"aaa": 3, "bbb": 2, "ccc": 1})
    sizes = {image.id: image.bytes for image in stored_images(store)}
    done = collect(store=ImageStore(store.root), unused_days=None, most_bytes=sum(sizes.values()) - 1)
    assert done.removed == (ids["aaa"],)
    assert done.removed_bytes == sizes[ids["aaa"]]
    assert collect(store=ImageStore(store.root), most_bytes=0).removed == (ids["bbb"], ids["ccc"])
    with pytest.raises(SandboxError, match="below zero"):
        collect(store=store, most_bytes=-1)


_HOLD = (
    "import sys; from forkgym.sandbox import ImageStore; from pathlib import Path; ImageStore(Path(sys.argv[1])).admit"
)
_HOLD += "(sys.argv[2]); print('held', flush=True); sys.stdin.read()"


def test_what_a_running_process_uses_stays(store: ImageStore, tmp_path: Path) -> None:
    ids = _fill(store, tmp_path, {"mine": 99, "theirs": 99, "nobodys": 99})
    store.admit(tmp_path / "mine")
    command = [sys.executable, "-c", _HOLD, str(store.root), str(tmp_path / "theirs")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert collect(store=ImageStore(store.root), most_bytes=0).removed == (ids["nobodys"],)
        assert {image.id: image.in_use for image in stored_images(store)} == {ids["mine"]: True, ids["theirs"]: True}
        process.communicate("")
    assert collect(store=ImageStore(store.root), most_bytes=0).removed == (ids["theirs"],)
    assert [process_mark(os.getpid()) in name for name in os.listdir(store.root / "used")] == [True]


def test_collecting_and_admitting_at_once_never_takes_what_was_just_given(store: ImageStore, tmp_path: Path) -> None:
    """One thread removes all it may while others ask for images: each that was given is whole."""
    _fill(store, tmp_path, {f"n{number}": 99 for number in range(6)})
    stop, failures = threading.Event(), []

    def remove() -> None:
        while not stop.is_set():
            collect(store=ImageStore(store.root), most_bytes=0)

    def ask(number: int) -> None:
        for _ in range(5):
            image = ImageStore(store.root).admit(tmp_path / f"n{number}")
            if not (image.path / "tree" / "content").read_text().startswith(f"n{number}"):
                failures.append(number)

    remover = threading.Thread(target=remove)
    askers = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    remover.start()
    for thread in askers:
        thread.start()
    for thread in askers:
        thread.join()
    stop.set()
    remover.join()
    assert failures == []
    assert len(os.listdir(store.images)) == 6
