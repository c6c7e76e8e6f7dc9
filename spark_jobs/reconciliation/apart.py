"""One transaction that came apart, or may: each side's part of it, as values. Pure."""

from dataclasses import dataclass, field
from typing import Final

# Classes that are listed one by one, in the order in which they are mended (certificate/classes.py).
LISTED: Final = ("in doubt", "missing", "mixed", "orphan", "duplicate")


@dataclass(frozen=True, slots=True)
class Content:
    """Messages of a branch in one partition. *offset*: of the first one; None until they are committed."""

    topic: str
    partition: int
    messages: int
    offset: int | None


@dataclass(frozen=True, slots=True)
class BranchSide:
    """One branch, in one broker's journal. *lsn*: of its first record; *last_lsn*: of its last one.
    *is_of_earlier_epoch*: its journal was promoted or restored since."""

    broker: int
    state: str
    lsn: int
    last_lsn: int
    contents: tuple[Content, ...] = ()
    is_of_earlier_epoch: bool = False


@dataclass(frozen=True, slots=True)
class MarkerSide:
    """Rows of the database that name the transaction, or a message of it: the *value* in that column."""

    column: str
    value: str
    rows: int
    is_message_id: bool = False


@dataclass(frozen=True, slots=True)
class Apart:
    """A transaction. *time_ms*: of its newest record in a journal, since 1970; *decision*: outcome in its decision row;
    *absent*: brokers that this row names and that have no branch, -1 for a name that can't be read."""

    kind: str
    name: str
    time_ms: int | None = None
    decision: str | None = None
    absent: tuple[int, ...] = ()
    branches: tuple[BranchSide, ...] = ()
    rows: tuple[MarkerSide, ...] = field(default=())

    def at(self, state: str) -> list[BranchSide]:
        return [branch for branch in self.branches if branch.state == state]
