"""Group member for tasks, with coroutines as listeners. Twin of meta_client/consumer/consumer.py.

Fetching, delivery, acknowledgement and error handling are that package's rules, run in tasks; membership and
rebalancing run in its thread, which tasks never wait for.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Self

from meta_client.aio.bridge.bridge import in_thread, open_in_thread, run
from meta_client.consumer.config import FETCH_BYTES
from meta_client.consumer.consumer import Consumer as Rules
from meta_client.consumer.dead_letters.index import DeadLetterEntry
from meta_client.consumer.error_policy import OnReject
from meta_client.consumer.filtering import AcceptMessage
from meta_client.consumer.messages.batch import Batch
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.consumer.position import Position
from meta_client.consumer.rebalance_history import Rebalance
from meta_client.consumer.subscription import Acknowledge
from meta_client.consumer.watchdog import PartitionFinding
from meta_client.errors import ConsumerMisuse
from zk.forks import ProcessBound, invalidate_after_fork, skip_after_fork
from zk.tree.nodes import Partition, TopicPartition


class Consumer(ProcessBound):
    """Receives the messages of its share of partitions, each at least once. Made by Client.consumer().

    subscribe(), then `async with`, or start() and close(). Loop thread only.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        invalidate_after_fork(self)

    @property
    def group(self) -> str:
        """Name of the group."""
        return self._rules.group

    @property
    def consumer_id(self) -> str:
        """The consumer's name in the group."""
        return self._rules.consumer_id

    def subscribe(
        self,
        topic: str,
        on_batch: Callable[[Batch], Awaitable[object]] | None = None,
        max_bytes: int = FETCH_BYTES,
        *,
        on_message: Callable[[ReceivedMessage], Awaitable[object]] | None = None,
        accept: AcceptMessage | None = None,
        acknowledge: Acknowledge = "auto",
        retries_max: int | None = None,
        on_reject: OnReject = "stop",
    ) -> None:
        """Receive the messages of *topic*: with *on_batch* or *on_message*, which are awaited, or with neither, by
        fetch() and `async for`.

        Otherwise like meta_client.Consumer.subscribe; a cancelled listener has not consumed its messages. *accept*, and
        *on_reject* if it is a function, are plain functions and must not wait. Raises ConsumerMisuse, ValueError,
        TypeError for a listener that is a plain function, which would block the loop.
        """
        self._rules.subscribe(
            topic,
            on_batch,
            max_bytes,
            on_message=on_message,
            accept=accept,
            acknowledge=acknowledge,
            retries_max=retries_max,
            on_reject=on_reject,
        )

    def assign(self, *partitions: tuple[str, Partition | str]) -> None:
        """Consume exactly these partitions, regardless of other consumers, instead of a share of a group's. Call once,
        before start(). Otherwise like meta_client.Consumer.assign."""
        self._rules.assign(*partitions)

    async def start(self) -> None:
        """Join the group and begin. Messages may be delivered before this returns. A consumer whose start is cancelled
        is closed. Raises ZooKeeperError."""
        await open_in_thread(self._rules.start, self._rules.close)

    async def close(self) -> None:
        """Wait for the listeners to return, commit, release, leave. Idempotent; not for a listener."""
        if self._rules.is_listening():
            raise ConsumerMisuse(
                f"consumer {self.consumer_id}: a listener can't close its consumer, it would wait for itself"
            )
        await in_thread(self._rules.close)

    async def fetch(self, max_messages: int = 1000, timeout_s: float | None = None) -> list[ReceivedMessage]:
        """Return up to *max_messages* of the topics without a listener, in order within a partition. Wait up to
        *timeout_s* (None: without a limit) for the first one. Empty after the timeout, or once the consumer is closed.

        Consumes the messages of the previous call, unless acknowledgement is manual. One task at a time.
        """
        return await run(self._rules.fetch, max_messages, timeout_s)

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Yield the messages of the topics without a listener until the consumer is closed. A message is consumed when
        the next one is requested, or the consumer's `async with` block ends without an exception."""
        buffer = self._rules.buffer()
        while (fetched := await run(buffer.next_chunk)) is not None:
            try:
                for message in fetched.messages:
                    if not buffer.may_yield(fetched) and not await run(buffer.wait_for, fetched):
                        break  # its partition may have another owner now
                    fetched.out += 1
                    yield message
                    fetched.done = fetched.out
            finally:
                buffer.give_back(fetched)

    def acknowledge(self, message: ReceivedMessage) -> bool:
        """Mark everything in the partition up to and including *message* as consumed. Like
        meta_client.Consumer.acknowledge."""
        return self._rules.acknowledge(message)

    def rollback(self, topic: str, partition: Partition) -> bool:
        """Deliver everything of a partition again that is not acknowledged. Like meta_client.Consumer.rollback."""
        return self._rules.rollback(topic, partition)

    def seek(self, topic: str, partition: Partition | str, to: Position) -> bool:
        """Move to another position of a partition with the next fetch: an offset, "earliest", "latest" or a datetime.
        Like meta_client.Consumer.seek."""
        return self._rules.seek(topic, partition, to)

    def pause(self, *partitions: tuple[str, Partition | str]) -> None:
        """Stop fetching and delivering these partitions until resume(), even if ownership changes meanwhile."""
        self._rules.pause(*partitions)

    def resume(self, *partitions: tuple[str, Partition | str]) -> None:
        """Continue paused partitions, and those stopped at a rejected message, which is delivered again."""
        self._rules.resume(*partitions)

    def paused(self) -> list[TopicPartition]:
        """Partitions paused by pause(), or stopped at a rejected message."""
        return self._rules.paused()

    async def reject(self, message: ReceivedMessage, error: Exception) -> None:
        """Apply `on_reject` at once to a message of a topic without a listener, or with manual acknowledgement. Like
        meta_client.Consumer.reject."""
        await run(self._rules.reject, message, error)

    def dead_letters(self) -> list[DeadLetterEntry]:
        """List the dead-letter store, oldest first."""
        return self._rules.dead_letters()

    def redeliver(self) -> None:
        """Deliver everything in the local store to the listeners now. Does not wait."""
        self._rules.redeliver()

    def owned(self) -> list[TopicPartition]:
        """Partitions that this consumer owns at the moment."""
        return self._rules.owned()

    def rebalances(self) -> tuple[Rebalance, ...]:
        """Results of the last hundred rebalances of this consumer, oldest first. Also logged."""
        return self._rules.rebalances()

    def findings(self) -> tuple[PartitionFinding, ...]:
        """Stalled partitions and partitions without an owner, as found by the watchdog, with remedies. Each is logged
        once."""
        return self._rules.findings()

    def is_caught_up(self) -> bool:
        """True if this consumer has its whole share, and each partition had nothing new at its last fetch; False while
        nothing is owned."""
        return self._rules.is_caught_up()

    def has_whole_share(self) -> bool:
        """True if this consumer certainly has its whole share of the partitions; False while it rebalances, and while
        ZooKeeper does not answer."""
        return self._rules.has_whole_share()

    async def __aenter__(self) -> Self:
        """Start if there are subscriptions; otherwise call start() later."""
        await open_in_thread(self._rules.__enter__, self._rules.close)
        return self

    @skip_after_fork
    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await in_thread(self._rules.__exit__, kind, error, trace)
