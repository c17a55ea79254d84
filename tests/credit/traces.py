"""Small hand-made traces for the tests of credit, schedule and algorithms."""

from __future__ import annotations

from typing import Any

from forkgym.rollout.trace import Branch, Decision, Episode, Turn


def turn(
    index: int,
    *,
    tokens: int = 3,
    terminal: bool = False,
    evidence: Any = None,
    kind: str = "search",
    entropy: float = 1.0,
) -> Turn:
    return Turn(
        index=index,
        context_length=0,
        tokens=list(range(tokens)),
        logprobs=[-0.5] * tokens,
        entropies=[entropy] * tokens,
        gini_impurities=[0.5] * tokens,
        finish_reason="stop",
        text="",
        action={"tool": kind, "arguments": {}},
        action_kind=kind,
        observation="" if terminal else f"seen {evidence}",
        observation_tokens=[],
        evidence=evidence,
        reward=0.0,
        terminal=terminal,
    )


def episode(
    key: int, utility: float, evidence: list[Any], *, group: int = 0, member: int = 0, tokens: int = 3
) -> Episode:
    """An episode with one turn per evidence and a terminal answer."""
    turns = [turn(i, evidence=e, tokens=tokens) for i, e in enumerate(evidence)]
    turns.append(turn(len(evidence), terminal=True, kind="answer", tokens=tokens))
    return Episode(
        key=key,
        environment="test",
        split="train",
        task=0,
        update=0,
        group=group,
        member=member,
        version=0,
        prompt_tokens=[1, 2],
        turns=turns,
        utility=utility,
        success=utility > 0.5,
    )


def branch(utility: float, factual: float, **fields: Any) -> Branch:
    values: dict[str, Any] = {"parent": 1, "turn": 0, "index": 0, "kind": "twin", "layout": "turn-line", "stream": 9}
    return Branch(**{**values, **fields}, utility=utility, factual_utility=factual)


def decision(utility: float, branches: list[Branch], **fields: Any) -> Decision:
    values: dict[str, Any] = {
        "episode": 1,
        "update": 0,
        "group": 0,
        "member": 0,
        "turn": 0,
        "terminal": False,
        "features": [0.0] * 9,
        "propensity": 0.5,
        "branched": bool(branches),
    }
    return Decision(**{**values, **fields}, utility=utility, branches=branches)
