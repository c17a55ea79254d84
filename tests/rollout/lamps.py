"""A small world to be played in tests, with its renderer, two policies and the live counts that show leaks.

The lamp has one of three colours. Looking shows it, but fog (the environment's luck) may show another one; naming a
colour ends the episode. Every word may be said, so even a random policy is rewarded now and then.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

import forkgym
from forkgym.core import TextEnv, Vocabulary
from forkgym.noise import Layout, episode_id
from forkgym.policy.engine import Sampling
from forkgym.policy.scripted import TableEngine
from forkgym.rollout.branch import BranchSetting, play_branch
from forkgym.rollout.episode import EpisodeSpec, PlayedEpisode, drive, play_episode
from forkgym.rollout.plan import BranchPlan
from forkgym.rollout.trace import Branch, Decision
from forkgym.schedule import make_decisions

COLOURS = ("red", "green", "blue")
LOOKS = ("look", "peek", "watch", "stare")
CONTROL = ("<pad>", "<eot>", "<obs>", "\n")
WORDS = (*LOOKS, *COLOURS, "you", "see", "what", "?", "hm", "lamp", "is")
TOKENS = (*CONTROL, *WORDS)
EOT = TOKENS.index("<eot>")
ID = "test/Lamps-v0"


class Lamps(TextEnv):
    """See the module. ``fault_at`` makes the n-th step of any instance raise (None: never)."""

    tools: ClassVar[list[dict[str, Any]]] = [
        {"name": name, "description": name, "parameters": {"type": "object", "properties": {}}}
        for name in ("look", *COLOURS)
    ]
    live: ClassVar[int] = 0
    fault_at: ClassVar[int | None] = None

    def __init__(self, *, turns: int = 4) -> None:
        self.max_turns = turns
        self._task, self._turn = 0, 0
        Lamps.live += 1

    @property
    def splits(self) -> dict[str, int]:
        return {"train": 6, "test": 3}

    def vocabulary(self) -> Vocabulary:
        return Vocabulary(words=WORDS, entities={})

    def parse(self, text: str) -> dict[str, Any]:
        said = [word for word in text.split() if word in LOOKS or word in COLOURS]
        if not said:
            return {"tool": "invalid", "arguments": {"text": text}}
        return {"tool": "look" if said[-1] in LOOKS else said[-1], "arguments": {}}

    def _reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        _, self._task = self.pick_task(seed, options)
        self._turn = 0
        return "lamp is ?", {}

    def _step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if Lamps.fault_at is not None:
            Lamps.fault_at -= 1
            if Lamps.fault_at < 0:
                raise OSError("the lamp fell down")
        self._turn += 1
        tool = action["tool"]
        colour = COLOURS[self._task % 3]
        if tool in COLOURS:
            won = tool == colour
            return "", float(won), True, False, {"action_kind": "answer", "evidence": None, "success": won}
        if tool == "look":
            seen = colour if self.luck.random("fog") > 0.3 else COLOURS[self.luck.choice("shade", 3)]
            return f"you see {seen}", 0.0, False, False, {"action_kind": "search", "evidence": ["saw", seen]}
        return "what ?", 0.0, False, False, {"action_kind": "invalid", "evidence": None}

    def _get_state(self) -> Any:
        return [self._task, self._turn]

    def _set_state(self, state: Any) -> None:
        self._task, self._turn = state

    def _close(self) -> None:
        Lamps.live -= 1


class WordRenderer:
    """One token a word."""

    vocabulary_size = len(TOKENS)
    stop_tokens: tuple[int, ...] = (EOT,)
    newlines = np.array([word == "\n" for word in TOKENS], dtype=np.uint8)

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        return [token for message in messages for token in self.ids(message["content"])]

    def observation(self, text: str, *, closed: bool = True) -> list[int]:
        return [*([] if closed else [EOT]), TOKENS.index("<obs>"), *self.ids(text)]

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(TOKENS[token] for token in tokens if token > 2)

    def written(self, text: str) -> list[int]:
        return [*self.ids(text), EOT]

    @staticmethod
    def ids(text: str) -> list[int]:
        return [TOKENS.index(word) for word in text.split(" ") if word]


RENDERER = WordRenderer()


def table(context: Sequence[int]) -> np.ndarray:
    """Logits that look at the last six tokens; control tokens other than ``<eot>`` and the newline never."""
    return _logits(bytes(context[-6:]))


@lru_cache(maxsize=100_000)
def _logits(tail: bytes) -> np.ndarray:
    logits = np.random.default_rng(zlib.crc32(tail)).normal(0.0, 1.0, len(TOKENS)).astype(np.float32)
    logits[[0, 2]] = -np.inf
    logits[EOT] += 1.0
    return logits


def sampling(**changes: Any) -> Sampling:
    return Sampling(**{"max_tokens": 6, "stop_tokens": (EOT,), **changes})


def table_engine(**options: Any) -> TableEngine:
    return TableEngine(table, decode=RENDERER.decode, **options)


def register() -> None:
    """Make the world known under its id; safe to call again."""
    forkgym.register(ID, Lamps)


def spec(member: int, *, task: int = 0, update: int = 0, group: int = 0) -> EpisodeSpec:
    key = episode_id(7, "train", update, task, member)
    return EpisodeSpec(key=key, split="train", task=task, update=update, group=group, member=member)


class Table:
    """Plays episodes and branches of one world on one engine; a test closes it and sees that nothing is left.

    Keyword arguments replace the defaults of ``play_episode`` and ``BranchSetting``.
    """

    def __init__(
        self,
        engine: Any = None,
        *,
        make: Any = Lamps,
        renderer: Any = RENDERER,
        draw: Sampling | None = None,
        layout: Layout = Layout.TURN_LINE,
        max_context: int = 4096,
    ) -> None:
        self.engine = engine or table_engine()
        self.make = make
        self.renderer = renderer
        self.draw = draw or sampling()
        self.layout = layout
        self.max_context = max_context

    def rollout(self, which: EpisodeSpec, **changes: Any) -> Any:
        options = {
            "renderer": self.renderer,
            "sampling": self.draw,
            "layout": self.layout,
            "release": self.engine.release,
            "max_context": self.max_context,
            "record": True,
        }
        return play_episode(self.make(), which, **{**options, **changes})

    def episodes(self, specs: Sequence[EpisodeSpec], *, max_running: int = 64, **changes: Any) -> list[PlayedEpisode]:
        return drive(
            self.engine,
            (self.rollout(one, **changes) for one in specs),
            max_running=max_running,
            discard=lambda one: one.close(self.engine),
        )

    def episode(self, which: EpisodeSpec, **changes: Any) -> PlayedEpisode:
        return self.episodes([which], **changes)[0]

    def setting(self, plan: BranchPlan, **changes: Any) -> BranchSetting:
        options = {
            "plan": plan,
            "renderer": self.renderer,
            "sampling": self.draw,
            "layout": self.layout,
            "max_context": self.max_context,
        }
        return BranchSetting(**{**options, **changes})

    def branches(
        self,
        wanted: Sequence[tuple[PlayedEpisode, int, int]],
        plan: BranchPlan | None = None,
        *,
        max_running: int = 64,
        q_same: float | None = None,
        **changes: Any,
    ) -> list[Branch]:
        """Branches of (episode, turn, index)."""
        setting = self.setting(plan or BranchPlan(same_evidence_probability=1.0), **changes)

        def rollouts() -> Iterator[Any]:
            for played, turn, index in wanted:
                yield play_branch(
                    played,
                    decision_at(played, turn),
                    index,
                    setting,
                    release=self.engine.release,
                    same_evidence_probability=q_same,
                )

        return drive(self.engine, rollouts(), max_running=max_running)

    def branch(self, played: PlayedEpisode, turn: int = 0, index: int = 0, **options: Any) -> Branch:
        return self.branches([(played, turn, index)], options.pop("plan", None), **options)[0]

    def every_decision(self, played: Sequence[PlayedEpisode]) -> list[tuple[PlayedEpisode, int, int]]:
        return [(one, turn.index, 0) for one in played for turn in one.episode.turns]

    def close(self, played: Sequence[PlayedEpisode]) -> None:
        for one in played:
            one.close(self.engine)


def decision_at(played: PlayedEpisode, turn: int) -> Decision:
    return make_decisions([[played.episode]])[turn]
