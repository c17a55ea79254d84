"""Messages to tokens, token-in-token-out: what a policy wrote is never tokenised again.

A trajectory is ``prompt(messages) ⊕ sampled ids ⊕ observation(text) ⊕ sampled ids ⊕ …``: a pure concatenation of ids,
so training sees exactly the ids that were sampled. Tokenizers are passed in; torch and transformers are not imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from forkgym.noise import newline_table

__all__ = [
    "EOT",
    "OBS",
    "PAD",
    "UNK",
    "PlainRenderer",
    "Renderer",
    "TemplateRenderer",
    "TinyRenderer",
    "choose_renderer",
]

# Control tokens of the tiny policy (`tiny.py` gives them the first ids in this order).
PAD, EOT, OBS, UNK = "<pad>", "<eot>", "<obs>", "<unk>"

Messages = Sequence[Mapping[str, Any]]


@runtime_checkable
class Renderer(Protocol):
    """Turns a conversation into token ids piece by piece.

    Attributes:
        vocabulary_size: V of the model (not of the tokenizer, which may be smaller).
        stop_tokens: Ids that end an assistant turn; they belong to the turn.
        newlines: ``uint8[V]``: number of 0x0A bytes in each token, for `forkgym.noise.KeyStream`.
    """

    vocabulary_size: int
    stop_tokens: tuple[int, ...]
    newlines: npt.NDArray[np.uint8]

    def prompt(self, messages: Messages) -> list[int]:
        """The conversation so far and whatever opens the assistant's turn."""
        ...

    def observation(self, text: str, *, closed: bool = True) -> list[int]:
        """What is appended after the environment answered, including whatever opens the next assistant turn.

        Args:
            text: The environment's answer.
            closed: The turn before it ended with a stop token; otherwise (it was cut, or ended by a stop string) the
                missing token is put first.
        """
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of sampled ids, control tokens left out."""
        ...

    def written(self, text: str) -> list[int]:
        """A turn somebody else wrote, its stop token included: for supervised learning only.

        A policy's own turns are never rendered from text; their ids are what was sampled.
        """
        ...


class TinyRenderer:
    """Renderer of the tiny word-level policy: question, newline; turn, ``<eot>``; ``<obs>``, passages; and so on."""

    def __init__(self, tokenizer: Any) -> None:
        """Wrap a tokenizer made by `forkgym.policy.tiny.build_tokenizer` (or loaded from its checkpoint).

        Raises:
            ValueError: The tokenizer lacks the control tokens.
        """
        size = len(tokenizer)
        self._words: list[str] = tokenizer.convert_ids_to_tokens(list(range(size)))
        ids = {word: index for index, word in enumerate(self._words)}
        missing = [name for name in (PAD, EOT, OBS, UNK, "\n") if name not in ids]
        if missing:
            raise ValueError(
                f"the tokenizer has no {', '.join(map(repr, missing))}: it was not made by build_tokenizer; "
                "use TemplateRenderer or PlainRenderer for other tokenizers"
            )
        self.vocabulary_size = size
        self.stop_tokens: tuple[int, ...] = (ids[EOT],)
        self.newlines: npt.NDArray[np.uint8] = newline_table(word.encode() for word in self._words)
        self._observation_token = ids[OBS]
        self._newline_token = ids["\n"]
        self._silent = {ids[PAD], ids[EOT], ids[OBS]}
        # The same passages come back all the time; a dictionary look-up costs a hundredth of a tokenizer call.
        self._encode = lru_cache(maxsize=65_536)(
            lambda text: tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
        )

    def encode(self, text: str) -> list[int]:
        """Ids of a text of the tiny language; unknown words become ``<unk>``."""
        return list(self._encode(text))

    def prompt(self, messages: Messages) -> list[int]:
        """User and system text, each followed by a newline; assistant turns by ``<eot>``; tool text after ``<obs>``."""
        ids: list[int] = []
        for message in messages:
            text = self.encode(str(message["content"]))
            if message["role"] == "assistant":
                ids += [*text, *self.stop_tokens]
            elif message["role"] == "tool":
                ids += [self._observation_token, *text]
            else:
                ids += [*text, self._newline_token]
        return ids

    def observation(self, text: str, *, closed: bool = True) -> list[int]:
        """``<obs>`` and the text."""
        head = [] if closed else list(self.stop_tokens)
        return [*head, self._observation_token, *self.encode(text)]

    def decode(self, tokens: Sequence[int]) -> str:
        """Words joined by single spaces (a newline is a word)."""
        return " ".join(self._words[token] for token in tokens if token not in self._silent)

    def written(self, text: str) -> list[int]:
        """The text's ids and ``<eot>``."""
        return [*self.encode(text), *self.stop_tokens]


