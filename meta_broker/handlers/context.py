"""Shared context of the handlers: the store and its neighbours, and the view of the requesting connection."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from journal.records.header import Lsn
from journal.records.record import PartitionName
from journal.records.xid import BranchKey, LocalKey
from journal.state.live_branch import LiveBranch
from meta_broker.access.accounts import QuotaAccount, QuotaAccounts
from meta_broker.access.principal import Principal
from meta_broker.access.scram import Login
from meta_broker.cluster.topic_announcer import TopicAnnouncer
from meta_broker.config.broker_config import BrokerConfig, TopicConfig
from meta_broker.handlers.branch_timeouts import Timeouts
from meta_broker.handlers.loop_delay import LoopDelay
from meta_broker.handlers.message_ids import MessageIds
from meta_broker.handlers.realtime import Realtime, Statistic
from meta_broker.handlers.request_times import RequestTimes
from meta_broker.handlers.traffic import Traffic
from meta_broker.replication.master.master import Master
from meta_broker.replication.replica.receiver import ReplicaReceiver
from meta_broker.store.message_store import MessageStore
from meta_broker.store.topics import Topics
from meta_client.protocol.messages import HEADER_BYTES
from meta_client.protocol.requests import Fetch

FAULTS_MAX = 1_000  # disk errors logged, one line each

Attach = Callable[[asyncio.Transport, str], asyncio.Protocol | None]


class Peer(Protocol):
    """A connection, as handlers see it."""

    name: str  # remote address and port
    address: str  # remote, without the port
    network: str  # remote, as limits by address count it (`addresses.network_of`)
    certificate: tuple[str, ...]  # names in the peer's verified certificate
    has_logged_in: bool
    principal: Principal | None  # owner of the connection; None: not known, or this broker has no access rules
    former: tuple[Principal, ...]  # it belonged to them before another login
    login: Login | None  # one that has begun
    local_transactions: dict[LocalKey, LiveBranch]

    def become(self, principal: Principal) -> str:
        """Give the connection to *principal*. Returns a reason if that has too many connections; blank: done."""

    @property
    def account(self) -> QuotaAccount | None:
        """Account whose quota the connection uses; None: it has no limit."""

    def send(self, data: bytes) -> None:
        """Queue bytes for the peer; dropped if it is closed."""

    def send_buffers(self, buffers: list[bytes | memoryview], size: int) -> None:
        """Queue *size* bytes in *buffers*, without copying."""

    def buffer_reply(self, key: BranchKey, data: bytes) -> None:
        """Send *data*, an intermediate reply about branch *key*, together with the next one of this turn.

        A client that pipelines a branch reads only the reply to its PREPARE: one write, one wake-up.
        """

    def pop_buffered(self, key: BranchKey) -> bytes:
        """Take the replies buffered for *key* in this turn, to be sent with the next one."""

    def add_pending(self, size: int) -> None:
        """Count a reply of *size* bytes that is held for the high watermark, also once another was sent instead."""

    def end_pending(self, size: int) -> None:
        """Stop counting a reply that was held: there may be room again for requests."""

    def end_in_flight(self) -> None:
        """Stop counting the current request as in flight: it has no reply, or is bounded elsewhere until it has."""

    def enqueue(self, waiting: "WaitingFetch") -> None:
        """Complete *waiting* in its turn, under the limits of any request; dropped if the peer is closed."""

    def pause(self) -> None:
        """Handle nothing more until `resume`: the current request is answered later, before the next one."""

    def resume(self) -> None:
        """Continue after `pause`: the request is answered."""

    def upgrade(self, answer: bytes, attach: Attach) -> bool:
        """Send *answer* and switch the connection to the protocol *attach* returns; it is no client's any more.

        False, with no effect: *attach* returns None, or the peer has already sent more.
        """

    def quit(self) -> None:
        """Handle nothing more; close once all earlier requests are answered and sent, wherever they wait."""


def yield_after(peer: Peer) -> None:
    """Pause *peer* until the next turn of the loop, after a request that scanned every partition or branch.

    Otherwise others would wait for all such requests that arrived together.
    """
    peer.pause()
    asyncio.get_running_loop().call_soon(peer.resume)


@dataclass(slots=True, eq=False)
class WaitingFetch:
    """A fetch that waits, and the conditions that end its wait. It is answered once, after its wait."""

    fetch: Fetch
    peer: Peer
    name: PartitionName
    end_wanted: int  # end of the partition that ends the wait
    due_ms: int  # on the handler's clock
    number: int = 0  # order of arrival, set by `WaitingFetches.add`


class ReadReplica(NamedTuple):
    """A slave that serves gets and fetches, and has fsynced the journal up to *flushed*."""

    slave_id: int
    flushed: Lsn


@dataclass(slots=True)
class Counters:
    """Counters of `stats` since the broker started."""

    puts: int = 0
    puts_failed: int = 0
    gets: int = 0
    gets_missed: int = 0
    gets_unreadable: int = 0  # and searches: read errors of the disk
    offsets: int = 0
    begins: int = 0
    xa_begins: int = 0
    commits: int = 0
    rollbacks: int = 0
    connections: int = 0  # open now


@dataclass(slots=True, kw_only=True)
class Context:
    """Shared by all handlers of a broker. Loop thread only."""

    config: BrokerConfig
    store: MessageStore
    topics: Topics
    ids: MessageIds
    announcer: TopicAnnouncer
    url: str  # meta://host:port, as error texts name this broker
    version: str  # the answer to `version`
    master: Master | None = None  # this broker's part in a replication
    is_stopping: bool = False  # no branch begins any more
    slave: ReplicaReceiver | None = None  # None: this is a master
    replicas: Callable[[], Sequence[ReadReplica]] = tuple  # a master's readable slaves, by slave id
    timeouts: Timeouts = field(default_factory=Timeouts)
    counters: Counters = field(default_factory=Counters)
    loop_delay: LoopDelay = field(default_factory=LoopDelay)
    times: RequestTimes = field(default_factory=RequestTimes)
    traffic: Traffic = field(default_factory=Traffic)
    accounts: QuotaAccounts = field(default_factory=lambda: QuotaAccounts(time.monotonic))  # use of quotas
    realtime: Realtime = field(default_factory=lambda: Realtime(time.monotonic))
    clock: Callable[[], float] = time.monotonic  # of waits and of transactions' timeouts, in seconds
    started: float = field(default_factory=time.monotonic)
    faults: set[str] = field(default_factory=set)  # disk errors in the log

    def is_new_fault(self, text: str) -> bool:
        """Record a disk error; False: it is known, or there are too many."""
        if text in self.faults or len(self.faults) >= FAULTS_MAX:
            return False
        self.faults.add(text)
        return True

    def count(self, statistic: Statistic, topic: str) -> None:
        """Count one event for `stats realtime`, if the topic is configured for it."""
        if (section := self.topics.find(topic)) is not None and section.stat:
            self.realtime.add(statistic, topic)

    def count_put(self, topic: str, section: TopicConfig, messages: int, size: int) -> None:
        """Count *messages* messages in frames of *size* bytes. *section*: the settings of *topic*."""
        if section.stat:
            self.realtime.add(Statistic.PUT, topic, messages)
            self.realtime.add(Statistic.MESSAGE_SIZE, topic, messages, size - messages * HEADER_BYTES)
