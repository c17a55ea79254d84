"""Play an episode: a generator that asks for turns and answers with what the environment did.

``play_episode`` yields :class:`GenerationRequest` and is sent :class:`Completion`; it never touches an engine,
so a loop (``drive``), an actor or a simulator can run it. Branching starts where it ends, in ``branch.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from forkgym.core import ForkgymError, Snapshot, TextEnv
from forkgym.noise import KeyStream, Layout
from forkgym.policy.chat import Renderer
from forkgym.policy.engine import Completion, Engine, GenerationRequest, Sampling
from forkgym.rollout.stopwatch import Stopwatch
from forkgym.rollout.trace import Episode, Turn

__all__ = [
    "EpisodeSpec",
    "NoRoomError",
    "PlayedEpisode",
    "Rollout",
    "TurnPlayer",
    "drive",
    "environment_seed",
    "play_episode",
]

T = TypeVar("T")
Rollout = Generator[GenerationRequest, Completion, T]
"""A rollout in progress: yields requests, is sent completions, returns its result."""


class NoRoomError(ForkgymError, ValueError):
    """A task's prompt leaves no room for a turn; the message says how long it is and what may be changed."""


class EpisodeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Which episode to play.

    Attributes:
        key: 64-bit episode id (see ``forkgym.noise.episode_id``).
        split: Task split.
        task: Task number.
        update: Update the episode is collected for.
        group: Group number.
        member: Member number.
        version: Policy version for every turn.
    """

    key: int
    split: str
    task: int
    update: int = 0
    group: int = 0
    member: int = 0
    version: int = 0


class PlayedEpisode(msgspec.Struct, kw_only=True):
    """An episode together with the means to branch from it (not storable: it holds live objects).

    Attributes:
        episode: The trace.
        env: The environment at the end of the episode; forks of it restore the snapshots.
        snapshots: ``snapshots[t]`` is the state before turn t; one more for the state after the last turn.
        cache: Engine cache that covers every token before and in the last turn, or ``None``.
    """

    episode: Episode
    env: TextEnv
    snapshots: list[Snapshot]
    cache: int | None = None

    def close(self, engine: Engine | None = None) -> None:
        """Free the environment, its snapshots and (when ``engine`` is given) the stored cache."""
        for snapshot in self.snapshots:
            snapshot.close()
        self.snapshots.clear()
        self.env.close()
        if engine is not None and self.cache is not None:
            engine.release(self.cache)
        self.cache = None


def environment_seed(key: int) -> int:
    """Reset seed of an episode's environment: the episode id without its sign bit (63 bits)."""
    return key & (2**63 - 1)


