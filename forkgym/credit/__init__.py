"""Credit: what an algorithm is, and the estimators, terms and selectors it is composed of."""

from forkgym.credit.estimators import (
    centred,
    contrast,
    horvitz_thompson,
    leave_one_out,
    merged_returns,
    plain_difference,
    root_mean_square,
    standardised,
)
from forkgym.credit.protocol import (
    Advantages,
    Algorithm,
    Branching,
    CoinSelector,
    CreditBatch,
    CreditTerm,
    ScoreSelector,
    TrainingSet,
)
from forkgym.credit.registry import UnknownAlgorithm, list_algorithms, make_algorithm, register_algorithm
from forkgym.credit.selectors import select_by_score, turn_score
from forkgym.credit.terms import ContrastOrOutcome, GroupRelative, MergedEvidence, TurnCredit
from forkgym.credit.training_sets import AllBranches, Alternatives, BestFork, TreeLeaves
from forkgym.credit.turn_terms import AnchorStates, BoundaryValues, LearnedCredit, ProcessReward, SuccessOnly

__all__ = [
    "Advantages",
    "Algorithm",
    "AllBranches",
    "Alternatives",
    "AnchorStates",
    "BestFork",
    "BoundaryValues",
    "Branching",
    "CoinSelector",
    "ContrastOrOutcome",
    "CreditBatch",
    "CreditTerm",
    "GroupRelative",
    "LearnedCredit",
    "MergedEvidence",
    "ProcessReward",
    "ScoreSelector",
    "SuccessOnly",
    "TrainingSet",
    "TreeLeaves",
    "TurnCredit",
    "UnknownAlgorithm",
    "centred",
    "contrast",
    "horvitz_thompson",
    "leave_one_out",
    "list_algorithms",
    "make_algorithm",
    "merged_returns",
    "plain_difference",
    "register_algorithm",
    "root_mean_square",
    "select_by_score",
    "standardised",
    "turn_score",
]
