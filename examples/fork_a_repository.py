"""Fork a working tree: run the same test on two repairs of one bug, and keep the one that passes."""

import tempfile
from pathlib import Path

from forkgym.sandbox import BackendUnavailableError, Sandbox

BUGGY = "def middle(values):\n    return sorted(values)[len(values) // 2 + 1]\n"
TEST = "from median import middle\n\nassert middle([3, 1, 2]) == 2\nassert middle([5]) == 5\nprint('passed')\n"
REPAIRS = {"drop the sum": ("// 2 + 1", "// 2"), "other sum": ("// 2 + 1", "// 2 - 1")}

with tempfile.TemporaryDirectory() as folder:
    Path(folder, "median.py").write_text(BUGGY)
    Path(folder, "test_median.py").write_text(TEST)
    try:
        sandbox = Sandbox.create(folder)
    except BackendUnavailableError as error:
        print(f"{error}\nHere the files of the forks are kept apart, and nothing else:")
        sandbox = Sandbox.create(folder, isolation="none")

    print("before any repair:", sandbox.run("python3 test_median.py").stderr.splitlines()[-1])
    for name, (old, new) in REPAIRS.items():
        attempt = sandbox.fork()
        attempt.write("median.py", attempt.read("median.py").decode().replace(old, new))
        done = attempt.run("python3 test_median.py")
        print(f"{name}: exit code {done.exit_code}")
        if done.ok:
            print(attempt.patch(), end="")
    print("the parent is as it was:", sandbox.diff() == ())
