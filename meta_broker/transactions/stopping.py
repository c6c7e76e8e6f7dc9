"""What a stop does about branches: prepared ones are waited for, and whoever is left in doubt is told of."""

import logging

from journal.states import BranchState
from journal.transaction_store import JournalTransactionStore

log = logging.getLogger(__name__)

TOLD_MAX = 20  # lines of log: beyond, the command lists them


def is_any_prepared(store: JournalTransactionStore) -> bool:
    """Whether somebody has still to finish a branch that has promised."""
    return any(transaction.state is BranchState.PREPARED for transaction in store.transactions.values())


def tell_left(store: JournalTransactionStore) -> None:
    """Log the branches that a stop leaves in doubt, the oldest first. Everything must be durable."""
    left = store.recover()
    now_ms = store.now_ms()
    for transaction in left[:TOLD_MAX]:
        branch = transaction.branch
        assert branch is not None, "a prepared branch has messages"
        key, prepared_s = transaction.key, max(0, now_ms - branch.prepared_ms) // 1000
        log.warning(
            "left in doubt key=%s prepared_s=%d messages=%d bytes=%d", key, prepared_s, branch.messages, branch.bytes
        )
    if left:
        log.warning(
            "branches left in doubt count=%d: they survive; list them with `metaq txn list --dir %s` while the broker "
            "is down, with `metaq txn list` once it is back",
            len(left),
            store.journal.storage.path,
        )
