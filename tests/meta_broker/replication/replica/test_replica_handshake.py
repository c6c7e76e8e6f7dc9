"""A slave's reactions to its master's frames, forbidden ones included."""

from itertools import product

import pytest

from journal.errors import ForeignStream, SyncSuperseded
from journal.records.header import Lsn
from journal.records.state_table import walk
from journal.wal.segments import JournalIdentity
from meta_broker.errors import BrokerError
from meta_broker.replication.link_protocol import (
    Accept,
    FetchTail,
    FlushAck,
    FullResync,
    Handshake,
    Heartbeat,
    JournalChunk,
    LinkDecoder,
    LinkFrame,
    Rejected,
    SnapshotChunk,
)
from meta_broker.replication.replica.effects import (
    Append,
    Close,
    Effect,
    End,
    ReadProof,
    Resync,
    Save,
    Send,
    SendTail,
    Show,
)
from meta_broker.replication.replica.replica import Replica, ReplicaJournal
from meta_broker.replication.replica.replica_state import (
    NEXT,
    READS_FRAMES,
    READS_LINES,
    STREAMS,
    UNLINKED,
    VERIFIES,
    E,
    S,
)
from meta_broker.version import PRODUCT_VERSION
from meta_client.protocol.responses import Result
from meta_client.protocol.status import Status
from tests.fixtures.replica_links import facts_of, shake

pytestmark = pytest.mark.scenario("H09")

HOLDING = ReplicaJournal(((1, 1, 128), (2, 2, 4000)), Lsn(128), Lsn(9000))


HELLO = Handshake(
    version=1,
    cluster="metaq",
    broker_id=7,
    slave_id=1,
    epoch_history=HOLDING.epoch_history,
    start=128,
    end=9000,
    serves=True,
    product=PRODUCT_VERSION,
)


def side(holding: ReplicaJournal = HOLDING) -> Replica:
    return shake(Replica(facts_of(JournalIdentity("metaq", 7), 1), serves=True), holding).replica


def receive(link: Replica, frame: LinkFrame) -> list[Effect]:
    return link.frame(frame, 5_000)


def is_left(link: Replica, effects: list[Effect]) -> bool:
    """Return whether the link is left for good: no frame makes it do anything more."""
    return (effects, link.state) == ([Close()], S.CLOSING) and receive(link, JournalChunk(Lsn(4096), b"x")) == []


def welcome(divergence_lsn: int = 8000, proof_bytes: int = 96, epoch: int = 2) -> Accept:
    return Accept(
        epoch=epoch,
        divergence_lsn=divergence_lsn,
        proof_bytes=proof_bytes,
        proof=77,
        heartbeat_ms=500,
        silence_ms=3000,
        master="meta://m:1",
    )


def fetch(divergence_lsn: int = 8000, epoch: int = 2) -> FetchTail:
    return FetchTail(epoch=epoch, divergence_lsn=divergence_lsn, proof_bytes=96, proof=77, master="meta://m:1")


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
    assert receive(link, welcome(divergence_lsn=9000)) == [ReadProof(Lsn(9000), 96)]
    assert sent_ack(link.proof_read(77)) == 0
    assert link.state in STREAMS
    assert receive(link, JournalChunk(Lsn(9000), b"abcd")) == [Append(Lsn(9000), b"abcd")]
    assert receive(link, JournalChunk(Lsn(9004), b"e")) == [Append(Lsn(9004), b"e")]
    assert receive(link, position()) == [Save(link.facts), Show(Lsn(10))]
    assert (link.facts.master, link.facts.epoch, link.facts.end, link.facts.heard_ms) == ("meta://m:1", 2, 20, 5_000)
    assert receive(link, position()) == []
    assert link.tick(0.0)[1:] == [Save(link.facts)]  # when it came, which no promotion goes by
    assert sent_ack(link.progress(Lsn(9004), 0)) == 9004
    assert link.progress(Lsn(9004), 0) == []
    assert sent_ack(link.tick(1.0)) == 9004


def sent_ack(effects: list[Effect]) -> int:
    """The one effect is an acknowledgement; of what?"""
    (sent,) = effects
    assert isinstance(sent, Send)
    (ack,) = LinkDecoder(FlushAck).receive_data(sent.data)
    assert isinstance(ack, FlushAck)
    return ack.flushed


def test_a_divergent_tail_is_truncated() -> None:
    link = side()
    receive(link, welcome())
    assert link.proof_read(77) == [End(Resync(Lsn(8000), "the master never had it")), Close()]
    assert link.state is S.STOPPED


