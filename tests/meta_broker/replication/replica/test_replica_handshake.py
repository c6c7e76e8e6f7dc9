"""A slave's reactions to its master's frames, forbidden ones included."""

import pytest

from journal.records.header import Lsn
from journal.wal.segments import JournalIdentity
from meta_broker.replication.link_protocol import (
    Accept,
    FetchTail,
    FlushAck,
    FullResync,
    Handshake,
    Heartbeat,
    JournalChunk,
    LinkFrame,
    LinkRefused,
    Reject,
    SnapshotChunk,
)
from meta_broker.replication.replica.handshake import (
    AppendChunk,
    InstallSnapshot,
    MasterProgress,
    ReplicaJournal,
    ReplicaLinkState,
    SendLostTail,
    TruncateFrom,
    VerifyProof,
)

pytestmark = pytest.mark.scenario("H09")

HOLDING = ReplicaJournal(((1, 1, 128), (2, 2, 4000)), Lsn(128), Lsn(9000))


def side(holding: ReplicaJournal = HOLDING) -> ReplicaLinkState:
    return ReplicaLinkState(JournalIdentity("metaq", 7), 1, holding, serves=True, product="test")


def welcome(parting: int = 8000, proof_bytes: int = 96, epoch: int = 2) -> Accept:
    return Accept(
        epoch=epoch,
        parting=parting,
        proof_bytes=proof_bytes,
        proof=77,
        heartbeat_ms=500,
        silence_ms=3000,
        master="meta://m:1",
    )


def fetch(parting: int = 8000, epoch: int = 2) -> FetchTail:
    return FetchTail(epoch=epoch, parting=parting, proof_bytes=96, proof=77, master="meta://m:1")


def full_resync(checkpoint_bytes: int = 6, start: int = 4096) -> FullResync:
    return FullResync(
        epoch=2,
        start=start,
        checkpoint_bytes=checkpoint_bytes,
        reason="gone",
        heartbeat_ms=500,
        silence_ms=3000,
        master="meta://m:1",
    )


def position(high_watermark: int = 10, end: int = 20) -> Heartbeat:
    return Heartbeat(Lsn(high_watermark), Lsn(end), 1, True, "sync")


def test_from_hello_to_the_stream() -> None:
    link = side()
    assert (link.handshake.end, link.handshake.lives) == (9000, HOLDING.lives)
    assert link.receive(welcome()) == VerifyProof(Lsn(8000), 96, 77)
    assert link.verified(77) == TruncateFrom(Lsn(8000))
    assert link.receive(JournalChunk(Lsn(8000), b"abcd")) == AppendChunk(Lsn(8000), b"abcd")
    assert link.receive(JournalChunk(Lsn(8004), b"e")) == AppendChunk(Lsn(8004), b"e")
    assert link.receive(position()) == MasterProgress(Lsn(10), Lsn(20), 1, True, "sync")
    assert (link.master, link.epoch, link.is_streaming) == ("meta://m:1", 2, True)


def test_a_copy_without_a_divergent_tail_truncates_nothing() -> None:
    link = side()
    assert link.receive(welcome(parting=9000)) == VerifyProof(Lsn(9000), 96, 77)
    assert link.verified(77) is None


def test_a_master_that_lost_something_is_sent_it_once_it_has_proved_which_journal_it_has() -> None:
    link = side()
    assert link.receive(fetch()) == VerifyProof(Lsn(8000), 96, 77)
    assert link.verified(77) == SendLostTail(Lsn(8000))
    assert not link.is_streaming
    with pytest.raises(LinkRefused, match="a JournalChunk while SENDING_TAIL"):
        link.receive(JournalChunk(Lsn(8000), b"abcd"))


@pytest.mark.parametrize("asked", [fetch(parting=9001), fetch(parting=100), fetch(epoch=1)])
def test_a_master_that_asks_for_what_this_slave_does_not_have_is_sent_nothing(asked: FetchTail) -> None:
    with pytest.raises(LinkRefused):
        side().receive(asked)


def test_a_master_with_another_proof_is_sent_nothing() -> None:
    link = side()
    link.receive(fetch())
    with pytest.raises(LinkRefused, match="another journal, or damage"):
        link.verified(78)


def test_another_proof_is_another_journal() -> None:
    link = side()
    link.receive(welcome())
    with pytest.raises(LinkRefused, match="differ"):
        link.verified(78)


def test_a_checkpoint_comes_in_parts_and_then_the_stream() -> None:
    link = side(ReplicaJournal((), Lsn(0), Lsn(0)))
    assert link.receive(full_resync()) is None
    assert link.receive(position()) == MasterProgress(Lsn(10), Lsn(20), 1, True, "sync")
    assert link.receive(SnapshotChunk(0, b"abc")) is None
    assert link.receive(SnapshotChunk(3, b"def")) == InstallSnapshot("gone", Lsn(4096), b"abcdef")
    assert link.receive(JournalChunk(Lsn(4096), b"x")) == AppendChunk(Lsn(4096), b"x")


def test_a_journal_that_is_whole_needs_no_checkpoint() -> None:
    assert side().receive(full_resync(checkpoint_bytes=0, start=0)) == InstallSnapshot("gone", Lsn(0), b"")


@pytest.mark.parametrize(
    "frames",
    [
        [Reject(text="another cluster")],
        [position()],
        [JournalChunk(Lsn(9000), b"x")],
        [FlushAck(Lsn(1))],
        [side().handshake],
        [welcome(parting=9001)],
        [welcome(parting=127, proof_bytes=0)],
        [welcome(parting=200, proof_bytes=73)],
        [welcome(epoch=1)],
        [welcome(), welcome()],
        [welcome(), JournalChunk(Lsn(8000), b"x")],  # before anything was proved
        [welcome(), SnapshotChunk(0, b"x")],
        [full_resync(checkpoint_bytes=(1 << 30) + 1)],
        [full_resync(), SnapshotChunk(1, b"x")],
        [full_resync(), SnapshotChunk(0, b"1234567")],
        [full_resync(), SnapshotChunk(0, b"123"), JournalChunk(Lsn(4096), b"x")],
        [full_resync(checkpoint_bytes=0), JournalChunk(Lsn(4097), b"x")],
        [full_resync(checkpoint_bytes=0), JournalChunk(Lsn(4096), b"x"), JournalChunk(Lsn(4096), b"x")],
        [full_resync(checkpoint_bytes=0), position(10, 9)],
        [full_resync(checkpoint_bytes=0), position(10, 20), position(9, 20)],
    ],
    ids=lambda frames: " ".join(type(frame).__name__ for frame in frames),
)
def test_a_master_that_breaks_the_rules_is_left(frames: list[LinkFrame]) -> None:
    link = side()
    for frame in frames[:-1]:
        link.receive(frame)
    with pytest.raises(LinkRefused):
        link.receive(frames[-1])
    with pytest.raises(LinkRefused):  # for good
        link.receive(JournalChunk(Lsn(4096), b"x"))


def test_hello_says_who_and_what() -> None:
    assert side().handshake == Handshake(
        version=1,
        cluster="metaq",
        broker_id=7,
        slave_id=1,
        lives=HOLDING.lives,
        start=128,
        end=9000,
        serves=True,
        product="test",
    )
