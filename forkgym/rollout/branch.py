"""Play a counterfactual: restore the state before a turn, write another turn, follow it to the end.

The two exact shortcuts of Twice (self-twin, same evidence) and CRR's rejecting proposal live here. Which
decisions are branched, and what the difference is worth, is decided elsewhere (``schedule``, ``credit``).

Source: Twice §4.1-4.2 and appendix B; CRR §4.1-4.3; ALGORITHMS "Keyed noise" (streams).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from forkgym.core import Luck, TextEnv
from forkgym.noise import KeyStream, Layout, coin, stream_id
from forkgym.policy.chat import Renderer
from forkgym.policy.engine import Completion, Sampling
from forkgym.rollout.episode import PlayedEpisode, Rollout, TurnPlayer
from forkgym.rollout.plan import BranchPlan
from forkgym.rollout.stopwatch import Stopwatch
from forkgym.rollout.trace import Branch, BranchKind, Decision, Episode, Turn

__all__ = ["BranchSetting", "play_branch"]

FACTUAL_STREAM = 0


class BranchSetting(msgspec.Struct, frozen=True, kw_only=True):
    """What every branch of an update shares.

    Attributes:
        plan: How decisions are branched.
        renderer: Turns text into tokens and back.
        sampling: How turns are drawn (τ of the behaviour policy; the proposal scales it).
        layout: Noise layout of the factual episodes.
        max_context: As for the factual episodes.
        stopwatch: Measures the environments' seconds.
    """

    plan: BranchPlan
    renderer: Renderer
    sampling: Sampling
    layout: Layout
    max_context: int
    stopwatch: Stopwatch = msgspec.field(default_factory=Stopwatch)


def play_branch(
    played: PlayedEpisode,
    decision: Decision,
    index: int,
    setting: BranchSetting,
    *,
    release: Callable[[int], None],
    same_evidence_probability: float | None = None,
) -> Rollout[Branch]:
    """Run alternative number ``index`` at ``decision`` and return what came of it.

    The continuation is capped by the environment's own turn limit (H − t turns) and the ordinary token limits,
    never by the factual episode's length.

    Args:
        played: The factual episode with its snapshots and cache.
        decision: Where to branch; only its turn number and terminal flag are read.
        index: Number of the alternative at this decision; with ``pairs`` > 1 and no ``star``, numbers above 0
            of twins run both arms under a fresh stream (independent branches share nothing that a pair could refresh).
        setting: What the update's branches share.
        release: Frees an engine cache (``engine.release``).
        same_evidence_probability: q_same for this decision; ``None`` takes the plan's.

    Returns:
        The branch, with real tokens counted.
    """
    plan = setting.plan
    if index > 0 and plan.paired:
        return (yield from _play_pair(played, decision, index, setting, release))
    kind: BranchKind = "twin" if plan.coupling == "twin" else "independent"
    continuation = FACTUAL_STREAM if kind == "twin" else stream_id(FACTUAL_STREAM, decision.turn, "continuation", index)
    arm = _Arm(played, decision.turn, index, setting, release)
    branch = _new_branch(played.episode, decision, index, kind, setting)
    try:
        completion, attempts = yield from arm.propose()
        branch.proposal_attempts, branch.generated_tokens = attempts, arm.generated_tokens
        if completion is None:
            branch.skipped, branch.continued = True, False
            return branch
        factual = played.episode.turns[decision.turn]
        if plan.self_twin_shortcut and completion.tokens == factual.tokens:
            branch.self_twin, branch.utility = True, played.episode.utility
            return branch
        if kind == "independent":
            arm.refresh_luck(continuation)
        alternative = arm.act(completion)
        branch.turns = [alternative]
        if not alternative.terminal and not factual.terminal and alternative.observation == factual.observation:
            branch.same_evidence = completion.tokens != factual.tokens
        if branch.same_evidence:
            q_same = plan.same_evidence_probability if same_evidence_probability is None else same_evidence_probability
            branch.continuation_probability = q_same
            branch.continued = coin(played.episode.key, decision.turn, "same-evidence", index) < q_same
        if branch.continued:
            branch.turns += yield from arm.follow(continuation)
            branch.utility = arm.player.utility
        branch.generated_tokens = arm.generated_tokens
        return branch
    finally:
        arm.close()


class _Arm:
    """One trajectory from the state before ``turn`` of the factual episode on; owns a fork of its environment."""

    def __init__(
        self,
        played: PlayedEpisode,
        turn: int,
        index: int,
        setting: BranchSetting,
        release: Callable[[int], None],
    ) -> None:
        episode = played.episode
        self.turn = turn
        self.index = index
        self.setting = setting
        self.factual = episode.turns[turn]
        self.generated_tokens = 0
        with setting.stopwatch.measure("fork"):
            self.env: TextEnv = played.env.fork()
            try:
                self.env.restore(played.snapshots[turn])
            except BaseException:
                self.env.close()
                raise
        context = episode.context(turn)
        keys = KeyStream(setting.layout, episode.key, newlines=setting.renderer.newlines)
        keys.observe(context)
        keys.counter = episode.generated_before(turn)
        self.player = TurnPlayer(
            self.env,
            context,
            renderer=setting.renderer,
            sampling=setting.sampling,
            keys=keys,
            version=episode.version,
            max_context=setting.max_context,
            release=release,
            cache=played.cache,
            cache_length=len(context),
            owns_cache=False,
            stopwatch=setting.stopwatch,
        )
        self.player.utility = sum(earlier.reward for earlier in episode.turns[:turn])

    def propose(self, purpose: str = "alternative") -> Rollout[tuple[Completion | None, int]]:
        """Draw alternative turns until the proposal accepts one; ``None`` when it gives up."""
        proposal = self.setting.plan.proposal
        sampling = self.setting.sampling
        if proposal.temperature_scale != 1.0:
            sampling = msgspec.structs.replace(sampling, temperature=sampling.temperature * proposal.temperature_scale)
        rejecting = proposal.exclude_factual or proposal.require_valid
        start = self.player.keys.copy()
        for attempt in range(proposal.max_attempts if rejecting else 1):
            self.player.keys = start.copy()
            name = purpose if attempt == 0 else f"{purpose}/{attempt}"
            stream = stream_id(FACTUAL_STREAM, self.turn, name, self.index)
            completion = yield from self.player.write(self.turn, stream, sampling)
            self.generated_tokens += len(completion.tokens)
            try:
                accepted = self._accepts(completion)
            except BaseException:
                self.player.discard(completion)
                raise
            if accepted:
                self.player.adopt(completion)
                return completion, attempt + 1
            self.player.discard(completion)
        return None, proposal.max_attempts

    def _accepts(self, completion: Completion) -> bool:
        proposal = self.setting.plan.proposal
        if not (proposal.exclude_factual or proposal.require_valid):
            return True
        action = self.env.parse(self.player.text(completion))
        if proposal.exclude_factual and action == self.factual.action:
            return False
        return not (proposal.require_valid and action.get("tool") == "invalid")

    def refresh_luck(self, stream: int) -> None:
        """Give the environment luck of its own from here on (independent branches share nothing)."""
        with self.setting.stopwatch.measure("fork"):
            fresh = self.env.fork(luck=Luck.fresh(stream))
            self.env.close()
        self.env = self.player.env = fresh

    def act(self, completion: Completion) -> Turn:
        """Execute the alternative turn."""
        return self.player.act(self.turn, completion)

    def repeat(self) -> Turn:
        """Execute the factual turn once more: its tokens again, the environment's answer under this arm's luck."""
        written = self.factual
        self.player.keys.start_turn(self.turn, FACTUAL_STREAM)
        for token in written.tokens:
            self.player.keys.advance(token)
        if self.player.cache is not None:
            self.player.cache_length += len(written.tokens)
        completion = Completion(
            tokens=list(written.tokens),
            logprobs=list(written.logprobs),
            entropies=list(written.entropies),
            gini_impurities=list(written.gini_impurities),
            finish_reason="stop" if written.finish_reason == "stop" else "length",
            supports=written.supports,
        )
        return self.player.act(self.turn, completion, written.action)

    def follow(self, stream: int) -> Rollout[list[Turn]]:
        """Play the turns after ``turn`` under ``stream`` until the episode ends."""
        turns: list[Turn] = []
        while not self.player.ended:
            number = self.turn + 1 + len(turns)
            completion = yield from self.player.write(number, stream)
            self.generated_tokens += len(completion.tokens)
            self.player.adopt(completion)
            turns.append(self.player.act(number, completion))
        return turns

    def close(self) -> None:
        """Free the environment's fork and the cache this arm owns."""
        self.env.close()
        self.player.drop_cache()


