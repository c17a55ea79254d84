"""Writes an Atlas world as files in Search-R1's form, for ``retrieval/QA-v0`` or any other program.

``python -m forkgym_retrieval.atlas.export --world small DIRECTORY`` writes ``corpus.jsonl`` and one file of questions
a split.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from forkgym_retrieval.atlas.questions import Question, load_questions
from forkgym_retrieval.atlas.world import WORLDS, World, load_world


def corpus_rows(world: World) -> Iterator[dict[str, str]]:
    r"""The passages as ``{"id": …, "contents": "\"Title\"\ntext"}``; a distractor's title is empty."""
    for passage in world.passages:
        yield {"id": passage.id, "contents": f'"{passage.title}"\n{passage.text}'}


def question_rows(questions: Iterable[Question]) -> Iterator[dict[str, Any]]:
    """Questions as ``{"id": …, "question": …, "golden_answers": […], "metadata": …}``."""
    for question in questions:
        yield {
            "id": question.id,
            "question": question.text,
            "golden_answers": list(question.golds),
            "metadata": {"hops": question.hops, "chain": question.chain},
        }


def export(directory: str | os.PathLike[str], *, world: str = "default", relabel: int | None = None) -> list[Path]:
    """Writes the corpus and the questions of a world.

    Each file appears whole or not at all.

    Args:
        directory: Where to; made if it is missing. Files of the same names are replaced.
        world: Name of the world.
        relabel: Seed of a false world, or None.

    Returns:
        The files: ``corpus.jsonl``, then ``SPLIT.jsonl`` for each split.
    """
    target = Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    files = [_write(target / "corpus.jsonl", corpus_rows(load_world(world, relabel)))]
    for split, questions in load_questions(world, relabel).items():
        files.append(_write(target / f"{split}.jsonl", question_rows(questions)))
    return files


def _write(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    half = path.with_suffix(".partial")
    half.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    half.replace(path)
    return path


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m forkgym_retrieval.atlas.export",
        description="Writes an Atlas world as JSON Lines in Search-R1's form.",
    )
    parser.add_argument("directory", help="where to write corpus.jsonl and the questions of each split")
    parser.add_argument("--world", choices=sorted(WORLDS), default="default")
    parser.add_argument("--relabel", type=int, default=None, help="seed of a false world")
    given = parser.parse_args(arguments)
    for path in export(given.directory, world=given.world, relabel=given.relabel):
        print(path)


if __name__ == "__main__":
    main()
