"""The simulator is the real thing: token for token what rollouts with `TableEngine` and the environments produce."""

import numpy as np
import pytest
from forkgym_toy import WORLDS, Simulator, WordRenderer, keyed
from hypothesis import given, settings
from hypothesis import strategies as st

import forkgym
from forkgym import noise
from forkgym.core import KeyedLuck
from forkgym.noise import Layout, episode_id
from forkgym.policy.chat import Renderer
from forkgym.policy.engine import Sampling
from forkgym.policy.scripted import TableEngine
from forkgym.rollout.branch import BranchSetting, play_branch
from forkgym.rollout.episode import EpisodeSpec, drive, environment_seed, play_episode
from forkgym.rollout.plan import BranchPlan
from forkgym.rollout.trace import Decision

key64 = st.integers(0, 2**64 - 1)


@given(st.lists(key64, min_size=1, max_size=4), st.integers(1, 13))
@settings(max_examples=30, deadline=None)
def test_words_and_gumbels_of_a_batch_are_those_of_each_key(keys, count):
    batch = np.array(keys, dtype=np.uint64)
    for row, key in enumerate(keys):
        np.testing.assert_array_equal(keyed.words(batch, count)[row], noise.words(key, count))
        np.testing.assert_array_equal(keyed.gumbels(batch, count)[row], noise.gumbel(key, count))


@given(key64, st.integers(0, 40), st.integers(0, 2**31), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_keys_of_a_batch_are_those_of_the_key_itself(episode, turn, line, position):
    prefix = keyed.prefixes(noise.keys.TAG_LINE, [episode], turn, 5)
    place = np.array([line << 32 | position], dtype=np.uint64)
    expected = noise.Key(episode, turn, 5, line, position).hash64()
    assert int(keyed.splitmix(prefix, place)[0]) == expected


@given(key64, key64, st.integers(1, 40))
@settings(max_examples=30, deadline=None)
def test_luck_of_a_batch_is_the_environments_luck(episode, stream, turn):
    env = forkgym.make("toy/SlipperyChain-v0")
    env.reset(seed=environment_seed(episode))
    luck = KeyedLuck(env.unwrapped.luck.episode, stream, turn)
    assert keyed.luck_uniforms([episode], stream, turn, "outcome")[0] == luck.random("outcome")


def test_the_word_renderer_meets_the_renderers_protocol():
    renderer = WordRenderer(WORLDS["toy/Chain-v0"]())
    assert isinstance(renderer, Renderer)
    turn = renderer.written("um \n left")
    assert renderer.decode(turn) == "um \n left"
    assert turn[-1] in renderer.stop_tokens
    assert renderer.observation("ok", closed=False) == [*renderer.stop_tokens, *renderer.observation("ok")]


def compare(name: str, layout: Layout, count: int, turns) -> int:
    """Play episodes and three kinds of branches both ways; returns how many trajectories were compared."""
    world = WORLDS[name]()
    renderer = WordRenderer(world)
    sampling = Sampling(max_tokens=world.max_tokens + 3, stop_tokens=renderer.stop_tokens)
    engine = TableEngine(world.context_logits, max_running=64)
    tasks = [number % world.tasks for number in range(count)]
    keys = [episode_id(3, "train", 0, task, number) for number, task in enumerate(tasks)]
    played = drive(
        engine,
        [
            play_episode(
                forkgym.make(name),
                EpisodeSpec(key=key, split="train", task=task),
                renderer=renderer,
                sampling=sampling,
                layout=layout,
                release=engine.release,
            )
            for key, task in zip(keys, tasks, strict=True)
        ],
        max_running=64,
    )
    simulator = Simulator(world, layout)
    episodes = simulator.play(keys, tasks)
    for row, one in enumerate(played):
        assert [turn.tokens for turn in one.episode.turns] == simulator.tokens(episodes, row)
        assert one.episode.utility == episodes.utility[row]
    compared = count
    for turn in turns:
        for kind, index in (("twin", 0), ("independent", 0), ("pair", 1)):
            compared += compare_branches(simulator, episodes, played, engine, renderer, sampling, turn, kind, index)
    for one in played:
        one.close(engine)
    return compared


def compare_branches(simulator, episodes, played, engine, renderer, sampling, turn, kind, index) -> int:
    plan = BranchPlan(
        coupling="twin" if kind == "pair" else kind,
        pairs=2 if kind == "pair" else 1,
        self_twin_shortcut=False,
        same_evidence_probability=1.0,
    )
    setting = BranchSetting(plan=plan, renderer=renderer, sampling=sampling, layout=simulator.layout, max_context=4096)
    pairs = simulator.branch(episodes, turn, kind=kind, index=index)
    branches = drive(
        engine,
        [
            play_branch(played[row], blank_decision(played[row], turn), index, setting, release=engine.release)
            for row in pairs.rows
        ],
        max_running=64,
    )
    for place, branch in enumerate(branches):
        assert [one.tokens for one in branch.turns] == simulator.tokens(pairs.after, place)
        assert branch.utility == pairs.twin_utility[place]
        assert branch.factual_utility == pairs.utility[place]
        assert branch.generated_tokens == pairs.tokens[place]
        if kind != "pair":
            assert branch.same_evidence == pairs.same_evidence[place]
    return len(branches)


def blank_decision(played, turn: int) -> Decision:
    episode = played.episode
    return Decision(
        episode=episode.key,
        update=0,
        group=0,
        member=0,
        turn=turn,
        terminal=episode.turns[turn].terminal,
        utility=episode.utility,
        features=[],
    )


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("name", sorted(WORLDS))
def test_simulated_trajectories_are_the_real_ones(name, layout):
    assert compare(name, layout, 6, [1]) >= 24


@pytest.mark.slow
@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("name", sorted(WORLDS))
def test_hundreds_of_simulated_trajectories_are_the_real_ones(name, layout):
    assert compare(name, layout, 200, range(WORLDS[name].horizon)) >= 1000


def test_turns_and_tasks_that_do_not_exist_are_refused():
    simulator = Simulator(WORLDS["toy/Coupled-v0"]())
    with pytest.raises(ValueError, match="tasks must lie in 0 to 0"):
        simulator.play([1, 2], 1)
    with pytest.raises(ValueError, match="turns are 0 to 3"):
        simulator.branch(simulator.play([1, 2]), 4)
