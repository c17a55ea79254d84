"""Where real question files lie: `$FORKGYM_DATA`, else `../shared/data` beside the repository; tests skip without."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_directory():
    given = os.environ.get("FORKGYM_DATA")
    directory = Path(given) if given else Path(__file__).resolve().parents[3].parent / "shared" / "data"
    if not directory.is_dir():
        pytest.skip(f"no real data at {directory}; set FORKGYM_DATA to its directory")
    return directory
