"""The numpy engines and the part all engines share: exact draws, stop rules, caches' books, errors that help."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import numpy as np
import pytest
from scipy.stats import chisquare

from forkgym.noise import behaviour_logprobs
from forkgym.policy.engine import Engine, Sampling
from forkgym.policy.scripted import RandomEngine, ScriptedEngine, TableEngine
from forkgym.policy.serving import generate, measure_mismatch, nucleus_supports
from tests.policy.models import make_request

LOGITS = np.array([0.5, -1.0, 2.0, 0.0, 1.0, -np.inf], dtype=np.float32)


def table(**options):
    return TableEngine(lambda context: np.roll(LOGITS, len(context) % 2), **options)


def request(context=(3, 2), **options):
    return make_request(list(context), vocabulary_size=6, **options)


def test_the_engines_speak_the_protocol():
    assert isinstance(table(), Engine)
    assert isinstance(RandomEngine(5), Engine)


def test_importing_the_scripted_engines_loads_neither_torch_nor_transformers():
    heavy = "{'torch', 'transformers'} & set(sys.modules)"
    code = f"import sys, forkgym.policy.scripted, forkgym.policy.chat; sys.exit(bool({heavy}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_drawn_tokens_follow_the_behaviour_distribution():
    """Chi-square at N = 20,000; a correct engine fails once in 10,000 (the keys are fixed, so it does not flicker)."""
    sampling = Sampling(max_tokens=100, temperature=0.8, top_p=0.9)
    engine = TableEngine(lambda context: LOGITS, max_running=200)
    requests = [request(episode=e, sampling=sampling, keep_cache=False) for e in range(200)]
    drawn = np.concatenate([completion.tokens for completion in generate(engine, requests)])
    expected = np.exp(behaviour_logprobs(LOGITS[None], 0.8, 0.9)[0])
    counts = np.bincount(drawn, minlength=6)
    assert counts[expected == 0].sum() == 0
    assert chisquare(counts[expected > 0], expected[expected > 0] * len(drawn)).pvalue > 1e-4


def test_a_completion_tells_the_behaviour_distributions_statistics():
    sampling = Sampling(max_tokens=3, temperature=0.7, top_p=0.95)
    completion = generate(table(), [request(sampling=sampling)])[0]
    context = [3, 2]
    for token, logprob, entropy, gini_impurity in zip(
        completion.tokens, completion.logprobs, completion.entropies, completion.gini_impurities, strict=True
    ):
        row = behaviour_logprobs(np.roll(LOGITS, len(context) % 2)[None], 0.7, 0.95)[0]
        probabilities = np.exp(row)
        support = probabilities > 0
        assert logprob == pytest.approx(row[token], abs=1e-12)
        assert entropy == pytest.approx(-(probabilities[support] * row[support]).sum(), abs=1e-12)
        assert gini_impurity == pytest.approx(1 - (probabilities**2).sum(), abs=1e-12)
        context.append(token)


def test_a_completion_keeps_the_nucleus_that_each_token_was_drawn_from():
    sampling = Sampling(max_tokens=3, temperature=0.7, top_p=0.95)
    completion = generate(table(), [request(sampling=sampling)])[0]
    expected = []
    for length in range(2, 2 + len(completion.tokens)):
        row = behaviour_logprobs(np.roll(LOGITS, length % 2)[None], 0.7, 0.95)[0]
        expected.append(np.flatnonzero(np.isfinite(row)).tolist())
    assert completion.supports == expected
    assert any(len(support) < 5 for support in expected)
    for whole in (Sampling(max_tokens=3), Sampling(max_tokens=3, greedy=True, top_p=0.5)):
        assert generate(table(), [request(sampling=whole)])[0].supports is None


def test_a_sampled_token_is_in_its_support_even_where_rounding_decides_about_the_edge():
    logits = np.log(np.array([[0.5, 0.3, 0.2]], dtype=np.float32))
    assert nucleus_supports(logits, np.array([0]), 1.0, 0.6) == [[0, 1]]
    assert nucleus_supports(logits, np.array([2]), 1.0, 0.6) == [[0, 1, 2]]


def test_greedy_takes_the_lowest_id_among_equals():
    engine = TableEngine(lambda context: [1.0, 3.0, 3.0, 0.0])
    sampling = Sampling(max_tokens=2, greedy=True)
    assert generate(engine, [make_request([0], vocabulary_size=4, sampling=sampling)])[0].tokens == [1, 1]


def test_tokens_do_not_depend_on_companions_or_on_the_order_of_submission():
    requests = [request(episode=e) for e in range(9)]

    def served(order, max_running):
        copies = [msgspec.structs.replace(requests[i], keys=requests[i].keys.copy()) for i in order]
        done = generate(table(max_running=max_running), copies)
        return {i: completion.tokens for i, completion in zip(order, done, strict=True)}

    assert served(range(9), 9) == served([8, 2, 5, 0, 7, 1, 3, 6, 4], 2)
    assert measure_mismatch(table(), requests).identical


def test_a_mismatch_is_seen_when_companions_do_change_the_logits():
    class Leaky(TableEngine):
        def _advance(self, turns):
            ready, logits = super()._advance(turns)
            return ready, logits + np.linspace(0, 3, 6, dtype=np.float32) * (len(turns) > 1)

    report = measure_mismatch(Leaky(lambda context: LOGITS), [request(episode=e) for e in range(20)])
    assert not report.identical
    assert report.changed_requests > 0
    assert 0 < report.rate <= 1


def test_a_turn_ends_at_its_stop_token_its_length_or_the_contexts_limit():
    script = ScriptedEngine(lambda context: [2, 3, 1], 6, max_context=9)
    stop, length = generate(script, [request(), request(sampling=Sampling(max_tokens=2, stop_tokens=(1,)))])
    assert (stop.tokens, stop.finish_reason) == ([2, 3, 1], "stop")
    assert (length.tokens, length.finish_reason) == ([2, 3], "length")
    full = generate(script, [request(context=[2] * 8)])[0]
    assert (full.tokens, full.finish_reason) == ([2], "length")


def test_a_turn_ends_at_a_stop_string_that_spans_tokens():
    texts = {2: "</sea", 3: "rch", 4: ">", 5: "x"}
    engine = ScriptedEngine(
        lambda context: [5, 2, 3, 4, 5, 5], 6, decode=lambda tokens: "".join(texts[t] for t in tokens)
    )
    sampling = Sampling(max_tokens=6, stop_strings=("</search>", "</answer>"))
    completion = generate(engine, [request(sampling=sampling)])[0]
    assert (completion.tokens, completion.finish_reason) == ([5, 2, 3, 4], "stop")


def test_a_stored_cache_is_reused_forked_and_consumed():
    engine = table()
    first = generate(engine, [request()])[0]
    context = [3, 2, *first.tokens, 4]
    twin = request(context, cache=first.cache, cache_length=3)
    own = request(context, cache=first.cache, cache_length=len(context) - 1, consume_cache=True, episode=2)
    fork, continued = generate(engine, [twin, own])
    # The last token of the first turn was drawn but never fed, so the cache holds one token less than the context.
    assert fork.fed_tokens == len(context) - 3
    assert continued.fed_tokens == 2
    assert engine.statistics().stored_caches == 2
    with pytest.raises(ValueError, match="consumed, released or never existed"):
        engine.release(first.cache)
    engine.release(fork.cache)
    engine.release(continued.cache)
    assert engine.statistics().stored_caches == 0


def test_a_handle_may_be_released_while_a_fork_of_it_waits():
    engine = table(max_running=1)
    first = generate(engine, [request()])[0]
    context = [3, 2, *first.tokens]
    tickets = [engine.submit(request(context, cache=first.cache, cache_length=3, episode=e)) for e in (1, 2)]
    engine.release(first.cache)
    finished = {}
    while len(finished) < 2:
        finished.update(engine.step())
    assert [finished[t].fed_tokens for t in tickets] == [len(context) - 3] * 2


def test_versions_are_served_side_by_side_and_never_change():
    engine = TableEngine(lambda context: [9.0, 0.0, 0.0])
    engine.publish(1, lambda context: [0.0, 0.0, 9.0])
    sampling = Sampling(max_tokens=2, greedy=True)
    requests = [make_request([0], vocabulary_size=3, sampling=sampling, version=v) for v in (0, 1, 0)]
    assert [c.tokens for c in generate(engine, requests)] == [[0, 0], [2, 2], [0, 0]]
    with pytest.raises(ValueError, match="already published and immutable"):
        engine.publish(1, lambda context: [0.0, 0.0, 0.0])
    ticket = engine.submit(make_request([0], vocabulary_size=3, sampling=sampling))
    with pytest.raises(ValueError, match="still has open turns"):
        engine.retire(0)
    engine.cancel(ticket)
    engine.retire(0)
    assert engine.statistics().stored_caches == 1, "caches of a retired version are freed"
    with pytest.raises(ValueError, match=r"version 0 is not published \(known: \[1\]\)"):
        engine.submit(make_request([0], vocabulary_size=3, sampling=sampling))


def test_a_cancelled_turn_never_finishes_wherever_it_was():
    engine = table(max_running=1)
    running, waiting, kept = (engine.submit(request(episode=e)) for e in range(3))
    engine.step()
    engine.cancel(running)
    engine.cancel(waiting)
    finished = []
    while engine.statistics().running:
        finished += engine.step()
    assert [ticket for ticket, _ in finished] == [kept]
    with pytest.raises(ValueError, match="is not open"):
        engine.cancel(kept)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"context": []}, "context is empty"),
        ({"context": [2] * 12}, "leaves no room in max_context=12"),
        ({"version": 3}, "version 3 is not published"),
        ({"cache_length": 2}, "no cache is given"),
        ({"cache": 17}, "cache 17 is not stored"),
        ({"sampling": Sampling(max_tokens=0)}, "max_tokens must be at least 1"),
        ({"sampling": Sampling(temperature=0.0)}, "greedy=True"),
        ({"sampling": Sampling(stop_strings=("x",))}, "give the engine a renderer"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_at_once(change, message):
    engine = table(max_context=12)
    with pytest.raises(ValueError, match=message):
        engine.submit(msgspec.structs.replace(request(), **change))
    assert engine.statistics().running == 0


def test_a_cache_must_hold_the_contexts_prefix_and_belong_to_the_version():
    engine = table()
    engine.publish(1, lambda context: LOGITS)
    cache = generate(engine, [request()])[0].cache
    with pytest.raises(ValueError, match="are not the context's"):
        engine.submit(request([3, 4, 2], cache=cache, cache_length=2))
    with pytest.raises(ValueError, match="belongs to version 0"):
        engine.submit(request(cache=cache, cache_length=1, version=1))
    assert engine.statistics().stored_caches == 1


def test_a_script_that_does_not_end_its_turn_is_an_error_not_a_hang():
    engine = ScriptedEngine(lambda context: [2, 3], 6)
    with pytest.raises(ValueError, match="ended without a stop token"):
        generate(engine, [request()])


def test_statistics_count_every_token_once():
    engine = table()
    first = generate(engine, [request()])[0]
    context = [3, 2, *first.tokens, 4, 4]
    second = generate(engine, [request(context, cache=first.cache, cache_length=4)])[0]
    statistics = engine.statistics()
    assert statistics.generated_tokens == len(first.tokens) + len(second.tokens)
    assert statistics.fed_tokens == 2 + len(context) - 4
    assert statistics.reused_tokens == 4
    assert statistics.seconds > 0


def test_generate_refuses_a_busy_engine():
    engine = table()
    engine.submit(request())
    with pytest.raises(RuntimeError, match="other open turns"):
        generate(engine, [request()])
