"""The text form of a ledger.

2024-03-01 * Corner shop  ; trip: north
    Expenses:Food      12.50 EUR
    Assets:Cash
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator

from .model import Amount, Posting, Transaction, UnbalancedError

_HEADER = re.compile(r"(\d{4})[-/](\d{1,2})[-/](\d{1,2})\s+(?:([*!])\s+)?(.*)")
_TAG = re.compile(r"(\w+):\s*([^,]*)")


class JournalError(ValueError):
    """A text that is no ledger; says the line."""

    def __init__(self, line: int, message: str) -> None:
        """Put the line in front."""
        super().__init__(f"line {line}: {message}")
        self.line = line


def parse_journal(text: str) -> list[Transaction]:
    """Transactions in the order of their dates; those of one day stay in the order of the text."""
    found = []
    for number, lines in _paragraphs(text):
        try:
            found.append(_transaction(number, lines).balanced())
        except UnbalancedError as error:
            raise JournalError(number, str(error)) from error
    return sorted(found, key=lambda transaction: transaction.date)


def _paragraphs(text: str) -> Iterator[tuple[int, list[str]]]:
    """Header and postings of each transaction, with the header's line number."""
    start, lines = 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.rstrip()
        if not stripped or stripped.lstrip().startswith((";", "#")):
            continue
        if stripped[0].isspace():
            if not lines:
                raise JournalError(number, "a posting without a transaction")
            lines.append(stripped)
            continue
        if lines:
            yield start, lines
        start, lines = number, [stripped]
    if lines:
        yield start, lines


def _transaction(number: int, lines: list[str]) -> Transaction:
    header, comment = _without_comment(lines[0])
    found = _HEADER.fullmatch(header)
    if found is None:
        raise JournalError(number, f"no date and payee in {header!r}")
    year, month, day, mark, payee = found.groups()
    try:
        date = datetime.date(int(year), int(month), int(day))
    except ValueError as error:
        raise JournalError(number, f"{year}-{month}-{day} is no date: {error}") from error
    postings = tuple(_posting(number + offset, line) for offset, line in enumerate(lines[1:], 1))
    if len(postings) < 2:
        raise JournalError(number, "a transaction needs two postings or more")
    tags = {name: value.strip() for name, value in _TAG.findall(comment)}
    return Transaction(date, payee.strip(), postings, tags, cleared=mark == "*")


def _posting(number: int, line: str) -> Posting:
    text, _ = _without_comment(line.strip())
    account, separator, amount = text.partition("  ")
    if not account or account.startswith(":") or account.endswith(":"):
        raise JournalError(number, f"{account!r} is no account")
    if not separator or not amount.strip():
        return Posting(account)
    try:
        return Posting(account, Amount.parse(amount))
    except ValueError as error:
        raise JournalError(number, str(error)) from error


def _without_comment(line: str) -> tuple[str, str]:
    text, _, comment = line.partition(";")
    return text.rstrip(), comment.strip()
