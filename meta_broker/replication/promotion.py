"""Making a stopped slave's directory a master's: look, judge, claim the epoch, raise it, then forget the slave.

The claim comes first: from then on the former master, wherever it is, can't go on without this slave. A promotion that
ends anywhere before its last step is done again from the first: it claims a higher epoch, and loses nothing.
"""

import time
from pathlib import Path

import msgspec

from journal.errors import DirectoryInUse
from journal.frame import Lsn
from journal.inspection import Reading, scanner_from
from journal.lives import parting
from journal.offline import opened_store, read_state
from journal.states import BranchState
from journal.storage import DirectoryStorage
from journal.tail import tail_of
from journal.watermark import Watermark, write_watermark
from journal.xid import XaKey
from meta_broker.errors import BrokerError
from meta_broker.replication.copy_report import CopyReport, parse_copy
from meta_broker.replication.judgement import Cluster, Former, Standing, claimant
from meta_broker.replication.other_slaves import Other
from meta_broker.replication.slave_file import SlaveFacts, SlaveFile
from meta_broker.version import PRODUCT_VERSION
from meta_client.calls import wait_result
from meta_client.connection import Connection
from meta_client.opaques import next_opaque
from meta_client.protocol.errors import MetaError
from meta_client.protocol.requests import Stats
from zk.broker_url import BrokerUrl
from zk.cluster import BrokerEntry, read_brokers
from zk.replication import Found, claim_epoch, read_replication, write_replication
from zk.session import ZooKeeperSession

ASK_TIMEOUT_S = 10.0  # a slave that is busy is waited for: what it has decides
ANSWER_TIMEOUT_S = 2.0  # a broker that is paused takes a connection, and does not answer
EXPIRY_SLACK_S = 3.0  # a server expires sessions on its ticks
POLL_S = 0.1


class NoSlave(BrokerError):
    """The directory is no slave's: there is nothing to promote."""


class MasterAlive(BrokerError):
    """The master is there. Stop it first."""


def slave_in(directory: Path) -> SlaveFacts:
    """Whose the directory is, which must be a stopped slave's. Raises NoSlave, DirectoryInUse, ConfigError,
    StorageFailed."""
    facts = SlaveFile(directory).read()
    if facts is None:
        raise NoSlave(
            f"{directory} has no slave.json: it is no slave's, or was promoted already; `metaq broker` starts a master"
        )
    if DirectoryStorage.open_for_reading(directory).is_held():
        raise DirectoryInUse(f"{directory} is in use by another process: stop that slave first")
    return facts


def look(directory: Path) -> Standing:
    """What a stopped slave's directory holds; nothing is changed.

    Raises NoSlave, DirectoryInUse, ConfigError, NoJournal, RottenJournal, InvalidRecord, StorageFailed.
    """
    facts = slave_in(directory)
    with read_state(directory) as (state, segments):
        identity = segments.identity
        if (identity.cluster, identity.broker_id) != (facts.cluster, facts.broker_id):
            raise NoSlave(
                f"{directory}: slave.json is of broker {facts.broker_id} of cluster {facts.cluster!r}, and the journal "
                f"of {identity}: name the directory of one slave"
            )
        prepared = [
            str(branch.key)
            for branch in state.branches.values()
            if branch.state is BranchState.PREPARED and isinstance(branch.key, XaKey) and branch.decision is None
        ]
        decided = sum(branch.decision is not None for branch in state.branches.values())
        active = len(state.branches) - len(prepared) - decided
        return Standing(facts, segments.start, state.lsn, state.epoch, prepared, active, tuple(state.lives))


def compare(former: Path, directory: Path) -> Former:
    """What the former master's directory has and the slave's does not, and which branches of the slave's were ended
    there. Reads only, all that lies behind the parting.

    Raises NoSlave when that is no master's of this broker, DirectoryInUse while it runs, NoJournal, RottenJournal,
    InvalidRecord, StorageFailed.
    """
    if DirectoryStorage.open_for_reading(former).is_held():
        raise DirectoryInUse(f"{former} is in use by another process: stop that broker first")
    with read_state(directory) as (ours, segments), read_state(former) as (theirs, former_segments):
        if former_segments.identity != segments.identity or former.samefile(directory):
            raise NoSlave(
                f"{former} is the journal of {former_segments.identity}: name the directory of the former master of "
                f"{segments.identity}, and not the slave's"
            )
        at = parting(theirs.lives, theirs.lsn, ours.lives, ours.lsn)
        if at is None:
            return Former(theirs.epoch, None)
        if at < former_segments.start:
            raise NoSlave(f"{former} begins at LSN {former_segments.start}, and this slave ends before, at {at}")
        if at == theirs.lsn:
            return Former(theirs.epoch, tail_of([], at))
        return Former(theirs.epoch, tail_of(Reading(scanner_from(former_segments, at)), at, ours))


