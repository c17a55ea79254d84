"""Answer metrics for question answering: exact match and token F1 with SQuAD's normalisation. Pure functions.

Reference: Rajpurkar et al., "SQuAD", 2016, section 6.1; the yes/no rule is HotpotQA's (Yang et al., 2018).
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

__all__ = ["exact_match", "f1", "normalize_answer"]

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_CLOSED_ANSWERS = frozenset({"yes", "no", "noanswer"})


def normalize_answer(text: str) -> str:
    """Lower-cases, drops ASCII punctuation, drops the words a, an, the, and collapses white space.

    The order is SQuAD's: punctuation goes first, without leaving a space, so `U.S.` becomes `us`.
    """
    without_punctuation = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", without_punctuation).split())


def exact_match(prediction: str, golden_answers: Iterable[str]) -> float:
    """1.0 if the prediction equals any golden answer after normalisation, else 0.0.

    Where either side is empty after normalisation ("", "the", "?") the two match only if they are the same
    non-empty string apart from case and outer space, so that the golden answer `A` is not matched by silence.

    Args:
        prediction: What the agent answered.
        golden_answers: One or more accepted answers.

    Raises:
        ValueError: There is no golden answer.
    """
    return max(_exact(prediction, gold) for gold in _checked(golden_answers))


def f1(prediction: str, golden_answers: Iterable[str]) -> float:
    """The best token F1, in [0, 1], between the prediction and any golden answer.

    Tokens are the words of the normalised strings, as a multiset. Where either side is `yes`, `no` or
    `noanswer` partial credit makes no sense and the score is 1 or 0 (HotpotQA's rule). Empty strings score
    as in `exact_match`.

    Args:
        prediction: What the agent answered.
        golden_answers: One or more accepted answers.

    Raises:
        ValueError: There is no golden answer.
    """
    return max(_token_f1(prediction, gold) for gold in _checked(golden_answers))


def _checked(golden_answers: Iterable[str]) -> list[str]:
    # A bare string is iterable too, and would silently be graded letter by letter.
    answers = [golden_answers] if isinstance(golden_answers, str) else list(golden_answers)
    if not answers:
        raise ValueError("there is no golden answer to compare with; a question needs at least one")
    return answers


def _exact(prediction: str, gold: str) -> float:
    ours, theirs = normalize_answer(prediction), normalize_answer(gold)
    if not ours or not theirs:
        return float(prediction.strip().lower() == gold.strip().lower() and gold.strip() != "")
    return float(ours == theirs)


def _token_f1(prediction: str, gold: str) -> float:
    ours, theirs = normalize_answer(prediction), normalize_answer(gold)
    if not ours or not theirs or ours in _CLOSED_ANSWERS or theirs in _CLOSED_ANSWERS:
        return _exact(prediction, gold)
    our_tokens, their_tokens = ours.split(), theirs.split()
    shared = sum((Counter(our_tokens) & Counter(their_tokens)).values())
    if shared == 0:
        return 0.0
    precision, recall = shared / len(our_tokens), shared / len(their_tokens)
    return 2 * precision * recall / (precision + recall)
