"""What an algorithm asks for: how episodes are drawn, which branches are run, what loss is taken.

Plain frozen structs without behaviour; ``credit`` composes them, ``rollout`` and ``learn`` carry them out.
"""

from __future__ import annotations

from typing import Literal, get_args, get_origin

import msgspec

from forkgym.noise import Layout

__all__ = ["BranchPlan", "ClippedSurrogate", "Coupling", "Proposal", "RolloutPlan", "require", "require_choices"]

Coupling = Literal["twin", "independent"]


def require(condition: bool, name: str, what: str, value: object) -> None:
    """Refuse an option's value.

    Raises:
        ValueError: ``condition`` is false; the message says what the option must be and what it is.
    """
    if not condition:
        raise ValueError(f"{name} must be {what}, got {value!r}")


def require_choices(options: msgspec.Struct) -> None:
    """Refuse a text that is none of those its field lists: a struct does not check this when it is built in Python.

    Raises:
        ValueError: The message names the field, the choices and the value.
    """
    for field in msgspec.structs.fields(options):
        if get_origin(field.type) is Literal:
            choices, value = get_args(field.type), getattr(options, field.name)
            require(value in choices, field.name, f"one of {', '.join(choices)}", value)


class RolloutPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How factual episodes are drawn: ``group_size`` chains a task.

    Attributes:
        group_size: G, episodes a task.
        temperature: τ of the behaviour policy.
        top_p: Nucleus mass of the behaviour policy.
        layout: Noise layout name (``turn-line``, ``turn``, ``episode``, ``ngram``, ``independent``).
    """

    group_size: int = 5
    temperature: float = 1.0
    top_p: float = 1.0
    layout: str = "turn-line"

    def __post_init__(self) -> None:
        require(self.group_size >= 1, "group_size", "at least 1", self.group_size)
        require(self.temperature > 0.0, "temperature", "above 0", self.temperature)
        require(0.0 < self.top_p <= 1.0, "top_p", "in (0, 1]", self.top_p)
        layouts = [layout.value for layout in Layout]
        require(self.layout in layouts, "layout", f"one of {', '.join(layouts)}", self.layout)


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """Where alternatives come from.

    Attributes:
        temperature_scale: Sampling temperature of the alternative turn relative to τ (CRR's T_cf; 1 is π itself).
        exclude_factual: Reject alternatives whose parsed action equals the factual one (CRR); otherwise y' ~ π
            may equal y_t (Twice).
        max_attempts: Draws before a rejecting proposal gives up and the decision is skipped.
        require_valid: Also reject alternatives whose action does not parse (CRR's validity filter).
    """

    temperature_scale: float = 1.0
    exclude_factual: bool = False
    max_attempts: int = 8
    require_valid: bool = False

    def __post_init__(self) -> None:
        require(self.temperature_scale > 0.0, "the proposal's temperature", "above 0", self.temperature_scale)
        require(self.max_attempts >= 1, "max_attempts", "at least 1", self.max_attempts)


class BranchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How a chosen decision is branched.

    Attributes:
        coupling: ``twin``: later turns read the factual noise; ``independent``: a stream of their own.
        proposal: Where the alternative turn comes from.
        pairs: J ≥ 1 (Twice §4.2, appendix B.6): further pairs run both arms under a fresh stream.
        star: Instead of pairs, run all J alternatives against the one factual noise (ablation).
        self_twin_shortcut: Do not continue an alternative that equals the factual turn token for token: D = 0.
        same_evidence_probability: q_same: probability of continuing where the alternative brought the same
            evidence; 1 always continues.
    """

    coupling: Coupling = "twin"
    proposal: Proposal = Proposal()
    pairs: int = 1
    star: bool = False
    self_twin_shortcut: bool = True
    same_evidence_probability: float = 0.25

    def __post_init__(self) -> None:
        require_choices(self)
        require(self.pairs >= 1, "the number of alternatives (pairs, continuations)", "at least 1", self.pairs)
        q_same = self.same_evidence_probability
        require(0.0 <= q_same <= 1.0, "same_evidence_probability", "in [0, 1]", q_same)

    @property
    def paired(self) -> bool:
        """Whether alternatives after the first re-run the factual decision too, under a fresh stream of the pair."""
        return self.pairs > 1 and not self.star and self.coupling == "twin"

    @property
    def continuations(self) -> int:
        """Continuations a decision costs at most: 2J − 1 for pairs (Twice appendix B.6), J otherwise."""
        return 2 * self.pairs - 1 if self.paired else self.pairs


class ClippedSurrogate(msgspec.Struct, frozen=True, kw_only=True):
    """The policy loss: PPO/GRPO's clipped surrogate with a k3 KL term (ALGORITHMS point 9).

    Attributes:
        clip: ε of the ratio's clip.
        kl_coefficient: Weight of the k3 estimate of KL(π ‖ π_reference); 0 needs no reference model.
        ratio: ``token``: one ratio a token; ``turn``: one ratio a turn (product over its tokens; CRR eq. 4).
        aggregate: ``sum``: sum over action tokens divided by a constant; ``episode-mean``: mean over the
            episode's action tokens, then over episodes; ``token-mean``: mean over all action tokens of the batch.
        scale: The constant that ``sum`` divides by, in tokens an episode (the batch divides by episodes × scale).
    """

    clip: float = 0.2
    kl_coefficient: float = 0.0
    ratio: Literal["token", "turn"] = "token"
    aggregate: Literal["sum", "episode-mean", "token-mean"] = "sum"
    scale: float = 32.0

    def __post_init__(self) -> None:
        require_choices(self)
        require(self.clip > 0.0, "clip", "above 0", self.clip)
        require(self.kl_coefficient >= 0.0, "kl_coefficient", "at least 0", self.kl_coefficient)
        require(self.scale > 0.0, "the loss's scale", "above 0", self.scale)
