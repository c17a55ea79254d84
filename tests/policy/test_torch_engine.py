"""The torch engine end to end: equal completions whatever the schedule, shared prefixes, versions, other models."""

from __future__ import annotations

import statistics
import time

import msgspec
import numpy as np
import pytest
import torch

from forkgym.policy.engine import Engine, Sampling
from forkgym.policy.serving import generate, measure_mismatch
from forkgym.policy.torch_engine import TorchEngine, resolve_device
from tests.policy.models import make_request, mixed_contexts, tiny_model

torch.set_num_threads(1)

MODEL = tiny_model()


def engine(max_running=64, model=MODEL, **options):
    return TorchEngine(model, max_running=max_running, max_context=96, device="cpu", **options)


def fresh(requests):
    return [msgspec.structs.replace(r, keys=r.keys.copy()) for r in requests]


def content(completion):
    """Everything that must not depend on the schedule, bit for bit."""
    return completion.tokens, completion.logprobs, completion.entropies, completion.gini_impurities


@pytest.fixture(scope="module")
def requests():
    contexts = mixed_contexts(64, seed=3)
    sampling = Sampling(max_tokens=12, stop_tokens=(1, 7, 9))
    return [make_request(context, episode=i, sampling=sampling) for i, context in enumerate(contexts)]


@pytest.fixture(scope="module")
def reference(requests):
    return [content(c) for c in generate(engine(64), fresh(requests))]


def test_the_engine_speaks_the_protocol_and_says_that_it_is_invariant():
    made = engine()
    assert isinstance(made, Engine)
    assert (made.forward, made.batch_invariant, made.device) == ("invariant", True, "cpu")


@pytest.mark.parametrize("max_running", [1, 3, 16])
def test_completions_are_bit_equal_at_any_number_of_running_turns(requests, reference, max_running):
    assert [content(c) for c in generate(engine(max_running), fresh(requests))] == reference


def test_turns_may_join_and_leave_at_any_step(requests, reference):
    made = engine(16)
    waiting = list(enumerate(fresh(requests)))
    numbers, finished = {}, {}
    step = 0
    while waiting or made.statistics().running:
        for _ in range(step % 4):
            if waiting:
                number, request = waiting.pop(0)
                numbers[made.submit(request)] = number
        done = []
        if step % 5 == 2:  # and somebody else's turn comes and goes
            foreign = made.submit(make_request([5, 6, 7, 8], episode=999))
            done += made.step()
            made.cancel(foreign)
        done += made.step()
        finished.update((numbers[ticket], content(completion)) for ticket, completion in done)
        step += 1
    assert [finished[i] for i in range(len(requests))] == reference


def test_the_second_turn_is_bit_equal_whether_its_prefix_was_kept_forked_or_rebuilt(requests):
    made = engine()
    first = generate(made, fresh(requests[:8]))
    observation = [11, 12, 13]
    contexts = [r.context + c.tokens + observation for r, c in zip(requests, first, strict=False)]

    rebuilt = generate(engine(3), [make_request(c, episode=i, turn=1) for i, c in enumerate(contexts)])

    def from_cache(length, *, consume):
        turns = [
            make_request(c, episode=i, turn=1, cache=done.cache, cache_length=length(c), consume_cache=consume)
            for i, (c, done) in enumerate(zip(contexts, first, strict=True))
        ]
        return generate(made, turns)

    shared = from_cache(lambda context: len(context) - 3, consume=False)
    shorter = from_cache(lambda context: len(context) // 2, consume=False)
    kept = from_cache(lambda context: len(context) - 3, consume=True)
    expected = [content(c) for c in rebuilt]
    for other in (shared, shorter, kept):
        assert [content(c) for c in other] == expected
    assert all(c.fed_tokens == 4 for c in kept), "the last drawn token and the observation"
    assert all(c.fed_tokens == len(r) for r, c in zip(contexts, rebuilt, strict=True))


def test_a_twin_forks_the_factual_prefix_and_neither_changes_the_other():
    made = engine()
    sampling = Sampling(max_tokens=10)
    factual = generate(made, [make_request([5, 6, 7], sampling=sampling)])[0]
    longer = [5, 6, 7, *factual.tokens, 20, 21]
    twins = [
        make_request(longer[:k], turn=1, stream=k, cache=factual.cache, cache_length=k, sampling=sampling)
        for k in (3, 6, 9)
    ]
    own = make_request(longer, turn=1, sampling=sampling, cache=factual.cache, cache_length=13, consume_cache=True)
    together = generate(made, [*fresh(twins), msgspec.structs.replace(own, keys=own.keys.copy())])
    for request, completion in zip([*twins, own], together, strict=True):
        lonely = msgspec.structs.replace(request, keys=request.keys.copy(), cache=None, cache_length=0)
        assert content(generate(engine(1), [lonely])[0]) == content(completion)


def test_versions_are_served_side_by_side(requests):
    other = tiny_model(seed=9)
    made = engine()
    made.publish(1, other)
    mixed = [msgspec.structs.replace(r, version=i % 2) for i, r in enumerate(fresh(requests[:12]))]
    served = [content(c) for c in generate(made, mixed)]
    alone = [generate(engine(), fresh(requests[:12])), generate(engine(model=other), fresh(requests[:12]))]
    assert served == [content(alone[i % 2][i]) for i in range(12)]
    made.retire(0)
    made.publish(2, MODEL.state_dict())
    again = generate(made, [msgspec.structs.replace(r, version=2) for r in fresh(requests[:3])])
    assert [content(c) for c in again] == [content(c) for c in alone[0][:3]]
    with pytest.raises(TypeError, match="publish a model or its state_dict, not int"):
        made.publish(3, 17)


def test_a_published_version_is_immutable():
    model = tiny_model(seed=2)
    made = engine(model=model)
    before = content(generate(made, [make_request([5, 6])])[0])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert content(generate(made, [make_request([5, 6])])[0]) == before


def test_logprobs_are_those_of_the_models_own_distribution(requests):
    made = engine()
    for request, completion in zip(requests[:6], generate(made, fresh(requests[:6])), strict=True):
        ids = torch.tensor([request.context + completion.tokens])
        with torch.no_grad():
            rows = torch.log_softmax(MODEL(ids).logits[0].double(), dim=-1)
        start = len(request.context) - 1
        expected = [float(rows[start + i, token]) for i, token in enumerate(completion.tokens)]
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4)


