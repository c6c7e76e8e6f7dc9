"""What users hold: a member of a group with its listeners."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from meta_client.consumer.batch import ReceivedMessage
from meta_client.consumer.config import FETCH_BYTES, ConsumerConfig, check_group
from meta_client.consumer.fetcher import Fetcher
from meta_client.consumer.group import GroupMember
from meta_client.consumer.holdings import Holdings
from meta_client.consumer.listening import BatchListener, MessageListener
from meta_client.consumer.offsets import OffsetStore, OffsetTracker, ZooKeeperOffsetStore
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
from meta_client.refused.redelivery import Redelivery
from meta_client.refused.store import RefusedStore
from meta_client.refused.waiting import Waiting
from meta_client.transport import Transports
from zk.membership import new_consumer_id
from zk.nodes import Partition
from zk.ownership import Ownership
from zk.paths import check_name
from zk.session import SessionEvent, ZooKeeperSession


class Consumer:
    """Receives the messages of its share of partitions, each at least once. Client.consumer() makes it.

    subscribe(), then start(), then close(), which a context manager does too; all on one thread, not a listener's.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        connections: Transports,
        group: str,
        offsets: OffsetStore | None,
        config: ConsumerConfig,
        closed: Callable[["Consumer"], None],
        workers: Workers | None = None,
    ) -> None:
        """*closed* is told once it is; *workers*, or threads, fetch and call listeners.

        Raises InvalidGroup, ConsumerMisuse, zk's InvalidName.
        """
        self.group = check_group(group)
        if (keeps := getattr(offsets, "group", group)) != group:
            raise ConsumerMisuse(f"a consumer of group {group} was given the offsets of group {keeps}: name one group")
        self.consumer_id = new_consumer_id(group, host_name(), config.consumer_id)
        self._session = session
        self._config = config
        self._closed = closed
        self._subscriptions: dict[str, Subscription] = {}
        self._workers = workers or Threads()
        self._tracker = tracker = OffsetTracker()
        self._fetcher = Fetcher(
            group,
            connections,
            tracker,
            config.runners,
            config.fetch_timeout_s,
            config.fetch_wait_s,
            session.lease.is_valid,
            config.ahead,
            self._workers,
        )
        self._buffer = PullBuffer(self._fetcher.assignments, tracker, config.prefetch_bytes, self._fetcher.unpark)
        tracker.on_commit = self._buffer.report
        self._duplicates = DuplicateCache(config.duplicates_max) if config.duplicates_max else None
        self._holdings = Holdings(
            Ownership(session, group, self.consumer_id),
            self._fetcher,
            tracker,
            ZooKeeperOffsetStore(session, group) if offsets is None else offsets,
            self._subscriptions,
            config,
        )
        self._member: GroupMember | None = None
        self._refused: RefusedStore | None = None  # from start() on, if there is a directory; like the next
        self._redelivery: Redelivery | None = None
        self._is_closed = False

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
        Raises ConsumerMisuse after start() or for a topic that has been subscribed to, ValueError.
        """
        if self._member is not None or self._is_closed:
            raise ConsumerMisuse(f"consumer {self.consumer_id}: subscribe before start()")
        if topic in self._subscriptions:
            raise ConsumerMisuse(f"topic {topic} has been subscribed to already by this consumer: use another one")
        if on_reject == "park" and self._config.refused_directory is None:
            raise ValueError('on_reject "park" needs ConsumerConfig.refused_directory, where to')
        self._subscriptions[check_name(topic)] = subscription(
            on_batch=on_batch,
            on_message=on_message,
            max_bytes=max_bytes,
            acknowledge=acknowledge,
            policy=RetryPolicy(retries_max, reject_handler(on_reject, self._park)),
            sieve=Sieve(accept, self._duplicates),
            buffer=self._buffer,
            tracker=self._tracker,
        )

    def start(self) -> None:
        """Join the group and begin. Messages may come before this returns. Raises ZooKeeperError; with a
        `refused_directory` StoreInUse, ForeignStore and JournalError, too."""
        if self._member is not None or self._is_closed:
            raise ConsumerMisuse(f"consumer {self.consumer_id} was started before: make another one")
        if not self._subscriptions:
            raise ConsumerMisuse(f"consumer {self.consumer_id} subscribes to nothing: call subscribe() first")
        config, session = self._config, self._session
        try:
            self._open_refused()
            self._member = member = GroupMember(
                session,
                Member(self.group, self.consumer_id, frozenset(self._subscriptions)),
                self._holdings,
                self._fetcher,
                config,
            )
            self._fetcher.start()
            member.start()
            if self._redelivery is not None:
                self._redelivery.start()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Wait for the listeners to return, commit, release, leave. Idempotent."""
        if self.is_listening():
            raise ConsumerMisuse(
                f"consumer {self.consumer_id}: a listener can't close its consumer, it would wait for itself"
            )
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.ExitStack() as closing:  # the last one first
            closing.callback(self._closed, self)
            if self._refused is not None:
                closing.callback(self._refused.close)
            if self._member is not None:
                closing.callback(self._member.close)
            if self._redelivery is not None:
                closing.callback(self._redelivery.close)
            closing.callback(self._buffer.close)

    def owned(self) -> list[TopicPartition]:
        """The partitions that this consumer has at the moment."""
        return sorted(self._holdings.keys())

    def rebalances(self) -> tuple[Rebalance, ...]:
        """What the last hundred rebalances of this consumer did, oldest first. Each is in the log too."""
        return () if self._member is None else self._member.rebalances()

    def findings(self) -> tuple[Finding, ...]:
        """What stands still or has no owner just now, as its watchdog found, with what to do. Each is in the log too,
        once."""
        return () if self._member is None else self._member.findings()

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
        return self._fetcher.is_runner() or (self._redelivery is not None and self._redelivery.is_this_thread())

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

    def seek(self, topic: str, partition: Partition, to: Position) -> bool:
        """Go on elsewhere in a partition, from the next fetch on: at an offset, "earliest", "latest" or a datetime.
        The group's progress is there from then on, and what is fetched ahead is dropped; a batch that is being
        delivered is delivered to its end and does not count. Any thread. False: the partition is not ours."""
        return self._fetcher.order((topic, partition), Jump(check_position(to), is_progress=True))

    def pause(self, *partitions: TopicPartition) -> None:
        """Fetch and deliver nothing of these partitions until resume(), also when they leave and come back. A
        delivery that has begun goes on, and what fetch() has ahead is handed out. Any thread."""
        self._fetcher.hold(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        """Let paused partitions go on, and those that stopped at a message that was refused: it is tried again."""
        self._fetcher.release(partitions)

    def paused(self) -> list[TopicPartition]:
        """What pause() holds, and what stopped at a message that was refused."""
        return self._fetcher.assignments.held()

    def refuse(self, message: ReceivedMessage, error: Exception) -> None:
        """What `on_reject` says, at once, for a message of a topic without a listener, or that is acknowledged by
        hand; with "stop" its partition is paused. Whether it is consumed is another matter. Any thread. Raises what
        on_reject does; with "park" StoreFull and StorageFailed, and then the message is not kept."""
        if message.topic not in self._subscriptions:
            raise ConsumerMisuse(f"topic {message.topic} is not subscribed to by this consumer")
        if (refuse := self._subscriptions[message.topic].refuse) is None:
            self.pause((message.topic, message.partition))
        else:
            refuse(message, error)

    def refused(self) -> list[Waiting]:
        """What is parked in the local store, first refused first."""
        return [] if self._refused is None else self._refused.waiting()

    def redeliver(self) -> None:
        """Offer everything in the local store to the listeners now. Does not wait."""
        if self._redelivery is not None:
            self._redelivery.now()

    def _park(self, message: ReceivedMessage, error: Exception) -> None:
        assert self._refused is not None, "start() opens it before anything is delivered"
        self._workers.block(functools.partial(self._refused.park, message, error))

    def _open_refused(self) -> None:
        config = self._config
        if config.refused_directory is None:
            return
        self._refused = RefusedStore.open(
            Path(config.refused_directory), self.group, bytes_max=config.refused_bytes_max
        )
        listeners = {topic: it.listener for topic, it in self._subscriptions.items() if it.listener is not None}
        self._redelivery = Redelivery(
            self._refused, self._fetcher.assignments, listeners, config.redelivery_period_s, self.group
        )

    def on_session_event(self, event: SessionEvent) -> None:
        """On kazoo's thread."""
        if self._member is not None:
            self._member.on_session_event(event)

    def __enter__(self) -> Self:
        """Start, if there are subscriptions already; else start() is yours to call."""
        if self._subscriptions and self._member is None:
            self.start()
        return self

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