def read_cluster(session: ZooKeeperSession, broker_id: int) -> tuple[Cluster, Found]:
    """What ZooKeeper says of a broker id. Raises ZooKeeperError."""
    found = read_replication(session, broker_id)
    entry = read_brokers(session).get(broker_id, BrokerEntry())
    master = None if entry.master is None else str(entry.master)
    slaves = {number: str(url) for number, url in entry.slaves.items()}
    return Cluster(found.node, master, slaves, session.connect), found


def ask_slaves(cluster: Cluster, facts: SlaveFacts) -> dict[int, Other]:
    """How far the registered slaves are, but for the one of *facts*. One that does not answer costs ASK_TIMEOUT_S."""
    return {
        slave_id: Other(url, _ask(url, slave_id, facts))
        for slave_id, url in cluster.slaves.items()
        if slave_id != facts.slave_id
    }


def _ask(url: str, slave_id: int, facts: SlaveFacts) -> CopyReport | str:
    try:
        connection = Connection.open(BrokerUrl.parse(url), ASK_TIMEOUT_S)
        try:
            reply = connection.submit(Stats("replication", next_opaque()))
            text = wait_result(reply, ASK_TIMEOUT_S, "stats replication").text
        finally:
            connection.close()
    except MetaError as error:
        return str(error)
    copy = parse_copy(text)
    if isinstance(copy, str):
        return copy
    if (copy.cluster, copy.broker_id, copy.slave_id) != (facts.cluster, facts.broker_id, slave_id):
        return f"slave {copy.slave_id} of broker {copy.broker_id} of cluster {copy.cluster!r} answers there"
    return copy


def is_answering(url: str) -> bool:
    """Does a broker answer at *url*?"""
    try:
        connection = Connection.open(BrokerUrl.parse(url), ANSWER_TIMEOUT_S)
        try:
            connection.capabilities(ANSWER_TIMEOUT_S)
        finally:
            connection.close()
    except MetaError:
        return False
    return True


def wait_gone(session: ZooKeeperSession, broker_id: int, session_timeout_s: float) -> bool:
    """Wait until a master that does not answer is not registered any more: as long as its session may last."""
    deadline = time.monotonic() + session_timeout_s + EXPIRY_SLACK_S
    while read_cluster(session, broker_id)[0].master is not None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def promote(directory: Path, facts: SlaveFacts, session: ZooKeeperSession | None, found: Found) -> int:
    """Make the directory a master's; returns its epoch. *found*: what the judgement was made by.

    In-doubt branches stay in doubt. Durable on return. Raises EpochTaken when ZooKeeper says something else by now,
    MasterAlive, DirectoryInUse, ZooKeeperUnavailable, StorageFailed: then this is to be done again, from `look` on.
    """

    def claim(recovered: int) -> int:
        if session is None:
            return max(recovered, facts.epoch) + 1
        if (master := read_cluster(session, facts.broker_id)[0].master) is not None:
            raise MasterAlive(f"a master of broker {facts.broker_id} is registered at {master}: stop it first")
        return claim_epoch(session, facts.broker_id, found, max(recovered, facts.epoch), claimant(facts))

    # What its master has told it was acknowledged is all that it may show until its own slaves have the rest; a later
    # open as a slave does no harm to that, nor does a promotion that ends before it began.
    storage = DirectoryStorage.open_for_writing(directory)
    try:
        write_watermark(storage, Watermark(Lsn(facts.fence), is_whole=True))
    finally:
        storage.close()
    with opened_store(directory, PRODUCT_VERSION, epoch=claim) as store:
        SlaveFile(directory).remove()
        epoch = store.state.epoch
    if session is not None:
        _leave_slaves(session, facts)
    return epoch


def _leave_slaves(session: ZooKeeperSession, facts: SlaveFacts) -> None:
    """It is a slave no more: its own master would wait for it to acknowledge. Should the power go before, it does, for
    as long as it waits for any slave that is away."""
    node, version = read_replication(session, facts.broker_id)
    if node is not None and node.claimed_by == claimant(facts) and facts.slave_id in node.in_sync:
        left = tuple(slave_id for slave_id in node.in_sync if slave_id != facts.slave_id)
        write_replication(session, facts.broker_id, msgspec.structs.replace(node, in_sync=left), version)
