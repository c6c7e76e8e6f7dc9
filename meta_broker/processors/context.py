"""What every processor is given: the store and its neighbours, and its view of the asking connection."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from journal.frame import Lsn
from journal.transaction_store import Transaction
from journal.xid import BranchKey, LocalKey
from meta_broker.config import BrokerConfig, TopicConfig
from meta_broker.loop_delay import LoopDelay
from meta_broker.message_ids import MessageIds
from meta_broker.processors.realtime import Realtime, Statistic
from meta_broker.replication.copy_report import CopyReport
from meta_broker.replication.master import Master
from meta_broker.store.message_store import MessageStore
from meta_broker.store.topics import Topics
from meta_broker.transactions.timeouts import Timeouts
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.messages import HEADER_BYTES
from meta_client.protocol.requests import Request
from meta_client.protocol.responses import Behind
from meta_client.protocol.status import Status

FAULTS_MAX = 1_000  # of the disk, told in the log, one line each

Attach = Callable[[asyncio.Transport, str], asyncio.Protocol | None]


class Peer(Protocol):
    """A connection, as processors see it."""

    held_bytes: int  # of answers that wait at the fence

    @property
    def name(self) -> str:
        """Where it connects from."""

    @property
    def local_transactions(self) -> dict[LocalKey, Transaction]: ...

    def send(self, data: bytes) -> None:
        """Queue bytes for the peer; dropped when it has gone."""

    def send_buffers(self, buffers: list[bytes | memoryview], size: int) -> None:
        """Queue *size* bytes in *buffers*, which are not copied."""

    def defer(self, key: BranchKey, data: bytes) -> None:
        """As send, for an answer that says nothing final of branch *key*: one that follows in this turn takes it along.

        Who pipelines a branch looks at its PREPARE's answer alone: one write, and the peer is woken once.
        """

    def take_deferred(self, key: BranchKey) -> bytes:
        """What was deferred about *key* in this turn, to be sent with what follows."""

    def promise(self, answer: bytes) -> None:
        """*answer* follows at the fence: for who may have to tell before what it would say."""

    def unanswered(self) -> None:
        """The request that is being handled has no answer, or is kept and bounded elsewhere until it has."""

    def again(self, request: Request) -> None:
        """Handle *request* once more, in its turn; dropped when the peer has gone."""

    def hold(self) -> None:
        """Handle nothing more until `go_on`: what is being handled is answered later, and before what comes next."""

    def go_on(self) -> None:
        """It is answered."""

    def retry(self, request: Request) -> None:
        """Handle *request* once more, for which the peer was held, then go on; nothing if it has gone."""

    def hand_over(self, answer: bytes, attach: Attach) -> bool:
        """Send *answer*, and let who *attach* gives speak on the connection from now on. False: it can't be."""

    def quit(self) -> None:
        """Close once everything queued is sent."""


class TopicListener(Protocol):
    """Who hears of topics that are used for the first time, or decided about."""

    def topic_used(self, topic: str) -> None: ...

    def topic_changed(self, topic: str) -> None: ...


class SlaveOf(Protocol):
    """Whom a slave follows, and how far it has got."""

    slave_id: int

    @property
    def master(self) -> str:
        """Its URL, as far as it is known; blank: not yet."""

    @property
    def is_showing(self) -> bool:
        """Whether readers may see what is here."""

    def behind(self) -> Behind: ...
    def copy(self) -> CopyReport:
        """How far its copy goes."""

    def progress(self) -> None:
        """The copy's disk got on."""


class ReadReplica(NamedTuple):
    """A slave that serves gets and fetches, and has fsynced the journal up to *flushed*."""

    slave_id: int
    flushed: Lsn


@dataclass(slots=True)
class Counters:
    """What `stats` counts since the broker started."""

    puts: int = 0
    puts_failed: int = 0
    gets: int = 0
    gets_missed: int = 0
    gets_unreadable: int = 0  # and searches: the disk does not give the messages back
    offsets: int = 0
    begins: int = 0
    xa_begins: int = 0
    commits: int = 0
    rollbacks: int = 0
    connections: int = 0  # open now


@dataclass(slots=True, kw_only=True)
class Context:
    """Shared by all processors of a broker. Loop thread only."""

    config: BrokerConfig
    store: MessageStore
    topics: Topics
    ids: MessageIds
    timeouts: Timeouts
    listener: TopicListener
    url: str  # meta://host:port, as error texts name this broker
    version: str  # the answer to `version`
    master: Master | None = None  # this broker's part in a replication
    is_stopping: bool = False  # no branch begins any more
    slave: SlaveOf | None = None  # None: this is a master
    replicas: Callable[[], Sequence[ReadReplica]] = tuple  # of a master: who could be read instead, by slave id
    counters: Counters = field(default_factory=Counters)
    loop_delay: LoopDelay = field(default_factory=LoopDelay)
    realtime: Realtime = field(default_factory=lambda: Realtime(time.monotonic))
    started: float = field(default_factory=time.monotonic)
    faults: set[str] = field(default_factory=set)  # of the disk, that the log tells of

    def is_new_fault(self, text: str) -> bool:
        """Note a fault of the disk; False: it is known, or too many are."""
        if text in self.faults or len(self.faults) >= FAULTS_MAX:
            return False
        self.faults.add(text)
        return True

    def count(self, statistic: Statistic, topic: str, count: int = 1, value: int | None = None) -> None:
        """Count for `stats realtime`, if the topic wants that."""
        if (section := self.topics.find(topic)) is not None and section.stat:
            self.realtime.add(statistic, topic, count, value)

    def count_put(self, topic: str, section: TopicConfig, messages: int, size: int) -> None:
        """As count, for *messages* messages in frames of *size* bytes. *section*: what is known of *topic*."""
        if section.stat:
            self.realtime.add(Statistic.PUT, topic, messages)
            self.realtime.add(Statistic.MESSAGE_SIZE, topic, messages, size - messages * HEADER_BYTES)

    def answer_at_fence(self, peer: Peer, opaque: int, status: Status, message: bytes = b"") -> None:
        """Answer once all that was appended so far is acknowledged.

        For every answer that depends on a branch's state, refusals too: it must not tell what a crash could undo.
        """
        answer = encode_result(status, message, opaque)
        peer.held_bytes += len(answer)
        self.store.fence.after(self.store.journal.end, _send_held, peer, answer)


def _send_held(peer: Peer, answer: bytes) -> None:
    peer.held_bytes -= len(answer)
    peer.send(answer)
