import pytest

from ledger import parse_journal

TEXT = """\
; a small ledger
2024-01-01 * Opening
    Assets:Bank:Giro      1,000.00 EUR
    Assets:Bank:Savings   500 EUR
    Equity:Opening

2024-01-05 * Corner shop  ; trip: north, who: ada
    Expenses:Food          12.50 EUR
    Expenses:Household      7.50 EUR   ; soap
    Assets:Bank:Giro

2024-01-20 Employer
    Assets:Bank:Giro      2000 EUR
    Income:Salary

2024/1/10 ! Card
    Expenses:Travel        80 EUR
    Liabilities:Card

2024-02-01 * Exchange
    Assets:Cash:Dollars    $100
    Equity:Exchange       -$100
"""


@pytest.fixture
def ledger():
    return parse_journal(TEXT)
