"""What a rollout leaves behind: turns, episodes, decisions, branches, and the ledger's counters.

Only data lives here (msgspec structs, JSON-able). Credit, storage and the learner read these; nothing in this
file runs an environment or a model, and nothing imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

__all__ = [
    "Branch",
    "BranchKind",
    "Decision",
    "Episode",
    "Ledger",
    "Role",
    "Turn",
    "state_key",
]

BranchKind = Literal["twin", "independent", "pair"]
Role = Literal["on_policy", "counterfactual", "scoring", "learner", "retried"]


class Turn(msgspec.Struct, kw_only=True):
    """One turn: the policy wrote ``tokens`` after ``context_length`` tokens, the environment answered.

    Attributes:
        index: Turn number t, from 0.
        context_length: Number of tokens (prompt, earlier turns, observations) before the turn's first token.
        tokens: Sampled token ids, the stop token included; never re-tokenised text.
        logprobs: Behaviour log-probability of each token (nats, float64).
        entropies: Entropy of the behaviour distribution at each token (nats).
        gini_impurities: ``1 − Σ_v π(v)²`` at each token.
        finish_reason: ``"stop"`` or ``"length"``.
        text: Decoded turn.
        action: The parsed action, JSON-able.
        action_kind: The environment's class of the action (``search``, ``answer``, ``invalid``, …).
        observation: Text the environment answered with (empty after a terminal turn).
        observation_tokens: The answer as the policy sees it, masked in training.
        evidence: What was learned at this turn, JSON-able (``info["evidence"]``).
        reward: Reward of the turn.
        terminal: The episode ended with this turn (terminated or truncated).
        action_start: Index of the first token of the turn's last non-empty line: where the action begins.
        state_hash: The environment's state hash after the turn (empty when not recorded).
        supports: Under nucleus sampling, the ids each token was drawn from; ``None`` for the whole vocabulary.
    """

    index: int
    context_length: int
    tokens: list[int]
    logprobs: list[float]
    entropies: list[float]
    gini_impurities: list[float]
    finish_reason: str
    text: str
    action: Any
    action_kind: str
    observation: str
    observation_tokens: list[int]
    evidence: Any
    reward: float
    terminal: bool
    action_start: int = 0
    state_hash: str = ""
    supports: list[list[int]] | None = None

    @property
    def mean_entropy(self) -> float:
        """Mean entropy of the turn's tokens in nats; 0 for an empty turn."""
        return sum(self.entropies) / len(self.entropies) if self.entropies else 0.0

    @property
    def action_entropy(self) -> float:
        """Mean entropy in nats over the action's tokens (CRR eq. 5 reads H_t so); 0 when there are none."""
        tail = self.entropies[self.action_start :]
        return sum(tail) / len(tail) if tail else 0.0

    @property
    def logprob(self) -> float:
        """Log-probability of the whole turn, ``log π(y_t | s_t)``."""
        return sum(self.logprobs)


class Episode(msgspec.Struct, kw_only=True):
    """A factual episode: everything needed to train on it, replay it and branch from it.

    Attributes:
        key: 64-bit episode id; every noise key of the episode derives from it.
        environment: Environment id.
        split: Task split.
        task: Task number within the split.
        update: Update the episode was collected for.
        group: Group number within the update (one task per group).
        member: Member number within the group.
        version: Policy version that wrote every token.
        prompt_tokens: Tokens before the first turn.
        turns: The turns in order.
        utility: Terminal utility U in [0, 1].
        success: The grader's verdict.
        handle: The environment's portable handle as JSON, for replay (empty when not recorded).
        failure: The environment's name for what went wrong (``info["failure"]``), "" if it gave none.
    """

    key: int
    environment: str
    split: str
    task: int
    update: int
    group: int
    member: int
    version: int
    prompt_tokens: list[int]
    turns: list[Turn]
    utility: float
    success: bool
    handle: str = ""
    failure: str = ""

    def tokens(self) -> list[int]:
        """All tokens in order: prompt, then each turn's tokens and its observation's."""
        out = list(self.prompt_tokens)
        for turn in self.turns:
            out += turn.tokens
            out += turn.observation_tokens
        return out

    def context(self, turn: int) -> list[int]:
        """Tokens before ``turn``'s first token: ``s_turn`` as the policy saw it."""
        out = list(self.prompt_tokens)
        for earlier in self.turns[:turn]:
            out += earlier.tokens
            out += earlier.observation_tokens
        return out

    @property
    def generated_tokens(self) -> int:
        """Number of tokens the policy wrote."""
        return sum(len(turn.tokens) for turn in self.turns)

    def generated_after(self, turn: int) -> int:
        """Number of tokens the policy wrote in turns after ``turn``."""
        return sum(len(later.tokens) for later in self.turns[turn + 1 :])

    def generated_before(self, turn: int) -> int:
        """Number of tokens the policy wrote in turns before ``turn``."""
        return sum(len(earlier.tokens) for earlier in self.turns[:turn])


