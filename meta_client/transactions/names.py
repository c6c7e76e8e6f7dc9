"""Names of transactions whose decision is a row. Pure.

gtrid = ``mq1-<table id>-<nonce>``: 32 hexadecimal digits drawn by `metaq txn init` for the table, and 128 random bits.
A branch's name tells which table decides it. The qualifier contains the table's id, too, so that brokers list the
branches of one table alone.
"""

import re
from dataclasses import dataclass
from typing import Final

from journal.records.xid import GTRID_BYTES_MAX, XaKey, Xid
from meta_client.coordinator.names import new_nonce

PREFIX: Final = "mq1"
TABLE_ID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_GTRID: Final = re.compile(rf"{PREFIX}-({TABLE_ID.pattern})-[A-Za-z0-9_-]{{22}}", re.ASCII)
_BQUAL: Final = re.compile(rb"mq(0|[1-9][0-9]{0,9})")


@dataclass(frozen=True, slots=True)
class TableName:
    """Decision table of a branch."""

    table_id: str

    def __post_init__(self) -> None:
        if TABLE_ID.fullmatch(self.table_id) is None:
            raise ValueError(f"{self.table_id!r} is not 32 hexadecimal digits, as the id of a decision table is")

    @property
    def qualifier(self) -> str:
        """Unique qualifier of the table's branches; brokers list by it."""
        return f"{PREFIX}-{self.table_id}"

    def new_gtrid(self) -> str:
        """Return a new, globally unique transaction name."""
        return f"{self.qualifier}-{new_nonce()}"

    def key(self, gtrid: str, broker_id: int) -> XaKey:
        """Return the broker's key of the branch of *gtrid*, which may be another table's."""
        return XaKey(xid_of(gtrid, broker_id), (name_in(gtrid) or self).qualifier)

    def gtrid_of(self, xid: Xid, broker_id: int) -> str | None:
        """Return the transaction whose branch at *broker_id* is *xid*; None unless this table decides it."""
        gtrid = xid.gtrid.decode("ascii", errors="replace")
        return gtrid if self.owns(gtrid) and xid == xid_of(gtrid, broker_id) else None

    def owns(self, gtrid: str) -> bool:
        """True for a transaction's name of this table."""
        match = _GTRID.fullmatch(gtrid)
        return match is not None and match[1] == self.table_id


def xid_of(gtrid: str, broker_id: int) -> Xid:
    """Return the identifier of the branch of *gtrid* at one broker."""
    return Xid(1, gtrid.encode(), b"mq%d" % broker_id)


def table_of(xid: Xid) -> str | None:
    """Return the id of the table that decides *xid*; None for a branch of another kind."""
    match = _GTRID.fullmatch(xid.gtrid.decode("ascii", errors="replace"))
    return None if match is None or _BQUAL.fullmatch(xid.bqual) is None else match[1]


def name_in(gtrid: str) -> TableName | None:
    """Return the table of a transaction's name; None for any other text."""
    match = _GTRID.fullmatch(gtrid)
    return None if match is None else TableName(match[1])


# the prefix, the table's id, the nonce, and two separators
assert len(PREFIX) + 1 + 32 + 1 + 22 <= GTRID_BYTES_MAX
