"""A double-entry ledger in plain text: read it, check it, and report balances and a register."""

from .journal import JournalError, parse_journal
from .model import Amount, Posting, Transaction, UnbalancedError
from .reports import Balance, balances, net_worth, register, trial_balance

__all__ = [
    "Amount",
    "Balance",
    "JournalError",
    "Posting",
    "Transaction",
    "UnbalancedError",
    "balances",
    "net_worth",
    "parse_journal",
    "register",
    "trial_balance",
]
