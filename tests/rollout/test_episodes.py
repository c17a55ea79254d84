"""An episode is a pure concatenation of ids and a function of its spec, whoever plays beside it."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

import forkgym
from forkgym.noise import Key, KeyStream, Layout
from forkgym.policy.scripted import ScriptedEngine
from forkgym.rollout.episode import _action_start
from tests.rollout.lamps import EOT, RENDERER, TOKENS, Table, register, sampling, spec, table, table_engine


@pytest.fixture
def played():
    at = Table()
    many = at.episodes([spec(member, task=member % 6) for member in range(64)])
    yield at, many
    at.close(many)
    assert at.engine.statistics().stored_caches == 0


def test_each_context_is_the_prompt_then_the_sampled_and_observed_ids(played):
    _, many = played
    assert {len(one.episode.turns) for one in many} == {1, 2, 3, 4}
    for one in many:
        episode, tokens = one.episode, list(one.episode.prompt_tokens)
        assert tokens == RENDERER.ids("lamp is ?")
        for turn in episode.turns:
            assert episode.context(turn.index) == tokens
            assert turn.context_length == len(tokens)
            tokens += turn.tokens + turn.observation_tokens
        assert episode.tokens() == tokens


def test_the_learner_sees_the_sampled_ids_and_no_other(played):
    batch = pytest.importorskip("forkgym.learn.batch")
    _, many = played
    episodes = [one.episode for one in many]
    sequences = batch.training_sequences(episodes, [[1.0] * len(episode.turns) for episode in episodes])
    for episode, sequence in zip(episodes, sequences, strict=True):
        assert list(sequence.tokens) == episode.tokens()[: len(sequence.tokens)]


def test_logprobs_are_those_of_the_policy_at_exactly_these_contexts(played):
    _, many = played
    for one in many[:8]:
        for turn in one.episode.turns:
            context = one.episode.context(turn.index)
            for place, token in enumerate(turn.tokens):
                logits = table([*context, *turn.tokens[:place]]).astype(np.float64)
                probabilities = np.exp(logits - logits.max())
                probabilities /= probabilities.sum()
                assert turn.logprobs[place] == pytest.approx(np.log(probabilities[token]), abs=1e-9)
                assert turn.gini_impurities[place] == pytest.approx(1 - (probabilities**2).sum(), abs=1e-9)


def test_every_token_is_the_keyed_sample_of_its_key(played):
    from forkgym.noise import sample

    _, many = played
    for one in many[:8]:
        for turn in one.episode.turns:
            line = position = 0
            for place, token in enumerate(turn.tokens):
                key = Key(one.episode.key, turn.index, 0, line, position).hash64()
                context = [*one.episode.context(turn.index), *turn.tokens[:place]]
                assert token == sample(table(context), key)
                line, position = (line + 1, 0) if TOKENS[token] == "\n" else (line, position + 1)


def test_the_same_spec_gives_the_same_episode_twice_and_alone(played):
    _, many = played
    again = Table()
    for member in (0, 5, 31, 63):
        alone = again.episode(spec(member, task=member % 6))
        assert msgspec.json.encode(alone.episode) == msgspec.json.encode(many[member].episode)
        again.close([alone])


@pytest.mark.parametrize("max_running", [1, 3, 7])
def test_results_come_in_input_order_whatever_runs_at_once(played, max_running):
    _, many = played
    again = Table(table_engine(max_running=2))
    others = again.episodes([spec(member, task=member % 6) for member in range(64)], max_running=max_running)
    assert [one.episode for one in others] == [one.episode for one in many]
    again.close(others)


def test_other_members_and_updates_have_other_noise():
    at = Table()
    first, second, third = at.episodes([spec(0), spec(1), spec(0, update=1)])
    tokens = [one.episode.tokens() for one in (first, second, third)]
    assert tokens[0] != tokens[1]
    assert tokens[0] != tokens[2]
    at.close([first, second, third])


@pytest.mark.parametrize("layout", list(Layout))
def test_every_layout_walks_through_its_own_keys(layout):
    class Recorder(type(table_engine())):
        def submit(self, request):
            seen.append(request.keys.key64())
            return super().submit(request)

    seen: list[int] = []
    at = Table(Recorder(table, decode=RENDERER.decode), layout=layout)
    many = at.episodes([spec(member) for member in range(8)], max_running=1)
    episode = next(one.episode for one in many if len(one.episode.turns) > 1)
    keys = KeyStream(layout, episode.key, newlines=RENDERER.newlines)
    keys.observe(episode.prompt_tokens)
    expected = []
    for turn in episode.turns:
        keys.start_turn(turn.index, 0)
        expected.append(keys.key64())
        for token in turn.tokens:
            keys.advance(token)
        keys.observe(turn.observation_tokens)
    start = seen.index(expected[0])
    assert seen[start : start + len(expected)] == expected
    at.close(many)


def test_rewards_add_up_and_the_grader_has_the_last_word(played):
    _, many = played
    for one in many:
        episode = one.episode
        assert episode.utility == sum(turn.reward for turn in episode.turns)
        assert episode.success == (episode.utility == 1.0)
        assert [turn.terminal for turn in episode.turns] == [False] * (len(episode.turns) - 1) + [True]
        assert episode.turns[-1].observation == "" or len(episode.turns) == 4
        assert len(one.snapshots) == len(episode.turns) + 1
    assert 0 < sum(one.episode.utility for one in many) < 64


def test_a_turn_that_is_cut_is_closed_before_the_observation(played):
    _, many = played
    cut = [turn for one in many for turn in one.episode.turns if turn.finish_reason == "length" and not turn.terminal]
    assert cut
    for turn in cut:
        assert len(turn.tokens) == 6
        assert EOT not in turn.tokens
        assert turn.observation_tokens[0] == EOT


def test_a_full_context_ends_the_episode_as_truncated_and_branches_of_it_too():
    at = Table(max_context=20)
    many = at.episodes([spec(member) for member in range(64)])
    full = [one for one in many if one.episode.turns[-1].action_kind != "answer"]
    assert full
    for one in many:
        assert len(one.episode.tokens()) <= 20 + 6
        assert all(turn.context_length + 6 <= 20 for turn in one.episode.turns)
    for one in full:
        last = one.episode.turns[-1]
        assert last.terminal
        assert last.observation
        assert one.episode.utility == 0.0
        assert not one.episode.success
        assert len(one.episode.turns) < 4
    for branch in at.branches(at.every_decision(many)):
        assert all(turn.context_length + 6 <= 20 for turn in branch.turns)
    at.close(many)
    assert at.engine.statistics().stored_caches == 0


def test_a_prompt_without_room_for_a_turn_is_refused_before_anything_is_sampled():
    at = Table(max_context=8)
    with pytest.raises(ValueError, match=r"task 0 of 'train' has 3 tokens .* raise max_context"):
        at.episode(spec(0))
    assert at.engine.statistics().generated_tokens == 0


def test_the_recorded_handle_replays_to_the_recorded_state():
    register()
    at = Table(make=lambda: forkgym.make("test/Lamps-v0", turns=3))
    for one in at.episodes([spec(member) for member in range(4)]):
        env = forkgym.replay(forkgym.Handle.from_json(one.episode.handle))
        assert env.state_hash() == one.episode.turns[-1].state_hash
        assert [message["content"] for message in env.messages()] == [
            message["content"] for message in one.env.messages()
        ]
        env.close()
        at.close([one])


def test_an_episode_that_is_not_branched_keeps_no_cache_and_no_snapshot():
    at = Table()
    one = at.episode(spec(3), branchable=False, record=False)
    assert at.engine.statistics().stored_caches == 0
    assert one.snapshots == []
    assert one.episode.handle == ""
    assert one.episode.turns[0].state_hash == ""
    at.close([one])


def test_a_scripted_policy_plays_what_it_says():
    script = ["look", "hm blue"]

    def say(context):
        turns = sum(token == TOKENS.index("<obs>") for token in context)
        return RENDERER.written(script[min(turns, 1)])

    at = Table(ScriptedEngine(say, len(TOKENS), decode=RENDERER.decode))
    one = at.episode(spec(0, task=2))
    assert [turn.text for turn in one.episode.turns] == script
    assert one.episode.utility == 1.0
    assert [turn.action_kind for turn in one.episode.turns] == ["search", "answer"]
    at.close([one])


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("look", 0),
        ("hm \n look", 2),
        ("hm \n look \n", 2),
        ("hm \n look \n \n", 2),
        ("\n \n look", 2),
        ("\n", 0),
        ("", 0),
    ],
)
def test_the_action_starts_at_the_last_line_that_says_anything(text, start):
    tokens = RENDERER.ids(text)
    assert _action_start([*tokens, EOT], RENDERER.newlines, (EOT,)) == start
    assert _action_start(tokens, RENDERER.newlines, (EOT,)) == start


def test_sampling_reaches_the_engine_unchanged():
    cold, hot = Table(draw=sampling(temperature=0.05)), Table(draw=sampling(temperature=1.0))
    entropies = []
    for at in (cold, hot):
        many = at.episodes([spec(member) for member in range(8)])
        entropies.append(np.mean([turn.mean_entropy for one in many for turn in one.episode.turns]))
        at.close(many)
    assert entropies[0] < 0.2 < entropies[1]
