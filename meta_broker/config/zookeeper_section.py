"""`[zookeeper]`: where the broker registers, and for how long a session lives."""

import msgspec

from meta_broker.config.broker_section import check_range
from meta_broker.errors import ConfigError
from meta_client.errors import InvalidSecurity
from meta_client.net.security import Credentials
from zk.errors import ZooKeeperError
from zk.session.security import ZooKeeperSecurity
from zk.tree.paths import InvalidName, Paths


class ZooKeeperSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[zookeeper]`; the connect string comes from --zk."""

    root: str = "/meta"
    # Clients keep trying a dead broker for so long. The ancestor's 30 s allows for Java's pauses; ours take
    # milliseconds, and a session that ends too soon costs a rebalance, never a message (docs/operations/run.md).
    session_timeout_ms: int = 10_000
    connect_timeout_ms: int = 15_000  # at the start; without ZooKeeper in that time the broker does not start
    user: str | None = None  # of a digest login, by which nodes are this broker's and its clients' to change
    password_file: str | None = None  # its password, in the first line
    tls_ca: str | None = None  # signs the servers' certificates; turns TLS on
    tls_certificate: str | None = None  # this broker's own, if the servers ask for one
    tls_key: str | None = None
    sync_ms: int = 1_000  # how long a clean stop still serves after leaving ZooKeeper, so that clients move away

    def security(self) -> ZooKeeperSecurity:
        """Return login and TLS of its sessions. Raises InvalidSecurity, ZooKeeperError."""
        password = None
        if self.user is not None and self.password_file is not None:
            password = Credentials.load(self.user, self.password_file).password
        return ZooKeeperSecurity(
            user=self.user, password=password, ca=self.tls_ca, certificate=self.tls_certificate, key=self.tls_key
        )


def check_zookeeper(section: ZooKeeperSection, where: str) -> None:
    """Raise ConfigError for a value of *section* that can't be; *where* names the file."""
    check_range(f"{where}: zookeeper.session_timeout_ms", section.session_timeout_ms, 1_000, 3_600_000)
    check_range(f"{where}: zookeeper.connect_timeout_ms", section.connect_timeout_ms, 100, 3_600_000)
    check_range(f"{where}: zookeeper.sync_ms", section.sync_ms, 0, 60_000)
    try:
        section.security()
    except (InvalidSecurity, ZooKeeperError) as error:
        raise ConfigError(f"{where}: zookeeper: {error}") from error
    try:
        Paths(section.root)
    except InvalidName as error:
        raise ConfigError(f"{where}: zookeeper.root: {error}") from error
