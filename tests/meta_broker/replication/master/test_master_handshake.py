"""First messages of a master to a slave, and the handshakes it refuses."""

import pytest

from journal.records.epoch_history import WriterEpoch
from journal.records.header import Lsn
from journal.wal.segments import JournalIdentity
from meta_broker.replication.link_protocol import CHUNK_BYTES_MAX, Handshake, LinkRefused
from meta_broker.replication.master.handshake import (
    MasterJournal,
    SendProgress,
    StartFetch,
    StartResync,
    StartStream,
    decide_start,
    would_truncate,
)

OURS = MasterJournal(
    [WriterEpoch(1, 1, Lsn(128)), WriterEpoch(1, 2, Lsn(1000)), WriterEpoch(2, 3, Lsn(5000))], Lsn(128), Lsn(9000)
)
IDENTITY = JournalIdentity("metaq", 7)


def handshake(
    *epoch_history: tuple[int, int, int], end: int, start: int = 128, cluster: str = "metaq", version: int = 1
) -> Handshake:
    return Handshake(
        version=version, cluster=cluster, broker_id=7, slave_id=1, epoch_history=epoch_history, start=start, end=end
    )


@pytest.mark.parametrize(
    ("said", "divergence_lsn"),
    [
        (handshake((1, 1, 128), (1, 2, 1000), (2, 3, 5000), end=9000), 9000),
        (handshake((1, 1, 128), (1, 2, 1000), (2, 3, 5000), end=6000), 6000),
        (handshake((1, 1, 128), (1, 2, 1000), end=4000), 4000),
        (handshake((1, 1, 128), (1, 2, 1000), end=7000), 5000),  # the old master, with a tail that nobody else had
        (handshake((1, 1, 128), (1, 2, 1000), (1, 3, 5400), end=7000), 5000),  # the same, restarted since
        (handshake((1, 1, 128), end=1000), 1000),
    ],
)
def test_where_the_logs_part(said: Handshake, divergence_lsn: int) -> None:
    assert decide_start(said, IDENTITY, OURS) == StartStream(Lsn(divergence_lsn))


