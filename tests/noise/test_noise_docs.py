"""The example in the documentation of keyed noise runs as it stands there."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "noise.md"


def test_the_example_runs(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(example, str(PAGE), "exec"), {})
    assert re.fullmatch(r"\d \d\n", capsys.readouterr().out)
