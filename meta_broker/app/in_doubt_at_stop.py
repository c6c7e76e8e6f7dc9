"""Branches at a stop: whether any prepared one is unfinished, and the log of those left in doubt."""

import logging

from journal.records.states import BranchState
from journal.state.transaction_store import JournalTransactionStore

log = logging.getLogger(__name__)

LISTED_MAX = 20  # lines of log; the command lists all


def is_any_prepared(store: JournalTransactionStore) -> bool:
    return any(transaction.state is BranchState.PREPARED for transaction in store.transactions.values())


def log_in_doubt(store: JournalTransactionStore) -> None:
    """Log the branches that a stop leaves in doubt, oldest first. Everything must be durable."""
    left = store.recover()
    now_ms = store.now_ms()
    for transaction in left[:LISTED_MAX]:
        branch = transaction.branch
        assert branch is not None, "a prepared branch has messages"
        key, prepared_s = transaction.key, max(0, now_ms - branch.prepared_ms) // 1000
        log.warning(
            "left in doubt xid=%s prepared_s=%d messages=%d bytes=%d", key, prepared_s, branch.messages, branch.bytes
        )
    if left:
        log.warning(
            "branches left in doubt count=%d: they survive; list them with `metaq txn list --dir %s` while the broker "
            "is down, with `metaq txn list` once it is back",
            len(left),
            store.journal.storage.path,
        )
