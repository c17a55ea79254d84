"""Scheduling: who is branched under which budget, and what realised branches teach the next update."""

from forkgym.schedule.budget import propensities, solve_multiplier, spend
from forkgym.schedule.controller import (
    ControllerState,
    Planning,
    make_decisions,
    plan_branches,
    plans_by_group,
    same_evidence_probability,
    settle,
)
from forkgym.schedule.predictor import FEATURES, Discordance, RidgeRegression, decision_features

__all__ = [
    "FEATURES",
    "ControllerState",
    "Discordance",
    "Planning",
    "RidgeRegression",
    "decision_features",
    "make_decisions",
    "plan_branches",
    "plans_by_group",
    "propensities",
    "same_evidence_probability",
    "settle",
    "solve_multiplier",
    "spend",
]
