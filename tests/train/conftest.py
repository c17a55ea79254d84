"""A random policy, made once; torch keeps to one thread."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    from tests.faults.runs import make_checkpoint

    return make_checkpoint(tmp_path_factory.mktemp("policy") / "tiny")
