"""What users hold: a member of a group with its listeners."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

from meta_client.consumer.assigned import AssignedMember
from meta_client.consumer.batch import ReceivedMessage
from meta_client.consumer.config import FETCH_BYTES, ConsumerConfig, check_group
from meta_client.consumer.exits import check_plain, contained
from meta_client.consumer.fetcher import Fetcher
from meta_client.consumer.group import GroupMember
from meta_client.consumer.holdings import Holdings
from meta_client.consumer.listening import BatchListener, MessageListener
from meta_client.consumer.offsets import NoOffsetStore, OffsetStore, OffsetTracker, ZooKeeperOffsetStore
from meta_client.consumer.plan import Member, TopicPartition
from meta_client.consumer.position import Jump, Position, check_position
from meta_client.consumer.pulling import PullBuffer
from meta_client.consumer.rebalances import Rebalance
from meta_client.consumer.refusing import OnReject, RetryPolicy, reject_handler
from meta_client.consumer.sifting import Accept, DuplicateCache, Sieve
from meta_client.consumer.subscription import Acknowledge, Subscription, subscription
from meta_client.consumer.watchdog import Finding
from meta_client.consumer.workers import Threads, Workers
from meta_client.errors import ConsumerMisuse
from meta_client.identity import host_name
from meta_client.offset_stores.in_transaction import TransactionOffsetStore
from meta_client.puts import parse_partition
from meta_client.refused.parking import Parking
from meta_client.refused.waiting import Waiting
from meta_client.transport import Transports
from zk.forks import in_its_own_process, made_here
from zk.membership import new_consumer_id
from zk.nodes import Partition
from zk.ownership import Ownership
from zk.paths import check_name
from zk.session import SessionEvent, ZooKeeperSession

NO_GROUP = "metaq-assigned"  # what brokers' statistics show of a consumer without a group


class Consumer:
    """Receives the messages of its share of partitions, each at least once. Client.consumer() makes it.

    subscribe(), perhaps assign(), then start(), then close(), which a context manager does too; all on one thread, not
    a listener's.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        connections: Transports,
        group: str | None,
        offsets: OffsetStore | None,
        config: ConsumerConfig,
        closed: Callable[["Consumer"], None],
        workers: Workers | None = None,
    ) -> None:
        """*group* None: of none, see assign(). *closed* is told once it is; *workers*, or threads, fetch and call
        listeners.

        Raises InvalidGroup, ConsumerMisuse, zk's InvalidName.
        """
        self.has_group = group is not None
        self.group = group = check_group(NO_GROUP if group is None else group)
        if (keeps := getattr(offsets, "group", group)) != group:
            raise ConsumerMisuse(f"a consumer of group {group} was given the offsets of group {keeps}: name one group")
        self.consumer_id = new_consumer_id(group, host_name(), config.consumer_id)
        self._session = session
        self._config = config
        self._closed = closed
        self._subscriptions: dict[str, Subscription] = {}
        self._is_moved_by_listeners = isinstance(offsets, TransactionOffsetStore)
        self._workers = workers or Threads()
        self._tracker = tracker = OffsetTracker()
        self._fetcher = Fetcher(
            group,
            connections,
            tracker,
            config.runners,
            config.fetch_timeout_s,
            config.fetch_wait_s,
            self._may_deliver,
            config.ahead,
            self._workers,
        )
        self._buffer = PullBuffer(self._fetcher.assignments, tracker, config.prefetch_bytes, self._fetcher.unpark)
        tracker.on_commit = self._buffer.report
        self._duplicates = DuplicateCache(config.duplicates_max) if config.duplicates_max else None
        default = ZooKeeperOffsetStore(session, group) if self.has_group else NoOffsetStore()
        self._store = default if offsets is None else offsets
        ownership = Ownership(session, group, self.consumer_id)
        self._holdings = Holdings(
            ownership, self._fetcher, tracker, self._store, self._subscriptions, config, self._may_deliver
        )
        self._parking = Parking(config, group, self._fetcher.assignments, self._workers)
        self._assigned: tuple[TopicPartition, ...] | None = None
        self._member: GroupMember | AssignedMember | None = None
        self._closing = threading.Lock()  # who comes second waits until it is closed
        self._is_closed = False
        made_here(self)

    def subscribe(
        self,
        topic: str,
        on_batch: BatchListener | None = None,
        max_bytes: int = FETCH_BYTES,
        *,
        on_message: MessageListener | None = None,
        accept: Accept | None = None,
        acknowledge: Acknowledge = "auto",
        retries_max: int | None = None,
        on_reject: OnReject = "stop",
    ) -> None:
        """Receive the messages of *topic*: with *on_batch* or *on_message*, called on the consumer's threads, or
        with neither, by fetch() and iteration.

        Batches, and messages, of one partition come one after the other; of several, at the same time. When the
        listener returns, they count as consumed; when it raises, they come again, each time later: the whole batch,
        or the message and what follows it. After *retries_max* repetitions (None: no limit), or when it raises
        Reject, a message is refused: *on_reject* may be "stop" (the partition stops there until resume()), "drop"
        (log it, go on), "park" (keep it in `config.refused_directory`, go on, and offer it again from time to time), or
        a function of the message and the error, which is called until it returns. Of a batch that was repeated too
        often each message is tried alone, and only what fails then is refused.

        *accept* tells which messages are delivered; the others count as consumed. With *acknowledge* "manual" nothing
        does until acknowledge(). *max_bytes* is how much to fetch at a time; a larger message comes alone.
        Each call has a copy of the context (contextvars) to itself. Raises ConsumerMisuse after start() or for a topic
        that has been subscribed to, ValueError, TypeError for a coroutine function: meta_client.aio.Client takes those.
        """
        self._check_not_started("subscribe before start()")
        if topic in self._subscriptions:
            raise ConsumerMisuse(f"topic {topic} has been subscribed to already by this consumer: use another one")
        if on_reject == "park" and self._is_moved_by_listeners:
            raise ConsumerMisuse(
                f'topic {topic}: on_reject "park" is not for a TransactionOffsetStore, which would take a message that '
                "is offered later for done: keep refused messages in your database"
            )
        if on_reject == "park" and not self._parking.has_directory:
            raise ValueError('on_reject "park" needs ConsumerConfig.refused_directory, where to')
        for what, function in (("accept", accept), ("on_reject", on_reject)):
            if callable(function):
                check_plain(topic, what, function)
        self._subscriptions[check_name(topic)] = subscription(
            on_batch=None if on_batch is None else self._workers.listener(topic, on_batch),
            on_message=None if on_message is None else self._workers.listener(topic, on_message),
            max_bytes=max_bytes,
            acknowledge=acknowledge,
            policy=RetryPolicy(retries_max, reject_handler(on_reject, self._parking.park)),
            sieve=Sieve(None if accept is None else contained(accept), self._duplicates),
            buffer=self._buffer,
            tracker=self._tracker,
        )

    def assign(self, *partitions: tuple[str, Partition | str]) -> None:
        """Consume exactly these partitions, whoever else does, instead of a share of a group's: before start(), once.

        A group's progress is loaded and stored, if there is a group, but not its ownership: a member that owns the
        same partition stores its own progress over it. Raises ConsumerMisuse.
        """
        self._check_not_started("assign before start()")
        if self._assigned is not None or not partitions:
            raise ConsumerMisuse(f"consumer {self.consumer_id}: assign() names all its partitions, at once")
        named = _places(partitions)
        if unknown := sorted({topic for topic, _ in named} - self._subscriptions.keys()):
            raise ConsumerMisuse(f"consumer {self.consumer_id}: subscribe to {', '.join(unknown)} before assign()")
        self._assigned = tuple(dict.fromkeys(named))

    def start(self) -> None:
        """Join the group and begin. Messages may come before this returns. Raises ZooKeeperError; with a
        `refused_directory` StoreInUse, ForeignStore and JournalError, too."""
        self._check_not_started("start it once")
        if not self._subscriptions:
            raise ConsumerMisuse(f"consumer {self.consumer_id} subscribes to nothing: call subscribe() first")
        if self._assigned is None and not self.has_group:
            raise ConsumerMisuse("a consumer without a group needs assign(), to know which partitions are its own")
        try:
            self._parking.open({topic: it.listener for topic, it in self._subscriptions.items() if it.listener})
            self._member = member = self._new_member()
            self._fetcher.start()
            member.start()
            self._parking.start()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Wait for the listeners to return, commit, release, leave. Idempotent."""
        if self.is_listening():
            raise ConsumerMisuse(
                f"consumer {self.consumer_id}: a listener can't close its consumer, it would wait for itself"
            )
        with self._closing, contextlib.ExitStack() as closing:  # the last one first
            if self._is_closed:
                return
            self._is_closed = True
            closing.callback(self._closed, self)
            closing.callback(self._parking.close)
            if self._member is not None:
                closing.callback(self._member.close)
            closing.callback(self._parking.stop)
            closing.callback(self._buffer.close)

    def owned(self) -> list[TopicPartition]:
        """The partitions that this consumer has at the moment."""
        return sorted(self._holdings.keys() if self._assigned is None else self._fetcher.assigned())

    def rebalances(self) -> tuple[Rebalance, ...]:
        """What the last hundred rebalances of this consumer did, oldest first. Each is in the log too."""
        return self._member.rebalances() if isinstance(self._member, GroupMember) else ()

    def findings(self) -> tuple[Finding, ...]:
        """What stands still or has no owner just now, as its watchdog found, with what to do. Each is in the log too,
        once."""
        return self._member.findings() if isinstance(self._member, GroupMember) else ()

    def is_caught_up(self) -> bool:
        """Whether each owned partition had nothing new when last asked; False while nothing is owned."""
        return self._buffer.is_empty and self._fetcher.is_caught_up()

    def fetch(self, max_messages: int = 1000, timeout_s: float | None = None) -> list[ReceivedMessage]:
        """Up to *max_messages* of the topics without a listener, in order within a partition; wait up to *timeout_s*
        (None: for ever) for the first one. Empty: the time is over, or the consumer was closed.

        What the call before returned is consumed now, unless acknowledgement is manual. One thread at a time, any.
        """
        self._check_pulled()
        if max_messages < 1:
            raise ValueError(f"max_messages {max_messages}: ask for one at least")
        return self._buffer.take(max_messages, timeout_s)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """The messages of the topics without a listener, until the consumer is closed. A message is consumed when
        the next one is asked for, or the consumer's `with` block ends without an exception."""
        return self.buffer().iterate()

    def buffer(self) -> PullBuffer:
        """What is fetched ahead for fetch() and iteration. Raises ConsumerMisuse if nothing can be."""
        self._check_pulled()
        return self._buffer

    def is_listening(self) -> bool:
        """Whether the caller is inside one of the listeners."""
        return self._fetcher.is_runner() or self._parking.is_this_thread()

    def acknowledge(self, message: ReceivedMessage) -> bool:
        """Everything in the partition up to and including *message* is consumed. Stored with the next commit. Any
        thread. False: *message* does not count any more, because its partition went to another member or was
        sought or rolled back since; whoever has it now delivers it again. Raises ConsumerMisuse unless the
        subscription is manual."""
        self._check_manual(message.topic)
        delivery = self._fetcher.assignments.delivery((message.topic, message.partition))
        window = None if delivery is None else delivery.window
        return window is not None and window.acknowledge(message)

    def rollback(self, topic: str, partition: Partition) -> bool:
        """Have everything of a partition delivered again that is not acknowledged, from the next fetch on; False:
        there is nothing, or the partition is not ours. Any thread, listeners included: what is left of their batch
        is not delivered first. Raises as acknowledge."""
        self._check_manual(topic)
        delivery = self._fetcher.assignments.delivery((topic, partition))
        window = None if delivery is None else delivery.window
        if window is None or (offset := window.close()) is None:
            return False
        return self._fetcher.order((topic, partition), Jump(offset, is_progress=False))

    def seek(self, topic: str, partition: Partition | str, to: Position) -> bool:
        """Go on elsewhere in a partition, from the next fetch on: at an offset, "earliest", "latest" or a datetime.
        The group's progress is there from then on, and what is fetched ahead is dropped; a batch that is being
        delivered is delivered to its end and does not count. Any thread. False: the partition is not ours."""
        return self._fetcher.order((topic, parse_partition(partition)), Jump(check_position(to), is_progress=True))

    def pause(self, *partitions: tuple[str, Partition | str]) -> None:
        """Fetch and deliver nothing of these partitions, pairs of a topic and a partition, until resume(), also when
        they leave and come back. A delivery that has begun goes on, and what fetch() has ahead is handed out. Any
        thread."""
        self._fetcher.hold(_places(partitions))

    def resume(self, *partitions: tuple[str, Partition | str]) -> None:
        """Let paused partitions go on, and those that stopped at a message that was refused: it is tried again."""
        self._fetcher.release(_places(partitions))

    def paused(self) -> list[TopicPartition]:
        """What pause() holds, and what stopped at a message that was refused."""
        return self._fetcher.assignments.held()

    def refuse(self, message: ReceivedMessage, error: Exception) -> None:
        """What `on_reject` says, at once, for a message of a topic without a listener, or that is acknowledged by
        hand; with "stop" its partition is paused. Whether it is consumed is another matter. Any thread. Raises what
        on_reject does; with "park" StoreFull and StorageFailed, and then the message is not kept."""
        if message.topic not in self._subscriptions:
            raise ConsumerMisuse(f"topic {message.topic} is not subscribed to by this consumer")
        if self._member is None:
            raise ConsumerMisuse(f"consumer {self.consumer_id}: start() it before refusing messages")
        if (refuse := self._subscriptions[message.topic].refuse) is None:
            self.pause((message.topic, message.partition))
        else:
            refuse(message, error)

    def refused(self) -> list[Waiting]:
        """What is parked in the local store, first refused first."""
        return self._parking.waiting()

    def redeliver(self) -> None:
        """Offer everything in the local store to the listeners now. Does not wait."""
        self._parking.redeliver()

    def on_session_event(self, event: SessionEvent) -> None:
        """On kazoo's thread."""
        if self._member is not None:
            self._member.on_session_event(event)

    def __enter__(self) -> Self:
        """Start, if there are subscriptions already; else start() is yours to call."""
        if self._subscriptions and self._member is None:
            self.start()
        return self

    @in_its_own_process
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and not self._is_closed:
            self._buffer.finish_handed()
        self.close()

    def _check_pulled(self) -> None:
        if self._member is None:
            raise ConsumerMisuse(f"consumer {self.consumer_id}: start() it before asking for messages")
        if all(it.listener is not None for it in self._subscriptions.values()):
            raise ConsumerMisuse(
                f"consumer {self.consumer_id}: all its topics have listeners, nothing is left to ask for"
            )

    def _check_manual(self, topic: str) -> None:
        if topic not in self._subscriptions or not self._subscriptions[topic].is_manual:
            raise ConsumerMisuse(f'topic {topic} is not subscribed to with acknowledge="manual" by this consumer')

    def _check_not_started(self, remedy: str) -> None:
        if self._is_closed:
            raise ConsumerMisuse(f"consumer {self.consumer_id} is closed: make another one")
        if self._member is not None:
            raise ConsumerMisuse(f"consumer {self.consumer_id} was started before: {remedy}")

    def _may_deliver(self) -> bool:
        """Nobody can be given what was assigned by hand, however long ZooKeeper is away."""
        return self._assigned is not None or self._session.lease.is_valid()

    def _new_member(self) -> GroupMember | AssignedMember:
        session, config, fetcher = self._session, self._config, self._fetcher
        if self._assigned is not None:
            return AssignedMember(
                session, self._assigned, fetcher, self._tracker, self._store, self._subscriptions, config
            )
        member = Member(self.group, self.consumer_id, frozenset(self._subscriptions))
        return GroupMember(session, member, self._holdings, fetcher, config)


def _places(pairs: Sequence[tuple[str, Partition | str]]) -> list[TopicPartition]:
    """Raises ConsumerMisuse for what is no pair, or names no partition."""
    try:
        return [(topic, parse_partition(partition)) for topic, partition in pairs]
    except (TypeError, ValueError) as error:
        raise ConsumerMisuse(f"partitions are given as pairs, (topic, partition): {error}") from error
