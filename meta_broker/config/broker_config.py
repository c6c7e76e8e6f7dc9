"""The broker's configuration: one frozen value, read from TOML and validated completely before anything starts."""

import difflib
import re
import tomllib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from journal.wal.flush_mode import SYNC, FlushMode
from journal.wal.segments import CLUSTER_BYTES_MAX, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN
from meta_broker.config.replication_section import REPLICATION_RANGES, ReplicationSection, why_not
from meta_broker.config.schedule import Schedule
from meta_broker.config.slave_section import SlaveSection, why_not_slave
from meta_broker.config.topic_names import why_not_a_topic
from meta_broker.errors import ConfigError
from meta_client.protocol.compression import LABELS
from meta_client.protocol.limits import BODY_BYTES_MAX, LINE_BYTES_MAX
from meta_client.protocol.messages import HEADER_BYTES
from zk.tree.paths import InvalidName, Paths

KIB = 1024
MIB = 1024 * KIB
BROKER_ID_MAX = 1023  # ten bits of a message id
PARTITIONS_MAX = 65_536  # what readers of ZooKeeper accept

Role = Literal["master", "slave"]  # a slave follows the master of its broker id


_BYTES_MAX = 1 << 40  # of sizes that are only counted: fits the system's counters
_SECONDS_MAX = 1e9
_RANGES: Mapping[str, tuple[float, float]] = {
    "transfer_bytes_max": (1, BODY_BYTES_MAX),  # largest answer a client accepts
    "message_bytes_max": (1, BODY_BYTES_MAX),  # largest put the decoder accepts
    "line_bytes_max": (2 * KIB, 1 * MIB),  # room for the longest transaction key and names
    "body_bytes_max": (1, BODY_BYTES_MAX),
    "queued_bytes_max": (1, _BYTES_MAX),
    "unsent_bytes_max": (1, _BYTES_MAX),
    "requests_in_flight_max": (1, 10_000_000),
    "received_bytes_total_max": (1, _BYTES_MAX),
    "unsent_bytes_total_max": (1, _BYTES_MAX),
    "connections_max": (1, 1_000_000),
    "checkpoint_bytes": (1, _BYTES_MAX),
    "checkpoint_seconds": (0.001, _SECONDS_MAX),
    "relocate_after_segments": (1, 1_000_000),
    "transaction_timeout_seconds_max": (1, _SECONDS_MAX),
    "transactions_max": (1, 10_000_000),
    "local_transactions_per_connection_max": (1, 10_000_000),
    "transaction_bytes_max": (1, _BYTES_MAX),
    "idle_seconds_max": (0.001, _SECONDS_MAX),
    "filter_seconds_max": (0.001, 3600),
    "stop_seconds_max": (0, 3600),
    "hang_seconds_max": (0.1, 3600),
    "fetch_wait_ms_max": (0, 3_600_000),
    "fetches_waiting_max": (0, 10_000_000),
    "fetches_waiting_per_connection_max": (0, 10_000_000),
    "owners_max": (1, 10_000_000),
    "hot_read_memory_ratio": (0, 1),
}
_HOST = re.compile(r"[A-Za-z0-9._-]+|(?:[0-9A-Fa-f]*:){2,}[0-9A-Fa-f.]*(?:%[A-Za-z0-9._-]+)?")  # name, IPv4 or IPv6
_EVERYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104 (compared with, not bound to)


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


class BrokerSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[broker]`. Bytes and times carry their unit in the name."""

    cluster: str = "metaq"
    role: Role = "master"  # as --role
    host: str = "127.0.0.1"  # address to listen on; the protocol has no authentication, so only local by default
    advertised_host: str | None = None  # host registered in ZooKeeper for clients; None: `host`
    flush: str = "sync"
    segment_bytes: int = 256 * MIB
    transfer_bytes_max: int = 4 * MIB  # of one get; the largest message must fit
    message_bytes_max: int = 2 * MIB  # data part of one message; limit of genuine consumers
    line_bytes_max: int = LINE_BYTES_MAX  # of a request; beyond, the connection is closed: not a client
    body_bytes_max: int = BODY_BYTES_MAX  # of a put; beyond, it is skipped and answered 400
    requests_in_flight_max: int = 10_000  # of one connection, handled and not answered; beyond, it is not read
    queued_bytes_max: int = 64 * MIB  # appended and not yet written; beyond, sockets are not read
    unsent_bytes_max: int = 4 * MIB  # of answers to one connection; beyond, that connection is not read
    received_bytes_total_max: int = 256 * MIB  # of incomplete bodies; beyond, the one stalled longest is dropped, 503
    unsent_bytes_total_max: int = 512 * MIB  # of answers; beyond, the connection that reads least is closed
    connections_max: int = 10_000  # beyond, a new one is answered 503 and closed
    checkpoint_bytes: int = 64 * MIB  # journal between two checkpoints: bounds what recovery replays
    checkpoint_seconds: float = 60.0
    relocate_after_segments: int = 4  # distance from the end at which a live branch's messages are copied forward
    transaction_timeout_seconds_max: int = 60
    transactions_max: int = 100_000  # alive at once, XA and local; beyond, BEGIN is refused
    local_transactions_per_connection_max: int = 10_000
    transaction_bytes_max: int = 4096 * MIB  # messages of live ones, at least 4 KiB a put; beyond, puts are refused
    tell_end_offset: bool = False  # answer a get beyond the end with 301 to the end (spec 1.5.4 f)
    idle_seconds_max: float = 300.0  # connections without traffic for longer are closed
    stop_seconds_max: float = 5.0  # wait for prepared branches at a stop, while clients are connected
    hang_seconds_max: float = 10.0  # a disk or event loop that hangs for longer costs the ZooKeeper session
    filter_seconds_max: float = 2.0  # of one get in a filter; beyond, its process is killed and the get answered 500
    fetch_wait_ms_max: int = 30_000  # longest wait of a fetch
    fetches_waiting_max: int = 200_000  # about 1 KiB each; beyond, a fetch that would wait is answered 503
    fetches_waiting_per_connection_max: int = 20_000  # a consumer has one a partition
    owners_max: int = 100_000  # groups' partitions whose owner epoch is remembered, some 300 bytes each
    hot_read_memory_ratio: float = 0.4  # of the machine's memory; a worker reads what is further behind the end


class ZooKeeperSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[zookeeper]`; the connect string comes from --zk."""

    root: str = "/meta"
    # Clients keep trying a dead broker for so long. The ancestor's 30 s allows for Java's pauses; ours take
    # milliseconds, and a session that ends too soon costs a rebalance, never a message (docs/operations/run.md).
    session_timeout_ms: int = 10_000
    connect_timeout_ms: int = 15_000  # at the start; without ZooKeeper in that time the broker does not start
    sync_ms: int = 1_000  # how long a clean stop still serves after leaving ZooKeeper, so that clients move away


class RetentionSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[retention]`: how long messages stay. Without hours and bytes: without a limit; with both, until either is
    exceeded.
    """

    hours: float | None = None  # older messages may be dropped
    bytes: int | None = None  # everything before the journal's newest bytes may be dropped
    policy: Literal["delete", "archive"] = "delete"
    archive: str | None = None  # directory for policy "archive"
    when: float | str = 60.0  # seconds between two runs, or a cron expression in UTC


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    broker: BrokerSection = msgspec.field(default_factory=BrokerSection)
    zookeeper: ZooKeeperSection = msgspec.field(default_factory=ZooKeeperSection)
    retention: RetentionSection = msgspec.field(default_factory=RetentionSection)
    replication: ReplicationSection = msgspec.field(default_factory=ReplicationSection)
    topics: dict[str, TopicConfig] = msgspec.field(default_factory=dict)
    filters: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    slave: SlaveSection = msgspec.field(default_factory=SlaveSection)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Complete configuration of a broker. Build it with `load`, whose errors name the source of a wrong value."""

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
    role: Role = "master"
    slave: SlaveSection = field(default_factory=SlaveSection)
    path: Path | None = None  # of the configuration file, which a reload reads again
    source: bytes = b""  # the file's bytes, as `stats config` shows them

    @property
    def url_host(self) -> str:
        """Host in this broker's URL."""
        return self.broker.advertised_host or self.broker.host

    @property
    def is_slave(self) -> bool:
        """True if this broker follows the master of its id."""
        return self.role == "slave"

    @property
    def slave_registers(self) -> bool:
        """True if a slave with this configuration registers for consumers."""
        return self.replication.mode != "sync" if self.slave.register is None else self.slave.register

    @property
    def checksum(self) -> int:
        """Unsigned CRC-32 of the configuration file, as the ancestor publishes it."""
        return zlib.crc32(self.source)


DEFAULT_TOPICS: Mapping[str, TopicConfig] = {"*": TopicConfig(partitions=4)}


