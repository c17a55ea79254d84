"""What a ledger says: balances by account, a register, net worth."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal

from .model import Amount, Posting, Transaction


@dataclass(frozen=True)
class Balance:
    """The balance of an account, those inside of it included."""

    account: str
    amounts: tuple[Amount, ...]
    depth: int

    def line(self, width: int = 12) -> str:
        """One line of a report."""
        shown = ", ".join(str(amount) for amount in self.amounts) or "0"
        return f"{shown:>{width}}  {'  ' * self.depth}{self.account.rpartition(':')[2]}"


def postings_of(
    transactions: Iterable[Transaction],
    account: str = "",
    *,
    since: datetime.date | None = None,
    until: datetime.date | None = None,
    cleared: bool | None = None,
) -> Iterator[tuple[Transaction, Posting]]:
    """Postings to an account or below it, from one day on and before another one."""
    for transaction in transactions:
        if since is not None and transaction.date < since:
            continue
        if until is not None and transaction.date >= until:
            continue
        if cleared is not None and transaction.cleared is not cleared:
            continue
        for posting in transaction.postings:
            if not account or posting.is_below(account):
                yield transaction, posting


def balances(
    transactions: Iterable[Transaction], account: str = "", *, depth: int | None = None, empty: bool = False
) -> list[Balance]:
    """Balances of an account and all below it, sorted by name.

    Args:
        transactions: The ledger.
        account: Where to start; everything by default.
        depth: How many levels of names to show.
        empty: Show accounts with nothing in them.
    """
    totals: dict[str, dict[str, Decimal]] = {}
    for _, posting in postings_of(transactions, account):
        if posting.amount is None:
            continue
        parts = posting.account.split(":")
        for level in range(1, len(parts) + 1):
            name = ":".join(parts[:level])
            if account and not Posting(name).is_below(account):
                continue
            by_commodity = totals.setdefault(name, {})
            commodity = posting.amount.commodity
            by_commodity[commodity] = by_commodity.get(commodity, Decimal(0)) + posting.amount.number
    found = []
    for name, by_commodity in sorted(totals.items()):
        level = name.count(":")
        if depth is not None and level >= depth:
            continue
        amounts = tuple(Amount(number, commodity) for commodity, number in sorted(by_commodity.items()) if number)
        if amounts or empty:
            found.append(Balance(name, amounts, level))
    return found


def register(
    transactions: Iterable[Transaction], account: str, *, commodity: str = "EUR"
) -> list[tuple[datetime.date, str, Amount, Amount]]:
    """Date, payee, amount and running total of each posting to an account."""
    total = Amount(Decimal(0), commodity)
    found = []
    for transaction, posting in postings_of(transactions, account):
        if posting.amount is None or posting.amount.commodity != commodity:
            continue
        total = total + posting.amount
        found.append((transaction.date, transaction.payee, posting.amount, total))
    return found


def net_worth(
    transactions: Iterable[Transaction], day: datetime.date, *, rates: dict[str, Decimal], commodity: str = "EUR"
) -> Amount:
    """Assets less liabilities at the end of a day, in one commodity."""
    ledger = list(transactions)
    total = Amount(Decimal(0), commodity)
    for account in ("Assets", "Liabilities"):
        for _, posting in postings_of(ledger, account, until=day + datetime.timedelta(days=1)):
            amount = posting.amount
            if amount is None:
                continue
            if amount.commodity != commodity:
                if amount.commodity not in rates:
                    raise KeyError(f"no rate for {amount.commodity}")
                amount = amount.converted(rates[amount.commodity], commodity)
            total = total + amount
    return total.rounded()


def trial_balance(transactions: Iterable[Transaction]) -> tuple[Decimal, Decimal]:
    """Sums of all debits and of all credits of the accounts at the top; they are equal in a sound ledger."""
    debits = credits = Decimal(0)
    for balance in balances(transactions, depth=1):
        for amount in balance.amounts:
            if amount.number > 0:
                debits += amount.number
            else:
                credits -= amount.number
    return debits, credits
