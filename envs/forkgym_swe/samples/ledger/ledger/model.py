"""Amounts, postings and transactions."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation


class UnbalancedError(ValueError):
    """A transaction whose postings do not add up to nothing."""


@dataclass(frozen=True)
class Amount:
    """A number of units of one commodity."""

    number: Decimal
    commodity: str = "EUR"

    @classmethod
    def parse(cls, text: str) -> Amount:
        """Read ``12.50 EUR``, ``-3 USD``, ``1,200.00`` or ``$5``."""
        cleaned = text.strip()
        commodity = "EUR"
        if cleaned.startswith(("$", "-$")):
            commodity, cleaned = "USD", cleaned.replace("$", "", 1)
        elif " " in cleaned:
            cleaned, _, commodity = cleaned.partition(" ")
            commodity = commodity.strip()
        try:
            number = Decimal(cleaned.replace(",", ""))
        except InvalidOperation:
            raise ValueError(f"{text.strip()!r} is no amount") from None
        if not number.is_finite() or not commodity.isalpha():
            raise ValueError(f"{text.strip()!r} is no amount")
        return cls(number, commodity.upper())

    def __add__(self, other: Amount) -> Amount:
        """The sum; of one commodity only."""
        self._check(other)
        return Amount(self.number + other.number, self.commodity)

    def __sub__(self, other: Amount) -> Amount:
        """The difference; of one commodity only."""
        self._check(other)
        return Amount(self.number - other.number, self.commodity)

    def __neg__(self) -> Amount:
        """The opposite."""
        return Amount(-self.number, self.commodity)

    def __bool__(self) -> bool:
        """Whether it is not nothing."""
        return self.number != 0

    def __str__(self) -> str:
        """For people, with two places."""
        return f"{self.rounded().number:,} {self.commodity}"

    def rounded(self, places: int = 2) -> Amount:
        """Rounded to even."""
        return Amount(self.number.quantize(Decimal(1).scaleb(-places), ROUND_HALF_EVEN), self.commodity)

    def converted(self, rate: Decimal, commodity: str) -> Amount:
        """The value in another commodity."""
        if rate <= 0:
            raise ValueError(f"a rate must be above zero, not {rate}")
        return Amount(self.number * rate, commodity)

    def shares(self, weights: Iterable[int]) -> list[Amount]:
        """Split into parts by weight; the cents that are left go to the first parts, so that the sum stays."""
        parts = list(weights)
        total = sum(parts)
        if total <= 0 or min(parts) < 0:
            raise ValueError("weights must be above zero in sum, and none below zero")
        cents = int(self.rounded().number * 100)
        sign = -1 if cents < 0 else 1
        found = [abs(cents) * weight // total for weight in parts]
        left = abs(cents) - sum(found)
        place = 0
        while left > 0:
            if parts[place % len(parts)]:
                found[place % len(parts)] += 1
                left -= 1
            place += 1
        return [Amount(Decimal(sign * share) / 100, self.commodity) for share in found]

    def _check(self, other: Amount) -> None:
        if self.commodity != other.commodity:
            raise ValueError(f"{self.commodity} and {other.commodity} cannot be added")


@dataclass(frozen=True)
class Posting:
    """An amount that goes to an account; without an amount, what is missing to balance."""

    account: str
    amount: Amount | None = None

    def is_below(self, account: str) -> bool:
        """Whether its account is this one or one inside of it."""
        return self.account == account or self.account.startswith(f"{account}:")


@dataclass(frozen=True)
class Transaction:
    """Postings of one day that add up to nothing."""

    date: datetime.date
    payee: str
    postings: tuple[Posting, ...]
    tags: dict[str, str] = field(default_factory=dict)
    cleared: bool = False

    def balanced(self) -> Transaction:
        """The same with the missing amount filled in."""
        totals: dict[str, Amount] = {}
        missing = [posting for posting in self.postings if posting.amount is None]
        for posting in self.postings:
            if posting.amount is not None:
                name = posting.amount.commodity
                totals[name] = totals[name] + posting.amount if name in totals else posting.amount
        left = [amount for _, amount in sorted(totals.items()) if amount]
        if len(missing) > 1:
            raise UnbalancedError(f"{self.payee}: more than one posting without an amount")
        if not missing:
            if left:
                raise UnbalancedError(f"{self.payee}: {', '.join(map(str, left))} left over")
            return self
        if len(left) > 1:
            raise UnbalancedError(f"{self.payee}: one posting cannot balance {len(left)} commodities")
        filled = -left[0] if left else Amount(Decimal(0))
        postings = tuple(
            Posting(posting.account, filled) if posting.amount is None else posting for posting in self.postings
        )
        return Transaction(self.date, self.payee, postings, self.tags, self.cleared)
