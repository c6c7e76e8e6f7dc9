"""Replies to writes in mode sync against a dumb model: each is sent once, acknowledged or as too late."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from journal.records.extents import Extent
from journal.records.header import Lsn, Offset
from journal.records.index_updates import IndexUpdate
from journal.records.record import PartitionName
from journal.state.live_branch import AppendResult
from journal.wal.high_watermark import HighWatermark
from meta_broker.config.sections import ReplicationSection
from meta_broker.handlers.context import Context, Peer
from meta_broker.handlers.request_times import RequestTimes
from meta_broker.handlers.writes import WriteReplies
from meta_broker.store.message_store import MessageStore
from meta_client.protocol.answers import NOT_REPLICATED
from meta_client.protocol.decoder import ResponseDecoder
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.requests import Put
from meta_client.protocol.responses import Result
from meta_client.protocol.status import Status
from tests.fixtures.thoroughness import examples

TIMEOUT_S = 3
NAME, WHERE = PartitionName("orders", 0), "[partition 'orders-0']"


@dataclass
class Master:
    """A master's say on writes. Once one was late, it refuses until that is replicated."""

    high_watermark: HighWatermark
    section: ReplicationSection = field(
        default_factory=lambda: ReplicationSection(mode="sync", timeout_ms=TIMEOUT_S * 1000)
    )
    late_below: int = 0

    def why_refusing(self) -> str:
        return "late" if self.late_below > self.high_watermark.acknowledged else ""

    def mark_late(self, lsn: Lsn) -> None:
        self.late_below = lsn


@dataclass
class Store:
    """The part of a store that replies wait for; it publishes to nobody."""

    high_watermark: HighWatermark = field(default_factory=lambda: HighWatermark(Lsn(0)))
    end: int = 0
    why_at_end: str = ""
    published: int = 0
    publish_when_acknowledged: Any = None

    def __post_init__(self) -> None:
        self.journal = self.space = self
        self.publish_when_acknowledged = MessageStore.publish_when_acknowledged.__get__(self)

    def _publish_and_call(self, updates: list[IndexUpdate], action: Any, arguments: tuple[Any, ...]) -> None:
        self.published += len(updates)
        action(*arguments)


@dataclass
class Asker:
    """A peer that keeps the reply to each opaque."""

    replies: dict[int, Result] = field(default_factory=dict)
    pending_bytes: int = 0

    def add_pending(self, size: int) -> None:
        self.pending_bytes += size

    def end_pending(self, size: int) -> None:
        self.pending_bytes -= size

    def send(self, data: bytes) -> None:
        for reply in ResponseDecoder().receive_data(data):
            assert isinstance(reply, Result)
            assert reply.opaque not in self.replies, "twice"
            self.replies[reply.opaque] = reply


class Waits(NamedTuple):
    """A write that is not answered yet."""

    lsn: int
    due: float
    late_text: str


class Replies(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.times = RequestTimes()
        self.store, self.asker = Store(), Asker()
        self.master = Master(self.store.high_watermark)
        self.replies = WriteReplies(cast(Context, self), lambda: self.now)  # its `store`, `master` and `times`
        self.handle = self.replies.guarded(self.append)
        self.waiting: dict[int, Waits] = {}  # by opaque
        self.opaque = 0

    def append(self, put: Put, peer: Peer) -> None:
        """Store a put, as its handler does."""
        base, self.store.end = self.store.end, self.store.end + 10
        update = IndexUpdate(NAME, Offset(base), Extent(Lsn(base), 10, 1, 0))
        result = AppendResult(Lsn(self.store.end), [update])
        self.waiting[put.opaque] = Waits(self.store.end, self.now + TIMEOUT_S, f"put to {WHERE} at offset {base}: ")
        self.replies.send(put, peer, result, encode_result(Status.SUCCESS, b"", put.opaque))

    @rule()
    def put(self) -> None:
        self.opaque += 1
        refusing = self.master.why_refusing()
        self.handle(Put("orders", 0, 0, None, None, self.opaque, b""), cast(Peer, self.asker))
        assert (self.opaque in self.waiting) is not bool(refusing)
        if refusing:
            assert "nothing was done: late" in self.asker.replies[self.opaque].text

    @rule()
    def refuse_after_all(self) -> None:
        """A refusal waits for what was appended before it."""
        self.opaque += 1
        put = Put("orders", 0, 0, None, None, self.opaque, b"")
        self.waiting[self.opaque] = Waits(self.store.end, self.now + TIMEOUT_S, f"put to {WHERE}: ")
        self.replies.send_after_all(put, cast(Peer, self.asker), Status.FORBIDDEN, b"no")
        self._acknowledged()

    @rule(part=st.floats(0, 1))
    def replicate(self, part: float) -> None:
        acknowledged = self.store.high_watermark.acknowledged
        self.store.high_watermark.advance(acknowledged + int((self.store.end - acknowledged) * part))
        self._acknowledged()

    @rule(seconds=st.sampled_from([0.5, 1, 4]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.replies.expire()
        for opaque, waits in list(self.waiting.items()):
            if waits.due <= self.now:
                assert self.asker.replies[opaque].text.startswith(waits.late_text + NOT_REPLICATED)
                assert self.master.late_below >= waits.lsn
                del self.waiting[opaque]

    def _acknowledged(self) -> None:
        for opaque, waits in list(self.waiting.items()):
            if waits.lsn <= self.store.high_watermark.acknowledged:
                assert self.asker.replies[opaque].status in (Status.SUCCESS, Status.FORBIDDEN)
                del self.waiting[opaque]

    @invariant()
    def each_write_is_answered_or_waits(self) -> None:
        assert self.asker.replies.keys().isdisjoint(self.waiting)
        assert self.asker.replies.keys() | self.waiting.keys() == set(range(1, self.opaque + 1))

    @invariant()
    def late_writes_are_published_all_the_same(self) -> None:
        assert self.store.published == self.store.high_watermark.acknowledged // 10
        if self.store.high_watermark.acknowledged == self.store.end:
            assert self.asker.pending_bytes == 0


TestReplies = Replies.TestCase
TestReplies.settings = settings(max_examples=examples(200), stateful_step_count=40, deadline=None)
