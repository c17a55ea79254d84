"""EM and F1 on golden cases whose values were worked out by hand from SQuAD's rules."""

import pytest
from forkgym_retrieval.metrics import exact_match, f1, normalize_answer


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Beatles", "beatles"),
        ("  the   U.S.  ", "us"),
        ("An apple, a pear!", "apple pear"),
        ("Theatre", "theatre"),
        ("anthem of the sea", "anthem of sea"),
        ("rock'n'roll", "rocknroll"),
        ("it's", "its"),
        ("a-b", "ab"),
        ("O’Neill – Jr", "o’neill – jr"),
        ("3,800", "3800"),
        ("tab\tand\nnewline", "tab and newline"),
        ("the", ""),
        ("Ñandú", "ñandú"),
    ],
)
def test_normalisation(text, normal):
    assert normalize_answer(text) == normal


@pytest.mark.parametrize(
    ("prediction", "gold", "score"),
    [
        ("beatles", ["The Beatles"], 1.0),
        ("The Beatles.", ["Beatles"], 1.0),
        ("the beatles band", ["The Beatles"], 0.0),
        ("Byron", ["Lord Byron", "Byron"], 1.0),
        ("14 December 1972", ["14 December 1972 UTC", "December 1972"], 0.0),
        ("yes", ["Yes"], 1.0),
        ("yes.", ["yes"], 1.0),
        ("no", ["yes"], 0.0),
        ("", ["Paris"], 0.0),
        ("the", ["Paris"], 0.0),
        ("", ["A"], 0.0),
        ("?", ["A"], 0.0),
        ("a", ["A"], 1.0),
        ("the the", ["The The"], 1.0),
        ("", [""], 0.0),
    ],
)
def test_exact_match(prediction, gold, score):
    assert exact_match(prediction, gold) == score


@pytest.mark.parametrize(
    ("prediction", "gold", "score"),
    [
        ("The Beatles", ["Beatles"], 1.0),
        ("Lord Byron", ["Byron"], 2 / 3),
        ("George Gordon Byron", ["Lord Byron"], 2 * (1 / 3) * (1 / 2) / (1 / 3 + 1 / 2)),
        ("Paris", ["London"], 0.0),
        ("new new york", ["new york"], 2 * (2 / 3) * 1 / (2 / 3 + 1)),
        ("york york", ["york"], 2 * (1 / 2) * 1 / (1 / 2 + 1)),
        ("Lord Byron", ["London", "Byron", "Lord Byron of Rochdale"], 2 / 3),
        ("yes it is", ["yes"], 0.0),
        ("yes", ["yes it is"], 0.0),
        ("Yes", ["yes"], 1.0),
        ("no", ["no one knows"], 0.0),
        ("noanswer", ["noanswer"], 1.0),
        ("", ["Paris"], 0.0),
        ("Paris", ["the"], 0.0),
        ("A", ["a"], 1.0),
    ],
)
def test_f1(prediction, gold, score):
    assert f1(prediction, gold) == pytest.approx(score)


def test_a_bare_string_is_one_golden_answer_and_not_its_letters():
    assert exact_match("b", "Lord Byron") == 0.0
    assert exact_match("lord byron", "Lord Byron") == 1.0
    assert f1("Byron", "Lord Byron") == pytest.approx(2 / 3)


def test_a_question_without_golden_answers_cannot_be_graded():
    for metric in (exact_match, f1):
        with pytest.raises(ValueError, match="at least one"):
            metric("Paris", [])
