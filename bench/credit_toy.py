"""How good is turn-level credit where the truth is known? Noise layouts and estimators on the toy worlds, exact oracle.

Two tables a world: layouts (one pair at every decision) and estimators (what a budget of coins buys). The oracle is
exact, so unlike an audit of a real policy nothing here has an oracle's own error.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from forkgym_toy import WORLDS, Episodes, Pairs, Simulator, Solver

from forkgym.credit.estimators import horvitz_thompson, leave_one_out, standardised
from forkgym.noise import Layout, coin, episode_id
from forkgym.rollout.trace import Branch, Decision
from forkgym.schedule.budget import propensities, solve_multiplier

__all__ = ["decisions", "episode_keys", "estimator_table", "layout_table", "main", "quality"]

Floats = npt.NDArray[np.float64]
GROUP_SIZE = 5
THRESHOLDS = (0.05, 0.15)


def episode_keys(count: int, *, seed: int = 0, task: int = 0) -> npt.NDArray[np.uint64]:
    """Ids of ``count`` episodes of one task, as a run with this seed would make them."""
    return np.array([episode_id(seed, "train", 0, task, member) for member in range(count)], dtype=np.uint64)


def decisions(
    simulator: Simulator,
    episodes: Episodes,
    pairs: Sequence[Pairs],
    *,
    propensity: float | Floats = 1.0,
    baseline: float | Floats = 0.0,
    same_evidence_probability: float | Floats = 1.0,
    self_twin_shortcut: bool = True,
) -> list[Decision]:
    """Decisions and branches as a run records them, from simulated pairs of one turn.

    The branch coin and the evidence coin are the keyed ones of a run (``forkgym.noise.coin``).

    Args:
        simulator: What played the episodes.
        episodes: The factual episodes.
        pairs: Pair 1 (kind ``twin`` or ``independent``), then any further ones (kind ``pair``); same turn and rows.
        propensity: q, one for all or ``float64[M]``.
        baseline: b, one for all or ``float64[M]``.
        same_evidence_probability: q_same of pair 1, one for all or ``float64[M]``; further pairs always continue.
        self_twin_shortcut: Record an alternative that equals the factual turn as D = 0.

    Returns:
        One decision per row of the pairs, with its branches where its coin fell so.
    """
    first = pairs[0]
    size = first.rows.size
    q, b, q_same = (
        np.broadcast_to(np.asarray(value, dtype=np.float64), (size,))
        for value in (propensity, baseline, same_evidence_probability)
    )
    out = []
    for place, row in enumerate(first.rows.tolist()):
        key = int(episodes.keys[row])
        decision = Decision(
            episode=key,
            update=0,
            group=row // GROUP_SIZE,
            member=row % GROUP_SIZE,
            turn=first.turn,
            terminal=bool(first.terminal[place]),
            utility=float(episodes.utility[row]),
            features=[],
            baseline=float(b[place]),
            propensity=float(q[place]),
            coin=coin(key, first.turn, "branch"),
        )
        decision.branched = decision.coin < decision.propensity
        if decision.branched:
            decision.branches = [
                _branch(simulator, pair, place, key, index, float(q_same[place]), self_twin_shortcut)
                for index, pair in enumerate(pairs)
            ]
        out.append(decision)
    return out


def _branch(
    simulator: Simulator, pair: Pairs, place: int, key: int, index: int, q_same: float, shortcut: bool
) -> Branch:
    self_twin = shortcut and bool(pair.self_twin[place])
    utility = float(pair.utility[place])
    same = index == 0 and bool(pair.same_evidence[place])
    continued = not same or coin(key, pair.turn, "same-evidence", index) < q_same
    tokens = pair.tokens[place] if continued and not self_twin else simulator.written[pair.alternative[place]]
    return Branch(
        parent=key,
        turn=pair.turn,
        index=index,
        kind="pair" if index else "independent" if simulator.layout is Layout.INDEPENDENT else "twin",
        layout=str(simulator.layout),
        stream=0,
        self_twin=self_twin,
        same_evidence=same,
        continued=continued,
        continuation_probability=q_same if same else 1.0,
        utility=utility if self_twin else float(pair.twin_utility[place]),
        factual_utility=utility,
        generated_tokens=int(tokens),
    )


def quality(credit: Floats, truth: Floats) -> dict[str, float]:
    """Mean squared error, correlation, tie rate and wrong-sign rates of credits against exact advantages.

    Returns:
        ``mse``; ``correlation`` (Pearson, 0 where one side is constant); ``ties`` (share of zero credits); and for
        each threshold on |A|: ``wrong@θ`` (share of decisions with the wrong sign; a tie is not wrong) and
        ``wrong_of_nonzero@θ``. NaN where no decision reaches the threshold.
    """
    spread = float(credit.std() * truth.std())
    row = {
        "mse": float(((credit - truth) ** 2).mean()),
        "correlation": float(((credit - credit.mean()) * (truth - truth.mean())).mean() / spread)
        if spread > 1e-12
        else 0.0,
        "ties": float((np.abs(credit) < 1e-12).mean()),
    }
    for threshold in THRESHOLDS:
        matters = np.abs(truth) >= threshold
        wrong = (credit * truth < 0)[matters]
        nonzero = (np.abs(credit) >= 1e-12)[matters]
        row[f"wrong@{threshold}"] = float(wrong.mean()) if wrong.size else float("nan")
        row[f"wrong_of_nonzero@{threshold}"] = float(wrong[nonzero].mean()) if nonzero.any() else float("nan")
    return row


def layout_table(solver: Solver, *, episodes: int, seed: int) -> list[dict[str, Any]]:
    """One pair at every decision under every layout: twin correlation, bias and credit quality."""
    rows = []
    for layout in Layout:
        simulator = Simulator(solver, layout)
        played = simulator.play(episode_keys(episodes, seed=seed))
        kind = "independent" if layout is Layout.INDEPENDENT else "twin"
        credits, truths, bias = [], [], 0.0
        variance = independent = 0.0
        for turn in range(solver.graph.world.horizon):
            pairs = simulator.branch(played, turn, kind=kind)  # type: ignore[arg-type]  # a literal
            if not pairs.rows.size:
                continue
            truth = solver.advantage[pairs.decision]
            credits.append(pairs.difference.astype(np.float64))
            truths.append(truth)
            bias = max(bias, _largest_bias(pairs, truth))
            goes_on = ~pairs.terminal
            error = (credits[-1] - truth)[goes_on]
            nodes = pairs.decision[goes_on]
            q, v = solver.value[nodes], solver.value[solver.graph.root[nodes]]
            variance += float((error**2).sum())
            independent += float((q * (1 - q) + v * (1 - v)).sum())
        rows.append(
            {
                "layout": str(layout),
                "pairs": int(sum(credit.size for credit in credits)),
                "rho": 1 - variance / independent,
                "exact_rho": exact_rho(solver, layout),
                "largest_bias_z": bias,
                **quality(np.concatenate(credits), np.concatenate(truths)),
            }
        )
    return rows


def exact_rho(solver: Solver, layout: Layout, task: int = 0) -> float:
    """Twin correlation over the decisions of a task that do not end the episode; NaN where no exact law is at hand."""
    if not layout.unbiased_credit:
        return float("nan")
    graph, variance, independent = solver.graph, 0.0, 0.0
    for node, weight in solver.visits(task).items():
        goes_on = sum(chance for chance, shown in zip(graph.chance[node], graph.shown[node], strict=True) if shown >= 0)
        if graph.is_turn(node) and goes_on > 0:
            pair = solver.pair(node, layout)
            variance += weight * goes_on * pair.variance
            independent += weight * goes_on * pair.independent_variance
    return 1 - variance / independent


def _largest_bias(pairs: Pairs, truth: Floats, least: int = 50) -> float:
    """Largest |mean(D) − A| over decisions (s, y) with at least ``least`` non-zero D, in standard errors."""
    worst = 0.0
    for cell in np.unique(pairs.decision):
        difference = pairs.difference[pairs.decision == cell]
        error = difference - truth[pairs.decision == cell]
        if np.count_nonzero(difference) >= least and error.std() > 0:
            worst = max(worst, float(abs(error.mean()) / (error.std() / np.sqrt(error.size))))
    return worst


def estimator_table(solver: Solver, *, episodes: int, seed: int, budget: float = 0.7) -> list[dict[str, Any]]:
    """Credits of the same episodes by several estimators; tokens are relative to the factual episodes' own.

    η̂ knows the turn number only (the share of D ≠ 0 at that turn), so the square-root rule and b = η̂(2U − 1) are what
    a plain predictor could do, not the best there is.
    """
    twin, lone = Simulator(solver, Layout.TURN_LINE), Simulator(solver, Layout.INDEPENDENT)
    played = twin.play(episode_keys(episodes, seed=seed))
    counts = twin.token_counts(played)
    turns = [turn for turn in range(solver.graph.world.horizon) if (played.turns[:, turn] >= 0).any()]
    pairs = {turn: twin.branch(played, turn) for turn in turns}
    further = {turn: twin.branch(played, turn, kind="pair", index=1) for turn in turns}
    alone = {turn: lone.branch(played, turn, kind="independent") for turn in turns}
    truth = np.concatenate([solver.advantage[pairs[turn].decision] for turn in turns])
    discordance = {turn: _discordance(pairs[turn]) for turn in turns}
    sign = {turn: discordance[turn] * (2.0 * played.utility[pairs[turn].rows].astype(np.float64) - 1) for turn in turns}
    cost = {turn: counts[pairs[turn].rows, turn:].sum(axis=1).astype(np.float64) for turn in turns}
    total = float(counts.sum())
    uniform = budget * total / sum(float(cost[turn].sum()) for turn in turns)
    root = _square_root_rule(discordance, cost, budget * total)
    zero = dict.fromkeys(turns, 0.0)
    one = dict.fromkeys(turns, 1.0)
    flat = dict.fromkeys(turns, uniform)

    def branching(q: Any, b: Any, q_same: float, first: dict[int, Pairs], more: bool = False) -> tuple[Floats, float]:
        credits, tokens = [], 0.0
        for turn in turns:
            listed = decisions(
                lone if first is alone else twin,
                played,
                [first[turn], further[turn]] if more else [first[turn]],
                propensity=q[turn],
                baseline=b[turn],
                same_evidence_probability=q_same,
            )
            credits.append(np.array([horvitz_thompson(decision) for decision in listed]))
            tokens += sum(branch.generated_tokens for decision in listed for branch in decision.branches)
        return np.concatenate(credits), tokens / total

    utility = played.utility.astype(np.float64)
    groups = utility.reshape(-1, GROUP_SIZE).tolist()
    everywhere = np.concatenate([pairs[turn].rows for turn in turns])
    named: list[tuple[str, tuple[Floats, float]]] = [
        ("group, standardised (grpo)", (np.concatenate([standardised(g) for g in groups])[everywhere], 0.0)),
        ("group, leave one out (rloo)", (np.concatenate([leave_one_out(g) for g in groups])[everywhere], 0.0)),
        ("b alone: eta (2U - 1)", (np.concatenate([sign[turn] for turn in turns]), 0.0)),
        ("independent branch everywhere", branching(one, zero, 1.0, alone)),
        ("twin everywhere", branching(one, zero, 1.0, pairs)),
        ("two pairs everywhere", branching(one, zero, 1.0, pairs, more=True)),
        ("independent, one coin", branching(flat, zero, 1.0, alone)),
        ("twin, one coin", branching(flat, zero, 1.0, pairs)),
        ("twin, square root", branching(root, zero, 1.0, pairs)),
        ("twin, square root, q_same .25", branching(root, zero, 0.25, pairs)),
        ("twin, square root, b = sign", branching(root, sign, 1.0, pairs)),
        ("twin, square root, b = sign, q_same .5", branching(root, sign, 0.5, pairs)),
    ]
    return [{"estimator": name, "extra_tokens": extra, **quality(credit, truth)} for name, (credit, extra) in named]


def _discordance(pairs: Pairs) -> float:
    """P(D ≠ 0) of a turn's decisions: what a predictor that knows only the turn number would say."""
    return max(float((pairs.difference != 0).mean()), 1e-3)