def load(
    path: Path | None,
    *,
    data: Path,
    broker_id: int,
    port: int,
    zookeeper: str | None = None,
    flush: str | None = None,
    role: Role | None = None,
    slave_id: int | None = None,
    master: str | None = None,
) -> BrokerConfig:
    """Read *path* (None: defaults, every topic allowed) and validate everything, including relations between keys.

    Raises ConfigError: one line that names the file, the key and the remedy.
    """
    where = str(path) if path else "the command line"
    source = _read(path) if path else b""
    file = _parse(source, where) if path else _File(topics=dict(DEFAULT_TOPICS))
    section, given = file.broker, {"id": slave_id, "master": master}
    role = role or section.role
    slave = msgspec.structs.replace(file.slave, **{key: value for key, value in given.items() if value is not None})
    _check_section(section, where)
    _check_hosts(section, zookeeper is not None, where)
    _check_zookeeper(file.zookeeper, where)
    _check_retention(file.retention, data, where)
    if reason := why_not_slave(slave, is_slave=role == "slave", has_zookeeper=zookeeper is not None):
        raise ConfigError(f"{where}: slave: {reason}")
    _check_replication(file.replication, where)
    _check_topics(file.topics, where)
    _check_filters(file.filters, where)
    if not 0 <= broker_id <= BROKER_ID_MAX:
        raise ConfigError(f"--id {broker_id}: a broker id is a number from 0 to {BROKER_ID_MAX}")
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port {port}: a port is a number from 0 (any free one) to 65535")
    try:
        mode = FlushMode.parse(flush or section.flush)
    except ValueError as error:
        raise ConfigError(f"{'--flush' if flush else where + ': broker.flush'}: {error}") from error
    return BrokerConfig(
        data=data,
        broker_id=broker_id,
        port=port,
        zookeeper=zookeeper,
        broker=section,
        zookeeper_section=file.zookeeper,
        retention=file.retention,
        replication=file.replication,
        topics=file.topics,
        filters=file.filters,
        flush=mode,
        role=role,
        slave=slave,
        path=path,
        source=source,
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}: name a readable TOML file with --config") from error


def _parse(source: bytes, where: str) -> _File:
    try:
        raw = tomllib.loads(source.decode())
    except ValueError as error:  # invalid TOML or UTF-8, or a number with too many digits for Python
        raise ConfigError(f"{where}: not TOML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{where}: not TOML: nested too deeply") from error
    _check_names(raw, where)
    try:
        return msgspec.convert(raw, _File, strict=True)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at ")
        key = place.strip("`").removeprefix("$.") or "the file"
        raise ConfigError(f"{where}: {key}: {text[0].lower()}{text[1:]}") from error


def _check_names(raw: dict[str, Any], where: str) -> None:
    """Raise ConfigError for the first unknown section or key, with the nearest known one."""
    _known(raw, _File.__struct_fields__, where, "")
    for name, struct in (
        ("broker", BrokerSection),
        ("zookeeper", ZooKeeperSection),
        ("retention", RetentionSection),
        ("slave", SlaveSection),
        ("replication", ReplicationSection),
    ):
        if isinstance(raw.get(name), dict):
            _known(raw[name], struct.__struct_fields__, where, f"{name}.")
    topics = raw.get("topics")
    for topic, section in topics.items() if isinstance(topics, dict) else ():
        if isinstance(section, dict):
            _known(section, TopicConfig.__struct_fields__, where, f"topics.{topic}.")


def _known(section: dict[str, Any], known: tuple[str, ...], where: str, prefix: str) -> None:
    for key in section:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
            remedy = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            name = prefix + key
            raise ConfigError(f"{where}: unknown key {name if name.isprintable() else repr(name)}: {remedy}")


def _check_section(section: BrokerSection, where: str) -> None:
    for name, (low, high) in _RANGES.items():
        _check_range(f"{where}: broker.{name}", getattr(section, name), low, high)
    if not SEGMENT_BYTES_MIN <= section.segment_bytes <= SEGMENT_BYTES_MAX or section.segment_bytes % 4096:
        raise ConfigError(
            f"{where}: broker.segment_bytes is {section.segment_bytes}: use a multiple of 4096 from "
            f"{SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}"
        )
    if section.message_bytes_max + 64 * KIB > section.segment_bytes:
        raise ConfigError(
            f"{where}: broker.message_bytes_max {section.message_bytes_max} does not fit into broker.segment_bytes "
            f"{section.segment_bytes}: a message never spans segments, make one smaller or the other larger"
        )
    if section.message_bytes_max > section.body_bytes_max:
        raise ConfigError(
            f"{where}: broker.message_bytes_max {section.message_bytes_max} does not fit into broker.body_bytes_max "
            f"{section.body_bytes_max}: such a message could not be put, make one smaller or the other larger"
        )
    if section.body_bytes_max > section.received_bytes_total_max:
        raise ConfigError(
            f"{where}: broker.body_bytes_max {section.body_bytes_max} does not fit into "
            f"broker.received_bytes_total_max {section.received_bytes_total_max}: make one smaller or the other larger"
        )
    if section.unsent_bytes_max + section.transfer_bytes_max > section.unsent_bytes_total_max:
        raise ConfigError(
            f"{where}: broker.unsent_bytes_total_max {section.unsent_bytes_total_max} is less than one connection may "
            f"hold: make it at least {section.unsent_bytes_max + section.transfer_bytes_max}, broker.unsent_bytes_max "
            f"and broker.transfer_bytes_max together"
        )
    if section.message_bytes_max + HEADER_BYTES > section.transfer_bytes_max:
        raise ConfigError(
            f"{where}: broker.message_bytes_max {section.message_bytes_max} does not fit into one get: make "
            f"broker.transfer_bytes_max at least {section.message_bytes_max + HEADER_BYTES}"
        )
    if not 0 < len(section.cluster.encode()) <= CLUSTER_BYTES_MAX:
        raise ConfigError(f"{where}: broker.cluster {section.cluster!r} is not 1 to {CLUSTER_BYTES_MAX} bytes long")


