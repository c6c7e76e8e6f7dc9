"""A broker from its start to its end, in the role it has."""

import dataclasses
import logging
from collections.abc import Callable

import msgspec
import uvloop

from meta_broker.broker import Broker
from meta_broker.config import BrokerConfig
from meta_broker.descriptors import allow_all
from meta_broker.replication.fencing import Superseded
from meta_broker.replication.rejoining import rejoined
from meta_broker.replication.slave_file import SlaveFile
from meta_broker.slave import Slave

log = logging.getLogger(__name__)


def run(config: BrokerConfig, on_ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT, then stop cleanly. Blocks.

    A master that was superseded, before it began or while it served, goes on as a slave, unless `rejoin` is false.

    *on_ready* gets one line once clients can come, and another one for another role. Raises JournalError, BrokerError,
    ZooKeeperError when it can't start, and StorageFailed when the journal stopped; nothing is left running or half
    done.
    """
    allow_all()
    config = in_its_role(config)
    try:
        uvloop.run((Slave(config) if config.is_slave else Broker(config)).serve(on_ready))
    except Superseded as superseded:
        if config.is_slave or not config.slave.rejoin:
            raise
        uvloop.run(Slave(rejoined(config, superseded)).serve(on_ready))


def in_its_role(config: BrokerConfig) -> BrokerConfig:
    """*config*, as a slave's if its directory is one: whoever starts it need not know that it has rejoined.

    Raises ConfigError.
    """
    if config.is_slave or not config.slave.rejoin or (facts := SlaveFile(config.data).read()) is None:
        return config
    log.warning("starts as a slave, which its directory is slave=%d of=%s", facts.slave_id, facts.master or "unknown")
    return dataclasses.replace(config, role="slave", slave=msgspec.structs.replace(config.slave, id=facts.slave_id))
