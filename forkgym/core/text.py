"""`TextEnv`: environments that an agent talks to, and the structs that warm starts use.

How messages become tokens is `forkgym.policy`'s affair; nothing here knows a tokenizer.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar, Literal, TypedDict

import gymnasium
import msgspec
import numpy as np

from forkgym.core.env import Env
from forkgym.core.errors import ActionError
from forkgym.core.spaces import TextSpace, ToolCallSpace

__all__ = ["Action", "Demonstration", "Message", "TextEnv", "Vocabulary"]

Action = dict[str, Any]
"""A tool call: `{"tool": str, "arguments": {str: JSON}}`; tool "invalid" for a text that could not be parsed."""


class Message(TypedDict):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


class Vocabulary(msgspec.Struct, frozen=True):
    """The words a world-level policy needs.

    Attributes:
        words: Function words, control words included; each is one token.
        entities: Entity type to names; each name is one token, spaces and all.
    """

    words: tuple[str, ...]
    entities: dict[str, tuple[str, ...]]


class Demonstration(msgspec.Struct):
    """One episode of a scripted expert.

    Attributes:
        prompt: The messages before the first turn.
        turns: (assistant's text, the observation that followed or "") for each turn.
        utility: What the episode earned, in [0, 1].
    """

    prompt: list[Message]
    turns: list[tuple[str, str]]
    utility: float


class TextEnv(Env):
    """An environment whose observations are texts and whose actions are texts or tool calls.

    Besides what `Env` asks for, a subclass sets `tools` and `max_turns` and may override `parse`, `render_action`
    and `system_prompt`. `_step` receives a tool call that `parse` returned or the agent gave; a call of the tool
    "invalid" (or of an unknown one, or with odd arguments) gets an observation that the agent can read. The
    observation of `_reset` is the task's text; later ones are what the environment appends to the conversation.
    The reward is 0 until the end, then the utility in [0, 1].

    `info` holds "action_kind" (such as "search", "answer", "invalid"), "evidence" (a JSON value that identifies what
    was learned in this turn) and, at the end, "success" (the grader's verdict).

    Class attributes:
        tools: JSON schemas of the tools: {"name", "description", "parameters": {"type": "object", …}}.
        stop_strings: An assistant turn ends at the first of these; may be empty.
        max_turns: Steps after which the episode is truncated if it has not ended.
        system_prompt: First message of the conversation, or "".
        observation_role: Role of the messages that observations become.
        scripted_policies: Names that `scripted_action` knows.
    """

    tools: ClassVar[list[dict[str, Any]]] = []
    stop_strings: tuple[str, ...] = ()
    max_turns: int = 16
    system_prompt: str = ""
    observation_role: Literal["user", "tool"] = "tool"
    scripted_policies: ClassVar[tuple[str, ...]] = ("random",)

    observation_space: gymnasium.Space[Any] = TextSpace()
    _conversation: list[Message]
    _said: str

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """Texts and calls of this environment's tools."""
        space: gymnasium.Space[Any] | None = self.__dict__.get("_action_space")
        if space is None:
            space = self.__dict__["_action_space"] = ToolCallSpace(self.tools)
        return space

    @action_space.setter
    def action_space(self, space: gymnasium.Space[Any]) -> None:
        self.__dict__["_action_space"] = space

    def messages(self) -> list[Message]:
        """The conversation so far (a copy): the system's and the task's message, then turns and observations."""
        self._require_episode("read the messages of")
        return [Message(role=message["role"], content=message["content"]) for message in self._conversation]

    def parse(self, text: str) -> Action:
        """The action that an assistant's text means. Never raises: a bad text is a call of the tool "invalid".

        The default reads one JSON object `{"tool": …, "arguments": {…}}`, anywhere in the text (the last one counts).
        """
        decoder = json.JSONDecoder()
        found: Action | None = None
        at = text.find("{")
        while at >= 0:
            try:
                value, end = decoder.raw_decode(text, at)
            except (ValueError, RecursionError):
                at = text.find("{", at + 1)
                continue
            if isinstance(value, dict) and isinstance(value.get("tool"), str):
                arguments = value.get("arguments", {})
                found = {"tool": value["tool"], "arguments": arguments if isinstance(arguments, dict) else {}}
            at = text.find("{", max(end, at + 1))
        return found if found is not None else {"tool": "invalid", "arguments": {"text": text}}

    def render_action(self, action: Action) -> str:
        """The text by which the conversation shows an action that was given as a tool call."""
        return json.dumps(action, ensure_ascii=False, sort_keys=True)

    def vocabulary(self) -> Vocabulary:
        """Words and entities for a world-level policy (optional).

        Raises:
            NotImplementedError: This environment offers none.
        """
        raise NotImplementedError(f"{self._name()} has no vocabulary for a world-level policy")

    def demonstrations(
        self, count: int, *, seed: int, split: str = "train", error_rate: float = 0.0
    ) -> list[Demonstration]:
        """Episodes of a scripted expert for the warm start (optional).

        Args:
            count: How many.
            seed: Seed of the choice of tasks and of the expert's errors.
            split: Where the tasks come from.
            error_rate: Share of turns in which the expert errs.

        Raises:
            NotImplementedError: This environment offers none.
        """
        raise NotImplementedError(f"{self._name()} has no scripted expert")

    def sample_action(self, rng: np.random.Generator) -> Any:
        """A random tool call; authors override it with likelier ones."""
        return ToolCallSpace(self.tools, seed=rng).sample()

    def scripted_action(self, name: str, rng: np.random.Generator) -> Any:
        """What a scripted policy does in this state; authors add policies such as an expert.

        Args:
            name: One of `scripted_policies`.
            rng: The policy's luck; the same generator is passed throughout an episode.

        Raises:
            ValueError: There is no such policy.
        """
        if name != "random":
            known = ", ".join(self.scripted_policies)
            raise ValueError(f"{self._name()} has no scripted policy {name!r}; it has {known}.")
        return self.sample_action(rng)

    # ------------------------------------------------------------------ hooks

    def _limit(self) -> int | None:
        limit = super()._limit()
        return self.max_turns if limit is None else min(limit, self.max_turns)

    def _accept(self, action: Any) -> Any:
        if isinstance(action, str):
            return action
        if not ToolCallSpace().contains(action):
            raise ActionError(
                f"{self._name()} takes a text or a tool call {{'tool': str, 'arguments': {{...}}}}, not {action!r} "
                f"({type(action).__name__}). env.parse(text) makes a call, env.sample_action(rng) shows one."
            )
        return {"tool": action["tool"], "arguments": action.get("arguments", {})}

    def _begin(self, seed: int, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        observation, info = super()._begin(seed, options)
        self._conversation = []
        if self.system_prompt:
            self._conversation.append(Message(role="system", content=self.system_prompt))
        self._conversation.append(Message(role="user", content=observation))
        return observation, info

    def _advance(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        said = action if isinstance(action, str) else self.render_action(action)
        call = self.parse(action) if isinstance(action, str) else action
        observation, reward, terminated, truncated, info = super()._advance(call)
        self._conversation.append(Message(role="assistant", content=said))
        if observation:
            self._conversation.append(Message(role=self.observation_role, content=observation))
        return observation, reward, terminated, truncated, info

    def _extra(self) -> Any:
        return tuple(getattr(self, "_conversation", ()))

    def _set_extra(self, extra: Any) -> None:
        self._conversation = list(extra)