def test_a_master_that_lost_something_is_sent_it_once_it_has_proved_which_journal_it_has() -> None:
    link = side()
    assert receive(link, fetch()) == [ReadProof(Lsn(8000), 96)]
    assert link.proof_read(77) == [SendTail(Lsn(8000), Lsn(9000))]
    assert link.state not in STREAMS
    assert is_left(link, receive(link, JournalChunk(Lsn(8000), b"abcd")))


@pytest.mark.parametrize("asked", [fetch(divergence_lsn=9001), fetch(divergence_lsn=100), fetch(epoch=1)])
def test_a_master_that_asks_for_what_this_slave_does_not_have_is_sent_nothing(asked: FetchTail) -> None:
    link = side()
    assert is_left(link, receive(link, asked))


@pytest.mark.parametrize("asked", [fetch(), welcome()])
def test_another_proof_is_another_journal(asked: LinkFrame, caplog: pytest.LogCaptureFixture) -> None:
    link = side()
    receive(link, asked)
    assert is_left(link, link.proof_read(78))
    link.closed("meta://m:1", "closed")
    assert "differ from this slave's: another journal, or damage" in caplog.text


def test_a_checkpoint_comes_in_parts_and_then_the_copy_starts_over() -> None:
    link = side(ReplicaJournal((), Lsn(0), Lsn(0)))
    assert receive(link, full_resync()) == []
    assert receive(link, position()) == []
    assert receive(link, SnapshotChunk(0, b"abc")) == []
    assert receive(link, SnapshotChunk(3, b"def")) == [End(Resync(Lsn(4096), "gone", b"abcdef")), Close()]


def test_a_journal_that_is_whole_needs_no_checkpoint() -> None:
    assert receive(side(), full_resync(checkpoint_bytes=0, start=0)) == [End(Resync(Lsn(0), "gone", b"")), Close()]
    link = side(ReplicaJournal((), Lsn(0), Lsn(0)))
    assert sent_ack(receive(link, full_resync(checkpoint_bytes=0, start=0))) == 0
    assert link.state in STREAMS


@pytest.mark.parametrize(
    "frames",
    [
        [Rejected(text="another cluster")],
        [position()],
        [JournalChunk(Lsn(9000), b"x")],
        [FlushAck(Lsn(1))],
        [HELLO],
        [welcome(divergence_lsn=9001)],
        [welcome(divergence_lsn=127, proof_bytes=0)],
        [welcome(divergence_lsn=200, proof_bytes=73)],
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
    link = side(HOLDING if isinstance(frames[0], Accept) else ReplicaJournal((), Lsn(4096), Lsn(4096)))
    for frame in frames[:-1]:
        receive(link, frame)
    assert is_left(link, receive(link, frames[-1]))


@pytest.mark.parametrize(
    ("error", "effect"),
    [
        (SyncSuperseded(4096, "its master was replaced"), Resync),
        (ForeignStream(4096, "another record", is_final=True), BrokerError),
        (ForeignStream(4096, "cut off"), None),
    ],
)
def test_what_the_copy_refuses_starts_it_over_or_ends_it_or_the_link(
    error: ForeignStream, effect: type[Resync | BrokerError] | None
) -> None:
    link = side(ReplicaJournal((), Lsn(0), Lsn(0)))
    receive(link, full_resync(checkpoint_bytes=0, start=0))
    effects = link.append_refused(error)
    ends = [type(one.why) for one in effects if isinstance(one, End)]
    assert ends == ([] if effect is None else [effect])
    assert effects[-1] == Close()


def test_a_proof_that_comes_when_the_link_was_left_says_nothing() -> None:
    link = side()
    receive(link, welcome())
    link.leave("silent")
    assert link.proof_read(77) == []


def test_who_does_not_replicate_is_left(caplog: pytest.LogCaptureFixture) -> None:
    link = Replica(facts_of(JournalIdentity("metaq", 7), 1), serves=True)
    link.connected(0.0)
    assert link.answered(Result(Status.SUCCESS, b"1.4.6 metaq/1 mput", 1), HOLDING) == [Close()]
    link.closed("meta://m:1", "closed")
    assert "it does not replicate, it says '1.4.6 metaq/1 mput'" in caplog.text


def test_hello_says_who_and_what() -> None:
    assert shake(Replica(facts_of(JournalIdentity("metaq", 7), 1), serves=True), HOLDING).handshake == HELLO


def test_every_pair_of_the_table_is_known_and_every_state_ends() -> None:
    for state, event in product(S, E):
        if (after := NEXT[state].get(event)) is not None:
            assert walk(NEXT, state, event) is after
        else:
            with pytest.raises(AssertionError, match=f"{event.name} while {state.name}"):
                walk(NEXT, state, event)
        assert NEXT[state][E.STOP] is S.STOPPED
    assert frozenset(S) == READS_LINES | READS_FRAMES | VERIFIES | UNLINKED
