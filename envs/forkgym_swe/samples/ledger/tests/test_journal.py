import datetime

import pytest

from ledger import Amount, JournalError, parse_journal


def test_transactions_are_sorted_by_date(ledger):
    assert [transaction.date.day for transaction in ledger] == [1, 5, 10, 20, 1]
    assert ledger[0].date == datetime.date(2024, 1, 1)


def test_those_of_one_day_keep_their_order():
    text = "".join(f"2024-01-0{day} {name}\n  A  1\n  B\n" for day, name in [(2, "b"), (1, "z"), (1, "a")])
    assert [transaction.payee for transaction in parse_journal(text)] == ["z", "a", "b"]


def test_payees_marks_and_tags(ledger):
    shop = ledger[1]
    assert shop.payee == "Corner shop"
    assert shop.cleared
    assert shop.tags == {"trip": "north", "who": "ada"}
    assert not ledger[2].cleared
    assert not ledger[3].cleared


def test_postings(ledger):
    shop = ledger[1]
    assert [posting.account for posting in shop.postings] == [
        "Expenses:Food",
        "Expenses:Household",
        "Assets:Bank:Giro",
    ]
    assert shop.postings[1].amount == Amount.parse("7.50")
    assert shop.postings[2].amount == Amount.parse("-20.00")


def test_nothing():
    assert parse_journal("") == []
    assert parse_journal("; only\n\n# comments\n   ; here\n") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("  Assets  5", "line 1: a posting without a transaction"),
        ("\nhello", "line 2: no date and payee"),
        ("2024-02-30 x\n  A  1\n  B", "line 1: 2024-02-30 is no date"),
        ("2024-01-01 x\n  A  1", "line 1: a transaction needs two postings"),
        ("2024-01-01 x\n  A  1\n  B  1", "line 1: x: 2.00 EUR left over"),
        ("2024-01-01 x\n  A  one\n  B", "line 2: 'one' is no amount"),
        ("2024-01-01 x\n  A  1\n  B:  1", "line 3: 'B:' is no account"),
    ],
)
def test_errors(text, message):
    with pytest.raises(JournalError, match=message):
        parse_journal(text)


def test_error_knows_its_line():
    with pytest.raises(JournalError) as caught:
        parse_journal("2024-01-01 x\n  A  1\n  B\n\nnonsense")
    assert caught.value.line == 5
