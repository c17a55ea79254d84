"""Every Python block of docs/environments.md runs, in order, and leaves a test case that passes."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"


def test_the_blocks_of_the_page_run_in_order(capsys):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 8
    namespace = {"__name__": "docs_environments"}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{PAGE.name}, block {number}", "exec"), namespace)
    assert capsys.readouterr().out.startswith("0 "), "the changed handle must diverge at its reset"
    namespace["TestWalk"].settings = __import__("hypothesis").settings(namespace["TestWalk"].settings, max_examples=15)
    namespace["TestWalk"]("runTest").debug()


def test_the_first_environment_takes_25_lines():
    block = PAGE.read_text().split("```python\n")[1].split("```")[0]
    lines = [line for line in block.splitlines() if line.strip()]
    start = next(index for index, line in enumerate(lines) if line.startswith("class "))
    assert len(lines) - start <= 25
