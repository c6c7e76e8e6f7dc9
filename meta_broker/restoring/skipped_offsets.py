"""Computes where the partitions of a restored journal go on: beyond every offset that was given out since the back-up.

How much was written since is unknown, so that the bound is one of physics: no broker writes BYTES_PER_S_MAX for long.
Each epoch since the back-up adds BYTES_MIN: an earlier restoration of it went on as far, and then gave out more.
The offsets in between stay unused. Readers there are sent to the next message, and none takes a new message for an old
one. Pure.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from journal.backup.manifest import Manifest
from journal.records.header import Offset
from journal.records.record import PartitionName
from meta_broker.errors import BrokerError
from zk.brokers.journal_position import JournalPosition

BYTES_PER_S_MAX: Final = 1 << 30  # more than one Python process hands to a disk
BYTES_MIN: Final = 1 << 40  # an epoch: two clocks need not agree to the second
OFFSET_MAX: Final = 1 << 62  # half of what the protocol's numbers hold


class OffsetsUnknown(BrokerError):
    """The number of offsets given out since the back-up can't be computed. Nothing was changed."""


def bytes_to_skip(manifest: Manifest, now_ms: int, position: JournalPosition | None, epoch: int) -> int:
    """Return an upper bound on the bytes that any partition can have received since the back-up. *now_ms*: since 1970;
    *position*: as last written to ZooKeeper; *epoch*: of the restored journal. Raises OffsetsUnknown if the clock can't
    be right."""
    taken_ms = max(manifest.time_ms, manifest.last_ms)
    if now_ms < taken_ms:
        raise OffsetsUnknown(
            f"the clock says that the back-up is taken in {(taken_ms - now_ms) / 1000:.0f} s from now: correct it, "
            f"since the time that has passed bounds the offsets that were given out"
        )
    written = (now_ms - taken_ms) * BYTES_PER_S_MAX // 1000
    if position is not None:
        written = max(written, position.end - manifest.end)
    return written + (epoch - manifest.epoch) * BYTES_MIN


def ends_after(
    ends: Mapping[PartitionName, int],
    configured: Iterable[PartitionName],
    stored: Mapping[PartitionName, int],
    skip: int,
) -> dict[PartitionName, Offset]:
    """Return the offset at which each partition goes on.

    *ends*: of the back-up; *configured*: partitions that may have begun since; *stored*: the largest offset that a
    group has stored in each. Raises OffsetsUnknown if there are no offsets left.
    """
    after = {
        name: max(ends.get(name, 0) + skip, stored.get(name, 0) + BYTES_MIN)
        for name in sorted({*ends, *configured, *stored})
    }
    for name, end in after.items():
        if end > OFFSET_MAX:
            raise OffsetsUnknown(
                f"{name} would go on at offset {end}, beyond {OFFSET_MAX}: give the topic another name"
            )
    return {name: Offset(end) for name, end in after.items()}
