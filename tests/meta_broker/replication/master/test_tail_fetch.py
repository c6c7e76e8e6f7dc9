"""Fetches of what a master lost: one at a time, in order, and after a failure not at once again."""

from pathlib import Path

import pytest

from journal.records.epoch_history import WriterEpoch
from journal.records.header import Lsn
from meta_broker.replication.link_protocol import Handshake, LinkRefused
from meta_broker.replication.master.tail_fetch import PAUSE_S_MAX, PAUSE_S_MIN, TailFetch

DIVERGENCE_LSN, END = Lsn(1000), 1300
EPOCH_HISTORY = (WriterEpoch(1, 1, Lsn(128)), WriterEpoch(1, 2, Lsn(1000)))


def handshake(slave_id: int = 1) -> Handshake:
    return Handshake(
        version=1, cluster="metaq", broker_id=0, slave_id=slave_id, epoch_history=((1, 1, 128),), start=0, end=END
    )


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def fetch(tmp_path: Path, clock: Clock) -> TailFetch[str]:
    return TailFetch(str(tmp_path), clock)


def test_a_tail_comes_in_pieces_and_names_the_epochs_that_it_replaces(fetch: TailFetch[str]) -> None:
    fetch.begin("one", handshake(), DIVERGENCE_LSN)
    assert fetch.add("one", DIVERGENCE_LSN, b"a" * 100, EPOCH_HISTORY) is None
    lost = fetch.add("one", Lsn(1100), memoryview(b"b" * 200), EPOCH_HISTORY)
    assert lost is not None
    assert (lost.divergence_lsn, lost.end, lost.slave_id, lost.dropped) == (
        DIVERGENCE_LSN,
        END,
        1,
        frozenset(EPOCH_HISTORY[1:]),
    )
    assert list(lost.pieces.read()) == [(DIVERGENCE_LSN, b"a" * 100), (1100, b"b" * 200)]
    assert fetch.sender is None
    lost.pieces.close()


@pytest.mark.parametrize(
    ("sender", "lsn", "data", "why"),
    [
        ("other", DIVERGENCE_LSN, b"a", "not requested"),
        ("one", Lsn(1001), b"a", "LSN 1001 where 1000 follows"),
        ("one", DIVERGENCE_LSN, b"a" * 301, "up to 1300"),
    ],
)
def test_pieces_that_do_not_belong(fetch: TailFetch[str], sender: str, lsn: Lsn, data: bytes, why: str) -> None:
    fetch.begin("one", handshake(), DIVERGENCE_LSN)
    with pytest.raises(LinkRefused, match=why):
        fetch.add(sender, lsn, data, EPOCH_HISTORY)
    assert fetch.give_up() == "one"
    with pytest.raises(LinkRefused, match="not requested"):
        fetch.add("one", DIVERGENCE_LSN, b"a", EPOCH_HISTORY)


def test_one_slave_at_a_time(fetch: TailFetch[str]) -> None:
    fetch.begin("one", handshake(), DIVERGENCE_LSN)
    with pytest.raises(LinkRefused, match="from another slave"):
        fetch.begin("two", handshake(2), DIVERGENCE_LSN)
    fetch.give_up()
    fetch.begin("two", handshake(2), DIVERGENCE_LSN)
    fetch.give_up()


@pytest.mark.parametrize(("took_s", "pause_s"), [(0.1, PAUSE_S_MIN), (5.0, 5.0), (100.0, PAUSE_S_MAX)])
def test_after_a_failure_it_waits_as_long_as_that_took_however_often(
    fetch: TailFetch[str], clock: Clock, took_s: float, pause_s: float
) -> None:
    for _ in range(10):
        fetch.begin("one", handshake(), DIVERGENCE_LSN)
        clock.now += took_s
        assert fetch.give_up() == "one"
        clock.now += pause_s - 0.01
        with pytest.raises(LinkRefused, match="tried again later"):
            fetch.begin("one", handshake(), DIVERGENCE_LSN)
        clock.now += 0.02
    assert fetch.give_up() is None


def test_a_disk_that_takes_nothing_counts_as_a_failure(tmp_path: Path, clock: Clock) -> None:
    fetch = TailFetch[str](str(tmp_path / "missing"), clock)
    with pytest.raises(LinkRefused, match="a file for what this master lost"):
        fetch.begin("one", handshake(), DIVERGENCE_LSN)
    with pytest.raises(LinkRefused, match="tried again later"):
        fetch.begin("one", handshake(), DIVERGENCE_LSN)
    assert fetch.sender is None
