"""Each side's answers as values: brokers, decision tables, prepared database transactions, decision logs. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from journal.records.xid import XaKey, Xid
from meta_client.batches.decision import BatchDecision
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
SESSIONS_SHOWN: Final = 3


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
    """A database session with an open transaction that has written to the decision table, or is about to."""

    name: str  # process, role and application of the session
    age_s: float | None  # of the transaction; None: this role may not see it
    does: str = "has written to"
    ends: str = ""  # statement that ends the session; empty: it is one of several


def one_of(sessions: Sequence[OpenSession]) -> OpenSession:
    """Return the only session, or one that stands for several, of which any may be meant."""
    first, *others = sessions
    if not others:
        return first
    names = ", ".join(one.name for one in sessions[:SESSIONS_SHOWN])
    more = f" and {len(sessions) - SESSIONS_SHOWN} more" if len(sessions) > SESSIONS_SHOWN else ""
    return OpenSession(f"one of {names}{more}", first.age_s, first.does)


@dataclass(frozen=True, slots=True)
class PreparedXact:
    """One prepared transaction of a server. MySQL and MariaDB tell neither its database, nor owner and age."""

    xid: Xid
    database: str = ""
    owner: str = ""
    age_s: float | None = None
    vacuum_age: int | None = None  # number of younger transactions, which it keeps VACUUM from cleaning up
    locks: tuple[str, ...] = ()
    waiting: int | None = None  # sessions that wait for its locks; None: unknown


@dataclass(frozen=True, slots=True)
class DatabaseEvidence:
    """One given database. *failure*: the reason for missing answers. *has_prepared*: it was asked for prepared
    transactions. *in_flight*: transactions whose row is written and not committed. *gaps*: questions that it refused,
    with the reason."""

    label: str  # for display
    url: str  # with its password, if it has one: never printed
    address: str = ""  # without a password
    client: str = ""  # command line that MySQL's statements are given to; empty: psql with the address
    server: str = ""  # identifies it among those given
    database: str = ""
    resource_id: str = ""  # as in a coordinator's receipts
    table: TableName | None = None
    restored: str | None = None  # why a row that is missing may have been there
    rows: Mapping[str, Recorded] = field(default_factory=dict)
    sessions: tuple[OpenSession, ...] = ()
    in_flight: Mapping[str, OpenSession] = field(default_factory=dict)
    prepared: tuple[PreparedXact, ...] = ()
    has_prepared: bool = False
    purge: str = ""  # what holds InnoDB's purge back
    gaps: Mapping[str, str] = field(default_factory=dict)
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
    batches: Mapping[str, BatchDecision] = field(default_factory=dict)  # by query: the newest decision
    problems: Mapping[str, str] = field(default_factory=dict)
    outcomes: Mapping[Xid, Answer] = field(default_factory=dict)  # of database branches that are not prepared


def problems(found: Evidence) -> Iterator[tuple[str, str]]:
    """Yield each side that could not be asked, or says less than it should, and why."""
    for broker_id, reason in found.brokers.failures.items():
        yield f"broker {broker_id}", reason
    for database in found.databases:
        if database.failure is not None:
            yield database.label, database.failure
        if database.restored is not None:
            yield database.label, database.restored
        for what, reason in database.gaps.items():
            yield f"{database.label}: {what}", reason
    yield from found.problems.items()
