"""Makes a stopped slave's directory a master's: inspect, check, claim the epoch, write it, then remove the slave
file.

The claim comes first: from then on the former master cannot go on without this slave. A promotion interrupted before
its last step is repeated from the first: it claims a higher epoch, and loses nothing.
"""

import contextlib
import time
from pathlib import Path

import msgspec

from journal.errors import DirectoryInUse
from journal.records.epoch_history import divergence_lsn
from journal.records.header import Lsn
from journal.records.states import BranchState
from journal.records.xid import XaKey
from journal.repair.offline import opened_store, read_state
from journal.repair.tail import tail_of
from journal.state.inspection import RecordReader, scanner_from
from journal.state.journal_state import JournalState
from journal.state.recovery import Recovered
from journal.wal.marks import SavedWatermark, read_watermark, write_watermark
from journal.wal.storage import DirectoryStorage
from meta_broker.errors import BrokerError
from meta_broker.replication.promotion.candidates import Candidate, NoReport
from meta_broker.replication.promotion.promotion_check import ClusterView, FormerMaster, ReplicaStatus, claimant
from meta_broker.replication.replica.copy_report import CopyReport, InvalidCopyReport, parse_copy
from meta_broker.replication.replica.slave_file import SlaveFacts, SlaveFile
from meta_broker.version import PRODUCT_VERSION
from meta_client.net.calls import wait_result
from meta_client.net.connection import Connection
from meta_client.net.opaques import next_opaque
from meta_client.net.security import PLAIN, Security
from meta_client.protocol.errors import MetaError
from meta_client.protocol.requests import Stats
from zk.brokers.cluster import read_broker
from zk.brokers.journal_position import read_position
from zk.brokers.replication import VersionedReplication, claim_epoch, read_replication, write_replication
from zk.session.session import ZooKeeperSession
from zk.tree.broker_url import BrokerUrl

ASK_TIMEOUT_S = 10.0  # generous, since a busy slave's position decides
ANSWER_TIMEOUT_S = 2.0  # a paused broker accepts connections without answering
EXPIRY_SLACK_S = 3.0  # a server expires sessions on its ticks
POLL_S = 0.1


class NotASlave(BrokerError):
    """The directory is not a slave's: there is nothing to promote."""


class MasterAlive(BrokerError):
    """The master is still registered. Stop it first."""


def require_stopped_slave(directory: Path) -> SlaveFacts:
    """Return the facts of a stopped slave's directory.

    Raises NotASlave, DirectoryInUse, ConfigError, StorageFailed.
    """
    facts = SlaveFile(directory).read()
    if facts is None:
        raise NotASlave(
            f"{directory} has no slave.json: it is no slave's, or was promoted already; `metaq broker` starts a master"
        )
    if DirectoryStorage.open_for_reading(directory).is_held():
        raise DirectoryInUse(f"{directory} is in use by another process: stop that slave first")
    return facts


def read_replica(directory: Path) -> ReplicaStatus:
    """Read what a stopped slave's directory holds, without changing it.

    Raises NotASlave, DirectoryInUse, ConfigError, NoJournal, CorruptJournal, InvalidRecord, StorageFailed.
    """
    facts = require_stopped_slave(directory)
    with read_state(directory) as (state, segments):
        identity = segments.identity
        if (identity.cluster, identity.broker_id) != (facts.cluster, facts.broker_id):
            raise NotASlave(
                f"{directory}: slave.json is of broker {facts.broker_id} of cluster {facts.cluster!r}, and the journal "
                f"of {identity}: name the directory of one slave"
            )
        prepared = in_doubt(state)
        decided = sum(branch.decision is not None for branch in state.branches.values())
        active = len(state.branches) - len(prepared) - decided
        return ReplicaStatus(
            facts, segments.start, state.lsn, state.epoch, prepared, active, tuple(state.epoch_history)
        )


def in_doubt(state: JournalState) -> list[str]:
    """Return the keys of the prepared XA branches without an outcome."""
    return [
        str(branch.key)
        for branch in state.branches.values()
        if branch.state is BranchState.PREPARED and isinstance(branch.key, XaKey) and branch.decision is None
    ]


def compare_with_former(former: Path, directory: Path) -> FormerMaster:
    """Return what the former master's directory has and the slave's does not, and which of the slave's branches
    ended there.

    Reads only, everything beyond the divergence LSN. Raises NotASlave if *former* is not a master's directory of this
    broker, DirectoryInUse while it runs, NoJournal, CorruptJournal, InvalidRecord, StorageFailed.
    """
    if DirectoryStorage.open_for_reading(former).is_held():
        raise DirectoryInUse(f"{former} is in use by another process: stop that broker first")
    with read_state(directory) as (ours, segments), read_state(former) as (theirs, former_segments):
        if former_segments.identity != segments.identity or former.samefile(directory):
            raise NotASlave(
                f"{former} is the journal of {former_segments.identity}: name the directory of the former master of "
                f"{segments.identity}, and not the slave's"
            )
        at = divergence_lsn(theirs.epoch_history, theirs.lsn, ours.epoch_history, ours.lsn)
        if at is None:
            return FormerMaster(theirs.epoch, None, theirs.lsn)
        if at < former_segments.start:
            raise NotASlave(f"{former} begins at LSN {former_segments.start}, and this slave ends before, at {at}")
        if at == theirs.lsn:
            return FormerMaster(theirs.epoch, tail_of([], at), theirs.lsn)
        lost = tail_of(RecordReader(scanner_from(former_segments, at)), at, ours)
        return FormerMaster(theirs.epoch, lost, theirs.lsn)


