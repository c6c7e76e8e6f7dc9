"""What a master begins with for a slave, and what it lets one say."""

import pytest

from journal.frame import Lsn
from journal.lives import Life
from journal.segments import Identity
from meta_broker.replication.errors import LinkRefused
from meta_broker.replication.frames import Hello
from meta_broker.replication.master_side import (
    PIECE_BYTES_MAX,
    Extent,
    FromAnew,
    Lacking,
    MasterSide,
    Share,
    drops,
    judge,
)

OURS = Extent([Life(1, 1, Lsn(128)), Life(1, 2, Lsn(1000)), Life(2, 3, Lsn(5000))], Lsn(128), Lsn(9000))
IDENTITY = Identity("metaq", 7)


def hello(*lives: tuple[int, int, int], end: int, start: int = 128, cluster: str = "metaq", version: int = 1) -> Hello:
    return Hello(version=version, cluster=cluster, broker_id=7, slave_id=1, lives=lives, start=start, end=end)


@pytest.mark.parametrize(
    ("said", "parting"),
    [
        (hello((1, 1, 128), (1, 2, 1000), (2, 3, 5000), end=9000), 9000),
        (hello((1, 1, 128), (1, 2, 1000), (2, 3, 5000), end=6000), 6000),
        (hello((1, 1, 128), (1, 2, 1000), end=4000), 4000),
        (hello((1, 1, 128), (1, 2, 1000), end=7000), 5000),  # the old master, with a tail that nobody else had
        (hello((1, 1, 128), (1, 2, 1000), (1, 3, 5400), end=7000), 5000),  # the same, restarted since
        (hello((1, 1, 128), end=1000), 1000),
    ],
)
def test_where_the_logs_part(said: Hello, parting: int) -> None:
    assert judge(said, IDENTITY, OURS) == Share(Lsn(parting))


def test_who_has_nothing_and_who_has_nothing_of_use_begins_anew() -> None:
    assert judge(hello(end=0, start=0), IDENTITY, OURS) == FromAnew("it has no journal yet", is_empty=True)
    unknown = judge(hello((1, 9, 128), end=900), IDENTITY, OURS)
    assert isinstance(unknown, FromAnew)
    assert not unknown.is_empty
    later = OURS._replace(start=Lsn(4224))
    assert isinstance(judge(hello((1, 1, 128), end=900), IDENTITY, later), FromAnew)
    assert judge(hello((1, 1, 128), (1, 2, 1000), end=4224), IDENTITY, later) == Share(Lsn(4224))
    assert isinstance(judge(hello((1, 1, 128), (1, 2, 1000), end=6000, start=5500), IDENTITY, OURS), FromAnew)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (hello((1, 1, 128), end=900, cluster="other"), "is of broker 7 of cluster 'other'"),
        (hello((1, 1, 128), end=900, version=2), "version 2"),
        (hello((3, 4, 5000), end=5100), "epoch 3, this master has epoch 2: it was superseded"),
        (hello((2, 3, 5000), (1, 1, 128), end=9000), "do not rise"),
        (hello((2, 3, 5000), (2, 3, 5000), end=9000), "do not rise"),
        (hello((1, 2, 1000), (2, 3, 5000), end=9001), "which ends at 9000"),
    ],
)
def test_who_is_refused(said: Hello, why: str) -> None:
    with pytest.raises(LinkRefused, match=why):
        judge(said, IDENTITY, OURS)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (hello((1, 2, 1000), (2, 3, 5000), end=6000), Share(Lsn(6000))),  # it was sent some of the newest life
        (hello((1, 2, 1000), (2, 3, 5000), end=5000), Share(Lsn(5000))),
        (hello((1, 2, 1000), (2, 2, 4000), end=4500), Share(Lsn(4500))),
        (hello((1, 2, 1000), (2, 2, 4000), end=5000), Share(Lsn(5000))),
        (hello((1, 2, 1000), (2, 2, 4000), end=5055), Share(Lsn(5000))),  # no record is so short
        (hello((1, 2, 1000), (2, 2, 4000), end=5056), Lacking(Lsn(5000))),
        (hello((1, 2, 1000), (2, 2, 4000), end=9999), Lacking(Lsn(5000))),
        # It was restarted before, on less than the slave has.
        (hello((1, 2, 1000), (2, 1, 3000), end=4500), Lacking(Lsn(4000))),
        # The directory is an older copy of itself: its newest life has the numbers of the one that the slave knows.
        (hello((2, 2, 4000), (2, 3, 5000), end=9001), Lacking(Lsn(5000))),
        (hello((2, 2, 4000), (2, 3, 5000), end=9000), Lacking(Lsn(5000))),
        (hello((2, 2, 4000), (2, 3, 5000), (2, 4, 8000), end=9001), Lacking(Lsn(5000))),
        (hello(end=0, start=0), FromAnew("it has no journal yet", is_empty=True)),
        # Of an older epoch it is no authority: the master was promoted since.
        (hello((1, 2, 1000), end=7000), Share(Lsn(3000))),
    ],
)
def test_a_slave_that_has_all_that_was_acknowledged_is_asked_for_what_is_not_here(
    said: Hello, found: Share | Lacking | FromAnew
) -> None:
    lives = [Life(1, 2, Lsn(1000)), Life(2, 1, Lsn(3000)), Life(2, 2, Lsn(4000)), Life(2, 3, Lsn(5000))]
    ours = Extent(lives, Lsn(128), Lsn(9000))
    assert judge(said, IDENTITY, ours, is_authority=True, was_fed=isinstance(found, Share)) == found
    assert drops(said, found) == (isinstance(found, Share) and found.parting < said.end)


@pytest.mark.parametrize(
    ("said", "what"),
    [
        (hello((2, 9, 128), end=9999), "shares nothing with this master"),
        (hello((2, 2, 4000), end=9999, start=6000), "shares the journal up to LSN 5000 with this master"),
    ],
)
def test_such_a_slave_is_never_told_to_begin_anew(said: Hello, what: str) -> None:
    ours = Extent([Life(2, 2, Lsn(4000)), Life(2, 3, Lsn(5000))], Lsn(128), Lsn(9000))
    with pytest.raises(LinkRefused, match=f"slave 1 was in sync and {what}, which lost the rest: .*`metaq promote`"):
        judge(said, IDENTITY, ours, is_authority=True)


def test_pieces_are_bounded_and_stay_in_a_segment() -> None:
    side = MasterSide(1, Lsn(1000))
    assert side.next_bytes(Lsn(1000), Lsn(1 << 30)) == 0
    assert side.next_bytes(Lsn(900), Lsn(1 << 30)) == 0
    assert side.next_bytes(Lsn(1100), Lsn(1 << 30)) == 100
    assert side.next_bytes(Lsn(1100), Lsn(1040)) == 40
    assert side.next_bytes(Lsn(1 << 29), Lsn(1 << 30)) == PIECE_BYTES_MAX
    side.went(100)
    assert side.sent == 1100


def test_a_report_beyond_what_was_sent_or_below_the_last_one_is_refused() -> None:
    side = MasterSide(1, Lsn(1000))
    side.went(500)
    side.report(Lsn(900))  # it has cut less than it could have: what it has, it has
    side.report(Lsn(1500))
    for bad in (1501, 1499):
        with pytest.raises(LinkRefused, match="slave 1"):
            side.report(Lsn(bad))
    assert side.reported == 1500
