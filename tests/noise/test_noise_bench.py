"""The sampler bench prints a table and, with --json, one JSON object as its last line."""

import json

import pytest

pytest.importorskip("numba", reason="numba is not installed")
pytest.importorskip("torch", reason="torch is not installed")


def test_the_bench_reports_every_sampler_and_its_acceptance(monkeypatch, capsys):
    from bench import sampler_overhead

    monkeypatch.setattr(sampler_overhead, "VOCABULARIES", (1_000, 32_000))
    monkeypatch.setattr(sampler_overhead, "BATCHES", (1,))
    status = sampler_overhead.main(["--json", "--seconds", "0.002"])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert status == (0 if result["accepted"] else 1)
    assert len(result["rows"]) == 2 * 1 * 2 * 7
    assert all(row["ns_per_entry"] > 0 for row in result["rows"])
    assert {row["ratio_to_torch"] for row in result["rows"] if row["sampler"] == sampler_overhead.TORCH} == {1.0}
