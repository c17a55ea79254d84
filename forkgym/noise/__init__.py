"""Keyed noise: every random choice is a pure function of a key, so a twin can share its episode's luck.

Importing this package loads numpy, neither numba nor torch; device tensors are `forkgym.noise.torch_backend`.
"""

from forkgym.noise.distribution import behaviour_logprobs, greedy, nucleus
from forkgym.noise.gumbel import gumbel, sample_full
from forkgym.noise.keys import FACTUAL_STREAM, Key, coin, episode_id, generator, luck_key, stream_id
from forkgym.noise.layouts import KeyStream, Layout, newline_table
from forkgym.noise.philox import philox4x32, words
from forkgym.noise.sampling import sample, sample_batch, token_statistics

__all__ = [
    "FACTUAL_STREAM",
    "Key",
    "KeyStream",
    "Layout",
    "behaviour_logprobs",
    "coin",
    "episode_id",
    "generator",
    "greedy",
    "gumbel",
    "luck_key",
    "newline_table",
    "nucleus",
    "philox4x32",
    "sample",
    "sample_batch",
    "sample_full",
    "stream_id",
    "token_statistics",
    "words",
]