def read_cluster(session: ZooKeeperSession, broker_id: int) -> tuple[ClusterView, VersionedReplication]:
    """Read a broker id's nodes from ZooKeeper. Raises ZooKeeperError."""
    found = read_replication(session, broker_id)
    entry = read_broker(session, broker_id)  # strictly: a master that can't be read is not away
    master = None if entry.master is None else str(entry.master)
    slaves = {number: str(url) for number, url in entry.slaves.items()}
    position = read_position(session, broker_id).node
    return ClusterView(found.node, master, slaves, session.connect, position), found


def query_slaves(cluster: ClusterView, facts: SlaveFacts, security: Security = PLAIN) -> dict[int, Candidate]:
    """Ask the registered slaves for their positions, except the slave of *facts*. An unresponsive one costs
    ASK_TIMEOUT_S.
    """
    return {
        slave_id: Candidate(url, _report_of(url, slave_id, facts, security))
        for slave_id, url in cluster.slaves.items()
        if slave_id != facts.slave_id
    }


def _report_of(url: str, slave_id: int, facts: SlaveFacts, security: Security) -> CopyReport | NoReport:
    try:
        with contextlib.closing(Connection.open(BrokerUrl.parse(url), ASK_TIMEOUT_S, security)) as connection:
            reply = connection.submit(Stats("replication", next_opaque()))
            text = wait_result(reply, ASK_TIMEOUT_S, "stats replication").text
        copy = parse_copy(text)
    except (MetaError, InvalidCopyReport) as error:
        return NoReport(str(error))
    if (copy.cluster, copy.broker_id, copy.slave_id) != (facts.cluster, facts.broker_id, slave_id):
        return NoReport(f"slave {copy.slave_id} of broker {copy.broker_id} of cluster {copy.cluster!r} answers there")
    return copy


def is_answering(url: str, security: Security = PLAIN) -> bool:
    """Return whether a broker answers at *url*."""
    try:
        with contextlib.closing(Connection.open(BrokerUrl.parse(url), ANSWER_TIMEOUT_S, security)) as connection:
            connection.capabilities(ANSWER_TIMEOUT_S)
    except MetaError:
        return False
    return True


def wait_unregistered(session: ZooKeeperSession, broker_id: int, session_timeout_s: float) -> None:
    """Wait until an unresponsive master's registration is gone, at most as long as its session may last."""
    deadline = time.monotonic() + session_timeout_s + EXPIRY_SLACK_S
    while read_cluster(session, broker_id)[0].master is not None and time.monotonic() < deadline:
        time.sleep(POLL_S)


def promote(directory: Path, facts: SlaveFacts, session: ZooKeeperSession | None, found: VersionedReplication) -> int:
    """Make the directory a master's; return its epoch. Durable on return. In-doubt branches stay in doubt.

    *found*: the replication node the check was based on. Raises EpochTaken if ZooKeeper has another one meanwhile,
    MasterAlive, DirectoryInUse, ZooKeeperUnavailable, StorageFailed: then repeat the promotion from the inspection
    on.
    """

    def claim(recovered: Recovered) -> int:
        epoch = max(recovered.state.epoch, facts.epoch)
        if session is None:
            return epoch + 1
        if (master := read_cluster(session, facts.broker_id)[0].master) is not None:
            raise MasterAlive(f"a master of broker {facts.broker_id} is registered at {master}: stop it first")
        return claim_epoch(session, facts.broker_id, found, epoch, claimant(facts))

    # Until its own slaves have the rest, it may show only what its master acknowledged. Harmless if the promotion
    # fails, or if the directory is opened as a slave again.
    with contextlib.closing(DirectoryStorage.open_for_writing(directory)) as storage:
        saved = read_watermark(storage)  # an earlier promotion's, for which slave.json knew more
        known = Lsn(facts.high_watermark) if saved is None else max(Lsn(facts.high_watermark), saved.lsn)
        write_watermark(storage, SavedWatermark(known, is_whole=True))
    with opened_store(directory, PRODUCT_VERSION, epoch=claim) as store:
        SlaveFile(directory).remove()
        epoch = store.state.epoch
    if session is not None:
        _leave_slaves(session, facts)
    return epoch


def _leave_slaves(session: ZooKeeperSession, facts: SlaveFacts) -> None:
    """Remove the promoted slave from the in-sync set: its own master would wait for its acknowledgements.

    If a crash prevents that, the master waits as long as for any slave that is away.
    """
    node, version = read_replication(session, facts.broker_id)
    if node is not None and node.claimed_by == claimant(facts) and facts.slave_id in node.in_sync:
        left = tuple(slave_id for slave_id in node.in_sync if slave_id != facts.slave_id)
        write_replication(session, facts.broker_id, msgspec.structs.replace(node, in_sync=left), version)
