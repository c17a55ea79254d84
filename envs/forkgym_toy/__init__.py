"""Small worlds with exact answers: V, Q, A and every moment of a twin's D are computed, not estimated.

`worlds` holds the rules, `exact` the solver, `simulate` a fast keyed simulator, `env` the environments ``toy/*``.
"""

from forkgym_toy.exact import Agreement, Pair, Solver
from forkgym_toy.graph import Graph
from forkgym_toy.policy import WordRenderer
from forkgym_toy.simulate import Episodes, Pairs, Simulator
from forkgym_toy.world import Outcome, World
from forkgym_toy.worlds import WORLDS, Chain, Coupled, Shortcut, SlipperyChain

__all__ = [
    "WORLDS",
    "Agreement",
    "Chain",
    "Coupled",
    "Episodes",
    "Graph",
    "Outcome",
    "Pair",
    "Pairs",
    "Shortcut",
    "Simulator",
    "SlipperyChain",
    "Solver",
    "WordRenderer",
    "World",
]
