"""What a slave makes of what its master says; and of a master that says what it must not."""

import pytest

from journal.frame import Lsn
from journal.segments import Identity
from meta_broker.replication.errors import LinkRefused
from meta_broker.replication.frames import Anew, Data, Fetch, Frame, Hello, Part, Position, Refused, Report, Welcome
from meta_broker.replication.slave_side import BeginAnew, CheckProof, Cut, Heard, Holding, Receive, SendTail, SlaveSide

HOLDING = Holding(((1, 1, 128), (2, 2, 4000)), Lsn(128), Lsn(9000))


def side(holding: Holding = HOLDING) -> SlaveSide:
    return SlaveSide(Identity("metaq", 7), 1, holding, serves=True, product="test")


def welcome(parting: int = 8000, proof_bytes: int = 96, epoch: int = 2) -> Welcome:
    return Welcome(
        epoch=epoch,
        parting=parting,
        proof_bytes=proof_bytes,
        proof=77,
        beat_ms=500,
        silence_ms=3000,
        master="meta://m:1",
    )


def fetch(parting: int = 8000, epoch: int = 2) -> Fetch:
    return Fetch(epoch=epoch, parting=parting, proof_bytes=96, proof=77, master="meta://m:1")


def anew(checkpoint_bytes: int = 6, start: int = 4096) -> Anew:
    return Anew(
        epoch=2,
        start=start,
        checkpoint_bytes=checkpoint_bytes,
        reason="gone",
        beat_ms=500,
        silence_ms=3000,
        master="meta://m:1",
    )


def position(fence: int = 10, end: int = 20) -> Position:
    return Position(Lsn(fence), Lsn(end), 1, True, "sync")


def test_from_hello_to_the_stream() -> None:
    link = side()
    assert (link.hello.end, link.hello.lives) == (9000, HOLDING.lives)
    assert link.receive(welcome()) == CheckProof(Lsn(8000), 96, 77)
    assert link.proved(77) == Cut(Lsn(8000))
    assert link.receive(Data(Lsn(8000), b"abcd")) == Receive(Lsn(8000), b"abcd")
    assert link.receive(Data(Lsn(8004), b"e")) == Receive(Lsn(8004), b"e")
    assert link.receive(position()) == Heard(Lsn(10), Lsn(20), 1, True, "sync")
    assert (link.master, link.epoch, link.is_streaming) == ("meta://m:1", 2, True)


def test_who_has_nothing_too_much_cuts_nothing() -> None:
    link = side()
    assert link.receive(welcome(parting=9000)) == CheckProof(Lsn(9000), 96, 77)
    assert link.proved(77) is None


def test_a_master_that_lost_something_is_sent_it_once_it_has_proved_which_journal_it_has() -> None:
    link = side()
    assert link.receive(fetch()) == CheckProof(Lsn(8000), 96, 77)
    assert link.proved(77) == SendTail(Lsn(8000))
    assert not link.is_streaming
    with pytest.raises(LinkRefused, match="a Data while SENDING"):
        link.receive(Data(Lsn(8000), b"abcd"))


@pytest.mark.parametrize("asked", [fetch(parting=9001), fetch(parting=100), fetch(epoch=1)])
def test_a_master_that_asks_for_what_this_slave_does_not_have_is_sent_nothing(asked: Fetch) -> None:
    with pytest.raises(LinkRefused):
        side().receive(asked)


def test_a_master_with_another_proof_is_sent_nothing() -> None:
    link = side()
    link.receive(fetch())
    with pytest.raises(LinkRefused, match="another journal, or damage"):
        link.proved(78)


def test_another_proof_is_another_journal() -> None:
    link = side()
    link.receive(welcome())
    with pytest.raises(LinkRefused, match="differ"):
        link.proved(78)


def test_a_checkpoint_comes_in_parts_and_then_the_stream() -> None:
    link = side(Holding((), Lsn(0), Lsn(0)))
    assert link.receive(anew()) is None
    assert link.receive(position()) == Heard(Lsn(10), Lsn(20), 1, True, "sync")
    assert link.receive(Part(0, b"abc")) is None
    assert link.receive(Part(3, b"def")) == BeginAnew("gone", Lsn(4096), b"abcdef")
    assert link.receive(Data(Lsn(4096), b"x")) == Receive(Lsn(4096), b"x")


def test_a_journal_that_is_whole_needs_no_checkpoint() -> None:
    assert side().receive(anew(checkpoint_bytes=0, start=0)) == BeginAnew("gone", Lsn(0), b"")


@pytest.mark.parametrize(
    "frames",
    [
        [Refused(text="another cluster")],
        [position()],
        [Data(Lsn(9000), b"x")],
        [Report(Lsn(1))],
        [side().hello],
        [welcome(parting=9001)],
        [welcome(parting=127, proof_bytes=0)],
        [welcome(parting=200, proof_bytes=73)],
        [welcome(epoch=1)],
        [welcome(), welcome()],
        [welcome(), Data(Lsn(8000), b"x")],  # before anything was proved
        [welcome(), Part(0, b"x")],
        [anew(checkpoint_bytes=(1 << 30) + 1)],
        [anew(), Part(1, b"x")],
        [anew(), Part(0, b"1234567")],
        [anew(), Part(0, b"123"), Data(Lsn(4096), b"x")],
        [anew(checkpoint_bytes=0), Data(Lsn(4097), b"x")],
        [anew(checkpoint_bytes=0), Data(Lsn(4096), b"x"), Data(Lsn(4096), b"x")],
        [anew(checkpoint_bytes=0), position(10, 9)],
        [anew(checkpoint_bytes=0), position(10, 20), position(9, 20)],
    ],
    ids=lambda frames: " ".join(type(frame).__name__ for frame in frames),
)
def test_a_master_that_breaks_the_rules_is_left(frames: list[Frame]) -> None:
    link = side()
    for frame in frames[:-1]:
        link.receive(frame)
    with pytest.raises(LinkRefused):
        link.receive(frames[-1])
    with pytest.raises(LinkRefused):  # for good
        link.receive(Data(Lsn(4096), b"x"))


def test_hello_says_who_and_what() -> None:
    assert side().hello == Hello(
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