class TurnPlayer:
    """Plays turns in one environment with one key stream; shared by episodes and branches.

    Args:
        env: The environment, already at the state before the next turn.
        context: Tokens so far; extended in place as turns are played.
        renderer: Turns text into tokens and back.
        sampling: How turns are drawn.
        keys: Key stream of this trajectory.
        version: Policy version.
        max_context: Most tokens a context plus one turn may have; a longer episode ends truncated.
        release: Frees an engine cache (``engine.release``).
        cache: Engine cache of the context's prefix, or ``None``.
        cache_length: Number of context tokens the cache may be used for.
        owns_cache: The cache may be consumed (false: the first turn forks it).
        record_hashes: Ask the environment for its state hash after each turn.
        stopwatch: Measures the environment's seconds.

    Attributes:
        utility: Sum of rewards so far.
        success: The grader's latest verdict, ``None`` while it gave none.
        failure: What the environment says went wrong, "" while it said nothing.
        ended: The last turn ended the trajectory.
    """

    def __init__(
        self,
        env: TextEnv,
        context: list[int],
        *,
        renderer: Renderer,
        sampling: Sampling,
        keys: KeyStream,
        version: int,
        max_context: int,
        release: Callable[[int], None],
        cache: int | None = None,
        cache_length: int = 0,
        owns_cache: bool = True,
        record_hashes: bool = False,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        self.env = env
        self.context = context
        self.renderer = renderer
        self.sampling = sampling
        self.keys = keys
        self.version = version
        self.max_context = max_context
        self.release = release
        self.cache = cache
        self.cache_length = cache_length
        self.owns_cache = owns_cache
        self.record_hashes = record_hashes
        self.stopwatch = stopwatch or Stopwatch()
        self.utility = 0.0
        self.success: bool | None = None
        self.failure = ""
        self.ended = False

    @property
    def has_room(self) -> bool:
        """Whether one more turn fits into ``max_context``."""
        return len(self.context) + self.sampling.max_tokens <= self.max_context

    def write(self, turn: int, stream: int, sampling: Sampling | None = None) -> Rollout[Completion]:
        """Generate turn ``turn`` under noise stream ``stream`` without acting; the context stays as it is."""
        self.keys.start_turn(turn, stream)
        request = GenerationRequest(
            context=list(self.context),
            keys=self.keys,
            sampling=sampling or self.sampling,
            version=self.version,
            cache=self.cache,
            cache_length=self.cache_length if self.cache is not None else 0,
            consume_cache=self.cache is not None and self.owns_cache,
            keep_cache=True,
        )
        if request.consume_cache:
            self.cache = None  # whoever carries the request owns it now, so that closing this rollout cannot free it
        completion = yield request
        return completion

    def adopt(self, completion: Completion) -> None:
        """Continue from ``completion``'s cache; call before :meth:`act` on it."""
        self.cache = completion.cache
        self.cache_length = len(self.context) + len(completion.tokens)
        self.owns_cache = True

    def discard(self, completion: Completion) -> None:
        """Forget a completion that was not adopted."""
        if completion.cache is not None:
            self.release(completion.cache)

    def drop_cache(self) -> None:
        """Free the cache if it is this trajectory's own."""
        if self.cache is not None and self.owns_cache:
            self.release(self.cache)
        self.cache = None

    def text(self, completion: Completion) -> str:
        """The turn as the environment reads it: decoded, without the stop token."""
        tokens = completion.tokens
        if tokens and tokens[-1] in self.renderer.stop_tokens:
            tokens = tokens[:-1]
        return self.renderer.decode(tokens)

    def act(self, turn: int, completion: Completion, action: Any = None) -> Turn:
        """Execute the turn's action and extend the context by its tokens and the observation's.

        Args:
            turn: Turn number.
            completion: What the policy wrote.
            action: The parsed action when the caller has parsed it already.
        """
        text = self.text(completion)
        if action is None:
            action = self.env.parse(text)
        context_length = len(self.context)
        started = time.perf_counter()
        observation, reward, terminated, truncated, info = self.env.step(action)
        terminal = bool(terminated or truncated)
        self._book(time.perf_counter() - started, float(info.get("charged_seconds", 0.0)), terminal)
        self.utility += float(reward)
        if "success" in info:
            self.success = bool(info["success"])
        self.failure = str(info.get("failure", self.failure))
        self.context += completion.tokens
        observation_tokens: list[int] = []
        if not terminal:
            closed = bool(completion.tokens) and completion.tokens[-1] in self.renderer.stop_tokens
            observation_tokens = self.renderer.observation(observation, closed=closed)
            self.context += observation_tokens
            self.keys.observe(observation_tokens)
            terminal = not self.has_room
        self.ended = terminal
        return Turn(
            index=turn,
            context_length=context_length,
            tokens=list(completion.tokens),
            logprobs=list(completion.logprobs),
            entropies=list(completion.entropies),
            gini_impurities=list(completion.gini_impurities),
            finish_reason=completion.finish_reason,
            text=text,
            action=action,
            action_kind=str(info.get("action_kind", "unknown")),
            observation=observation if observation_tokens else "",
            observation_tokens=observation_tokens,
            evidence=info.get("evidence"),
            reward=float(reward),
            terminal=terminal,
            action_start=_action_start(completion.tokens, self.renderer.newlines, self.renderer.stop_tokens),
            state_hash=self.env.state_hash() if self.record_hashes else "",
            supports=completion.supports,
        )

    def _book(self, seconds: float, charged: float, terminal: bool) -> None:
        self.stopwatch.add("verifier" if terminal else "environment", seconds)
        if charged:
            self.stopwatch.add("charged_verifier" if terminal else "charged", charged)


def play_episode(
    env: TextEnv,
    spec: EpisodeSpec,
    *,
    renderer: Renderer,
    sampling: Sampling,
    layout: Layout,
    release: Callable[[int], None],
    max_context: int = 4096,
    record: bool = False,
    branchable: bool = True,
    stopwatch: Stopwatch | None = None,
) -> Rollout[PlayedEpisode]:
    """Play one episode from reset to its end.

    Args:
        env: An environment of its own (it is reset here and kept in the result).
        spec: Which episode.
        renderer: Turns text into tokens and back.
        sampling: How turns are drawn.
        layout: Noise layout.
        release: Frees an engine cache (``engine.release``).
        max_context: Most tokens of a context plus one turn.
        record: Record state hashes and the portable handle.
        branchable: Keep a snapshot before every turn and the engine's cache.
        stopwatch: Measures the environment's seconds.

    Returns:
        The episode and, when ``branchable``, the means to branch from every turn.
    """
    player: TurnPlayer | None = None
    snapshots: list[Snapshot] = []
    turns: list[Turn] = []
    stopwatch = stopwatch or Stopwatch()
    try:
        player = _start(env, spec, renderer, sampling, layout, release, max_context, record, stopwatch)
        prompt = list(player.context)
        while not player.ended:
            if branchable:
                with stopwatch.measure("fork"):
                    snapshots.append(env.snapshot())
            completion = yield from player.write(len(turns), 0)
            player.adopt(completion)
            turns.append(player.act(len(turns), completion))
        episode = _episode(env, spec, player, prompt, turns, record)
        if branchable:
            with stopwatch.measure("fork"):
                snapshots.append(env.snapshot())
        else:
            player.drop_cache()
        return PlayedEpisode(episode=episode, env=env, snapshots=snapshots, cache=player.cache)
    except BaseException:
        # An error, or the driver closed this rollout: nobody gets a result by which these could be freed.
        for snapshot in snapshots:
            snapshot.close()
        if player is not None:
            player.drop_cache()
        env.close()
        raise


def _start(
    env: TextEnv,
    spec: EpisodeSpec,
    renderer: Renderer,
    sampling: Sampling,
    layout: Layout,
    release: Callable[[int], None],
    max_context: int,
    record: bool,
    stopwatch: Stopwatch,
) -> TurnPlayer:
    """Reset the environment and stand before the first turn."""
    with stopwatch.measure("environment"):
        env.reset(seed=environment_seed(spec.key), options={"split": spec.split, "task": spec.task})
    prompt = renderer.prompt(env.messages())
    keys = KeyStream(layout, spec.key, newlines=renderer.newlines)
    keys.observe(prompt)
    player = TurnPlayer(
        env,
        list(prompt),
        renderer=renderer,
        sampling=sampling,
        keys=keys,
        version=spec.version,
        max_context=max_context,
        release=release,
        record_hashes=record,
        stopwatch=stopwatch,
    )
    if not player.has_room:
        raise NoRoomError(
            f"the prompt of task {spec.task} of {spec.split!r} has {len(prompt)} tokens and leaves no room for a turn "
            f"of {sampling.max_tokens} within max_context={max_context}; lower max_turn_tokens, or raise "
            "max_context as far as the model goes"
        )
    return player


def _episode(
    env: TextEnv, spec: EpisodeSpec, player: TurnPlayer, prompt: list[int], turns: list[Turn], record: bool
) -> Episode:
    """The trace of an episode that has ended."""
    return Episode(
        key=spec.key,
        environment=env.spec.id if env.spec is not None else type(env).__name__,
        split=spec.split,
        task=spec.task,
        update=spec.update,
        group=spec.group,
        member=spec.member,
        version=spec.version,
        prompt_tokens=prompt,
        turns=turns,
        utility=player.utility,
        success=player.success if player.success is not None else player.utility > 0.5,
        handle=env.handle().to_json() if record else "",
        failure="" if player.success else player.failure,
    )


def drive(
    engine: Engine,
    rollouts: Iterable[Rollout[T]],
    *,
    max_running: int,
    discard: Callable[[T], None] | None = None,
) -> list[T]:
    """Run rollouts on an engine, at most ``max_running`` at a time, and return their results in input order.

    The order in which rollouts finish never shows in the results: each depends on its keys alone. When anything
    raises (a fault of the engine or of an environment, Ctrl-C), open requests are cancelled and open rollouts closed,
    so that they free what they hold, before the error goes on.

    Args:
        engine: Source of tokens.
        rollouts: What to run; each is started at once when it is taken.
        max_running: Most rollouts at a time.
        discard: Frees a finished result that will not be returned because another rollout failed.
    """
    source = enumerate(rollouts)
    results: dict[int, T] = {}
    waiting: dict[int, tuple[int, Rollout[T]]] = {}
    arrived: list[tuple[int, Completion]] = []

    def advance(number: int, rollout: Rollout[T], completion: Completion | None) -> None:
        try:
            request = next(rollout) if completion is None else rollout.send(completion)
        except StopIteration as stop:
            results[number] = stop.value
            return
        waiting[_submit(engine, rollout, request)] = (number, rollout)

    exhausted = False
    try:
        while True:
            while not exhausted and len(waiting) < max_running:
                item = next(source, None)
                if item is None:
                    exhausted = True
                else:
                    advance(item[0], item[1], None)
            if not waiting:
                break
            arrived = engine.step()
            while arrived:
                ticket, completion = arrived.pop(0)
                number, rollout = waiting.pop(ticket)
                advance(number, rollout, completion)
    except BaseException:
        _abandon(engine, waiting, dict(arrived))
        if discard is not None:
            for result in results.values():
                discard(result)
        raise
    return [results[number] for number in range(len(results))]


def _submit(engine: Engine, rollout: Rollout[T], request: GenerationRequest) -> int:
    """Submit a rollout's request; a refused one leaves neither an open rollout nor a cache that nobody owns."""
    try:
        return engine.submit(request)
    except BaseException as error:
        rollout.close()
        # A refusal (ValueError) comes before the engine takes the cache.
        if isinstance(error, ValueError) and request.consume_cache and request.cache is not None:
            with suppress(ValueError):  # the refusal may be that there is no such cache
                engine.release(request.cache)
        raise


def _abandon(engine: Engine, waiting: Mapping[int, tuple[int, Rollout[T]]], arrived: Mapping[int, Completion]) -> None:
    """Free what rollouts in progress hold: undelivered completions' caches, open requests, the rollouts' own."""
    for ticket, (_, rollout) in waiting.items():
        completion = arrived.get(ticket)
        if completion is None:
            with suppress(ValueError):  # an interrupted step may have finished it, and its completion is lost
                engine.cancel(ticket)
        elif completion.cache is not None:
            engine.release(completion.cache)
        rollout.close()


def _action_start(tokens: list[int], newlines: NDArray[np.uint8] | None, stop_tokens: Sequence[int] = ()) -> int:
    """Index of the first token of the last line that holds anything but line ends and stop tokens; 0 without one."""
    if newlines is None:
        return 0
    end = len(tokens)
    while end and (tokens[end - 1] in stop_tokens or newlines[tokens[end - 1]]):
        end -= 1
    return next((index for index in range(end, 0, -1) if newlines[tokens[index - 1]]), 0)
