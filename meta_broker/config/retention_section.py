"""`[retention]`: how long messages stay."""

from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import msgspec

from journal.archive.places import is_url
from meta_broker.config.broker_section import SECONDS_MAX, check_range
from meta_broker.config.schedule import Schedule
from meta_broker.errors import ConfigError


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


def check_retention(section: RetentionSection, data: Path, segment_bytes: int, where: str) -> None:
    """Raise ConfigError for a value of *section* that can't be; *where* names the file."""
    if section.hours is not None:
        check_range(f"{where}: retention.hours", section.hours, 0.001, 1e6)
    if section.bytes is not None:
        check_range(f"{where}: retention.bytes", section.bytes, 1, 1 << 60)
    if isinstance(section.when, str):
        try:
            Schedule(section.when)
        except ValueError as error:
            raise ConfigError(f"{where}: retention.when: {error}") from error
    else:
        check_range(f"{where}: retention.when", section.when, 0.1, SECONDS_MAX)
    if (section.policy == "archive") != (section.archive is not None):
        raise ConfigError(
            f'{where}: retention.archive, a directory or URL, and policy = "archive" need each other: give both'
        )
    if section.archive_cache_bytes is not None:
        if section.archive is None:
            raise ConfigError(f"{where}: retention.archive_cache_bytes: needs retention.archive, which it reads")
        # What one consumer reads, and what another one waits for.
        check_range(f"{where}: retention.archive_cache_bytes", section.archive_cache_bytes, 2 * segment_bytes, 1 << 60)
    if section.archive is None:
        return
    if is_url(section.archive):
        if find_spec("fsspec") is None:
            raise ConfigError(
                f"{where}: retention.archive {section.archive}: pip install 'metaq-broker[object-storage]'"
            )
    elif Path(section.archive).resolve() == data.resolve():
        raise ConfigError(f"{where}: retention.archive {section.archive} is the data directory: name another one")
