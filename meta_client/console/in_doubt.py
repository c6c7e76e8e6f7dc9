"""Branches in doubt, and ledgers, of every broker: each broker on its own thread, so that one that hangs costs its own.

A branch is looked at with the functions of `metaq txn list`, `show` and `ledger`.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from journal.records.xid import InvalidXid, XaKey, parse_key
from meta_client.client import Client
from meta_client.console.reads import Reads, Unknown
from meta_client.doctor.applier import verbs_of
from meta_client.doctor.decisions import owner_of
from meta_client.doctor.sources import NO_MASTER
from meta_client.doctor.verdicts import Owner
from meta_client.operations.branch_text import age_s, since_ms
from meta_client.operations.branches import OnlineBranches
from meta_client.operations.report_parsing import key_of
from meta_client.producer.xa_verbs import RemoteBranch
from meta_client.protocol.branch_report import Report
from meta_client.protocol.errors import XaError
from meta_client.protocol.xa import XaCode
from zk.brokers.cluster import known_broker_ids, read_brokers
from zk.tree.broker_url import BrokerUrl

LISTED_MAX: Final = 1_000  # of each broker, those that began first; of the others names alone
LIST_S: Final = 8.0  # a thousand branches take their time
SHOW_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ListedBranch:
    """One branch of a list. *owner*: what decides about it, by its name."""

    broker_id: int
    key: XaKey
    report: Report
    owner: Owner
    owner_name: str

    @property
    def age_s(self) -> float | None:
        """Seconds that it has waited; None: unknown."""
        return age_s(self.report, since_ms(self.report), time.time_ns() // 1_000_000)


def oldest_first(one: ListedBranch) -> float:
    """Key that sorts branches by age, those of unknown age first."""
    return -math.inf if one.age_s is None else -one.age_s


@dataclass(frozen=True, slots=True)
class InDoubt:
    """Lists of all brokers. *left_out*: names beyond LISTED_MAX, in doubt or ended by hand, nobody asked which.
    *unknown*: brokers without an answer, and why."""

    prepared: tuple[ListedBranch, ...] = ()
    ledger: tuple[ListedBranch, ...] = ()  # oldest first, as the other
    left_out: tuple[tuple[int, XaKey], ...] = ()
    unknown: Mapping[int, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Branches in doubt; at most, if some are left out."""
        return len(self.prepared) + len(self.left_out)

    @property
    def oldest_s(self) -> float | None:
        """Age of the oldest branch; None: there is none, or it is unknown."""
        return max((one.age_s for one in self.prepared if one.age_s is not None), default=None)


@dataclass(frozen=True, slots=True)
class BranchFacts:
    """One branch at its broker. *report* None: it is not in doubt there; *status*: the broker's own word, of a branch
    that only its ledger knows what it has on record."""

    broker_id: int
    key: XaKey
    report: Report | None = None
    status: str | None = None
    finding: Report | None = None  # on the broker's ledger


async def read_in_doubt(client: Client, reads: Reads) -> InDoubt | Unknown:
    """List what is in doubt and on record, oldest first."""
    masters = await reads.call("masters", lambda: _masters(client))
    if isinstance(masters, Unknown):
        return masters
    urls = {broker_id: url for broker_id, url in masters.items() if url is not None}
    found = await reads.each(("in doubt",), urls, lambda broker_id: _listed(client, broker_id, urls[broker_id]), LIST_S)
    unknown = {broker_id: NO_MASTER for broker_id, url in masters.items() if url is None}
    unknown |= {broker_id: one.why for broker_id, one in found.items() if isinstance(one, Unknown)}
    listed = [one for one in found.values() if not isinstance(one, Unknown)]
    for one in listed:
        unknown |= one.unknown
    return InDoubt(
        tuple(sorted((branch for one in listed for branch in one.prepared), key=oldest_first)),
        tuple(sorted((branch for one in listed for branch in one.ledger), key=oldest_first)),
        tuple(name for one in listed for name in one.left_out),
        dict(sorted(unknown.items())),
    )


async def read_branch(client: Client, reads: Reads, broker_id: int, key: XaKey) -> BranchFacts | Unknown:
    """Ask a broker about one branch."""
    return await reads.call(("branch", broker_id, key), lambda: branch_facts(client, broker_id, key), SHOW_S)


def branch_facts(client: Client, broker_id: int, key: XaKey) -> BranchFacts:
    """Ask a broker about one branch. Blocks. Raises MetaError, ZooKeeperError."""
    branches = branches_at(client, broker_id)
    findings = (one for one in branches.findings() if one["key"] == str(key) and one["broker"] == broker_id)
    finding = next(findings, None)
    try:
        report = branches.show(key, broker_id)
    except XaError as error:
        if error.code != XaCode.XAER_NOTA:
            raise
        status = RemoteBranch(verbs_of(client), key, broker_id).status()
        return BranchFacts(broker_id, key, None, status, finding)
    return BranchFacts(broker_id, key, report, report["state"], finding)


def branches_at(client: Client, broker_id: int) -> OnlineBranches:
    """Return the branches of one broker, if it is up, else of all. Raises ZooKeeperError."""
    url = client.topology.read_masters().get(broker_id)
    return OnlineBranches(client, None if url is None else {broker_id: url})


def parse_branch(text: str) -> XaKey | None:
    """Read a branch's key, as in a URL."""
    try:
        key = parse_key(text)
    except InvalidXid:
        return None
    return key if isinstance(key, XaKey) else None


def _masters(client: Client) -> dict[int, BrokerUrl | None]:
    """Return every broker id that has a node, with its master, if that is up."""
    entries = read_brokers(client.session)
    known = sorted(entries.keys() | known_broker_ids(client.session))
    return {broker_id: None if (one := entries.get(broker_id)) is None else one.master for broker_id in known}


def _listed(client: Client, broker_id: int, url: BrokerUrl) -> InDoubt:
    branches = OnlineBranches(client, {broker_id: url})
    listed = branches.listed(None, LISTED_MAX)
    failures = dict(branches.failures)
    findings = branches.findings()
    failures |= branches.failures
    prepared: list[ListedBranch] = []
    ledger: list[ListedBranch] = []
    for report in (*listed, *findings):
        key = key_of(report)
        one = ListedBranch(broker_id, key, report, *owner_of((broker_id, key)))
        (ledger if report.get("decision") or report.get("finding") else prepared).append(one)
    left_out = tuple((broker_id, key) for key in branches.left_out.get(broker_id, ()))
    return InDoubt(tuple(prepared), tuple(ledger), left_out, failures)
