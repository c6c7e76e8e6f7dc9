"""Reading a store of refused messages from outside, whether its consumer runs or not. Touches nothing."""

from collections.abc import Iterator
from pathlib import Path

from journal.frame import Lsn
from journal.inspection import Reading
from journal.record_codec import decode
from journal.refusals import Refused
from journal.scan import Scanner, Verdict
from journal.segments import Segments
from journal.storage import DirectoryStorage
from meta_client.consumer.batch import ReceivedMessage
from meta_client.refused.errors import ForeignStore
from meta_client.refused.store import CLUSTER, SEGMENT_BYTES, message_of
from meta_client.refused.waiting import Waiting, WaitingMessages


def read_group(directory: Path) -> str:
    """Whose messages the directory holds. Raises ForeignStore, StorageFailed, RottenJournal."""
    segments = _open(directory)
    try:
        return segments.identity.cluster.removeprefix(CLUSTER)
    finally:
        segments.close()


def read_waiting(directory: Path) -> Iterator[tuple[Waiting, ReceivedMessage]]:
    """What waits there, first refused first. Raises as read_group, InvalidRecord, InvalidMessage, and RottenJournal
    once all that reads has been yielded."""
    segments = _open(directory)
    try:
        waiting, end = WaitingMessages(), Lsn(0)
        reading = Reading(Scanner(segments, segments.start))
        for entry in reading:
            end = entry.header.end
            if isinstance(record := decode(entry.header, entry.meta), Refused):
                waiting.apply(entry.header, record)
        for found in waiting:
            yield found, message_of(found, segments.read(found.body_lsn, found.body_bytes))
        if reading.end.verdict is Verdict.ROTTEN:
            raise ForeignStore(
                f"{directory} is rotten at LSN {end}: what stands behind is not listed; see `metaq journal check`"
            )
    finally:
        segments.close()


def _open(directory: Path) -> Segments:
    segments = Segments.open(DirectoryStorage.open_for_reading(directory), None, SEGMENT_BYTES, writable=False)
    if not len(segments) or not segments.identity.cluster.startswith(CLUSTER):
        whose = f"the journal of {segments.identity}" if len(segments) else "no journal"
        segments.close()
        raise ForeignStore(f"{directory} holds {whose}, and no refused messages: name a consumer's refused_directory")
    return segments
