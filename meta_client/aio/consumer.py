"""What tasks hold: a member of a group, its listeners coroutines. The twin of meta_client/consumer/consumer.py.

Fetching, delivery, acknowledgement and what becomes of a message that is not taken are that package's rules, which run
in tasks here; membership and rebalancing are its thread's, which tasks never wait for.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Self

from meta_client.aio.bridge import in_thread, run
from meta_client.consumer.batch import Batch, ReceivedMessage
from meta_client.consumer.config import FETCH_BYTES
from meta_client.consumer.consumer import Consumer as Rules
from meta_client.consumer.plan import TopicPartition
from meta_client.consumer.position import Position
from meta_client.consumer.rebalances import Rebalance
from meta_client.consumer.refusing import OnReject
from meta_client.consumer.sifting import Accept
from meta_client.consumer.subscription import Acknowledge
from meta_client.consumer.watchdog import Finding
from meta_client.errors import ConsumerMisuse
from meta_client.refused.waiting import Waiting
from zk.forks import in_its_own_process, made_here
from zk.nodes import Partition


class Consumer:
    """Receives the messages of its share of partitions, each at least once. Client.consumer() makes it.

    subscribe(), then `async with`, or start() and close(). Loop thread only.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        made_here(self)

    @property
    def group(self) -> str:
        """Its group's name."""
        return self._rules.group

    @property
    def consumer_id(self) -> str:
        """Its own name in the group."""
        return self._rules.consumer_id

    def subscribe(
        self,
        topic: str,
        on_batch: Callable[[Batch], Awaitable[object]] | None = None,
        max_bytes: int = FETCH_BYTES,
        *,
        on_message: Callable[[ReceivedMessage], Awaitable[object]] | None = None,
        accept: Accept | None = None,
        acknowledge: Acknowledge = "auto",
        retries_max: int | None = None,
        on_reject: OnReject = "stop",
    ) -> None:
        """Receive the messages of *topic*: with *on_batch* or *on_message*, which are awaited, or with neither, by
        fetch() and `async for`.

        meta_client.Consumer.subscribe says what the rest means; a listener that is cancelled has not taken what it
        was given. *accept*, and *on_reject* if it is a function, are plain functions and must not wait.
        Raises ConsumerMisuse, ValueError, TypeError for a listener that is a plain function, which would stop the loop.
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
        """Consume exactly these partitions, whoever else does, instead of a share of a group's: before start(), once.
        meta_client.Consumer.assign says the rest."""
        self._rules.assign(*partitions)

    async def start(self) -> None:
        """Join the group and begin. Messages may come before this returns. Raises ZooKeeperError."""
        await in_thread(self._rules.start)

    async def close(self) -> None:
        """Wait for the listeners to return, commit, release, leave. Idempotent; not for a listener."""
        if self._rules.is_listening():
            raise ConsumerMisuse(
                f"consumer {self.consumer_id}: a listener can't close its consumer, it would wait for itself"
            )
        await in_thread(self._rules.close)

    async def fetch(self, max_messages: int = 1000, timeout_s: float | None = None) -> list[ReceivedMessage]:
        """Up to *max_messages* of the topics without a listener, in order within a partition; wait up to *timeout_s*
        (None: for ever) for the first one. Empty: the time is over, or the consumer was closed.

        What the call before returned is consumed now, unless acknowledgement is manual. One task at a time.
        """
        return await run(self._rules.fetch, max_messages, timeout_s)

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """The messages of the topics without a listener, until the consumer is closed. A message is consumed when
        the next one is asked for, or the consumer's `async with` block ends without an exception."""
        buffer = self._rules.buffer()
        while (fetched := await run(buffer.next_chunk)) is not None:
            try:
                for message in fetched.messages:
                    if not buffer.may_yield(fetched) and not await run(buffer.wait_for, fetched):
                        break  # it may be another member's now
                    fetched.out += 1
                    yield message
                    fetched.done = fetched.out
            finally:
                buffer.give_back(fetched)

    def acknowledge(self, message: ReceivedMessage) -> bool:
        """Everything in the partition up to and including *message* is consumed; meta_client.Consumer.acknowledge
        says the rest."""
        return self._rules.acknowledge(message)

    def rollback(self, topic: str, partition: Partition) -> bool:
        """Have everything of a partition delivered again that is not acknowledged; meta_client.Consumer.rollback
        says the rest."""
        return self._rules.rollback(topic, partition)

    def seek(self, topic: str, partition: Partition | str, to: Position) -> bool:
        """Go on elsewhere in a partition, from the next fetch on: at an offset, "earliest", "latest" or a datetime.
        meta_client.Consumer.seek says the rest."""
        return self._rules.seek(topic, partition, to)

    def pause(self, *partitions: tuple[str, Partition | str]) -> None:
        """Fetch and deliver nothing of these partitions until resume(), also when they leave and come back."""
        self._rules.pause(*partitions)

    def resume(self, *partitions: tuple[str, Partition | str]) -> None:
        """Let paused partitions go on, and those that stopped at a message that was refused: it is tried again."""
        self._rules.resume(*partitions)

    def paused(self) -> list[TopicPartition]:
        """What pause() holds, and what stopped at a message that was refused."""
        return self._rules.paused()

    async def refuse(self, message: ReceivedMessage, error: Exception) -> None:
        """What `on_reject` says, at once, for a message of a topic without a listener, or that is acknowledged by
        hand; meta_client.Consumer.refuse says the rest."""
        await run(self._rules.refuse, message, error)

    def refused(self) -> list[Waiting]:
        """What is parked in the local store, first refused first."""
        return self._rules.refused()

    def redeliver(self) -> None:
        """Offer everything in the local store to the listeners now. Does not wait."""
        self._rules.redeliver()

    def owned(self) -> list[TopicPartition]:
        """The partitions that this consumer has at the moment."""
        return self._rules.owned()

    def rebalances(self) -> tuple[Rebalance, ...]:
        """What the last hundred rebalances of this consumer did, oldest first. Each is in the log too."""
        return self._rules.rebalances()

    def findings(self) -> tuple[Finding, ...]:
        """What stands still or has no owner just now, as its watchdog found, with what to do. Each is in the log too,
        once."""
        return self._rules.findings()

    def is_caught_up(self) -> bool:
        """Whether each owned partition had nothing new when last asked; False while nothing is owned."""
        return self._rules.is_caught_up()

    async def __aenter__(self) -> Self:
        """Start, if there are subscriptions already; else start() is yours to call."""
        await in_thread(self._rules.__enter__)
        return self

    @in_its_own_process
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await in_thread(self._rules.__exit__, kind, error, trace)
