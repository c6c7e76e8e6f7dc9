"""Tables of a master's own loss: every pair, and every short history against a dumb model of separate facts."""

import contextlib
import itertools

import pytest

from journal.records.epoch_history import WriterEpoch
from journal.records.header import Lsn
from journal.wal.segments import JournalIdentity
from meta_broker.replication.link_protocol import VERSION, Handshake, LinkRefused
from meta_broker.replication.master.handshake import MasterJournal, SendProgress, StartFetch, StartResync, StartStream
from meta_broker.replication.master.loss_check import NEXT, LossCheck, LossEvent, LossState
from zk.brokers.journal_position import JournalPosition
from zk.brokers.replication import ReplicationNode

pytestmark = pytest.mark.scenario("H06")

IDENTITY = JournalIdentity("metaq", 0)
FORMER, OWN = WriterEpoch(1, 1, Lsn(0)), WriterEpoch(2, 2, Lsn(200))
OURS = MasterJournal((FORMER, OWN), Lsn(0), Lsn(300))


def node(*slaves: int, mode: str = "sync") -> ReplicationNode:
    return ReplicationNode(epoch=1, mode="sync" if mode == "sync" else "async", in_sync=slaves, master="meta://m:1")


def hello(slave_id: int, end: int, *epochs: WriterEpoch) -> Handshake:
    return Handshake(
        version=VERSION,
        cluster="metaq",
        broker_id=0,
        slave_id=slave_id,
        start=0,
        end=end,
        epoch_history=tuple((*epoch,) for epoch in epochs),
        serves=False,
    )


def start(loss: LossCheck, said: Handshake, acknowledged: int = 0) -> StartStream | StartFetch | StartResync:
    return loss.decide_start(said, IDENTITY, OURS, Lsn(acknowledged))


def progress(slave_id: int, *, keeps_own_journal: bool = True) -> SendProgress:
    return SendProgress(slave_id, Lsn(300), keeps_own_journal=keeps_own_journal)


@pytest.mark.parametrize("found", [None, node(), node(1, mode="async")])
def test_nobody_is_waited_for_where_nobody_was_in_sync_or_mode_was_async(found: ReplicationNode | None) -> None:
    loss = LossCheck()
    loss.load(found, is_whole=False)
    assert loss.state is LossState.WHOLE
    assert not loss.unconfirmed


def test_every_event_is_in_the_table_or_cannot_come() -> None:
    assert set(NEXT) == set(LossState)
    assert all(LossEvent.SUSPECTED in events for events in NEXT.values())  # any slave may turn out to have more
    assert [state for state in NEXT if LossEvent.CONFIRMED in NEXT[state]] == [LossState.UNCONFIRMED]


class Facts:
    """The same, as separate facts."""

    def __init__(self) -> None:
        self.waits_for: set[int] = set()
        self.empty: set[int] = set()
        self.is_fetched = False

    def starts_empty(self, slave: int) -> bool:
        """Return whether it may."""
        if slave not in self.waits_for:
            self.empty.add(slave)
        return slave not in self.waits_for

    def confirms(self, slave: int) -> bool:
        if self.is_fetched or slave in self.empty or slave not in self.waits_for:
            return False
        self.waits_for.clear()
        return True


def test_every_short_history() -> None:
    steps = [(what, slave) for what in ("suspect", "start empty", "confirm", "resynced", "fetch") for slave in (1, 2)]
    reached = set()
    for history in itertools.product(steps, repeat=4):
        loss, facts = LossCheck(), Facts()
        for what, slave in history:
            if what == "suspect":
                loss.suspect({slave})
                facts.waits_for.add(slave)
            elif what == "start empty":
                may_start = facts.starts_empty(slave)
                if may_start:
                    assert start(loss, hello(slave, 0)) == StartResync("it has no journal yet", is_empty=True)
                else:
                    with pytest.raises(LinkRefused, match="has nothing now"):
                        start(loss, hello(slave, 0))
            elif what == "confirm":
                assert loss.confirm(progress(slave)) == facts.confirms(slave)
            elif what == "resynced":
                assert not loss.confirm(progress(slave, keeps_own_journal=False))
            elif facts.waits_for:  # a fetch begins with a suspicion
                loss.on_fetched()
                facts.is_fetched = True
            assert loss.unconfirmed == facts.waits_for
            assert (loss.state is LossState.FETCHED) == facts.is_fetched
            assert (loss.state is LossState.WHOLE) == (not facts.waits_for)
            reached.add(loss.state)
    assert reached == set(LossState)


def test_a_slave_that_was_in_sync_gives_back_what_is_missing_until_this_epoch_is_acknowledged() -> None:
    loss = LossCheck()
    loss.load(node(1), is_whole=True)
    more = hello(1, 400, FORMER, WriterEpoch(2, 1, Lsn(200)))  # the same epoch of an older incarnation
    assert start(loss, more) == StartFetch(Lsn(200))
    assert start(loss, more, acknowledged=250) != StartFetch(Lsn(200))
    never = hello(2, 400, FORMER, WriterEpoch(2, 1, Lsn(200)))
    assert not isinstance(start(loss, never), StartFetch)


def test_what_this_master_has_sent_itself_is_not_fetched_back() -> None:
    loss = LossCheck()
    loss.load(node(1), is_whole=True)
    said = hello(1, 300, FORMER, OWN)
    assert isinstance(start(loss, said), StartFetch)  # it knows this epoch and was not sent it: another one
    loss.on_streaming(1)
    assert start(loss, said) == StartStream(Lsn(300))


def test_nothing_is_truncated_while_something_may_be_missing() -> None:
    loss = LossCheck()
    loss.load(node(1, 2), is_whole=False)
    with pytest.raises(LinkRefused, match="before one of slaves 1, 2 connects"):
        start(loss, hello(3, 250, FORMER))
    assert loss.confirm(progress(2))
    assert start(loss, hello(3, 250, FORMER)) == StartStream(Lsn(200))


@pytest.mark.parametrize(
    ("said", "is_older"),
    [
        (hello(1, 199, FORMER), True),
        (hello(1, 200, FORMER), False),
        (hello(1, 400, FORMER, WriterEpoch(2, 1, Lsn(200))), False),
        (hello(2, 100, FORMER), False),  # nobody waits for it
    ],
)
def test_a_slave_that_is_waited_for_and_has_less_than_was_acknowledged_is_an_older_copy(
    said: Handshake, is_older: bool
) -> None:
    loss = LossCheck()
    loss.load(node(1), is_whole=False, position=JournalPosition(epoch=1, incarnation=1, end=200))
    expected = pytest.raises(LinkRefused, match="its journal ends at LSN 199") if is_older else contextlib.nullcontext()
    with expected:
        start(loss, said)
    assert loss.confirm(progress(1))
    start(loss, hello(1, 199, FORMER))  # nobody waits for it any more


def test_without_zookeeper_a_slave_with_all_of_the_former_epoch_and_more_may_have_been_in_sync() -> None:
    more = hello(7, 400, FORMER)
    assert not isinstance(start(LossCheck(knows_in_sync=True), more), StartFetch)
    found = LossCheck(knows_in_sync=False)._is_authority(more, OURS, Lsn(0))
    assert found
    assert not LossCheck(knows_in_sync=False)._is_authority(hello(7, 200, FORMER), OURS, Lsn(0))
    assert not LossCheck(knows_in_sync=False, is_sync=False)._is_authority(more, OURS, Lsn(0))
