import datetime
from decimal import Decimal

import pytest

from ledger import Amount, Posting, Transaction, UnbalancedError

DAY = datetime.date(2024, 1, 1)


def euro(text):
    return Amount(Decimal(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12.50 EUR", Amount(Decimal("12.50"))),
        ("-3 usd", Amount(Decimal(-3), "USD")),
        ("1,200.00", Amount(Decimal("1200.00"))),
        ("$5", Amount(Decimal(5), "USD")),
        ("-$5.25", Amount(Decimal("-5.25"), "USD")),
    ],
)
def test_parse(text, expected):
    assert Amount.parse(text) == expected


@pytest.mark.parametrize("text", ["", "abc", "12.5.0 EUR", "NaN", "5 E1R", "5 EUR USD"])
def test_parse_errors(text):
    with pytest.raises(ValueError, match="is no amount"):
        Amount.parse(text)


def test_arithmetic():
    assert euro("1.10") + euro("2.20") == euro("3.30")
    assert euro("1.10") - euro("2.20") == euro("-1.10")
    assert -euro("4") == euro("-4")
    with pytest.raises(ValueError, match="EUR and USD cannot be added"):
        euro("1") + Amount(Decimal(1), "USD")


def test_truth_and_text():
    assert euro("0.01")
    assert not euro("0.00")
    assert str(euro("1234.5")) == "1,234.50 EUR"


def test_rounding_is_to_even():
    assert euro("0.125").rounded() == euro("0.12")
    assert euro("0.135").rounded() == euro("0.14")
    assert euro("2.5").rounded(0) == euro("2")


def test_conversion():
    assert euro("10").converted(Decimal("1.1"), "USD") == Amount(Decimal("11.0"), "USD")
    with pytest.raises(ValueError, match="above zero"):
        euro("10").converted(Decimal(0), "USD")


@pytest.mark.parametrize(
    ("amount", "weights", "expected"),
    [
        ("10.00", [1, 1], ["5.00", "5.00"]),
        ("10.00", [1, 1, 1], ["3.34", "3.33", "3.33"]),
        ("-1.00", [1, 2], ["-0.34", "-0.66"]),
        ("0.05", [0, 1, 1], ["0.00", "0.03", "0.02"]),
    ],
)
def test_shares(amount, weights, expected):
    shares = euro(amount).shares(weights)
    assert shares == [euro(text) for text in expected]
    assert sum(share.number for share in shares) == Decimal(amount)


@pytest.mark.parametrize("weights", [[0, 0], [2, -1]])
def test_shares_of_nothing(weights):
    with pytest.raises(ValueError, match="weights"):
        euro("1").shares(weights)


def test_accounts_below():
    posting = Posting("Assets:Bank:Giro")
    assert posting.is_below("Assets")
    assert posting.is_below("Assets:Bank:Giro")
    assert not posting.is_below("Asset")
    assert not posting.is_below("Assets:Ban")


def test_balancing_fills_in_what_is_missing():
    made = Transaction(DAY, "x", (Posting("A", euro("3")), Posting("B", euro("4")), Posting("C"))).balanced()
    assert made.postings[2] == Posting("C", euro("-7"))
    assert made.payee == "x"


def test_balanced_transactions_stay():
    made = Transaction(DAY, "x", (Posting("A", euro("3")), Posting("B", euro("-3"))), {"a": "b"}, cleared=True)
    assert made.balanced() == made
    nothing = Transaction(DAY, "x", (Posting("A", euro("3")), Posting("B", euro("-3")), Posting("C"))).balanced()
    assert nothing.postings[2].amount == euro("0")
    assert Transaction(DAY, "x", (Posting("A", euro("3")), Posting("B")), {"a": "b"}, True).balanced().cleared


@pytest.mark.parametrize(
    ("postings", "message"),
    [
        ([("A", "3 EUR"), ("B", "-2 EUR")], "1.00 EUR left over"),
        ([("A", "3 EUR"), ("B", None), ("C", None)], "more than one posting"),
        ([("A", "3 EUR"), ("B", "3 USD"), ("C", None)], "cannot balance 2 commodities"),
    ],
)
def test_unbalanced(postings, message):
    made = [Posting(account, Amount.parse(text) if text else None) for account, text in postings]
    with pytest.raises(UnbalancedError, match=message):
        Transaction(DAY, "x", tuple(made)).balanced()
