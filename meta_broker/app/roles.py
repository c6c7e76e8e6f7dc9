"""Runs a broker from its start to its end, in its role."""

import dataclasses
import logging
from collections.abc import Callable

import msgspec
import uvloop

from meta_broker.app.broker import Broker
from meta_broker.app.master import MasterRole
from meta_broker.app.slave import SlaveRole
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.fd_limits import raise_soft_limit
from meta_broker.replication.fencing import Superseded
from meta_broker.replication.promotion.demotion import demote
from meta_broker.replication.replica.slave_file import SlaveFile

log = logging.getLogger(__name__)


def run(config: BrokerConfig, on_ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT, then stop cleanly. Blocks.

    A superseded master goes on as a slave, unless `rejoin` is false. *on_ready* is called with one line once clients
    can connect, and again for another role. Raises JournalError, BrokerError, ZooKeeperError if it cannot start,
    StorageFailed if the journal stopped; nothing is left running or half done.
    """
    raise_soft_limit()
    config = with_role(config)
    try:
        uvloop.run(Broker(SlaveRole(config) if config.is_slave else MasterRole(config)).serve(on_ready))
    except Superseded as superseded:
        if config.is_slave or not config.slave.rejoin:
            raise
        uvloop.run(Broker(SlaveRole(demote(config, superseded))).serve(on_ready))


def with_role(config: BrokerConfig) -> BrokerConfig:
    """Return *config* for a slave if its directory is a slave's, as after a demotion. Raises ConfigError."""
    if config.is_slave or not config.slave.rejoin or (facts := SlaveFile(config.data).read()) is None:
        return config
    log.warning(
        "starting as a slave, since its directory is a copy slave=%d of=%s", facts.slave_id, facts.master or "unknown"
    )
    return dataclasses.replace(config, role="slave", slave=msgspec.structs.replace(config.slave, id=facts.slave_id))