class PlainRenderer:
    """No template: texts are concatenated as they are, as base models and Search-R1 want it."""

    def __init__(self, tokenizer: Any, *, vocabulary_size: int | None = None) -> None:
        """Wrap a Hugging Face tokenizer; its end-of-sequence token ends a turn.

        Args:
            tokenizer: Any Hugging Face tokenizer.
            vocabulary_size: The model's V where it exceeds the tokenizer's (padded embeddings).
        """
        self._tokenizer = tokenizer
        self.vocabulary_size = _vocabulary_size(tokenizer, vocabulary_size)
        self.stop_tokens: tuple[int, ...] = () if tokenizer.eos_token_id is None else (int(tokenizer.eos_token_id),)
        self.newlines: npt.NDArray[np.uint8] = _newlines(tokenizer, self.vocabulary_size)

    def prompt(self, messages: Messages) -> list[int]:
        """All contents joined by newlines, with the tokenizer's own special tokens (a BOS, where it has one)."""
        text = "\n".join(str(message["content"]) for message in messages)
        return _ids(self._tokenizer(text)["input_ids"])

    def observation(self, text: str, *, closed: bool = True) -> list[int]:  # noqa: ARG002
        """The text alone: a base model's turn is not closed by a token."""
        return _ids(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, tokens: Sequence[int]) -> str:
        """Text without special tokens."""
        return _decode(self._tokenizer, tokens)

    def written(self, text: str) -> list[int]:
        """The text's ids alone: environments of base models end turns by their stop strings."""
        return _ids(self._tokenizer(text, add_special_tokens=False)["input_ids"])