def _square_root_rule(
    discordance: dict[int, float], cost: dict[int, Floats], budget: float, floor: float = 0.05
) -> dict[int, Floats]:
    """Propensities by the square-root rule, with λ found over all turns together (Twice §4.3)."""
    weights = {turn: np.sqrt(discordance[turn] / c) for turn, c in cost.items()}
    costs = np.concatenate(list(cost.values())).tolist()
    multiplier = solve_multiplier(np.concatenate(list(weights.values())).tolist(), costs, budget, floor)
    return {turn: np.array(propensities(w.tolist(), multiplier, floor)) for turn, w in weights.items()}


def _print(title: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{title}")
    columns = list(rows[0])
    first = max(len(str(row[columns[0]])) for row in rows) + 2
    print(
        columns[0].ljust(first) + "".join(f"{name.replace('wrong_of_nonzero', 'wrong/nz'):>16}" for name in columns[1:])
    )
    for row in rows:
        cells = (f"{row[name]:>16d}" if isinstance(row[name], int) else f"{row[name]:>16.4f}" for name in columns[1:])
        print(str(row[columns[0]]).ljust(first) + "".join(cells))


def main(argv: Sequence[str]) -> int:
    """Run the bench.

    Args:
        argv: Command line without the program's name.

    Returns:
        0, or 2 for bad arguments.
    """
    parser = argparse.ArgumentParser(prog="python -m bench credit_toy", description=__doc__)
    parser.add_argument("--episodes", type=int, default=20_000, help="factual episodes a world (default 20000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--env", choices=sorted(WORLDS), action="append", help="only this world; may be repeated")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    try:
        options = parser.parse_args(list(argv))
        if options.episodes < GROUP_SIZE or options.episodes % GROUP_SIZE:
            parser.error(f"--episodes must be a positive multiple of {GROUP_SIZE}, got {options.episodes}")
    except SystemExit as stop:
        return int(stop.code or 0)
    report: dict[str, Any] = {"bench": "credit_toy", "episodes": options.episodes, "seed": options.seed, "worlds": {}}
    started = time.perf_counter()
    for name in options.env or sorted(WORLDS):
        solver = Solver(WORLDS[name]())
        layouts = layout_table(solver, episodes=options.episodes, seed=options.seed)
        estimators = estimator_table(solver, episodes=options.episodes, seed=options.seed)
        report["worlds"][name] = {"layouts": layouts, "estimators": estimators}
        _print(f"{name}: one pair at every decision (rho: decisions that do not end the episode)", layouts)
        _print(f"{name}: estimators (layout turn-line; tokens relative to the factual episodes)", estimators)
    report["seconds"] = time.perf_counter() - started
    if options.json:
        print(json.dumps(_without_nan(report)))
    return 0


def _without_nan(value: Any) -> Any:
    """JSON has no NaN: null instead."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and np.isnan(value) else value


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
