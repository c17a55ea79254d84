"""No test of this directory may leave an environment open."""

from __future__ import annotations

import pytest

from tests.rollout.lamps import Lamps


@pytest.fixture(autouse=True)
def nothing_stays_open():
    before = Lamps.live
    yield
    assert Lamps.live == before, f"{Lamps.live - before} environments were left open"
