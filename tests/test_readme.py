"""The README's example runs, and what it links to exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_that_forks_runs_and_proves_what_it_says(tmp_path: Path) -> None:
    [program] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "Paris is the capital of France" in lines[0]
    assert lines[1:] == ["True", "True"]


def test_every_link_of_the_documentation_leads_somewhere() -> None:
    broken: list[str] = []
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]:
        targets = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        broken += [
            f"{page.relative_to(ROOT)} -> {target}"
            for target in targets
            if "://" not in target and not (page.parent / target).exists()
        ]
    assert not broken
