"""Each side's answers as values: brokers, decision tables, prepared database transactions, decision logs. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from journal.records.xid import XaKey, Xid
from meta_client.coordinator.names import LogName
from meta_client.doctor.verdicts import BranchAnswer
from meta_client.protocol.answers import BranchStatus
from meta_client.protocol.branch_report import Report
from meta_client.transactions.names import TableName
from meta_client.transactions.table import Recorded

AT_BROKER: Final[Mapping[BranchStatus, BranchAnswer]] = {
    BranchStatus.PREPARED: BranchAnswer.PREPARED,
    BranchStatus.COMMITTED: BranchAnswer.COMMITTED,
    BranchStatus.ROLLED_BACK: BranchAnswer.ROLLED_BACK,
    BranchStatus.HEURISTICALLY_COMMITTED: BranchAnswer.COMMITTED_BY_HAND,
    BranchStatus.HEURISTICALLY_ROLLED_BACK: BranchAnswer.ROLLED_BACK_BY_HAND,
    BranchStatus.HEURISTICALLY_COMPLETED: BranchAnswer.COMPLETED_BY_HAND,
    BranchStatus.UNKNOWN: BranchAnswer.UNKNOWN,
    BranchStatus.ACTIVE: BranchAnswer.UNKNOWN,  # begun again under its name; promises nothing
}
BranchAt = tuple[int, XaKey]  # at which broker


@dataclass(frozen=True, slots=True)
class Answer:
    """State of one branch at its place, or the reason why it is unknown."""

    said: BranchAnswer
    why: str = ""


@dataclass(frozen=True, slots=True)
class BrokerEvidence:
    """Every broker's list. *old*: branches also listed before, so long ago that they count as old."""

    reports: Mapping[BranchAt, Report] = field(default_factory=dict)
    old: frozenset[BranchAt] = frozenset()
    failures: Mapping[int, str] = field(default_factory=dict)
    findings: Mapping[BranchAt, Report] = field(default_factory=dict)  # on the brokers' ledgers
    asked: Mapping[BranchAt, Answer] = field(default_factory=dict)  # STATUS, asked after reading the decisions


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A database session that has written to the decision table and has not ended its transaction."""

    name: str  # process, role and application of the session
    age_s: float | None  # of the transaction; None: this role may not see it


@dataclass(frozen=True, slots=True)
class PreparedXact:
    """One prepared transaction of a PostgreSQL server."""

    xid: Xid
    database: str
    owner: str
    age_s: float
    vacuum_age: int  # number of younger transactions, which it keeps VACUUM from cleaning up
    locks: tuple[str, ...]
    waiting: int  # sessions that wait for its locks


@dataclass(frozen=True, slots=True)
class DatabaseEvidence:
    """One given database. *failure*: the reason for missing answers. *has_prepared*: it was asked for prepared
    transactions."""

    label: str  # for display
    url: str  # with its password, if it has one: never printed
    address: str = ""  # without a password
    database: str = ""
    resource_id: str = ""  # as in a coordinator's receipts
    table: TableName | None = None
    rows: Mapping[str, Recorded] = field(default_factory=dict)
    sessions: tuple[OpenSession, ...] = ()
    prepared: tuple[PreparedXact, ...] = ()
    has_prepared: bool = False
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class LogEvidence:
    """One decision log, given or found below a given directory."""

    path: str
    name: LogName
    unfinished: Mapping[Xid, str]
    is_held: bool
    is_copy: bool


@dataclass(frozen=True, slots=True)
class Evidence:
    """All answers. *problems*: other sides that could not be asked, by name."""

    brokers: BrokerEvidence
    databases: tuple[DatabaseEvidence, ...] = ()
    logs: tuple[LogEvidence, ...] = ()
    problems: Mapping[str, str] = field(default_factory=dict)
    outcomes: Mapping[Xid, Answer] = field(default_factory=dict)  # of database branches that are not prepared
