"""Reads a broker's configuration from TOML, and checks all of it before anything starts."""

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from journal.wal.flush_mode import FlushMode
from meta_broker.access.quota import UNLIMITED, Quota, check_quota
from meta_broker.config.broker_config import BROKER_ID_MAX, PARTITIONS_MAX, BrokerConfig, TopicConfig, why_not_a_topic
from meta_broker.config.broker_section import BrokerSection, RoleName, check_hosts, check_section
from meta_broker.config.exposure import check_exposure
from meta_broker.config.sections import ReplicationSection, RetentionSection, SlaveSection, ZooKeeperSection
from meta_broker.config.security_sections import AccessSection, AdminSection, TlsSection
from meta_broker.errors import ConfigError
from meta_client.protocol.compression import LABELS


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    broker: BrokerSection = msgspec.field(default_factory=BrokerSection)
    zookeeper: ZooKeeperSection = msgspec.field(default_factory=ZooKeeperSection)
    retention: RetentionSection = msgspec.field(default_factory=RetentionSection)
    replication: ReplicationSection = msgspec.field(default_factory=ReplicationSection)
    topics: dict[str, TopicConfig] = msgspec.field(default_factory=dict)
    filters: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    slave: SlaveSection = msgspec.field(default_factory=SlaveSection)
    admin: AdminSection = msgspec.field(default_factory=AdminSection)
    tls: TlsSection = msgspec.field(default_factory=TlsSection)
    access: AccessSection = msgspec.field(default_factory=AccessSection)
    address_quota: Quota = UNLIMITED  # of each address whose peers are no principals


DEFAULT_TOPICS: Mapping[str, TopicConfig] = {"*": TopicConfig(partitions=4)}


def load(
    path: Path | None,
    *,
    data: Path,
    broker_id: int,
    port: int,
    zookeeper: str | None = None,
    flush: str | None = None,
    role: RoleName | None = None,
    slave_id: int | None = None,
    master: str | None = None,
    admin_port: int | None = None,
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
    admin = file.admin if admin_port is None else msgspec.structs.replace(file.admin, port=admin_port)
    check_section(section, where)
    for each in (admin, file.tls, file.access):
        each.check(where)
    check_quota(file.address_quota, f"{where}: address_quota")
    check_hosts(section, zookeeper is not None, where)
    file.zookeeper.check(where)
    file.retention.check(data, section.segment_bytes, where)
    if reason := slave.why_not_slave(is_slave=role == "slave", has_zookeeper=zookeeper is not None):
        raise ConfigError(f"{where}: slave: {reason}")
    file.replication.check(where)
    check_topics(file.topics, where)
    _check_filters(file.filters, where)
    _check_data(data)
    check_broker_id(broker_id, "--id ")
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port {port}: a port is a number from 0 (any free one) to 65535")
    try:
        mode = FlushMode.parse(flush or section.flush)
    except ValueError as error:
        raise ConfigError(f"{'--flush' if flush else where + ': broker.flush'}: {error}") from error
    config = BrokerConfig(
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
        admin=admin,
        tls=file.tls,
        access=file.access,
        address_quota=file.address_quota,
        rules=file.access.rules(),
        path=path,
        source=source,
    )
    check_exposure(config, where)
    return config


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
    if _holds_zero_byte(raw):
        raise ConfigError(f"{where}: a text in it holds a zero byte, which no name of a file or host does: remove it")
    _check_names(raw, where)
    try:
        return msgspec.convert(raw, _File, strict=True)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at ")
        key = place.strip("`").removeprefix("$.") or "the file"
        raise ConfigError(f"{where}: {key}: {text[0].lower()}{text[1:]}") from error


def _holds_zero_byte(value: Any) -> bool:
    """Return whether a text in *value* has a zero byte, for which calls of the system raise what no caller expects."""
    match value:
        case dict():
            return any(map(_holds_zero_byte, [*value, *value.values()]))
        case list():
            return any(map(_holds_zero_byte, value))
    return isinstance(value, str) and "\0" in value


def _check_names(raw: dict[str, Any], where: str) -> None:
    """Raise ConfigError for the first unknown section or key, with the nearest known one."""
    _known(raw, _File.__struct_fields__, where, "")
    for section in msgspec.structs.fields(_File):
        keys = getattr(section.type, "__struct_fields__", None)
        if keys is not None and isinstance(raw.get(section.name), dict):
            _known(raw[section.name], keys, where, f"{section.name}.")
    topics = raw.get("topics")
    for topic, settings in topics.items() if isinstance(topics, dict) else ():
        if isinstance(settings, dict):
            _known(settings, TopicConfig.__struct_fields__, where, f"topics.{topic}.")


def _known(section: dict[str, Any], known: tuple[str, ...], where: str, prefix: str) -> None:
    for key in section:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
            remedy = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            name = prefix + key
            raise ConfigError(f"{where}: unknown key {name if name.isprintable() else repr(name)}: {remedy}")


def _check_data(data: Path) -> None:
    """Check that ZooKeeper, back-ups and slaves can be told the directory's name."""
    try:
        str(data.absolute()).encode()
    except UnicodeEncodeError:
        shown = str(data).encode(errors="backslashreplace").decode()
        raise ConfigError(f"--data {shown}: its path is not UTF-8: rename what is not, or name another") from None


def check_broker_id(broker_id: int, where: str = "") -> None:
    """Check an id given at *where*. Raises ConfigError."""
    if not 0 <= broker_id <= BROKER_ID_MAX:
        raise ConfigError(f"{where}{broker_id}: a broker id is a number from 0 to {BROKER_ID_MAX}")


def check_topics(topics: Mapping[str, TopicConfig], where: str) -> None:
    """Check the `[topics]` sections of *where*. Raises ConfigError."""
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