class Branch(msgspec.Struct, kw_only=True):
    """One counterfactual: at ``turn`` of the parent, another turn was written and (perhaps) followed to the end.

    Attributes:
        parent: Key of the factual episode.
        turn: Fork turn t.
        index: Number of the alternative at this decision, from 0 (``pair`` j − 1 in the papers' notation).
        kind: ``twin`` (later turns read the parent's noise), ``independent`` (a fresh stream) or ``pair`` (the
            second and further pairs of J > 1: both arms re-run under one fresh stream).
        layout: Name of the noise layout.
        stream: 64-bit stream id of the alternative turn.
        proposal_attempts: Turns drawn until the proposal accepted one (1 without rejection).
        turns: The alternative turn, then the continuation; empty when the proposal gave up.
        factual_turns: For ``pair``: the *factual* turn once more (the same tokens, answered under the fresh stream's
            luck), then its continuation under that stream.
        self_twin: The alternative equals the factual turn token for token; nothing was continued, D = 0.
        same_evidence: e: the alternative differs, neither turn is terminal, the observations are equal.
        continued: S: the branch was followed to its end (true for terminal alternatives and self-twins).
        skipped: The proposal found no alternative (CRR's rejection or validity filter gave up).
        continuation_probability: q_same where ``same_evidence``, else 1.
        utility: U' of the branch (the factual U for a self-twin; 0 where not continued, to be ignored).
        factual_utility: U of the arm it is compared with (differs from the parent's only for ``pair``).
        generated_tokens: Real tokens spent on the branch.
    """

    parent: int
    turn: int
    index: int
    kind: BranchKind
    layout: str
    stream: int
    proposal_attempts: int = 1
    turns: list[Turn] = []
    factual_turns: list[Turn] = []
    self_twin: bool = False
    same_evidence: bool = False
    continued: bool = True
    skipped: bool = False
    continuation_probability: float = 1.0
    utility: float = 0.0
    factual_utility: float = 0.0
    generated_tokens: int = 0

    @property
    def difference(self) -> float:
        """D = U − U' (Twice §4.2). Meaningful only where ``continued`` and not ``skipped``."""
        return self.factual_utility - self.utility


class Decision(msgspec.Struct, kw_only=True):
    """One factual turn as credit sees it, branched or not.

    Attributes:
        episode: Key of the factual episode.
        update: Update number.
        group: Group number within the update.
        member: Member number within the group.
        turn: Turn number t.
        terminal: The factual turn ended the episode.
        utility: Factual U.
        features: The predictor's nine features (Twice, appendix, "Discordance predictor").
        discordance: η̂, predicted P(D ≠ 0) (or E[D²] for graded utilities).
        baseline: b, the control variate; known before any coin of this decision was drawn.
        cost: c, predicted tokens of a twin: this turn's tokens plus factual tokens after it.
        score: The selector's score (0 where the selector has none).
        propensity: q, probability that the decision is branched (1 for deterministic selectors that chose it).
        coin: The keyed uniform that was compared with q.
        branched: B: the decision was branched.
        branches: What came of it.
        credit: Â, filled in by the estimator; ``None`` before.
    """

    episode: int
    update: int
    group: int
    member: int
    turn: int
    terminal: bool
    utility: float
    features: list[float]
    discordance: float = 0.0
    baseline: float = 0.0
    cost: float = 0.0
    score: float = 0.0
    propensity: float = 0.0
    coin: float = 1.0
    branched: bool = False
    branches: list[Branch] = []
    credit: float | None = None

    def realised(self) -> Iterator[Branch]:
        """Branches whose D was observed: continued and not given up by the proposal."""
        return (branch for branch in self.branches if branch.continued and not branch.skipped)


class Ledger(msgspec.Struct, kw_only=True):
    """Tokens and seconds by role, mutually exclusive (design promise 5). Tokens are real, never predicted.

    ``generated`` counts sampled tokens, ``fed`` context tokens that had to be computed, both per role;
    ``retried`` is the role of rollouts that failed and were played again; no budget counts them.
    ``trained`` counts tokens of sequences the learner ran forward and backward. ``parts`` says where rollouts spent
    their seconds outside the engine (see ``stopwatch.Stopwatch``); it is contained in ``seconds``, but for ``charged``,
    which comes on top of it.
    """

    generated: dict[str, int] = {}
    fed: dict[str, int] = {}
    seconds: dict[str, float] = {}
    parts: dict[str, dict[str, float]] = {}
    trained: int = 0
    episodes: int = 0
    branches: int = 0
    collections: int = 0
    updates: int = 0
    optimiser_steps: int = 0

    def add(self, role: Role, *, generated: int = 0, fed: int = 0, seconds: float = 0.0) -> None:
        """Book tokens and wall seconds on one role."""
        self.generated[role] = self.generated.get(role, 0) + generated
        self.fed[role] = self.fed.get(role, 0) + fed
        self.seconds[role] = self.seconds.get(role, 0.0) + seconds

    def add_parts(self, role: Role, seconds: Mapping[str, float]) -> None:
        """Book what a stopwatch measured, by part, on one role."""
        parts = self.parts.setdefault(role, {})
        for part, more in seconds.items():
            parts[part] = parts.get(part, 0.0) + more

    def part(self, name: str) -> float:
        """Seconds of one part over the roles that train (scoring left out)."""
        return sum(parts.get(name, 0.0) for role, parts in self.parts.items() if role != "scoring")

    @property
    def training_tokens(self) -> int:
        """Tokens generated for training (on-policy and counterfactual): the unit of equal-token comparisons."""
        return self.generated.get("on_policy", 0) + self.generated.get("counterfactual", 0)


def state_key(episode: Episode, turn: int) -> str:
    """Key of the state before ``turn``: the turn number and the *set* of evidence gathered before it.

    Two members of a group with equal keys stand at the same state for evidence merging (``merge-annealed``).
    Evidence is compared by canonical JSON, so its order within the episode does not matter.
    """
    seen = {msgspec.json.encode(earlier.evidence, order="deterministic").decode() for earlier in episode.turns[:turn]}
    return msgspec.json.encode([turn, sorted(seen)]).decode()
