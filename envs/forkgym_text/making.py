"""Makes TextWorld games, offline, and keeps them: equal recipes give equal bytes, on every machine and every day.

``python -m forkgym_text.making`` is the generator itself: it reads recipes as JSON and writes games. It runs in a
process of its own because the generator's choices depend on Python's hash seed, and because it is not to be trusted
with ours (it reads and writes the current directory's state and global random numbers).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from forkgym.core import TaskError
from forkgym_text.families import ATTEMPTS, Recipe, recipe
from forkgym_text.needs import cache_directory, need

__all__ = ["GameError", "fingerprint", "game_directory", "game_of_task", "make_games"]

STORY, TALE = "game.z8", "game.json"
_FORMAT = 1
_START_SECONDS, _SECONDS_A_GAME = 120.0, 120.0  # limits, for busy machines
_SERIAL = slice(0x12, 0x18)  # of a Z-machine story: the date of compilation, which the checksum does not cover


class GameError(TaskError):
    """A game cannot be made; the text says which and why."""


def game_directory(wanted: Recipe) -> Path:
    """Where the game of a recipe is kept, whether or not it is there."""
    need("textworld", "text", "Making TextWorld games")
    version = importlib.metadata.version("textworld")
    content = msgspec.json.encode((_FORMAT, version, wanted), order="deterministic")
    return cache_directory() / "textworld" / hashlib.blake2b(content, digest_size=12).hexdigest()


def make_games(wanted: Sequence[Recipe]) -> list[Path | None]:
    """The directories of games, made at the first call for their recipes and kept.

    A game takes about half a second, the start of the generator some seconds once a call.

    Returns:
        One directory a recipe; None where the generator does not permit the seed, which is remembered, too.

    Raises:
        GameError: The generator failed.
        ImportError: TextWorld is missing.
    """
    places = [game_directory(one) for one in wanted]
    missing = [
        index for index, place in enumerate(places) if not (place / STORY).is_file() and not _refused(place).is_file()
    ]
    if missing:
        shelf = places[0].parent
        shelf.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".making-", dir=shelf) as working:
            _generate([wanted[index] for index in missing], Path(working))
            for number, index in enumerate(missing):
                _keep(Path(working) / str(number), places[index])
    return [place if (place / STORY).is_file() else None for place in places]


def _refused(place: Path) -> Path:
    return place.with_suffix(".refused")


def _keep(made: Path, place: Path) -> None:
    if not (made / STORY).is_file():
        _refused(place).touch()
        return
    try:
        made.rename(place)
    except OSError:
        # Another process was faster; its bytes are the same.
        if not (place / STORY).is_file():
            raise


def game_of_task(family: str, level: int, split: str, task: int) -> Path:
    """The directory of a task's game: that of the first seed that the generator does not refuse.

    Raises:
        GameError: It refused all seeds, or failed.
    """
    for attempt in range(ATTEMPTS):
        [place] = make_games([recipe(family, level, split, task, attempt)])
        if place is not None:
            return place
    raise GameError(
        f"TextWorld could not make a game for task {task} of {family}, level {level}, split {split}: it refused "
        f"{ATTEMPTS} seeds. Choose another task or level."
    )


def fingerprint(place: Path) -> str:
    """BLAKE2b-128 of a game's story file: equal fingerprints answer alike."""
    return hashlib.blake2b((place / STORY).read_bytes(), digest_size=16).hexdigest()


def _generate(wanted: Sequence[Recipe], working: Path) -> None:
    """Run the generator in a process with a fixed hash seed; the i-th game goes into the directory named i."""
    root = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join([root, *[entry for entry in sys.path if entry]])
    environment = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "forkgym_text.making"],
            input=msgspec.json.encode(list(wanted)),
            cwd=working,
            env=environment,
            capture_output=True,
            timeout=_START_SECONDS + _SECONDS_A_GAME * len(wanted),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise GameError(f"TextWorld took more than {error.timeout:.0f} seconds for {len(wanted)} games.") from error
    if done.returncode != 0:
        raise GameError(
            f"TextWorld failed to make games (exit code {done.returncode}):\n"
            + done.stderr.decode(errors="replace")[-2000:]
        )


def main() -> int:
    """Read recipes from standard input and write the games into the current directory; the exit code."""
    wanted = msgspec.json.decode(sys.stdin.buffer.read(), type=list[Recipe])
    generator: Any = need("textworld.generator", "text", "Making TextWorld games")
    for number, one in enumerate(wanted):
        Path(str(number)).mkdir()
        try:
            _write_game(one, Path(str(number)))
        except generator.QuestGenerationError as error:
            print(f"{one}: {error}", file=sys.stderr)
    return 0


def _write_game(wanted: Recipe, place: Path) -> None:
    textworld: Any = need("textworld", "text", "Making TextWorld games")
    challenges: Any = need("textworld.challenges", "text", "Making TextWorld games")
    options = textworld.GameOptions()
    options.seeds = wanted.seed
    options.path = str(place / STORY)
    options.force_recompile = True
    make = challenges.CHALLENGES["tw-" + wanted.family.replace("-", "_")][1]
    game = make(dict(wanted.settings), options)
    textworld.generator.compile_game(game, options)
    story = bytearray((place / STORY).read_bytes())
    story[_SERIAL] = b"000000"
    (place / STORY).write_bytes(story)
    (place / STORY).with_suffix(".ni").unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
