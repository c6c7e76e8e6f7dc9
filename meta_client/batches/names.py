"""Names of a sink's transactions and branches. Pure.

gtrid = ``spark:<query>:<batch>``: one transaction a micro-batch; the query of a write that nobody can repeat begins
with ``~``. bqual = ``<partition>.<attempt>.<nonce>.<broker>``: each attempt of a task has a branch of its own at each
broker, so that of two attempts only one is committed.
"""

import re
import secrets
import uuid
from typing import Final, NamedTuple

from journal.records.xid import XaKey, Xid

QUALIFIER: Final = "metaq-spark"  # by which brokers list the branches of all sinks
_GTRID: Final = re.compile(rb"spark:(~?[A-Za-z0-9._-]{1,36}):(0|[1-9][0-9]{0,18})")
_FORMAT_ID: Final = 1


class BatchName(NamedTuple):
    """A micro-batch of a query, or a batch write: batch 0."""

    query: str
    batch: int

    @classmethod
    def once(cls) -> "BatchName":
        """Return the name of a write that nobody can repeat."""
        return cls(f"~{uuid.uuid4()}", 0)

    @property
    def is_repeatable(self) -> bool:
        """True if what fails may be run again under this name."""
        return not self.query.startswith("~")

    @property
    def gtrid(self) -> str:
        return f"spark:{self.query}:{self.batch}"

    @classmethod
    def of(cls, xid: Xid) -> "BatchName | None":
        """Return the batch that *xid* is a branch of; None for a branch of another program."""
        match = _GTRID.fullmatch(xid.gtrid)
        return None if match is None else cls(match[1].decode(), int(match[2]))


class BranchName(NamedTuple):
    """A branch of a batch: what an attempt of a task has put at one broker."""

    broker_id: int
    bqual: str

    @classmethod
    def of(cls, xid: Xid, broker_id: int) -> "BranchName":
        """Return the name of the branch *xid* at a broker."""
        return cls(broker_id, xid.bqual.decode(errors="replace"))

    def key(self, batch: BatchName) -> XaKey:
        """Return the broker's key of the branch."""
        return XaKey(Xid.of(batch.gtrid, self.bqual, _FORMAT_ID), QUALIFIER)


def attempt_name(partition: int, attempt: int) -> str:
    """Return a name that no other attempt has: not even the same one of a batch that Spark repeats."""
    return f"{partition}.{attempt}.{secrets.token_hex(6)}"


def branch_at(attempt: str, broker_id: int) -> BranchName:
    """Return the name of an attempt's branch at a broker."""
    return BranchName(broker_id, f"{attempt}.{broker_id}")
