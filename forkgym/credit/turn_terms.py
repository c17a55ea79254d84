"""Credit terms of the turn-level baselines: anchor states, boundary values, a learned credit, process rewards.

Each is a small frozen struct that is called with a :class:`CreditBatch`. Group-wide terms and twin credit are in
``terms.py``; nothing here runs an environment or a model.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Literal

import msgspec

from forkgym.credit.estimators import centred, root_mean_square, standardised
from forkgym.credit.protocol import Advantages, CreditBatch
from forkgym.rollout.plan import require, require_choices
from forkgym.rollout.trace import Episode

__all__ = ["AnchorStates", "BoundaryValues", "LearnedCredit", "ProcessReward", "SuccessOnly"]

TurnScore = Callable[[Episode, int], float]
"""A process reward: the episode and the turn's number in, a number out. It must not change the episode."""


class AnchorStates(msgspec.Struct, frozen=True, kw_only=True):
    """GiGPO's step term: turns of one group that stand at the same anchor state are compared with each other.

    The return of a step is ``R_t = Σ_{k ≥ t} γ^{k−t} r_k``; a step that stands alone gets 0. Source: Feng et al. 2025,
    eq. 5-8.

    Attributes:
        weight: ω.
        discount: γ.
        scale: ``std`` divides by the step group's (population) standard deviation, ``none`` does not.
        anchor: What identifies a state: ``observation`` = the text that was last observed (the prompt at turn 0);
            ``history`` = all texts observed so far, in order (the Twice paper's reading).
        epsilon: ε of ``std``.
    """

    weight: float = 1.0
    discount: float = 0.95
    scale: Literal["std", "none"] = "std"
    anchor: Literal["observation", "history"] = "observation"
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        require_choices(self)
        require(0.0 < self.discount <= 1.0, "discount", "in (0, 1]", self.discount)

    def __call__(self, batch: CreditBatch) -> Advantages:
        """ω times the step advantage of every turn; costs no extra token."""
        return [row for group in batch.groups for row in self._group(group)]

    def _group(self, group: list[Episode]) -> Advantages:
        rows: Advantages = [[0.0] * len(episode.turns) for episode in group]
        steps: dict[tuple[str, ...], list[tuple[int, int]]] = {}
        for member, episode in enumerate(group):
            for turn in range(len(episode.turns)):
                steps.setdefault(self._state(episode, turn), []).append((member, turn))
        returns = [_returns_to_go(episode, self.discount) for episode in group]
        for places in steps.values():
            values = [returns[member][turn] for member, turn in places]
            credit = standardised(values, epsilon=self.epsilon) if self.scale == "std" else centred(values)
            for (member, turn), value in zip(places, credit, strict=True):
                rows[member][turn] = self.weight * value
        return rows

    def _state(self, episode: Episode, turn: int) -> tuple[str, ...]:
        # Members of a group share their task and so their prompt; "start" keeps turn 0 apart from an empty answer.
        seen = ("start", *(earlier.observation for earlier in episode.turns[:turn]))
        return seen if self.anchor == "history" else (("start",) if turn == 0 else ("", seen[-1]))


class BoundaryValues(msgspec.Struct, frozen=True, kw_only=True):
    """VinePPO's credit: ``V̂(s_{t+1}) − V̂(s_t)``, V̂ the mean return of fresh rollouts from the turn's boundary.

    Fresh rollouts from s_t are this library's independent branches at turn t whose alternative is drawn from the
    policy itself. After the last turn V̂ is U. Source: Kazemnejad et al. 2025, eq. 7-8 (γ = 1).
    """

    def __call__(self, batch: CreditBatch) -> Advantages:
        """Credit of every turn; the decision keeps it, too.

        Raises:
            ValueError: A turn has no rollouts of its own.
        """
        rows: Advantages = []
        for episode in batch.episodes:
            decisions = batch.decisions.get(episode.key, [])
            if len(decisions) != len(episode.turns):
                raise ValueError("boundary values need a decision at every turn: branch every turn (q = 1)")
            values: list[float] = []
            for decision in decisions:
                returns = [branch.utility for branch in decision.realised()]
                if not returns:
                    raise ValueError(f"turn {decision.turn} has no fresh rollouts: branch every turn (q = 1)")
                values.append(math.fsum(returns) / len(returns))
            values.append(episode.utility)
            rows.append([values[turn + 1] - values[turn] for turn in range(len(decisions))])
            for decision, value in zip(decisions, rows[-1], strict=True):
                decision.credit = value
        return rows


class LearnedCredit(msgspec.Struct, frozen=True, kw_only=True):
    """``ω·b_t/σ̂``: the control variate itself as credit, without any twin of this update ("b alone").

    b was fitted on twins of earlier updates, so it is biased as far as it is wrong; no inverse weight enters. σ̂ is
    the root mean square of the batch's non-zero b (0 credit where every b is 0, as in the first update).

    Attributes:
        weight: ω.
    """

    weight: float = 0.3

    def __call__(self, batch: CreditBatch) -> Advantages:
        """Scaled b of every turn; the decision's ``credit`` becomes b."""
        rows: Advantages = []
        for episode in batch.episodes:
            row = [0.0] * len(episode.turns)
            for decision in batch.decisions.get(episode.key, []):
                decision.credit = row[decision.turn] = decision.baseline
            rows.append(row)
        sigma = root_mean_square([value for row in rows for value in row if value != 0.0])
        factor = self.weight / sigma if sigma > 0.0 else 0.0
        return [[factor * value for value in row] for row in rows]


class SuccessOnly(msgspec.Struct, frozen=True, kw_only=True):
    """1 for every turn of a successful episode, 0 elsewhere: cross-entropy on the policy's own successes."""

    def __call__(self, batch: CreditBatch) -> Advantages:
        """The grader's verdict as weight of every turn."""
        return [[float(episode.success)] * len(episode.turns) for episode in batch.episodes]


class ProcessReward(msgspec.Struct, frozen=True, kw_only=True):
    """``weight·(r_{i,t} − mean of r over all turns of the group)``, r a process reward of single turns.

    Attributes:
        score: ``module:function`` with the signature ``(Episode, turn number) -> float``.
        weight: Weight beside the outcome term.
    """

    score: str
    weight: float = 1.0

    def __post_init__(self) -> None:
        module, _, name = self.score.partition(":")
        require(bool(module and name), "the process reward's score", "written as module:function", self.score)

    def __call__(self, batch: CreditBatch) -> Advantages:
        """Centred process rewards.

        Raises:
            ValueError: The function cannot be loaded, or returned a number that is not finite.
        """
        score = self._load()
        out: Advantages = []
        for group in batch.groups:
            rows = [[self._rate(score, episode, turn) for turn in range(len(episode.turns))] for episode in group]
            flat = [value for row in rows for value in row]
            mean = math.fsum(flat) / len(flat) if flat else 0.0
            out += [[self.weight * (value - mean) for value in row] for row in rows]
        return out

    def _load(self) -> TurnScore:
        module, _, name = self.score.partition(":")
        try:
            found: TurnScore = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"the process reward {self.score!r} cannot be loaded ({error})") from error
        return found

    def _rate(self, score: TurnScore, episode: Episode, turn: int) -> float:
        value = float(score(episode, turn))
        if not math.isfinite(value):
            raise ValueError(f"{self.score} returned {value} for turn {turn}: a process reward must be finite")
        return value


def _returns_to_go(episode: Episode, discount: float) -> list[float]:
    returns: list[float] = []
    following = 0.0
    for turn in reversed(episode.turns):
        following = turn.reward + discount * following
        returns.append(following)
    return returns[::-1]