def test_an_empty_and_a_useless_copy_get_a_full_resync() -> None:
    assert decide_start(handshake(end=0, start=0), IDENTITY, OURS) == StartResync(
        "it has no journal yet", is_empty=True
    )
    unknown = decide_start(handshake((1, 9, 128), end=900), IDENTITY, OURS)
    assert isinstance(unknown, StartResync)
    assert not unknown.is_empty
    later = OURS._replace(start=Lsn(4224))
    assert isinstance(decide_start(handshake((1, 1, 128), end=900), IDENTITY, later), StartResync)
    assert decide_start(handshake((1, 1, 128), (1, 2, 1000), end=4224), IDENTITY, later) == StartStream(Lsn(4224))
    assert isinstance(
        decide_start(handshake((1, 1, 128), (1, 2, 1000), end=6000, start=5500), IDENTITY, OURS), StartResync
    )


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (handshake((1, 1, 128), end=900, cluster="other"), "is of broker 7 of cluster 'other'"),
        (handshake((1, 1, 128), end=900, version=2), "version 2"),
        (handshake((3, 4, 5000), end=5100), "epoch 3, this master has epoch 2: it was superseded"),
        (handshake((2, 3, 5000), (1, 1, 128), end=9000), "are not in order"),
        (handshake((2, 3, 5000), (2, 3, 5000), end=9000), "are not in order"),
        (handshake((1, 2, 1000), (2, 3, 5000), end=9001), "which ends at 9000"),
    ],
)
def test_who_is_refused(said: Handshake, why: str) -> None:
    with pytest.raises(LinkRefused, match=why):
        decide_start(said, IDENTITY, OURS)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (
            handshake((1, 2, 1000), (2, 3, 5000), end=6000),
            StartStream(Lsn(6000)),
        ),  # it was sent some of the newest life
        (handshake((1, 2, 1000), (2, 3, 5000), end=5000), StartStream(Lsn(5000))),
        (handshake((1, 2, 1000), (2, 2, 4000), end=4500), StartStream(Lsn(4500))),
        (handshake((1, 2, 1000), (2, 2, 4000), end=5000), StartStream(Lsn(5000))),
        (handshake((1, 2, 1000), (2, 2, 4000), end=5055), StartStream(Lsn(5000))),  # no record is so short
        (handshake((1, 2, 1000), (2, 2, 4000), end=5056), StartFetch(Lsn(5000))),
        (handshake((1, 2, 1000), (2, 2, 4000), end=9999), StartFetch(Lsn(5000))),
        # It was restarted before, on less than the slave has.
        (handshake((1, 2, 1000), (2, 1, 3000), end=4500), StartFetch(Lsn(4000))),
        # The directory is an older copy of itself: its newest life has the numbers of the one that the slave knows.
        (handshake((2, 2, 4000), (2, 3, 5000), end=9001), StartFetch(Lsn(5000))),
        (handshake((2, 2, 4000), (2, 3, 5000), end=9000), StartFetch(Lsn(5000))),
        (handshake((2, 2, 4000), (2, 3, 5000), (2, 4, 8000), end=9001), StartFetch(Lsn(5000))),
        (handshake(end=0, start=0), StartResync("it has no journal yet", is_empty=True)),
        # Of an older epoch it is no authority: the master was promoted since.
        (handshake((1, 2, 1000), end=7000), StartStream(Lsn(3000))),
    ],
)
def test_a_slave_that_has_all_that_was_acknowledged_is_asked_for_what_is_not_here(
    said: Handshake, found: StartStream | StartFetch | StartResync
) -> None:
    epoch_history = [
        WriterEpoch(1, 2, Lsn(1000)),
        WriterEpoch(2, 1, Lsn(3000)),
        WriterEpoch(2, 2, Lsn(4000)),
        WriterEpoch(2, 3, Lsn(5000)),
    ]
    ours = MasterJournal(epoch_history, Lsn(128), Lsn(9000))
    assert decide_start(said, IDENTITY, ours, is_authority=True, was_streamed=isinstance(found, StartStream)) == found
    assert would_truncate(said, found) == (isinstance(found, StartStream) and found.divergence_lsn < said.end)


@pytest.mark.parametrize(
    ("said", "what"),
    [
        (handshake((2, 9, 128), end=9999), "shares nothing with this master"),
        (handshake((2, 2, 4000), end=9999, start=6000), "shares the journal up to LSN 5000 with this master"),
    ],
)
def test_such_a_slave_never_gets_a_full_resync(said: Handshake, what: str) -> None:
    ours = MasterJournal([WriterEpoch(2, 2, Lsn(4000)), WriterEpoch(2, 3, Lsn(5000))], Lsn(128), Lsn(9000))
    with pytest.raises(LinkRefused, match=f"slave 1 was in sync and {what}, which lost the rest: .*`metaq promote`"):
        decide_start(said, IDENTITY, ours, is_authority=True)


def test_pieces_are_bounded_and_stay_in_a_segment() -> None:
    side = SendProgress(1, Lsn(1000))
    assert side.next_bytes(Lsn(1000), Lsn(1 << 30)) == 0
    assert side.next_bytes(Lsn(900), Lsn(1 << 30)) == 0
    assert side.next_bytes(Lsn(1100), Lsn(1 << 30)) == 100
    assert side.next_bytes(Lsn(1100), Lsn(1040)) == 40
    assert side.next_bytes(Lsn(1 << 29), Lsn(1 << 30)) == CHUNK_BYTES_MAX
    side.advance(100)
    assert side.sent == 1100


def test_a_report_beyond_what_was_sent_or_below_the_last_one_is_refused() -> None:
    side = SendProgress(1, Lsn(1000))
    side.advance(500)
    side.report(Lsn(900))  # it has cut less than it could have: what it has, it has
    side.report(Lsn(1500))
    for bad in (1501, 1499):
        with pytest.raises(LinkRefused, match="slave 1"):
            side.report(Lsn(bad))
    assert side.reported == 1500
