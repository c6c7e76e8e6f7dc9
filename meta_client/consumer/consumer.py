"""Consumer: a member of a group, or a reader of given partitions, with its listeners."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Self

from meta_client.consumer.acknowledging import AckWindow
from meta_client.consumer.assigned import AssignedMember
from meta_client.consumer.config import FETCH_BYTES, ConsumerConfig, check_group
from meta_client.consumer.dead_letter_queue import DeadLetterQueue
from meta_client.consumer.dead_letters.index import DeadLetterEntry
from meta_client.consumer.error_policy import OnReject
from meta_client.consumer.fetcher import Fetcher
from meta_client.consumer.filtering import AcceptMessage
from meta_client.consumer.group_member import GroupMember
from meta_client.consumer.listening import BatchListener, MessageListener
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.consumer.offsets import NoOffsetStore, OffsetStore, OffsetTracker, ZooKeeperOffsetStore
from meta_client.consumer.owned_partitions import OwnedPartitions
from meta_client.consumer.position import Position, Seek, check_position, parse_partitions
from meta_client.consumer.pulling import PullBuffer
from meta_client.consumer.rebalance_history import Rebalance
from meta_client.consumer.rebalance_plan import Member
from meta_client.consumer.subscription import Acknowledge
from meta_client.consumer.subscriptions import Subscriptions
from meta_client.consumer.traffic import ConsumedTotals, PartitionLag
from meta_client.consumer.watchdog import PartitionFinding
from meta_client.consumer.workers import ThreadWorkers, Workers
from meta_client.errors import ConsumerMisuse
from meta_client.net.identity import host_name
from meta_client.net.transport import Transports
from meta_client.producer.outgoing import parse_partition
from meta_client.tracing import TRACING
from zk.forks import ProcessBound, invalidate_after_fork, skip_after_fork
from zk.groups.membership import new_consumer_id
from zk.groups.ownership import Ownership
from zk.session.session import SessionEvent, ZooKeeperSession
from zk.tree.nodes import Partition, TopicPartition

NO_GROUP = "metaq-assigned"  # shown in brokers' statistics for a consumer without a group


class Consumer(ProcessBound):
    """Receives the messages of its share of partitions, each at least once. Client.consumer() makes it.

    Call subscribe(), optionally assign(), start(), and close(), which a context manager also does; all on one thread,
    not a listener's.
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
        """*group* None: without a group, see assign(). *closed* is called after close(); *workers* (default: threads)
        fetch and call listeners.

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
        self._workers = workers or ThreadWorkers()
        self._tracker = tracker = OffsetTracker()
        self._fetcher = Fetcher(group, connections, tracker, config, self._may_deliver, self._workers)
        self._buffer = PullBuffer(self._fetcher.assignments, tracker, config.prefetch_bytes, self._fetcher.unpark)
        tracker.on_commit = self._buffer.report
        self._dead_letters = DeadLetterQueue(config, group, self._fetcher.assignments, self._workers)
        self._subscriptions = Subscriptions(
            self.consumer_id, config, self._workers, self._dead_letters, self._buffer, tracker, offsets
        )
        default = ZooKeeperOffsetStore(session, group) if self.has_group else NoOffsetStore()
        self._store = default if offsets is None else offsets
        ownership = Ownership(session, group, self.consumer_id)
        self._owned = OwnedPartitions(
            ownership, self._fetcher, tracker, self._store, self._subscriptions, config, self._may_deliver
        )
        self._assigned: tuple[TopicPartition, ...] | None = None
        self._member: GroupMember | AssignedMember | None = None
        self._closing = threading.RLock()  # close() waits for start(), and for another close()
        self._is_closed = False
        invalidate_after_fork(self)

    def subscribe(
        self,
        topic: str,
        on_batch: BatchListener | None = None,
        max_bytes: int = FETCH_BYTES,
        *,
        on_message: MessageListener | None = None,
        accept: AcceptMessage | None = None,
        acknowledge: Acknowledge = "auto",
        retries_max: int | None = None,
        on_reject: OnReject = "stop",
    ) -> None:
        """Receive the messages of *topic*: with *on_batch* or *on_message*, called on the consumer's threads, or with
        neither, by fetch() and iteration.

        A listener is called with one batch, or message, of a partition at a time; for several partitions concurrently.
        After a message *on_message* gets no further one of a partition that moves to another member meanwhile.
        When it returns, they are consumed; when it raises, they are delivered again after a growing back-off: the whole
        batch, or the message and those after it. After *retries_max* repetitions (None: no limit), or when it raises
        Reject, the message is rejected: *on_reject* may be "stop" (the partition stops there until resume()), "drop"
        (log it, continue), "dead_letter" (keep it in `config.dead_letter_directory`, continue, and redeliver it from
        time to time), or a function of the message and the error, which is called until it returns. After the last
        repetition of a batch its messages are delivered one by one, and only those that fail again are rejected.

        *accept* selects the messages to deliver; the others count as consumed. With *acknowledge* "manual" nothing is
        consumed until acknowledge(). *max_bytes* is the size of a fetch; a larger message is fetched alone. Each call
        runs in its own copy of the context (contextvars).

        Raises ConsumerMisuse after start() or for a topic subscribed to before, ValueError, TypeError for a coroutine
        function: meta_client.aio.Client takes those.
        """
        self._check_not_started("subscribe before start()")
        if (hooks := TRACING.hooks) is not None:
            on_batch = None if on_batch is None else hooks.listener(self.group, on_batch)
            on_message = None if on_message is None else hooks.listener(self.group, on_message)
        self._subscriptions.add(topic, on_batch, on_message, max_bytes, accept, acknowledge, retries_max, on_reject)

    def assign(self, *partitions: tuple[str, Partition | str]) -> None:
        """Consume exactly these partitions, also if other consumers do, instead of a share of a group's: before
        start(), once.

        With a group, its progress is loaded and stored, without ownership: a member that owns the same partition
        overwrites it with its own. Raises ConsumerMisuse.
        """
        self._check_not_started("assign before start()")
        if self._assigned is not None or not partitions:
            raise ConsumerMisuse(f"consumer {self.consumer_id}: assign() names all its partitions, at once")
        named = parse_partitions(partitions)
        if unknown := sorted({topic for topic, _ in named} - self._subscriptions.keys()):
            raise ConsumerMisuse(f"consumer {self.consumer_id}: subscribe to {', '.join(unknown)} before assign()")
        self._assigned = tuple(dict.fromkeys(named))

    def start(self) -> None:
        """Join the group and start delivery; messages may be delivered before this returns. Raises ZooKeeperError; with
        a `dead_letter_directory` also StoreInUse, ForeignStore and JournalError."""
        with self._closing:
            self._check_not_started("start it once")
            if not self._subscriptions:
                raise ConsumerMisuse(f"consumer {self.consumer_id} subscribes to nothing: call subscribe() first")
            if self._assigned is None and not self.has_group:
                raise ConsumerMisuse("a consumer without a group needs assign(), to know which partitions are its own")
            try:
                listeners = {topic: it.listener for topic, it in self._subscriptions.items() if it.listener}
                self._dead_letters.open(listeners)
                self._member = member = self._new_member()
                self._fetcher.start()
                member.start()
                self._dead_letters.start()
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Wait for the listeners to return, commit, release the partitions, and leave the group. Idempotent."""
        if self.is_listening():
            raise ConsumerMisuse(f"consumer {self.consumer_id}: a listener can't close it, it would wait for itself")
        if self._member is not None:
            self._member.cancel()
        with self._closing, contextlib.ExitStack() as closing:  # in reverse order
            if self._is_closed:
                return
            self._is_closed = True
            closing.callback(self._closed, self)
            closing.callback(self._dead_letters.close)
            if self._member is not None:
                closing.callback(self._member.close)
            closing.callback(self._dead_letters.stop)
            closing.callback(self._buffer.close)

    def owned(self) -> list[TopicPartition]:
        """Return the partitions this consumer has now."""
        return sorted(self._fetcher.assignments.assigned())

    def rebalances(self) -> tuple[Rebalance, ...]:
        """Return the last hundred rebalances of this consumer, oldest first. Each is logged too."""
        return self._member.rebalances() if isinstance(self._member, GroupMember) else ()

    def findings(self) -> tuple[PartitionFinding, ...]:
        """Return the watchdog's current findings, with remedies: partitions without progress or owner. Each is logged
        once."""
        return self._member.findings() if isinstance(self._member, GroupMember) else ()

    def lag_bytes(self) -> dict[TopicPartition, int | None]:
        """Return how many bytes of each owned partition were not delivered, or fetched ahead, when its broker last
        answered; None: it did not say, as genuine brokers do not, it is away, or ZooKeeper is. Any thread."""
        return {key: lag.bytes for key, lag in self._fetcher.assignments.lags().items()}

    def lags(self) -> dict[TopicPartition, PartitionLag]:
        """Return the lag of each owned partition in bytes, as lag_bytes() does, and in seconds. Any thread."""
        return self._fetcher.assignments.lags()

    def totals(self) -> dict[str, ConsumedTotals]:
        """Return what was delivered, and skipped, of each topic since the start. Any thread."""
        return self._fetcher.assignments.totals()

    def is_caught_up(self) -> bool:
        """Return True if this consumer has its whole share, and each of its partitions had nothing new when last asked;
        False while none is owned."""
        return self.has_whole_share() and self._buffer.is_empty and self._fetcher.assignments.is_caught_up()

    def has_whole_share(self) -> bool:
        """Return True if this consumer certainly has its whole share of the partitions, or all that were assigned;
        False while it rebalances, and while ZooKeeper does not answer. Any thread."""
        return self._member is not None and not self._fetcher.assignments.is_paused and self._member.has_whole_share()

    def fetch(self, max_messages: int = 1000, timeout_s: float | None = None) -> list[ReceivedMessage]:
        """Return up to *max_messages* of the topics without a listener, in order within a partition; wait up to
        *timeout_s* (None: no limit) for the first one. Empty after the timeout or close().

        Messages of the previous call are consumed now, unless acknowledgement is manual. One thread at a time, any.
        """
        self._check_pulled()
        if max_messages < 1:
            raise ValueError(f"max_messages {max_messages}: ask for one at least")
        messages = self._buffer.poll(max_messages, timeout_s)
        if messages and TRACING.hooks is not None:
            TRACING.hooks.received(self.group, messages)
        return messages

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Yield the messages of the topics without a listener, until the consumer is closed. A message is consumed when
        the next one is asked for, or when the consumer's `with` block ends without an exception."""
        return self.buffer().iterate()

    def buffer(self) -> PullBuffer:
        """Return what is fetched ahead. Raises ConsumerMisuse before start() or if all topics have listeners."""
        self._check_pulled()
        return self._buffer

    def is_listening(self) -> bool:
        """Return True if the caller is inside a listener."""
        return self._fetcher.is_runner() or self._dead_letters.is_this_thread()

    def acknowledge(self, message: ReceivedMessage) -> bool:
        """Mark everything in the partition up to and including *message* as consumed; stored with the next commit. Any
        thread. False: the delivery no longer counts, because the partition went to another member, was sought or
        rolled back, or its broker lost messages; what is left comes again. Raises ConsumerMisuse unless the
        subscription is manual."""
        self._subscriptions.check_manual(message.topic)
        window = self._window(message.topic, message.partition)
        return window is not None and window.acknowledge(message)

    def rollback(self, topic: str, partition: Partition) -> bool:
        """Deliver everything unacknowledged of a partition again, from the next fetch on; False: there is nothing, or
        the partition is not assigned. Any thread, also a listener's: the rest of its batch is skipped. Raises as
        acknowledge."""
        self._subscriptions.check_manual(topic)
        window = self._window(topic, partition)
        if window is None or (offset := window.rollback()) is None:
            return False
        return self._fetcher.seek((topic, partition), Seek(offset, is_progress=False))

    def seek(self, topic: str, partition: Partition | str, to: Position) -> bool:
        """Continue a partition elsewhere from the next fetch on: at an offset, "earliest", "latest" or a datetime. Sets
        the group's progress and drops messages fetched ahead; a batch in delivery is completed and does not count. Any
        thread. False: the partition is not assigned."""
        return self._fetcher.seek((topic, parse_partition(partition)), Seek(check_position(to), is_progress=True))

    def pause(self, *partitions: tuple[str, Partition | str]) -> None:
        """Stop fetching and delivery of these (topic, partition) pairs until resume(), also when they are reassigned
        meanwhile. A delivery in progress continues, and fetch() still returns messages fetched ahead. Any thread."""
        self._fetcher.assignments.pause_partitions(parse_partitions(partitions))

    def resume(self, *partitions: tuple[str, Partition | str]) -> None:
        """Resume partitions that are paused or stopped at a rejected message, which is tried again."""
        self._fetcher.resume_partitions(parse_partitions(partitions))

    def paused(self) -> list[TopicPartition]:
        """Return the partitions that are paused or stopped at a rejected message."""
        return self._fetcher.assignments.paused_partitions()

    def reject(self, message: ReceivedMessage, error: Exception) -> None:
        """Apply `on_reject` at once to a message of a topic without a listener, or with manual acknowledgement; "stop"
        pauses its partition. Does not consume the message. Any thread. Raises what on_reject does; with "dead_letter"
        StoreFull, OffsetTaken and StorageFailed, and then the message is not kept."""
        if self._member is None:
            raise ConsumerMisuse(f"consumer {self.consumer_id}: start() it before rejecting messages")
        if not self._subscriptions.reject(message, error):
            self.pause((message.topic, message.partition))

    def dead_letters(self) -> list[DeadLetterEntry]:
        """Return the dead letters kept here, oldest first."""
        return self._dead_letters.entries()

    def redeliver(self) -> None:
        """Redeliver all dead letters to the listeners now. Does not wait."""
        self._dead_letters.redeliver()

    def on_session_event(self, event: SessionEvent) -> None:
        """Pass a session event on; called on kazoo's thread."""
        if self._member is not None:
            self._member.on_session_event(event)

    def __enter__(self) -> Self:
        """Start if there are subscriptions; otherwise the caller calls start(). Raises as start."""
        if self._is_closed or (self._subscriptions and self._member is None):
            self.start()
        return self

    @skip_after_fork
    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None and not self._is_closed:
            self._buffer.finish_handed()
        self.close()

    def _check_pulled(self) -> None:
        if self._member is None:
            raise ConsumerMisuse(f"consumer {self.consumer_id}: start() it before asking for messages")
        self._subscriptions.check_pulled()

    def _window(self, topic: str, partition: Partition) -> AckWindow | None:
        request = self._fetcher.assignments.get((topic, partition))
        return None if request is None else request.delivery.window

    def _check_not_started(self, remedy: str) -> None:
        if self._is_closed:
            raise ConsumerMisuse(f"consumer {self.consumer_id} is closed: make another one")
        if self._member is not None:
            raise ConsumerMisuse(f"consumer {self.consumer_id} was started before: {remedy}")

    def _may_deliver(self) -> bool:
        """Return True while no other consumer can be given the partitions: assigned ones, or by the session's lease."""
        return self._assigned is not None or self._session.lease.is_valid()

    def _new_member(self) -> GroupMember | AssignedMember:
        session, config, fetcher, topics = self._session, self._config, self._fetcher, self._subscriptions
        if self._assigned is not None:
            return AssignedMember(session, self._assigned, fetcher, self._tracker, self._store, topics, config)
        member = Member(self.group, self.consumer_id, frozenset(topics))
        return GroupMember(session, member, self._owned, fetcher, config)
