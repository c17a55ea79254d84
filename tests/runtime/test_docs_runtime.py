"""The Python blocks of docs/runtime.md run, in order, and print what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench import runtime as bench_runtime

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "runtime.md"


def test_the_blocks_of_the_page_run_in_order() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines() == ["[1.0, 0.0, 1.0]", "[1.0, 2.0, 3.0]"], done.stderr
    assert done.stderr == "", "the runtime is quiet by default"


@pytest.mark.slow
def test_the_benchmark_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_runtime.main(["--messages", "400", "--actors", "20", "--repeats", "1", "--json"]) == 0
    assert '"bench": "runtime"' in capsys.readouterr().out