def test_the_hugging_face_forward_gives_the_same_tokens_and_shares_prefixes(requests):
    made = engine(forward="huggingface")
    assert (made.batch_invariant, made.product_mode) == (False, None)
    served = generate(made, fresh(requests[:6]))
    own = generate(engine(), fresh(requests[:6]))
    assert [c.tokens for c in served] == [c.tokens for c in own]
    for a, b in zip(served, own, strict=True):
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)
    context = requests[0].context + served[0].tokens + [11, 12]
    turn = make_request(context, turn=1, cache=served[0].cache, cache_length=len(context) - 2)
    shared = generate(made, [turn])[0]
    assert shared.fed_tokens == 3
    rebuilt = generate(made, [make_request(context, turn=1)])[0]
    assert shared.tokens == rebuilt.tokens
    np.testing.assert_allclose(shared.logprobs, rebuilt.logprobs, atol=1e-4)
    made.publish(1, tiny_model(seed=9))
    new = generate(made, [make_request([5, 6], version=1)])[0]
    assert new.tokens == generate(engine(model=tiny_model(seed=9)), [make_request([5, 6])])[0].tokens
    made.retire(0)
    with pytest.raises(ValueError, match="publish another before retiring"):
        made.retire(1)


def test_the_hugging_face_batch_lets_turns_of_mixed_lengths_join_and_leave(requests, reference):
    """Left padding, joining and leaving change last bits only: tokens are equal here, log-probabilities nearly so."""
    made = engine(5, forward="huggingface")
    for completion, (tokens, logprobs, *_) in zip(generate(made, fresh(requests[:24])), reference, strict=False):
        assert completion.tokens == tokens
        np.testing.assert_allclose(completion.logprobs, logprobs, atol=1e-4)
    cancelled = made.submit(make_request([5, 6, 7]))
    made.submit(make_request([5, 6], sampling=Sampling(max_tokens=3)))
    made.step()
    made.cancel(cancelled)
    while made.statistics().running:
        finished = made.step()
    assert (
        finished[0][1].tokens == generate(engine(), [make_request([5, 6], sampling=Sampling(max_tokens=3))])[0].tokens
    )


def test_a_model_without_explicit_positions_is_decoded_turn_by_turn(requests, reference):
    class Plain(type(MODEL)):
        def forward(self, input_ids, past_key_values=None, use_cache=None):
            return super().forward(input_ids=input_ids, past_key_values=past_key_values, use_cache=use_cache)

    plain = Plain(MODEL.config).eval()
    plain.load_state_dict(MODEL.state_dict())
    made = engine(4, model=plain, forward="huggingface")
    served = generate(made, fresh(requests[:8]))
    assert [c.tokens for c in served] == [tokens for tokens, *_ in reference[:8]]
    context = requests[0].context + served[0].tokens
    shared = generate(made, [make_request(context, turn=1, cache=served[0].cache, cache_length=len(context))])[0]
    assert shared.fed_tokens == 1


def test_the_mismatch_of_any_engine_can_be_measured(requests):
    report = measure_mismatch(engine(), requests[:24])
    assert (report.identical, report.rate, report.requests) == (True, 0.0, 24)
    other = measure_mismatch(engine(forward="huggingface"), requests[:4])
    assert other.tokens > 0
    assert other.rate < 0.1


def test_more_threads_after_the_check_are_refused_rather_than_tolerated():
    made = engine()
    made.submit(make_request([5]))
    torch.set_num_threads(2)
    try:
        with pytest.raises(RuntimeError, match=r"torch.set_num_threads\(1\)"):
            made.step()
    finally:
        torch.set_num_threads(1)


def test_devices_and_limits_that_cannot_be_had_are_refused():
    assert resolve_device("cpu") == "cpu"
    assert resolve_device("auto") == ("cuda" if torch.cuda.is_available() else "cpu")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="device='cpu' or 'auto'"):
            TorchEngine(MODEL, device="cuda")
    with pytest.raises(ValueError, match="exceeds the model's 128 positions"):
        TorchEngine(MODEL, max_context=500)
    other = tiny_model().to(torch.float64)
    with pytest.raises(ValueError, match="use forward='huggingface'"):
        TorchEngine(other, forward="invariant")
    assert TorchEngine(other, max_context=96).forward == "huggingface"


@pytest.mark.slow
def test_sixteen_turns_have_at_least_four_times_the_throughput_of_one():
    """Medians of seven decode-only runs each; measured ratios are 8 and more, so noise of a factor 2 is survived."""
    from forkgym.policy.tiny import build_model

    model = build_model(1836).eval()

    def seconds(batch):
        made = TorchEngine(model, max_running=batch, max_context=128)
        times = []
        for run in range(7):
            requests = [
                make_request([5, 6], episode=100 * run + i, vocabulary_size=1836, sampling=Sampling(max_tokens=40))
                for i in range(batch)
            ]
            started = time.perf_counter()
            generate(made, requests)
            times.append(time.perf_counter() - started)
        return statistics.median(times)

    assert 16 * seconds(1) / seconds(16) >= 4