def _check_hosts(section: BrokerSection, is_registered: bool, where: str) -> None:
    for name, host in (("host", section.host), ("advertised_host", section.advertised_host)):
        if host is not None and _HOST.fullmatch(host) is None:
            raise ConfigError(f"{where}: broker.{name} {host!r} is no host name or address")
    if is_registered and section.advertised_host is None and section.host in _EVERYWHERE:
        raise ConfigError(
            f"{where}: broker.host {section.host} is no address that clients could connect to: "
            f"set broker.advertised_host"
        )


def _check_zookeeper(section: ZooKeeperSection, where: str) -> None:
    _check_range(f"{where}: zookeeper.session_timeout_ms", section.session_timeout_ms, 1_000, 3_600_000)
    _check_range(f"{where}: zookeeper.connect_timeout_ms", section.connect_timeout_ms, 100, 3_600_000)
    _check_range(f"{where}: zookeeper.sync_ms", section.sync_ms, 0, 60_000)
    try:
        Paths(section.root)
    except InvalidName as error:
        raise ConfigError(f"{where}: zookeeper.root: {error}") from error


def _check_retention(section: RetentionSection, data: Path, where: str) -> None:
    if section.hours is not None:
        _check_range(f"{where}: retention.hours", section.hours, 0.001, 1e6)
    if section.bytes is not None:
        _check_range(f"{where}: retention.bytes", section.bytes, 1, 1 << 60)
    if isinstance(section.when, str):
        try:
            Schedule(section.when)
        except ValueError as error:
            raise ConfigError(f"{where}: retention.when: {error}") from error
    else:
        _check_range(f"{where}: retention.when", section.when, 0.1, _SECONDS_MAX)
    if (section.policy == "archive") != (section.archive is not None):
        raise ConfigError(f'{where}: retention.archive, a directory, and policy = "archive" need each other: give both')
    if section.archive is not None and Path(section.archive).resolve() == data.resolve():
        raise ConfigError(f"{where}: retention.archive {section.archive} is the data directory: name another one")


def _check_replication(section: ReplicationSection, where: str) -> None:
    for name, (low, high) in REPLICATION_RANGES.items():
        _check_range(f"{where}: replication.{name}", getattr(section, name), low, high)
    if reason := why_not(section):
        raise ConfigError(f"{where}: replication.{reason}")


def _check_range(what: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # NaN is in no range
        raise ConfigError(f"{what} is {value}: use a number from {low:g} to {high:.15g}")


def _check_topics(topics: Mapping[str, TopicConfig], where: str) -> None:
    if not topics:
        raise ConfigError(f'{where}: no topic: add a section [topics.NAME], or [topics."*"] for every name')
    for name, topic in topics.items():
        if reason := why_not_a_topic(name):
            raise ConfigError(f"{where}: topics.{name!r}: {reason}")
        if not 1 <= topic.partitions <= PARTITIONS_MAX:
            raise ConfigError(
                f"{where}: topics.{name}.partitions is {topic.partitions}: use a number from 1 to {PARTITIONS_MAX}"
            )
        for label in topic.compression:
            if label not in LABELS:
                raise ConfigError(f"{where}: topics.{name}.compression: {label!r} is no codec: use {', '.join(LABELS)}")


def _check_filters(filters: Mapping[str, Mapping[str, str]], where: str) -> None:
    for topic, of_topic in filters.items():
        if "*" in topic or (reason := why_not_a_topic(topic)):
            reason = "a filter is for one topic, not for a pattern" if "*" in topic else reason
            raise ConfigError(f"{where}: filters.{topic!r}: {reason}")
        for group, name in of_topic.items():
            if not name:
                raise ConfigError(f"{where}: filters.{topic}.{group} is empty: name an entry point of metaq.filters")
