"""The engine's benchmark runs, compares within one run, and prints one JSON object as its last line."""

from __future__ import annotations

import json

from bench import engine_throughput


def test_the_last_line_is_one_json_object_with_ratios_and_mismatches(capsys, monkeypatch):
    monkeypatch.setattr(engine_throughput, "VOCABULARY", 64)
    measure = engine_throughput.measure
    monkeypatch.setattr(engine_throughput, "measure", lambda model, **o: measure(model, batches=(1, 4), **o))
    assert engine_throughput.main(["--json", "--tokens", "4", "--repeats", "1"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["bench"] == "engine_throughput"
    assert result["batch_invariant"] is True
    assert set(result["ratio_to_plain"]) == set(result["tokens_per_second"]["engine"]) == {"1", "4"}
    assert result["ratio_to_batch_1"]["1"] == 1.0
    assert result["mismatches"]["invariant"] == {"tokens": 64, "changed_tokens": 0, "identical": True}
    assert "huggingface" in result["mismatches"]
