"""`[zookeeper]`, `[retention]`, `[slave]`, `[replication]`: their values, and the check of each."""

import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

import msgspec

from journal.archive.places import is_url
from meta_broker.config.broker_section import SECONDS_MAX, check_range
from meta_broker.config.schedule import Schedule
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

    def check(self, where: str) -> None:
        """Raise ConfigError for a value that can't be; *where* names the file."""
        check_range(f"{where}: zookeeper.session_timeout_ms", self.session_timeout_ms, 1_000, 3_600_000)
        check_range(f"{where}: zookeeper.connect_timeout_ms", self.connect_timeout_ms, 100, 3_600_000)
        check_range(f"{where}: zookeeper.sync_ms", self.sync_ms, 0, 60_000)
        try:
            self.security()
        except (InvalidSecurity, ZooKeeperError) as error:
            raise ConfigError(f"{where}: zookeeper: {error}") from error
        try:
            Paths(self.root)
        except InvalidName as error:
            raise ConfigError(f"{where}: zookeeper.root: {error}") from error


class RetentionSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[retention]`: how long messages stay. Without hours and bytes: without a limit; with both, until either is
    exceeded.
    """

    hours: float | None = None  # older messages may be dropped
    bytes: int | None = None  # everything before the journal's newest bytes may be dropped
    policy: Literal["delete", "archive"] = "delete"
    archive: str | None = None  # directory, or URL of an object store, for policy "archive"
    archive_cache_bytes: int | None = None  # consumers read the archive, through files of that size here; None: no
    when: float | str = 60.0  # seconds between two runs, or a cron expression in UTC

    def check(self, data: Path, segment_bytes: int, where: str) -> None:
        """Raise ConfigError for a value that can't be; *where* names the file."""
        if self.hours is not None:
            check_range(f"{where}: retention.hours", self.hours, 0.001, 1e6)
        if self.bytes is not None:
            check_range(f"{where}: retention.bytes", self.bytes, 1, 1 << 60)
        if isinstance(self.when, str):
            try:
                Schedule(self.when)
            except ValueError as error:
                raise ConfigError(f"{where}: retention.when: {error}") from error
        else:
            check_range(f"{where}: retention.when", self.when, 0.1, SECONDS_MAX)
        if (self.policy == "archive") != (self.archive is not None):
            raise ConfigError(
                f'{where}: retention.archive, a directory or URL, and policy = "archive" need each other: give both'
            )
        if self.archive_cache_bytes is not None:
            if self.archive is None:
                raise ConfigError(f"{where}: retention.archive_cache_bytes: needs retention.archive, which it reads")
            # What one consumer reads, and what another one waits for.
            check_range(f"{where}: retention.archive_cache_bytes", self.archive_cache_bytes, 2 * segment_bytes, 1 << 60)
        if self.archive is None:
            return
        if is_url(self.archive):
            if find_spec("fsspec") is None:
                raise ConfigError(
                    f"{where}: retention.archive {self.archive}: pip install 'metaq-broker[object-storage]'"
                )
        elif Path(self.archive).resolve() == data.resolve():
            raise ConfigError(f"{where}: retention.archive {self.archive} is the data directory: name another one")


SLAVE_ID_MAX: Final = 999_999_999
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%A-Za-z0-9_-]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")


class SlaveSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[slave]`; the same as --slave-id and --master."""

    id: int | None = None  # unique among the slaves of one broker id
    master: str | None = None  # HOST:PORT; None: the master registered in ZooKeeper
    rejoin: bool = True  # a superseded master, or one with slave.json in its directory, becomes a slave
    full_resync: bool = False  # empty a directory with unusable records; else the slave stops with an error
    register: bool | None = None  # in ZooKeeper, for consumers; None: unless [replication] mode is "sync"

    def why_not_slave(self, *, is_slave: bool, has_zookeeper: bool) -> str | None:
        """Return what is wrong; None: nothing. *is_slave*: the broker's role."""
        if self.id is not None and not 0 <= self.id <= SLAVE_ID_MAX:
            return f"id {self.id}: a slave id is a number from 0 to {SLAVE_ID_MAX}"
        if self.master is not None:
            match = _ADDRESS.fullmatch(self.master)
            if match is None or not 1 <= int(match[2]) <= 65535:
                return f"master {self.master!r} is no HOST:PORT"
        if is_slave and self.id is None:
            return "a slave needs an id: give --slave-id N, unique among the slaves of this broker id"
        if is_slave and self.master is None and not has_zookeeper:
            return "a slave must find its master: give --zk, or --master HOST:PORT"
        return None


class ReplicationSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[replication]` of a master. A slave takes the times from its master."""

    mode: Literal["async", "sync"] = "async"  # sync: acknowledge only what every in-sync slave has
    in_sync_min: int = 1  # sync: with fewer slaves in sync, `without_slaves` applies
    without_slaves: Literal["refuse", "degrade"] = "refuse"
    timeout_ms: int = 5_000  # sync: longest wait for slaves; then the producer gets an error
    silence_ms: int = 3_000  # a link silent for longer is closed
    lag_ms: int = 3_000  # a slave further behind is not in sync
    heartbeat_ms: int = 500

    def check(self, where: str) -> None:
        """Raise ConfigError for a value that can't be; *where* names the file."""
        for name, (low, high) in _RANGES.items():
            check_range(f"{where}: replication.{name}", getattr(self, name), low, high)
        for name in ("silence_ms", "lag_ms"):
            if getattr(self, name) < 4 * self.heartbeat_ms:
                raise ConfigError(
                    f"{where}: replication.{name} {getattr(self, name)} is less than four heartbeats of "
                    f"{self.heartbeat_ms} ms: a slave that is well would be given up, make one larger or heartbeat_ms "
                    f"smaller"
                )


_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "in_sync_min": (1, 100),
    "timeout_ms": (100, 3_600_000),
    "silence_ms": (100, 3_600_000),
    "lag_ms": (100, 3_600_000),
    "heartbeat_ms": (10, 600_000),
}
