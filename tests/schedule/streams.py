"""Made-up updates for the controller: random episodes, and branches whose cost and outcome follow a known rule."""

from __future__ import annotations

import numpy as np

from forkgym.credit import Branching, CoinSelector
from forkgym.rollout.plan import BranchPlan
from forkgym.rollout.trace import Branch, Decision, Episode
from forkgym.schedule import ControllerState, Planning, make_decisions, plan_branches, settle
from tests.credit.traces import branch, episode


def groups_of(
    rng: np.random.Generator, update: int, *, groups: int, size: int, tokens: float = 8.0
) -> list[list[Episode]]:
    """Episodes of one to five turns and random lengths."""
    out = []
    for group in range(groups):
        members = []
        for member in range(size):
            key = int(rng.integers(2**62))
            turns = int(rng.integers(0, 5))
            one = episode(key, float(rng.random() < 0.4), [f"e{t}" for t in range(turns)], group=group, member=member)
            one.update = update
            for turn in one.turns:
                length = 1 + int(rng.poisson(tokens))
                turn.tokens, turn.entropies = [0] * length, [float(rng.random())] * length
                turn.gini_impurities, turn.logprobs = [float(rng.random())] * length, [-0.5] * length
            members.append(one)
        out.append(members)
    return out


def branching(selector: CoinSelector | None = None, plan: BranchPlan | None = None, **options: object) -> Branching:
    chosen = selector or CoinSelector(warmup_updates=2)
    return Branching(selector=chosen, plan=plan or BranchPlan(), **options)  # type: ignore[arg-type]


def run_branches(rng: np.random.Generator, decisions: list[Decision], episodes: dict[int, Episode]) -> None:
    """Give chosen decisions branches: a third are self-twins, the others cost about what is left, more or less."""
    for decision in decisions:
        if not decision.branched:
            continue
        turn = episodes[decision.episode].turns[decision.turn]
        if rng.random() < 0.33:
            made: Branch = branch(decision.utility, decision.utility, self_twin=True, generated_tokens=len(turn.tokens))
        else:
            cost = max(1, int(decision.cost * rng.uniform(0.3, 2.2)))
            same = bool(rng.random() < 0.3)
            made = branch(
                float(rng.random() < 0.4),
                decision.utility,
                same_evidence=same,
                continuation_probability=0.25 if same else 1.0,
                continued=not same or bool(rng.random() < 0.25),
                generated_tokens=cost,
            )
        decision.branches = [made]


def simulate(
    updates: int,
    setting: Branching,
    *,
    groups: int,
    size: int,
    seed: int = 0,
    tokens: float = 8.0,
    planning: Planning = "batch",
) -> tuple[list[float], list[float], ControllerState]:
    """Factual and branch tokens of each update, and the final state."""
    rng, state = np.random.default_rng(seed), ControllerState()
    factual, auxiliary = [], []
    for update in range(updates):
        made = groups_of(rng, update, groups=groups, size=size, tokens=tokens)
        episodes = {one.key: one for group in made for one in group}
        decisions = make_decisions(made)
        plan_branches(decisions, episodes, setting, state, update, planning=planning)
        run_branches(rng, decisions, episodes)
        settle(decisions, setting, state, credited=False, episodes=episodes if planning == "group" else None)
        factual.append(float(sum(one.generated_tokens for one in episodes.values())))
        auxiliary.append(float(sum(b.generated_tokens for decision in decisions for b in decision.branches)))
    return factual, auxiliary, state
