"""Twins share the factual luck, independent branches do not; shortcuts, rejection and pairs do what they claim."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from forkgym.noise import Key, KeyStream, Layout, coin, stream_id
from forkgym.policy.scripted import ScriptedEngine, TableEngine
from forkgym.rollout import branch as branch_module
from forkgym.rollout.plan import BranchPlan, Proposal
from tests.rollout.lamps import RENDERER, TOKENS, Lamps, Table, sampling, spec, table

PLAIN = BranchPlan(self_twin_shortcut=False, same_evidence_probability=1.0)


class Recorder(TableEngine):
    """Remembers the first key of every turn by the context it was asked for."""

    def __init__(self):
        super().__init__(table, decode=RENDERER.decode)
        self.keys: list[tuple[int, int]] = []  # (length of the context, key)

    def submit(self, request):
        self.keys.append((len(request.context), request.keys.key64()))
        return super().submit(request)


@pytest.fixture
def at():
    table_ = Table()
    yield table_
    assert table_.engine.statistics().stored_caches == 0
    assert table_.engine.statistics().running == 0


@pytest.fixture
def many(at):
    played = at.episodes([spec(member, task=member % 6) for member in range(64)])
    yield played
    at.close(played)


def bare(turns):
    """Turns without state hashes, which branches do not record."""
    return [msgspec.structs.replace(turn, state_hash="") for turn in turns]


@pytest.fixture
def forced(monkeypatch):
    """Alternatives read the factual stream, so every alternative is the factual turn."""

    def stream(parent, turn, purpose, index, pair=0):
        return 0 if purpose == "alternative" else stream_id(parent, turn, purpose, index, pair)

    monkeypatch.setattr(branch_module, "stream_id", stream)


@pytest.mark.parametrize("layout", [layout for layout in Layout if layout.couples])
def test_a_twin_that_takes_the_factual_turn_repeats_the_factual_episode_exactly(forced, layout):
    at = Table(layout=layout)
    many = at.episodes([spec(member, task=member % 6) for member in range(24)])
    wanted = at.every_decision(many)
    for (one, turn, _), branch in zip(wanted, at.branches(wanted, PLAIN), strict=True):
        assert bare(branch.turns) == bare(one.episode.turns[turn:])
        assert branch.difference == 0.0
        assert branch.continued
        assert not branch.self_twin
        assert not branch.same_evidence
    at.close(many)


def test_the_self_twin_shortcut_saves_exactly_the_continuation(forced, at, many):
    wanted = at.every_decision(many)
    for (one, turn, _), branch in zip(wanted, at.branches(wanted), strict=True):
        assert branch.self_twin
        assert branch.difference == 0.0
        assert branch.turns == []
        assert branch.generated_tokens == len(one.episode.turns[turn].tokens)


def test_branches_are_the_same_alone_and_among_others(at, many):
    wanted = at.every_decision(many)
    together = at.branches(wanted)
    lone = Table()
    for place in range(0, len(wanted), 17):
        one, turn, index = wanted[place]
        again = lone.episode(spec(one.episode.member, task=one.episode.task))
        alone = lone.branches([(again, turn, index)], max_running=1)[0]
        assert msgspec.json.encode(alone) == msgspec.json.encode(together[place])
        lone.close([again])
    assert at.branches(list(reversed(wanted)), max_running=5) == list(reversed(together))


def test_branching_leaves_the_factual_episode_and_its_snapshots_alone(at, many):
    before = msgspec.json.encode([one.episode for one in many])
    wanted = at.every_decision(many)
    first = at.branches(wanted)
    assert at.branches(wanted) == first
    assert msgspec.json.encode([one.episode for one in many]) == before


def test_alternatives_differ_from_the_factual_turn_as_often_as_independent_draws_do(at, many):
    # The share of equal turns is near the mean of π(y)², far from 1: the alternative's stream is its own.
    branches = at.branches(at.every_decision(many))
    assert len({branch.stream for branch in branches if branch.turn == 0}) == 1  # a stream is named by its place
    equal = sum(branch.self_twin for branch in branches) / len(branches)
    expected = np.mean([math.exp(turn.logprob) for one in many for turn in one.episode.turns])
    # 170 decisions or so: 5 standard errors of a Bernoulli mean, error rate below 1e-6.
    assert abs(equal - expected) < 5 * math.sqrt(expected / len(branches))
    other = at.branches([(one, 0, 1) for one in many], PLAIN)
    first = at.branches([(one, 0, 0) for one in many], PLAIN)
    assert sum(a.turns[0].tokens == b.turns[0].tokens for a, b in zip(first, other, strict=True)) < 32


@pytest.mark.parametrize("coupling", ["twin", "independent"])
def test_later_turns_read_the_factual_noise_only_in_a_twin(coupling):
    at = Table(Recorder())
    plan = msgspec.structs.replace(PLAIN, coupling=coupling)
    longer = 0
    for member in range(12):
        one = at.episode(spec(member))
        at.engine.keys.clear()
        branch = at.branch(one, 0, 2, plan=plan)
        episode = one.episode.key
        later = 0 if coupling == "twin" else stream_id(0, 0, "continuation", 2)
        streams = [stream_id(0, 0, "alternative", 2), *[later] * (len(branch.turns) - 1)]
        assert [key for _, key in at.engine.keys] == [
            Key(episode, turn, stream).hash64() for turn, stream in enumerate(streams)
        ]
        assert branch.kind == coupling
        assert branch.stream == streams[0]
        longer += len(branch.turns) > 1
        at.close([one])
    assert longer >= 4


def test_under_the_episode_layout_a_twin_counts_on_from_its_own_alternative():
    at = Table(Recorder(), layout=Layout.EPISODE)
    for member in range(12):
        one = at.episode(spec(member))
        if len(one.episode.turns) < 2:
            at.close([one])
            continue
        at.engine.keys.clear()
        branch = at.branch(one, 1, plan=PLAIN)
        keys = KeyStream(Layout.EPISODE, one.episode.key, newlines=None)
        keys.counter = len(one.episode.turns[0].tokens)
        keys.start_turn(1, stream_id(0, 1, "alternative", 0))
        expected = [keys.key64()]
        for turn in branch.turns[:-1]:
            for token in turn.tokens:
                keys.advance(token)
            keys.start_turn(turn.index + 1, 0)
            expected.append(keys.key64())
        assert [key for _, key in at.engine.keys] == expected
        at.close([one])


def test_a_twin_shares_the_environments_luck_and_an_independent_branch_does_not():
    # A policy that looks three times whatever it sees: only the fog's luck can make branches differ.
    at = Table(ScriptedEngine(lambda context: RENDERER.written("look"), len(TOKENS), decode=RENDERER.decode))
    many = at.episodes([spec(member) for member in range(32)])
    seen = [[turn.observation for turn in one.episode.turns] for one in many]
    twins = at.branches([(one, 0, 0) for one in many], PLAIN)
    assert [[turn.observation for turn in branch.turns] for branch in twins] == seen
    loose = at.branches([(one, 0, 0) for one in many], msgspec.structs.replace(PLAIN, coupling="independent"))
    assert sum([turn.observation for turn in branch.turns] != s for branch, s in zip(loose, seen, strict=True)) > 8
    at.close(many)


def test_a_branch_has_the_turns_that_the_factual_episode_had_left(at, many):
    for branch in at.branches(at.every_decision(many), PLAIN):
        assert [turn.index for turn in branch.turns] == list(range(branch.turn, branch.turn + len(branch.turns)))
        assert branch.turns[-1].terminal
        assert branch.turns[-1].index <= 3
        assert branch.generated_tokens == sum(len(turn.tokens) for turn in branch.turns)
        assert branch.utility == sum(turn.reward for turn in branch.turns)


class PaidLamps(Lamps):
    """Every look earns a tenth at once."""

    def _step(self, action):
        observation, reward, terminated, truncated, info = super()._step(action)
        return observation, reward + 0.1 * (action["tool"] == "look"), terminated, truncated, info


@pytest.mark.parametrize("index", [0, 1])
def test_what_was_earned_before_the_fork_counts_in_both_arms(index):
    at = Table(make=PaidLamps)
    many = at.episodes([spec(member) for member in range(24)])
    wanted = [(one, turn, index) for one, turn, _ in at.every_decision(many)]
    earlier_rewards = 0.0
    plan = msgspec.structs.replace(PLAIN, pairs=2)
    for (one, turn, _), branch in zip(wanted, at.branches(wanted, plan), strict=True):
        before = sum(earlier.reward for earlier in one.episode.turns[:turn])
        earlier_rewards += before
        assert branch.utility == pytest.approx(before + sum(later.reward for later in branch.turns))
        if branch.kind == "pair":
            assert branch.factual_utility == pytest.approx(before + sum(later.reward for later in branch.factual_turns))
        else:
            assert branch.factual_utility == pytest.approx(one.episode.utility)
    assert earlier_rewards > 0.0
    at.close(many)


def test_the_evidence_coin_is_keyed_and_decides_alone(at, many):
    wanted = at.every_decision(many)
    full = at.branches(wanted, BranchPlan(same_evidence_probability=1.0))
    same = [branch.same_evidence for branch in full]
    assert 20 < sum(same) < len(same)
    for q in (0.0, 0.25, 0.8):
        for branch, whole in zip(at.branches(wanted, BranchPlan(same_evidence_probability=q)), full, strict=True):
            assert branch.same_evidence == whole.same_evidence
            if not branch.same_evidence:
                assert branch == whole
                continue
            assert branch.continuation_probability == q
            assert branch.continued == (coin(branch.parent, branch.turn, "same-evidence", 0) < q)
            assert branch.turns[:1] == whole.turns[:1]
            if branch.continued:
                assert branch.utility == whole.utility
            else:
                assert len(branch.turns) == 1
                assert branch.generated_tokens == len(branch.turns[0].tokens)
    overruled = at.branches(wanted, BranchPlan(same_evidence_probability=1.0), q_same=0.5)
    assert {branch.continuation_probability for branch in overruled if branch.same_evidence} == {0.5}


def test_same_evidence_means_other_tokens_equal_observations_and_no_end(at, many):
    wanted = at.every_decision(many)
    terminal = 0
    for (one, turn, _), branch in zip(wanted, at.branches(wanted), strict=True):
        factual = one.episode.turns[turn]
        if branch.self_twin:
            assert not branch.same_evidence
            continue
        alternative = branch.turns[0]
        expected = not factual.terminal and not alternative.terminal and factual.observation == alternative.observation
        assert branch.same_evidence == expected
        if alternative.terminal:
            terminal += 1
            assert branch.continued
            assert branch.continuation_probability == 1.0
            assert branch.utility == alternative.reward
    assert terminal > 20


def crr_plan(**proposal):
    return BranchPlan(
        coupling="independent",
        self_twin_shortcut=False,
        same_evidence_probability=1.0,
        proposal=Proposal(**{"exclude_factual": True, "temperature_scale": 0.7, **proposal}),
    )


def test_a_rejecting_proposal_never_takes_the_factual_action(at, many):
    wanted = at.every_decision(many)
    attempts = []
    for (one, turn, _), branch in zip(wanted, at.branches(wanted, crr_plan(max_attempts=60)), strict=True):
        attempts.append(branch.proposal_attempts)
        assert not branch.skipped
        assert branch.turns[0].action != one.episode.turns[turn].action
    assert max(attempts) > 1


def test_rejected_proposals_are_paid_for_and_a_stubborn_policy_is_skipped():
    at = Table(ScriptedEngine(lambda context: RENDERER.written("hm look"), len(TOKENS), decode=RENDERER.decode))
    one = at.episode(spec(0))
    branch = at.branch(one, 1, plan=crr_plan(max_attempts=5))
    assert branch.skipped
    assert not branch.continued
    assert branch.turns == []
    assert branch.proposal_attempts == 5
    assert branch.generated_tokens == 5 * 3
    at.close([one])
    assert at.engine.statistics().stored_caches == 0


def test_attempts_read_streams_of_their_own():
    at = Table(Recorder())
    one = at.episode(spec(1))
    at.engine.keys.clear()
    branch = at.branch(one, 0, plan=crr_plan(max_attempts=4, require_valid=True))
    proposals = [key for length, key in at.engine.keys if length == len(one.episode.prompt_tokens)]
    names = ["alternative", "alternative/1", "alternative/2", "alternative/3"][: len(proposals)]
    assert proposals == [Key(one.episode.key, 0, stream_id(0, 0, name, 0)).hash64() for name in names]
    assert branch.proposal_attempts == len(proposals)
    at.close([one])


def test_the_validity_filter_takes_no_action_that_does_not_parse(at, many):
    wanted = at.every_decision(many)
    plain = at.branches(wanted, crr_plan(max_attempts=30))
    valid = at.branches(wanted, crr_plan(max_attempts=30, require_valid=True))
    assert any(branch.turns[0].action["tool"] == "invalid" for branch in plain)
    assert not any(branch.turns[0].action["tool"] == "invalid" for branch in valid)


def test_only_the_alternative_is_drawn_at_the_proposal_temperature():
    at = Table(draw=sampling(temperature=0.8))
    many = at.episodes([spec(member) for member in range(12)])

    def logprob(context, token, temperature):
        scaled = table(context).astype(np.float64) / temperature
        return scaled[token] - np.logaddexp.reduce(scaled)

    later = 0
    for one in many:
        branch = at.branch(one, 0, plan=crr_plan(temperature_scale=0.5))
        context = list(one.episode.prompt_tokens)
        for turn in branch.turns:
            temperature = 0.8 * (0.5 if turn.index == 0 else 1.0)
            for place, token in enumerate(turn.tokens):
                expected = logprob([*context, *turn.tokens[:place]], token, temperature)
                assert turn.logprobs[place] == pytest.approx(expected, abs=1e-6)
            later += turn.index > 0
            context += turn.tokens + turn.observation_tokens
    assert later > 0
    at.close(many)


def test_further_pairs_run_both_arms_under_one_fresh_stream():
    at = Table(Recorder())
    plan = msgspec.structs.replace(PLAIN, pairs=3)
    lengths = []
    for member in range(16):
        one = at.episode(spec(member))
        for index in (1, 2):
            at.engine.keys.clear()
            branch = at.branch(one, 0, index, plan=plan)
            pair = stream_id(0, 0, "pair", index, index)
            arms = [stream_id(0, 0, "alternative", index), *[pair] * (len(branch.turns) - 1)]
            expected = [Key(one.episode.key, turn, stream).hash64() for turn, stream in enumerate(arms)]
            expected += [Key(one.episode.key, turn.index, pair).hash64() for turn in branch.factual_turns[1:]]
            assert [key for _, key in at.engine.keys] == expected
            assert branch.kind == "pair"
            assert branch.factual_turns[0].tokens == one.episode.turns[0].tokens
            assert branch.factual_utility == sum(turn.reward for turn in branch.factual_turns)
            written = [*branch.turns, *branch.factual_turns[1:]]
            assert branch.generated_tokens == sum(len(turn.tokens) for turn in written)
            lengths.append(len(branch.factual_turns))
        assert at.branch(one, 0, 0, plan=plan).kind == "twin"
        at.close([one])
    assert max(lengths) > 1
    assert at.engine.statistics().stored_caches == 0


def test_a_pair_whose_alternative_is_the_factual_turn_has_two_equal_arms(forced, at, many):
    plan = msgspec.structs.replace(PLAIN, pairs=2)
    wanted = [(one, turn, 1) for one, turn, _ in at.every_decision(many)]
    moved = 0
    for (one, turn, _), branch in zip(wanted, at.branches(wanted, plan), strict=True):
        assert bare(branch.turns) == bare(branch.factual_turns)
        assert branch.difference == 0.0
        moved += bare(branch.factual_turns) != bare(one.episode.turns[turn:])
    assert moved > 30  # the stream is not the factual one


def test_a_star_runs_every_alternative_against_the_factual_noise(at, many):
    plan = msgspec.structs.replace(PLAIN, pairs=3, star=True)
    for one in many[:12]:
        branches = at.branches([(one, 0, index) for index in range(3)], plan)
        assert [branch.kind for branch in branches] == ["twin"] * 3
        assert all(branch.factual_turns == [] for branch in branches)
        assert {branch.factual_utility for branch in branches} == {one.episode.utility}
        assert len({branch.stream for branch in branches}) == 3


def test_independent_branches_are_never_pairs(at, many):
    plan = msgspec.structs.replace(PLAIN, pairs=2, coupling="independent")
    for one in many[:8]:
        branch = at.branch(one, 0, 1, plan=plan)
        assert branch.kind == "independent"
        assert branch.factual_turns == []


@pytest.mark.parametrize(
    ("plan", "cost"),
    [
        (BranchPlan(), 1),
        (BranchPlan(pairs=3), 5),
        (BranchPlan(pairs=3, star=True), 3),
        (BranchPlan(pairs=3, coupling="independent"), 3),
    ],
)
def test_a_plan_knows_how_many_continuations_a_decision_costs(plan, cost):
    assert plan.continuations == cost


@pytest.mark.parametrize("layout", list(Layout))
def test_a_branch_records_its_layout(layout):
    at = Table(layout=layout)
    one = at.episode(spec(0))
    assert at.branch(one).layout == layout.value
    at.close([one])


@pytest.mark.slow
def test_twin_and_independent_differences_have_the_same_mean_and_the_twins_a_smaller_variance():
    # P1 and P2 on this world: 3,000 decisions each; equal means within 4 standard errors (error rate 6e-5).
    at = Table()
    many = at.episodes([spec(member) for member in range(1500)])
    wanted = [(one, 0, 0) for one in many]
    twins = np.array([branch.difference for branch in at.branches(wanted, PLAIN)])
    plan = msgspec.structs.replace(PLAIN, coupling="independent")
    loose = np.array([branch.difference for branch in at.branches(wanted, plan)])
    error = math.sqrt((twins.var() + loose.var()) / len(twins))
    assert abs(twins.mean() - loose.mean()) < 4 * error
    assert abs(twins.mean()) < 4 * twins.std() / math.sqrt(len(twins))  # E[A] = 0 over the policy's own turns
    assert (twins**2).sum() < (loose**2).sum()
    at.close(many)
