"""Two permissive Gymnasium spaces for language agents: any text, and calls of tools. Nothing else lives here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

__all__ = ["TextSpace", "ToolCallSpace"]

_WORDS = ("a", "the", "of", "look", "go", "take", "open", "who", "where", "is", "?", "north", "42", "ß", "\n")


class TextSpace(gymnasium.Space[str]):
    """Every `str`. Samples are a few words from a fixed list."""

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False: a text has no fixed size."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> str:  # noqa: ARG002
        """A text of one to six words."""
        count = int(self.np_random.integers(1, 7))
        return " ".join(_WORDS[int(self.np_random.integers(len(_WORDS)))] for _ in range(count))

    def contains(self, x: Any) -> bool:
        """Whether `x` is a string."""
        return isinstance(x, str)

    def __repr__(self) -> str:
        return "TextSpace()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextSpace)

    __hash__ = None  # type: ignore[assignment]


class ToolCallSpace(gymnasium.Space[Any]):
    """Texts, and mappings `{"tool": str, "arguments": {str: JSON}}`.

    Membership asks for the form only: a call of an unknown tool is an action that the environment answers with an
    observation. Samples call one of the given tools.

    Args:
        tools: JSON schemas as in `TextEnv.tools`.
    """

    def __init__(self, tools: Sequence[dict[str, Any]] = (), seed: int | np.random.Generator | None = None) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)
        self.tools = list(tools)

    @property
    def is_np_flattenable(self) -> bool:
        """False: a tool call has no fixed size."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> Any:  # noqa: ARG002
        """A call of a random tool with random arguments of the declared types."""
        if not self.tools:
            return TextSpace(self.np_random).sample()
        tool = self.tools[int(self.np_random.integers(len(self.tools)))]
        tool = tool.get("function", tool)
        properties = tool.get("parameters", {}).get("properties", {})
        arguments = {name: self._argument(schema) for name, schema in properties.items()}
        return {"tool": tool["name"], "arguments": arguments}

    def _argument(self, schema: dict[str, Any]) -> Any:
        if "enum" in schema:
            return schema["enum"][int(self.np_random.integers(len(schema["enum"])))]
        kind = schema.get("type", "string")
        if kind == "integer":
            return int(self.np_random.integers(schema.get("minimum", 0), schema.get("maximum", 9) + 1))
        if kind == "number":
            return float(self.np_random.random())
        if kind == "boolean":
            return bool(self.np_random.integers(2))
        if kind == "array":
            return [self._argument(schema.get("items", {})) for _ in range(int(self.np_random.integers(3)))]
        if kind == "object":
            return {name: self._argument(below) for name, below in schema.get("properties", {}).items()}
        return TextSpace(self.np_random).sample()

    def contains(self, x: Any) -> bool:
        """Whether `x` is a text or has the form of a tool call."""
        if isinstance(x, str):
            return True
        return (
            isinstance(x, dict)
            and isinstance(x.get("tool"), str)
            and isinstance(x.get("arguments", {}), dict)
            and all(isinstance(name, str) for name in x.get("arguments", {}))
            and set(x) <= {"tool", "arguments"}
        )

    def __repr__(self) -> str:
        names = [tool.get("function", tool).get("name") for tool in self.tools]
        return f"ToolCallSpace(a text, or a call of {names})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ToolCallSpace) and self.tools == other.tools

    __hash__ = None  # type: ignore[assignment]
