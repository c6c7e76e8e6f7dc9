"""Reading a dead-letter store from outside, also while its consumer runs. Changes nothing."""

from collections.abc import Iterator
from pathlib import Path

from journal.state.inspection import open_beside_writer
from journal.wal.scan import EndVerdict
from journal.wal.segments import Segments
from journal.wal.storage import DirectoryStorage
from meta_client.consumer.dead_letters.index import DeadLetterEntry, DeadLetterIndex
from meta_client.consumer.dead_letters.store import CLUSTER, SEGMENT_BYTES, ForeignStore, message_of
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.own_journal import replay


def read_group(directory: Path) -> str:
    """Return the group whose dead letters the directory holds. Raises ForeignStore, StorageFailed, CorruptJournal."""
    segments = _open(directory)
    try:
        return segments.identity.cluster.removeprefix(CLUSTER)
    finally:
        segments.close()


def read_dead_letters(directory: Path) -> Iterator[tuple[DeadLetterEntry, ReceivedMessage]]:
    """Yield the waiting dead letters, oldest first. Raises as read_group, InvalidRecord, InvalidMessage; ForeignStore
    after the last readable one if the journal is corrupt."""
    segments = _open(directory)
    try:
        index = DeadLetterIndex()
        end, _ = replay(segments, index.apply)
        for found in index:
            yield found, message_of(found, segments.read(found.body_lsn, found.body_bytes))
        if end.verdict is EndVerdict.CORRUPT:
            raise ForeignStore(
                f"{directory} is corrupt at LSN {end.end}: records after it are not listed; see `metaq journal check`"
            )
    finally:
        segments.close()


def _open(directory: Path) -> Segments:
    segments = open_beside_writer(DirectoryStorage.open_for_reading(directory), SEGMENT_BYTES)
    if not len(segments) or not segments.identity.cluster.startswith(CLUSTER):
        whose = f"the journal of {segments.identity}" if len(segments) else "no journal"
        segments.close()
        raise ForeignStore(f"{directory} holds {whose}, and no dead letters: name a consumer's dead_letter_directory")
    return segments
