"""Turns a superseded master into a slave of its successor."""

import contextlib
import dataclasses
import itertools
import logging

import msgspec

from journal.wal.storage import DirectoryStorage
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.replication.fencing import Superseded
from meta_broker.replication.promotion.promotion_check import claimed_slave
from meta_broker.replication.replica.slave_file import SlaveFacts, SlaveFile
from zk.brokers.replication import ReplicationNode

log = logging.getLogger(__name__)


def demote(config: BrokerConfig, superseded: Superseded) -> BrokerConfig:
    """Make the directory a slave's, durably; return *config* for a slave.

    Data that only this directory has is truncated once it connects to its master. Raises DirectoryInUse,
    StorageFailed.
    """
    slave_id = config.slave.id if config.slave.id is not None else unused_slave_id(superseded.node)
    facts = SlaveFacts(
        cluster=config.broker.cluster,
        broker_id=config.broker_id,
        slave_id=slave_id,
        master=superseded.node.master,
        epoch=superseded.epoch,  # the last epoch it has completely; nothing has come from the new master yet
    )
    with contextlib.closing(DirectoryStorage.open_for_writing(config.data)):
        SlaveFile(config.data).write(facts)
    log.warning("superseded, becoming slave %d of=%s reason=%s", slave_id, facts.master or "unknown", superseded)
    return dataclasses.replace(config, role="slave", slave=msgspec.structs.replace(config.slave, id=slave_id))


def unused_slave_id(node: ReplicationNode) -> int:
    """Return an id for a superseded master: that of the promoted slave, which is no slave any more, if it is free."""
    promoted = claimed_slave(node.claimed_by)
    ids = itertools.chain([] if promoted is None else [promoted], itertools.count(1))
    return next(slave_id for slave_id in ids if slave_id not in node.in_sync)
