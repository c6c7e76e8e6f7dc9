"""The broker's configuration: one frozen value, which `loading` reads."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from journal.records.record import TOPIC_BYTES_MAX
from journal.wal.flush_mode import SYNC, FlushMode
from journal.wal.open_journal import JournalConfig
from journal.wal.segments import JournalIdentity
from meta_broker.access.quota import UNLIMITED, Quota
from meta_broker.access.rules import Principals
from meta_broker.config.broker_section import BrokerSection, RoleName
from meta_broker.config.sections import ReplicationSection, RetentionSection, SlaveSection, ZooKeeperSection
from meta_broker.config.security_sections import AccessSection, AdminSection, TlsSection
from meta_client.net.security import Security
from zk.tree.paths import InvalidName, check_topic

BROKER_ID_MAX = 1023  # ten bits of a message id
PARTITIONS_MAX = 65_536  # what readers of ZooKeeper accept
TOPIC_NAME_BYTES_MAX = TOPIC_BYTES_MAX - 55  # room for what file names and records add


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A `[topics.NAME]` section; `*` in NAME matches any characters."""

    partitions: int = 1
    accept_publish: bool = True
    accept_subscribe: bool = True
    stat: bool = False  # keep the statistics that `stats realtime` shows
    compression: tuple[str, ...] = ()  # codecs producers may use; genuine consumers can't read them
    index: Literal["attribute"] | None = None  # of keys: `find` searches it instead of every message

    def __post_init__(self) -> None:
        # Canonical form: sections are compared, and identified by their checksum.
        msgspec.structs.force_setattr(self, "compression", tuple(sorted(set(self.compression))))


def why_not_a_topic(name: str) -> str | None:
    """Return why *name* is no valid topic name for command lines, file names and ZooKeeper paths; None if it is."""
    if not name or len(name.encode()) > TOPIC_NAME_BYTES_MAX:
        return f"a topic name is 1 to {TOPIC_NAME_BYTES_MAX} bytes long"
    try:
        check_topic(name)
    except InvalidName:
        return "a topic name holds no slash, white space or character that ZooKeeper refuses"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Complete configuration of a broker. `loading.load` makes it: its errors name the source."""

    data: Path
    broker_id: int
    port: int
    zookeeper: str | None = None  # connect string; None: no registration
    broker: BrokerSection = field(default_factory=BrokerSection)
    zookeeper_section: ZooKeeperSection = field(default_factory=ZooKeeperSection)
    retention: RetentionSection = field(default_factory=RetentionSection)
    replication: ReplicationSection = field(default_factory=ReplicationSection)
    topics: Mapping[str, TopicConfig] = field(default_factory=dict)
    filters: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by topic, then by group; see filters/
    flush: FlushMode = SYNC
    role: RoleName = "master"
    slave: SlaveSection = field(default_factory=SlaveSection)
    admin: AdminSection = field(default_factory=AdminSection)
    tls: TlsSection = field(default_factory=TlsSection)
    access: AccessSection = field(default_factory=AccessSection)
    address_quota: Quota = UNLIMITED  # of each address whose peers are no principals
    rules: Principals | None = None  # of `access.file`; None: everybody may do everything
    path: Path | None = None  # of the configuration file, which a reload reads again
    source: bytes = b""  # the file's bytes, as `stats config` shows them

    @property
    def identity(self) -> JournalIdentity:
        return JournalIdentity(self.broker.cluster, self.broker_id)

    @property
    def journal(self) -> JournalConfig:
        return JournalConfig(segment_bytes=self.broker.segment_bytes, flush=self.flush)

    @property
    def url_host(self) -> str:
        return self.broker.advertised_host or self.broker.host

    @property
    def authenticates(self) -> bool:
        """True if a client has to prove who it is."""
        return self.rules is not None or self.tls.requires_certificates

    @property
    def security(self) -> Security:
        """Safety of the connections that this broker makes: a slave to its master, a promotion to slaves."""
        return Security(self.tls.client_config(), self.access.credentials())

    @property
    def is_slave(self) -> bool:
        return self.role == "slave"

    @property
    def slave_registers(self) -> bool:
        return self.replication.mode != "sync" if self.slave.register is None else self.slave.register

    @property
    def checksum(self) -> int:
        """Unsigned CRC-32 of the configuration file, as the ancestor publishes it."""
        return zlib.crc32(self.source)
