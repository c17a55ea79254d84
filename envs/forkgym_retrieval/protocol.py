"""Search-R1's text protocol: how a turn is cut and read, how passages are shown. Pure functions on strings.

Reference: Jin et al., "Search-R1", 2025, section 3.2 and its public rollout loop. Grading is in `metrics.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec

from forkgym_retrieval.retrievers import Passage

__all__ = [
    "INVALID_HINT",
    "OBSERVATION_TOKENS",
    "STOP_STRINGS",
    "ParsedTurn",
    "cut_turn",
    "escape_tags",
    "extract_answer",
    "format_information",
    "format_passages",
    "format_prompt",
    "parse_turn",
    "split_tokens",
    "unescape_tags",
]

STOP_STRINGS = ("</search>", "</answer>")
"""A turn ends at the first `</search>`, or, if there is none, at the first `</answer>`."""

OBSERVATION_TOKENS = 500
"""Default limit of one observation, in tokens."""

INVALID_HINT = (
    "\nThat was not a valid action. A query goes between <search> and </search>, "
    "the final answer between <answer> and </answer>. Try again.\n"
)
"""What the environment says to a turn without a (search|answer) pair; always the same text."""

_ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_TAG = re.compile(r"<(/?\s*(?:think|search|information|answer)\s*/?)>", re.IGNORECASE)
_ESCAPED_TAG = re.compile(r"&lt;(/?\s*(?:think|search|information|answer)\s*/?)&gt;", re.IGNORECASE)
# A rough stand-in for a sub-word tokenizer: up to eight letters or digits with the space before them, or one
# other sign. English text comes to about as many pieces as a byte-pair encoding makes of it.
_PIECE = re.compile(r"\s*(?:\w{1,8}|[^\w\s])|\s+")


class ParsedTurn(msgspec.Struct, frozen=True):
    """What a turn asks for.

    Attributes:
        kind: `search`, `answer`, or `invalid` where the turn has no complete pair of tags.
        content: The stripped text between the tags; empty for an invalid turn.
    """

    kind: str
    content: str


def cut_turn(text: str) -> str:
    """Cuts what an agent wrote after the tag that ends the turn.

    The first `</search>` wins wherever it stands, even behind an `</answer>`; only without one does the first
    `</answer>` end the turn. Text without either is returned whole.
    """
    for stop in STOP_STRINGS:
        head, found, _ = text.partition(stop)
        if found:
            return head + found
    return text


def parse_turn(text: str) -> ParsedTurn:
    """Reads the action of a turn: the first (search|answer) pair of tags after `cut_turn`.

    Tags are exact (lower case, no spaces inside) and the content may span lines. Never raises.
    """
    match = _ACTION.search(cut_turn(text))
    if match is None:
        return ParsedTurn("invalid", "")
    return ParsedTurn(match[1], match[2].strip())


def extract_answer(response: str, *, minimum_matches: int = 1) -> str | None:
    """The last answer of a whole transcript, as Search-R1's scorer reads it.

    That scorer is given prompt and response in one string and asks for two matches, since its prompt contains
    an example answer; for a response alone one match is enough. Beware that `INVALID_HINT` and an unescaped
    passage match as well: strip observations, or grade the action, as the environment does.

    Args:
        response: Text that the agent wrote.
        minimum_matches: 1 for a response alone, 2 for a prompt with one example followed by its response.

    Returns:
        The stripped text of the last pair, or None where there are fewer pairs than `minimum_matches`.
    """
    matches = _ANSWER.findall(response)
    return matches[-1].strip() if len(matches) >= max(1, minimum_matches) else None


def escape_tags(text: str) -> str:
    """Makes the protocol's tags inside foreign text harmless: `<answer>` becomes `&lt;answer&gt;`.

    Only the four tags (any case, opening, closing, with spaces) change; every other angle bracket stays.
    Without this a passage could close the information block or be scored as an answer.
    """
    return _TAG.sub(r"&lt;\1&gt;", text)


def unescape_tags(text: str) -> str:
    """Undoes `escape_tags`, so that an answer copied from a passage is graded in the original spelling."""
    return _ESCAPED_TAG.sub(r"<\1>", text)


def format_passages(passages: Sequence[Passage]) -> str:
    """One line a passage, best first: `Doc 1(Title: "T") text`, tags escaped.

    The title keeps the quotation marks that it has in the corpus file, as models trained with Search-R1 saw
    it.
    """
    lines = (f'Doc {i}(Title: "{passage.title}") {passage.text}' for i, passage in enumerate(passages, start=1))
    return escape_tags("\n".join(lines)).strip()


def format_information(
    passages: Sequence[Passage],
    *,
    limit: int = OBSERVATION_TOKENS,
    split: Callable[[str], Sequence[str]] | None = None,
) -> str:
    """The observation after a search: the information block between blank lines, within `limit` tokens.

    Search-R1 cuts the finished observation, which loses the closing tag of a long one; here the passages are
    cut so that the whole observation, tags included, has at most `limit` tokens and the block is always
    closed.

    Args:
        passages: What the search returned; may be empty.
        limit: The most tokens of the whole observation.
        split: Cuts a text into tokens that concatenate to it; default `split_tokens`. Give the policy's own
            tokenizer for an exact limit.

    Raises:
        ValueError: `limit` leaves no room for the tags.
    """
    split = split or split_tokens
    opening, closing = "\n\n<information>", "</information>\n\n"
    room = limit - len(split(opening)) - len(split(closing))
    if room < 0:
        raise ValueError(f"an observation limit of {limit} tokens leaves no room for the information tags")
    body = format_passages(passages)
    tokens = split(body)
    if len(tokens) > room:
        body = "".join(tokens[:room])
    return f"{opening}{body}{closing}"


def split_tokens(text: str) -> list[str]:
    """Cuts text into pieces of up to eight word characters, or one sign, with the space before them.

    The pieces concatenate to the text. This needs no tokenizer and is the same on every machine; it comes
    close to the count of a byte-pair encoding.
    """
    return _PIECE.findall(text)


def format_prompt(question: str, *, max_searches: int, top_k: int) -> str:
    """The task text: the protocol in a few sentences, then the question (its tags escaped)."""
    if max_searches == 0:
        rule = "You cannot search. "
    else:
        times = "once" if max_searches == 1 else f"up to {max_searches} times"
        rule = (
            f"You may search {times}: write a query between <search> and </search> and stop; "
            f"the best passages (at most {top_k}) come back between <information> and </information>, "
            "and you reason about them before you go on. "
        )
    return (
        "Find the answer to the question below. Reason between <think> and </think> before every action. "
        f"{rule}"
        "Once you know enough, write the answer, as short as possible, between <answer> and </answer>, "
        "like <answer> Beijing </answer>.\n"
        f"Question: {escape_tags(question)}\n"
    )