class TemplateRenderer:
    """Renderer for a tokenizer with a chat template.

    The template renders the first prompt; later turns are appended by pieces that a probe conversation found (what
    stands between an assistant turn's end and the next turn's start), so a template that rewrites earlier turns cannot
    change what was sampled.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        observation_role: str = "user",
        tools: Sequence[Mapping[str, Any]] = (),
        vocabulary_size: int | None = None,
        template_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Probe the template.

        Args:
            tokenizer: A Hugging Face tokenizer with ``chat_template``.
            observation_role: Role under which the environment's answers are rendered (``user`` or ``tool``).
            tools: JSON schemas handed to the template.
            vocabulary_size: The model's V where it exceeds the tokenizer's (padded embeddings).
            template_options: Further variables of the template (such as ``enable_thinking``).

        Raises:
            ValueError: There is no template, or it is not prefix-stable (what it puts around an observation depends on
                the rest of the conversation); the message says what to do.
        """
        if not getattr(tokenizer, "chat_template", None):
            raise ValueError("the tokenizer has no chat_template: use PlainRenderer, or set tokenizer.chat_template")
        self._tokenizer = tokenizer
        self._role = observation_role
        self._tools = [dict(tool) for tool in tools]
        self._options = dict(template_options or {})
        self.vocabulary_size = _vocabulary_size(tokenizer, vocabulary_size)
        self.newlines: npt.NDArray[np.uint8] = _newlines(tokenizer, self.vocabulary_size)
        self._before, self._after = self._probe()
        closing = _ids(tokenizer(self._before, add_special_tokens=False)["input_ids"])
        if not closing:
            raise ValueError(self._unstable("nothing closes an assistant turn"))
        # The first token after the assistant's text is what the model writes to end its turn.
        self._end_of_turn = closing[0]
        eos = tokenizer.eos_token_id
        self.stop_tokens: tuple[int, ...] = tuple(
            dict.fromkeys([self._end_of_turn] + ([int(eos)] if eos is not None else []))
        )

    def prompt(self, messages: Messages) -> list[int]:
        """The template's rendering with its generation prompt."""
        return _ids(self._tokenizer(self._render(messages, True), add_special_tokens=False)["input_ids"])

    def observation(self, text: str, *, closed: bool = True) -> list[int]:
        """The rest of the turn's closing, the observation in its role, and the next turn's opening."""
        ids = _ids(self._tokenizer(self._before + text + self._after, add_special_tokens=False)["input_ids"])
        if ids[0] != self._end_of_turn:
            raise ValueError(self._unstable("an observation's text merges with the token that closes the turn"))
        return ids[1:] if closed else ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Text without special tokens."""
        return _decode(self._tokenizer, tokens)

    def written(self, text: str) -> list[int]:
        """The text's ids and the template's end-of-turn token."""
        return [*_ids(self._tokenizer(text, add_special_tokens=False)["input_ids"]), self._end_of_turn]

    def _render(self, messages: Messages, generation_prompt: bool) -> str:
        text = self._tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tools=self._tools or None,
            add_generation_prompt=generation_prompt,
            tokenize=False,
            **self._options,
        )
        return str(text)

    def _probe(self) -> tuple[str, str]:
        """What stands before and after an observation's text, found in one- and two-turn conversations."""
        marks = ["Qaz", "Wsx", "Edc", "Rfv", "Tgb"]
        first = [
            {"role": "user", "content": marks[0]},
            {"role": "assistant", "content": marks[1]},
            {"role": self._role, "content": marks[2]},
        ]
        second = [*first, {"role": "assistant", "content": marks[3]}, {"role": self._role, "content": marks[4]}]
        try:
            texts = [self._render(first[:1], True), self._render(first, True), self._render(second, True)]
        except Exception as error:
            raise ValueError(self._unstable(f"it refuses a {self._role!r} message after an assistant turn")) from error
        if not (texts[1].startswith(texts[0]) and texts[2].startswith(texts[1])):
            raise ValueError(self._unstable("it renders earlier turns differently once later ones exist"))
        pieces = []
        for text, turn, answer in ((texts[1], marks[1], marks[2]), (texts[2], marks[3], marks[4])):
            if text.count(turn) != 1 or text.count(answer) != 1:
                raise ValueError(self._unstable("it repeats or drops a message's text"))
            start, end = text.index(turn) + len(turn), text.index(answer)
            pieces.append((text[start:end], text[end + len(answer) :]))
        if pieces[0] != pieces[1]:
            raise ValueError(self._unstable("it puts different text around the first and the second observation"))
        return pieces[0]

    def _unstable(self, what: str) -> str:
        return (
            f"this chat template cannot be extended turn by turn: {what}. Set tokenizer.chat_template to a variant "
            "that renders a turn alike whatever follows, choose another observation_role, or use PlainRenderer"
        )


def choose_renderer(tokenizer: Any, *, vocabulary_size: int | None = None, observation_role: str = "user") -> Renderer:
    """The renderer that fits a tokenizer: tiny by its control tokens, else its chat template, else plain.

    Args:
        tokenizer: A Hugging Face tokenizer.
        vocabulary_size: The model's V where it exceeds the tokenizer's.
        observation_role: Role of observations, for a chat template.
    """
    if OBS in tokenizer.get_vocab() and EOT in tokenizer.get_vocab():
        return TinyRenderer(tokenizer)
    if getattr(tokenizer, "chat_template", None):
        return TemplateRenderer(tokenizer, vocabulary_size=vocabulary_size, observation_role=observation_role)
    return PlainRenderer(tokenizer, vocabulary_size=vocabulary_size)


def _ids(tokens: Any) -> list[int]:
    return [int(token) for token in tokens]


def _decode(tokenizer: Any, tokens: Sequence[int]) -> str:
    return str(tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _vocabulary_size(tokenizer: Any, vocabulary_size: int | None) -> int:
    if vocabulary_size is not None and vocabulary_size < len(tokenizer):
        raise ValueError(
            f"vocabulary_size={vocabulary_size} is smaller than the tokenizer's {len(tokenizer)}: "
            "resize the model's embeddings"
        )
    return len(tokenizer) if vocabulary_size is None else vocabulary_size


def _newlines(tokenizer: Any, vocabulary_size: int) -> npt.NDArray[np.uint8]:
    """Line ends of each token; ids beyond the tokenizer (padding of the embedding table) have none."""
    texts = tokenizer.batch_decode(
        [[index] for index in range(len(tokenizer))], skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    known = newline_table(text.encode() for text in texts)
    return np.concatenate([known, np.zeros(vocabulary_size - len(known), dtype=np.uint8)])
