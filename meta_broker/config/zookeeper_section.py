"""`[zookeeper]`: where the broker registers, and for how long a session lives."""

import msgspec

from meta_broker.config.broker_section import check_range
from meta_broker.errors import ConfigError
from zk.tree.paths import InvalidName, Paths


class ZooKeeperSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[zookeeper]`; the connect string comes from --zk."""

    root: str = "/meta"
    # Clients keep trying a dead broker for so long. The ancestor's 30 s allows for Java's pauses; ours take
    # milliseconds, and a session that ends too soon costs a rebalance, never a message (docs/operations/run.md).
    session_timeout_ms: int = 10_000
    connect_timeout_ms: int = 15_000  # at the start; without ZooKeeper in that time the broker does not start
    sync_ms: int = 1_000  # how long a clean stop still serves after leaving ZooKeeper, so that clients move away


def check_zookeeper(section: ZooKeeperSection, where: str) -> None:
    """Raise ConfigError for a value of *section* that can't be; *where* names the file."""
    check_range(f"{where}: zookeeper.session_timeout_ms", section.session_timeout_ms, 1_000, 3_600_000)
    check_range(f"{where}: zookeeper.connect_timeout_ms", section.connect_timeout_ms, 100, 3_600_000)
    check_range(f"{where}: zookeeper.sync_ms", section.sync_ms, 0, 60_000)
    try:
        Paths(section.root)
    except InvalidName as error:
        raise ConfigError(f"{where}: zookeeper.root: {error}") from error
