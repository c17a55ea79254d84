import datetime
from decimal import Decimal

import pytest

from ledger import Amount, Balance, balances, net_worth, parse_journal, register, trial_balance
from ledger.reports import postings_of


def shown(found):
    return {balance.account: [str(amount) for amount in balance.amounts] for balance in found}


def test_balances_add_up_inner_accounts(ledger):
    assert shown(balances(ledger, "Assets")) == {
        "Assets": ["3,480.00 EUR", "100.00 USD"],
        "Assets:Bank": ["3,480.00 EUR"],
        "Assets:Bank:Giro": ["2,980.00 EUR"],
        "Assets:Bank:Savings": ["500.00 EUR"],
        "Assets:Cash": ["100.00 USD"],
        "Assets:Cash:Dollars": ["100.00 USD"],
    }


def test_balances_start_at_an_account(ledger):
    assert list(shown(balances(ledger, "Assets:Bank"))) == ["Assets:Bank", "Assets:Bank:Giro", "Assets:Bank:Savings"]
    assert balances(ledger, "Nowhere") == []


def test_balances_to_a_depth(ledger):
    assert list(shown(balances(ledger, depth=1))) == ["Assets", "Equity", "Expenses", "Income", "Liabilities"]
    assert all(balance.depth < 2 for balance in balances(ledger, depth=2))


def test_empty_accounts_are_left_out():
    ledger = parse_journal("2024-01-01 x\n  A  1\n  B\n\n2024-01-02 y\n  A  -1\n  B\n")
    assert balances(ledger) == []
    assert balances(ledger, empty=True) == [Balance("A", (), 0), Balance("B", (), 0)]


def test_line():
    assert Balance("A:B", (Amount(Decimal(5)),), 1).line() == "    5.00 EUR    B"
    assert Balance("A", (), 0).line(4) == "   0  A"


def test_register(ledger):
    found = register(ledger, "Assets:Bank:Giro")
    assert [(date.day, str(amount), str(total)) for date, _, amount, total in found] == [
        (1, "1,000.00 EUR", "1,000.00 EUR"),
        (5, "-20.00 EUR", "980.00 EUR"),
        (20, "2,000.00 EUR", "2,980.00 EUR"),
    ]
    assert found[1][1] == "Corner shop"


def test_register_of_another_commodity(ledger):
    assert register(ledger, "Assets:Cash") == []
    assert len(register(ledger, "Assets", commodity="USD")) == 1


def test_postings_between_days(ledger):
    since, until = datetime.date(2024, 1, 5), datetime.date(2024, 1, 20)
    found = {transaction.payee for transaction, _ in postings_of(ledger, since=since, until=until)}
    assert found == {"Corner shop", "Card"}


def test_postings_by_mark(ledger):
    assert {transaction.payee for transaction, _ in postings_of(ledger, cleared=False)} == {"Card", "Employer"}
    assert {transaction.payee for transaction, _ in postings_of(ledger, "Expenses", cleared=True)} == {"Corner shop"}


def test_net_worth(ledger):
    rates = {"USD": Decimal("0.9")}
    assert net_worth(ledger, datetime.date(2024, 1, 5), rates=rates) == Amount(Decimal("1480.00"))
    assert net_worth(ledger, datetime.date(2024, 1, 10), rates=rates) == Amount(Decimal("1400.00"))
    assert net_worth(ledger, datetime.date(2024, 2, 1), rates=rates) == Amount(Decimal("3490.00"))
    with pytest.raises(KeyError, match="no rate for USD"):
        net_worth(ledger, datetime.date(2024, 2, 1), rates={})


def test_trial_balance(ledger):
    debits, credits = trial_balance(ledger)
    assert debits == credits == Decimal("3680.00")