def _play_pair(
    played: PlayedEpisode,
    decision: Decision,
    index: int,
    setting: BranchSetting,
    release: Callable[[int], None],
) -> Rollout[Branch]:
    """Pair j ≥ 2 (Twice appendix B.6): the factual decision and a fresh alternative under one fresh stream.

    The environment's luck in the decision's own turn is downstream of the decision, so both arms draw it afresh.
    """
    stream = stream_id(FACTUAL_STREAM, decision.turn, "pair", index, index)
    branch = _new_branch(played.episode, decision, index, "pair", setting)
    arm = _Arm(played, decision.turn, index, setting, release)
    control: _Arm | None = None
    try:
        completion, branch.proposal_attempts = yield from arm.propose()
        branch.generated_tokens = arm.generated_tokens
        if completion is None:
            branch.skipped, branch.continued = True, False
            return branch
        factual = played.episode.turns[decision.turn]
        if setting.plan.self_twin_shortcut and completion.tokens == factual.tokens:
            branch.self_twin, branch.utility = True, branch.factual_utility
            return branch
        arm.refresh_luck(stream)
        branch.turns = [arm.act(completion)]
        branch.turns += yield from arm.follow(stream)
        branch.utility = arm.player.utility
        control = _Arm(played, decision.turn, index, setting, release)
        control.refresh_luck(stream)
        branch.factual_turns = [control.repeat()]
        branch.factual_turns += yield from control.follow(stream)
        branch.factual_utility = control.player.utility
        branch.generated_tokens = arm.generated_tokens + control.generated_tokens
        return branch
    finally:
        arm.close()
        if control is not None:
            control.close()


def _new_branch(episode: Episode, decision: Decision, index: int, kind: BranchKind, setting: BranchSetting) -> Branch:
    return Branch(
        parent=episode.key,
        turn=decision.turn,
        index=index,
        kind=kind,
        layout=str(setting.layout),
        stream=stream_id(FACTUAL_STREAM, decision.turn, "alternative", index),
        factual_utility=episode.utility,
    )
