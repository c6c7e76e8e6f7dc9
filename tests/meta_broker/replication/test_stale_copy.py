"""An older copy of a directory is told from the newest by its last writer and its end."""

from pathlib import Path

import pytest

from journal.records.header import Lsn
from journal.state.journal_state import JournalState
from journal.state.recovery import Recovered
from journal.wal.scan import EndVerdict, ScanEnd
from meta_broker.replication.stale_copy import is_behind, is_kept_by_slaves, stale_copy
from zk.brokers.journal_position import JournalPosition
from zk.brokers.replication import ReplicationNode

KNOWN = JournalPosition(epoch=2, incarnation=5, end=1000, directory="/d", host="h")


def recovered(epoch: int, incarnation: int, end: int) -> Recovered:
    scan = ScanEnd(EndVerdict.WHOLE, Lsn(end), "", None, False, (epoch, incarnation), Lsn(end))
    return Recovered(JournalState(Lsn(end), epoch, incarnation), Lsn(end), scan, 0, 0, 0)


@pytest.mark.parametrize(
    ("found", "behind"),
    [
        ((2, 5, 1000), False),
        ((2, 5, 1001), False),
        ((2, 6, 900), False),  # opened since: what it lacks was never acknowledged
        ((3, 1, 10), False),  # promoted, or restored
        ((2, 5, 999), True),
        ((2, 4, 5000), True),
        ((1, 9, 5000), True),
        ((0, 0, 0), True),  # another, empty directory
    ],
)
def test_a_directory_is_behind_if_its_last_writer_or_its_end_is_lower(
    found: tuple[int, int, int], behind: bool
) -> None:
    assert is_behind(recovered(*found), KNOWN) is behind
    assert not is_behind(recovered(*found), None)


def test_slaves_in_sync_have_what_is_missing_in_mode_sync_alone() -> None:
    node = ReplicationNode(epoch=2, mode="sync", in_sync=(1,))
    assert is_kept_by_slaves("sync", node)
    assert not is_kept_by_slaves("async", node)
    assert not is_kept_by_slaves("sync", ReplicationNode(epoch=2, mode="sync"))
    assert not is_kept_by_slaves("sync", None)


def test_the_error_names_both_sides_and_the_remedy() -> None:
    path = "/meta/metaq/journals/0"
    text = str(stale_copy(Path("/data"), 0, recovered(2, 4, 900), KNOWN, path, ""))
    for part in ("/data holds epoch 2, open 4, LSN 900", "epoch 2, open 5, LSN 1000; it was in /d on h", path):
        assert part in text
    assert "/data holds no journal" in str(stale_copy(Path("/data"), 0, recovered(0, 0, 0), KNOWN, path, ""))
    registered = str(stale_copy(Path("/data"), 0, recovered(0, 0, 0), KNOWN, path, "meta://h:1"))
    assert registered.startswith("broker 0 is registered at meta://h:1")
