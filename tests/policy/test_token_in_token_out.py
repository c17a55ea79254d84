"""From sampling to training: the ids on the learner's mask are the ids that the engine sampled, token for token."""

from __future__ import annotations

import numpy as np
import pytest

from forkgym.core import TextEnv
from forkgym.learn.batch import training_sequences
from forkgym.noise import Layout, episode_id
from forkgym.policy.engine import Sampling
from forkgym.policy.scripted import RandomEngine
from forkgym.rollout.episode import EpisodeSpec, drive, play_episode
from tests.policy.test_chat import CHAT, PLAIN, TINY


class Echo(TextEnv):
    """Answers every text with a text that would merge with it if both were tokenised again."""

    max_turns = 4
    version = "1"

    def __init__(self):
        self.turns = 0

    @property
    def splits(self):
        return {"train": 10}

    def _reset(self, *, seed, options):
        self.turns = 0
        return "the question", {}

    def _step(self, action):
        self.turns += 1
        done = self.turns == self.max_turns
        return "" if done else "the \n\n", float(done), done, False, {"action_kind": "answer", "evidence": []}

    def _get_state(self):
        return self.turns

    def _set_state(self, state):
        self.turns = state


class Recording(RandomEngine):
    """Remembers what it sampled for which context."""

    def __init__(self, vocabulary_size):
        super().__init__(vocabulary_size, decode=lambda tokens: "")
        self.sampled = []

    def _complete(self, turn, reason):
        self.sampled.append((list(turn.request.context), list(turn.tokens)))
        return super()._complete(turn, reason)


@pytest.mark.parametrize("renderer", [CHAT, PLAIN, TINY], ids=["chat", "plain", "tiny"])
def test_training_sees_exactly_the_sampled_ids(renderer):
    """Uniform random ids: nearly none of these turns would survive decoding and tokenising again."""
    engine = Recording(renderer.vocabulary_size)
    sampling = Sampling(max_tokens=7, stop_tokens=renderer.stop_tokens)
    played = drive(
        engine,
        [
            play_episode(
                Echo(),
                EpisodeSpec(key=episode_id(0, "train", 0, task, 0), split="train", task=task),
                renderer=renderer,
                sampling=sampling,
                layout=Layout.TURN_LINE,
                release=engine.release,
                branchable=False,
            )
            for task in range(6)
        ],
        max_running=3,
    )
    episodes = [result.episode for result in played]
    advantages = [[1.0] * len(episode.turns) for episode in episodes]
    changed = 0
    for sequence, episode in zip(training_sequences(episodes, advantages), episodes, strict=True):
        tokens, mask = np.array(sequence.tokens), np.array(sequence.action_mask)
        assert tokens[mask].tolist() == [token for turn in episode.turns for token in turn.tokens]
        for turn in episode.turns:
            assert (sequence.tokens[: turn.context_length], turn.tokens) in engine.sampled
            changed += renderer.written(renderer.decode(turn.tokens)) != turn.tokens
    assert changed > 0, "the test needs turns that another tokenisation would have changed"
