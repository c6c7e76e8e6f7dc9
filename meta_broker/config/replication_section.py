"""`[replication]`: what a master waits for, and what it does without slaves."""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from meta_broker.config.broker_section import check_range
from meta_broker.errors import ConfigError


class ReplicationSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[replication]` of a master. A slave takes the times from its master."""

    mode: Literal["async", "sync"] = "async"  # sync: acknowledge only what every in-sync slave has
    in_sync_min: int = 1  # sync: with fewer slaves in sync, `without_slaves` applies
    without_slaves: Literal["refuse", "degrade"] = "refuse"
    timeout_ms: int = 5_000  # sync: longest wait for slaves; then the producer gets an error
    silence_ms: int = 3_000  # a link silent for longer is closed
    lag_ms: int = 3_000  # a slave further behind is not in sync
    heartbeat_ms: int = 500


_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "in_sync_min": (1, 100),
    "timeout_ms": (100, 3_600_000),
    "silence_ms": (100, 3_600_000),
    "lag_ms": (100, 3_600_000),
    "heartbeat_ms": (10, 600_000),
}


def check_replication(section: ReplicationSection, where: str) -> None:
    """Raise ConfigError for a value of *section* that can't be; *where* names the file."""
    for name, (low, high) in _RANGES.items():
        check_range(f"{where}: replication.{name}", getattr(section, name), low, high)
    for name in ("silence_ms", "lag_ms"):
        if getattr(section, name) < 4 * section.heartbeat_ms:
            raise ConfigError(
                f"{where}: replication.{name} {getattr(section, name)} is less than four heartbeats of "
                f"{section.heartbeat_ms} ms: a slave that is well would be given up, make one larger or heartbeat_ms "
                f"smaller"
            )
