"""A master that was superseded becomes a slave of who took its place."""

import dataclasses
import itertools
import logging

import msgspec

from journal.storage import DirectoryStorage
from meta_broker.config import BrokerConfig
from meta_broker.replication.fencing import Superseded
from meta_broker.replication.judgement import claimed_slave
from meta_broker.replication.slave_file import SlaveFacts, SlaveFile
from zk.replication import ReplicationNode

log = logging.getLogger(__name__)


def rejoined(config: BrokerConfig, superseded: Superseded) -> BrokerConfig:
    """*config* as a slave's. From here on the directory is one, through every later start; what only it has is cut
    once it meets its master. Raises DirectoryInUse, StorageFailed."""
    slave_id = config.slave.id if config.slave.id is not None else free_slave_id(superseded.node)
    facts = SlaveFacts(
        cluster=config.broker.cluster,
        broker_id=config.broker_id,
        slave_id=slave_id,
        master=superseded.node.master,
        epoch=superseded.epoch,  # the last one that it had everything of; it has not heard from the new master yet
    )
    storage = DirectoryStorage.open_for_writing(config.data)
    try:
        SlaveFile(config.data).write(facts)
    finally:
        storage.close()
    log.warning("superseded, becoming slave %d of=%s reason=%s", slave_id, facts.master or "unknown", superseded)
    return dataclasses.replace(config, role="slave", slave=msgspec.structs.replace(config.slave, id=slave_id))


def free_slave_id(node: ReplicationNode) -> int:
    """An id for a master that was superseded: that of the slave that was promoted, who is none any more."""
    promoted = claimed_slave(node.claimed_by)
    ids = itertools.chain([] if promoted is None else [promoted], itertools.count(1))
    return next(slave_id for slave_id in ids if slave_id not in node.in_sync)
