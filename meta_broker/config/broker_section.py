"""`[broker]`: addresses, bounds and times of a broker."""

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from journal.wal.segments import CLUSTER_BYTES_MAX, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN
from meta_broker.errors import ConfigError
from meta_client.protocol.limits import BODY_BYTES_MAX, LINE_BYTES_MAX
from meta_client.protocol.messages import HEADER_BYTES

KIB = 1024
MIB = 1024 * KIB

RoleName = Literal["master", "slave"]  # a slave follows the master of its broker id

_BYTES_MAX = 1 << 40  # of sizes that are only counted: fits the system's counters
SECONDS_MAX = 1e9
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
    "connections_per_address_max": (1, 1_000_000),
    "checkpoint_bytes": (1, _BYTES_MAX),
    "disk_free_bytes_min": (0, _BYTES_MAX),
    "checkpoint_seconds": (0.001, SECONDS_MAX),
    "relocate_after_segments": (1, 1_000_000),
    "transaction_timeout_seconds_max": (1, SECONDS_MAX),
    "transactions_max": (1, 10_000_000),
    "local_transactions_per_connection_max": (1, 10_000_000),
    "transaction_bytes_max": (1, _BYTES_MAX),
    "idle_seconds_max": (0.001, SECONDS_MAX),
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


class BrokerSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[broker]`. Bytes and times carry their unit in the name."""

    cluster: str = "metaq"
    role: RoleName = "master"  # as --role
    host: str = "127.0.0.1"  # address to listen on; elsewhere than on this machine only with authentication
    insecure: bool = False  # listen elsewhere without authentication: something else decides who may connect
    advertised_host: str | None = None  # host registered in ZooKeeper for clients; None: `host`
    flush: str = "sync"
    segment_bytes: int = 256 * MIB
    disk_free_bytes_min: int = 0  # below, new messages are refused, and a slave waits; 0: only when the disk is full
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
    connections_per_address_max: int = 5_000  # beyond, the same for peers of that address alone
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


def check_section(section: BrokerSection, where: str) -> None:
    """Raise ConfigError for a value of *section* that can't be; *where* names the file."""
    for name, (low, high) in _RANGES.items():
        check_range(f"{where}: broker.{name}", getattr(section, name), low, high)
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


def check_hosts(section: BrokerSection, is_registered: bool, where: str) -> None:
    """Raise ConfigError for a value of *section* that can't be; *where* names the file."""
    for name, host in (("host", section.host), ("advertised_host", section.advertised_host)):
        if host is not None and (reason := why_not_a_host(host)):
            raise ConfigError(f"{where}: broker.{name} {reason}")
    if is_registered and section.advertised_host is None and section.host in _EVERYWHERE:
        raise ConfigError(
            f"{where}: broker.host {section.host} is no address that clients could connect to: "
            f"set broker.advertised_host"
        )


def why_not_a_host(host: str) -> str:
    """Return what is wrong with *host*; blank: nothing."""
    return "" if _HOST.fullmatch(host) else f"{host!r} is no host name or address"


def check_range(what: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # NaN is in no range
        raise ConfigError(f"{what} is {value}: use a number from {low:g} to {high:.15g}")
