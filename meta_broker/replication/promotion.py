"""Making a stopped slave's directory a master's: look, judge, claim the epoch, raise it, then forget the slave.

The claim comes first: from then on the former master, wherever it is, can't go on without this slave. A promotion that
ends anywhere before its last step is done again from the first: it claims a higher epoch, and loses nothing.
"""

import time
from pathlib import Path

from journal.errors import DirectoryInUse
from journal.offline import opened_store, read_state
from journal.states import BranchState
from journal.storage import DirectoryStorage
from journal.xid import XaKey
from meta_broker.errors import BrokerError
from meta_broker.replication.judgement import Cluster, Standing, claimant
from meta_broker.replication.slave_file import SlaveFacts, SlaveFile
from meta_broker.version import PRODUCT_VERSION
from meta_client.connection import Connection
from meta_client.protocol.errors import MetaError
from zk.broker_url import BrokerUrl
from zk.cluster import BrokerEntry, read_brokers
from zk.replication import Found, claim_epoch, read_replication
from zk.session import ZooKeeperSession

ANSWER_TIMEOUT_S = 2.0  # a broker that is paused takes a connection, and does not answer
EXPIRY_SLACK_S = 3.0  # a server expires sessions on its ticks
POLL_S = 0.1


class NoSlave(BrokerError):
    """The directory is no slave's: there is nothing to promote."""


class MasterAlive(BrokerError):
    """The master is there. Stop it first."""


def look(directory: Path) -> Standing:
    """What a stopped slave's directory holds; nothing is changed.

    Raises NoSlave, DirectoryInUse, ConfigError, NoJournal, RottenJournal, InvalidRecord, StorageFailed.
    """
    facts = SlaveFile(directory).read()
    if facts is None:
        raise NoSlave(
            f"{directory} has no slave.json: it is no slave's, or was promoted already; `metaq broker` starts a master"
        )
    if DirectoryStorage.open_for_reading(directory).is_held():
        raise DirectoryInUse(f"{directory} is in use by another process: stop that slave first")
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
        return Standing(facts, segments.start, state.lsn, state.epoch, prepared, active)


def read_cluster(session: ZooKeeperSession, broker_id: int) -> tuple[Cluster, Found]:
    """What ZooKeeper says of a broker id. Raises ZooKeeperError."""
    found = read_replication(session, broker_id)
    entry = read_brokers(session).get(broker_id, BrokerEntry())
    master = None if entry.master is None else str(entry.master)
    return Cluster(found.node, master, {number: str(url) for number, url in entry.slaves.items()}), found


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

    with opened_store(directory, PRODUCT_VERSION, epoch=claim) as store:
        SlaveFile(directory).remove()
        return store.journal.epoch
