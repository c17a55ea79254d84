"""The bench runs and its last line is one JSON object with the ratios."""

from __future__ import annotations

import json

import pytest

from bench.learner import main


@pytest.mark.slow
def test_the_bench_prints_its_ratios_as_json(capsys):
    assert main(["--json", "--sequences", "4", "--repeats", "1", "--widths", "128"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    for case in result["cases"].values():
        assert case["packed_over_naive"] > 0
        assert set(case["tokens_per_cpu_second"]) == {"auto", "packed-128", "padded", "naive"}
