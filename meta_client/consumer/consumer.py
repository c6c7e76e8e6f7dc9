"""What users hold: a member of a group with its listeners."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from meta_client.connections import Connections
from meta_client.consumer.config import FETCH_BYTES, ConsumerConfig, check_bytes_max, check_group
from meta_client.consumer.fetch_request import Listener
from meta_client.consumer.fetcher import Fetcher
from meta_client.consumer.group import GroupMember, Member
from meta_client.consumer.holdings import Holdings, Subscription
from meta_client.consumer.offsets import OffsetStore, OffsetTracker, ZooKeeperOffsetStore
from meta_client.consumer.plan import TopicPartition
from meta_client.consumer.rebalances import Rebalance
from meta_client.errors import ConsumerMisuse
from meta_client.identity import host_name
from zk.membership import new_consumer_id
from zk.ownership import Ownership
from zk.paths import check_name
from zk.session import SessionEvent, ZooKeeperSession
from zk.strategy import STRATEGIES


class Consumer:
    """Receives the messages of its share of partitions, each at least once. Client.consumer() makes it.

    subscribe(), then start(), then close(), which a context manager does too; all on one thread, not a listener's.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        connections: Connections,
        group: str,
        offsets: OffsetStore | None,
        config: ConsumerConfig,
        closed: Callable[["Consumer"], None],
    ) -> None:
        """*closed* is told once it is. Raises InvalidGroup, ConsumerMisuse, zk's InvalidName."""
        self.group = check_group(group)
        if (keeps := getattr(offsets, "group", group)) != group:
            raise ConsumerMisuse(f"a consumer of group {group} was given the offsets of group {keeps}: name one group")
        self.consumer_id = new_consumer_id(group, host_name(), config.consumer_id)
        self._session = session
        self._config = config
        self._closed = closed
        self._subscriptions: dict[str, Subscription] = {}
        tracker = OffsetTracker()
        self._fetcher = Fetcher(
            group,
            connections,
            tracker,
            config.runners,
            config.fetch_timeout_s,
            config.fetch_wait_s,
            session.lease.is_valid,
        )
        self._holdings = Holdings(
            Ownership(session, group, self.consumer_id),
            self._fetcher,
            tracker,
            ZooKeeperOffsetStore(session, group) if offsets is None else offsets,
            self._subscriptions,
            config,
        )
        self._member: GroupMember | None = None
        self._is_closed = False

    def subscribe(self, topic: str, on_batch: Listener, max_bytes: int = FETCH_BYTES) -> None:
        """Call *on_batch* with every batch of *topic*, on one of the consumer's threads.

        Batches of one partition come one after the other; of several, at the same time. When it returns, the batch
        counts as consumed; when it raises, the same messages come again, later. *max_bytes* is how much to fetch at
        a time; a larger message comes alone. Raises ConsumerMisuse after start() or for a topic that has a listener.
        """
        if self._member is not None or self._is_closed:
            raise ConsumerMisuse(f"consumer {self.consumer_id}: subscribe before start()")
        if topic in self._subscriptions:
            raise ConsumerMisuse(f"topic {topic} has been subscribed to already by this consumer: use another one")
        self._subscriptions[check_name(topic)] = Subscription(on_batch, check_bytes_max(max_bytes))

    def start(self) -> None:
        """Join the group and begin. Messages may come before this returns. Raises ZooKeeperError."""
        if self._member is not None or self._is_closed:
            raise ConsumerMisuse(f"consumer {self.consumer_id} was started before: make another one")
        if not self._subscriptions:
            raise ConsumerMisuse(f"consumer {self.consumer_id} subscribes to nothing: call subscribe() first")
        config, session = self._config, self._session
        self._member = member = GroupMember(
            session,
            Member(self.group, self.consumer_id, frozenset(self._subscriptions)),
            STRATEGIES[config.strategy],
            self._holdings,
            self._fetcher,
            config.commit_period_s,
        )
        self._fetcher.start()
        try:
            member.start()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Wait for the listeners to return, commit, release, leave. Idempotent."""
        if self._fetcher.is_runner():
            raise ConsumerMisuse(
                f"consumer {self.consumer_id}: a listener can't close its consumer, it would wait for itself"
            )
        if self._is_closed:
            return
        self._is_closed = True
        if self._member is not None:
            self._member.close()
        self._closed(self)

    def owned(self) -> list[TopicPartition]:
        """The partitions that this consumer has at the moment."""
        return sorted(self._holdings.keys())

    def rebalances(self) -> tuple[Rebalance, ...]:
        """What the last hundred rebalances of this consumer did, oldest first. Each is in the log too."""
        return () if self._member is None else self._member.rebalances()

    def is_caught_up(self) -> bool:
        """Whether each owned partition had nothing new when last asked; False while nothing is owned."""
        return self._fetcher.is_caught_up()

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
        self.close()
