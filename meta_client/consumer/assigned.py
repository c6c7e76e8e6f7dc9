"""A consumer of given partitions, instead of a member of a group: no ownership, no rebalances.

One thread owns all of it, as in a member. Losing ZooKeeper stops no delivery: no other consumer can be given its
partitions, and brokers are found again once ZooKeeper is back.
"""

import logging
import threading
import time
from collections.abc import Collection, Mapping
from enum import Enum
from queue import Empty, SimpleQueue

from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.fetcher import Fetcher
from meta_client.consumer.listener_exit import exits_as_errors
from meta_client.consumer.offsets import OffsetStore, OffsetTracker
from meta_client.consumer.subscription import Subscription
from zk.brokers.cluster import read_brokers
from zk.errors import ZooKeeperError
from zk.session.session import SessionEvent, SessionState, ZooKeeperSession
from zk.session.watches import ChildrenChanged, ChildrenWatches
from zk.tree.nodes import TopicPartition
from zk.tree.paths import TopicKind, TopicParentKey

RETRY_S = 1.0  # after ZooKeeper, or the store of offsets, failed

_log = logging.getLogger(__name__)


class _Told(Enum):
    STOP = "close() was called"
    RESET = "an offset was reset: it has to be stored before its partition is delivered"


_Event = ChildrenChanged | SessionEvent | _Told


class AssignedMember:
    """Fetches given partitions. Call start() once, close() once; everything else runs on its own thread."""

    def __init__(
        self,
        session: ZooKeeperSession,
        partitions: Collection[TopicPartition],
        fetcher: Fetcher,
        tracker: OffsetTracker,
        store: OffsetStore,
        subscriptions: Mapping[str, Subscription],
        config: ConsumerConfig,
    ) -> None:
        self._session = session
        self._waiting = set(partitions)  # not fetched yet: no offset loaded
        self._fetcher = fetcher
        self._tracker = tracker
        self._store = store
        self._subscriptions = subscriptions
        self._config = config
        self._events: SimpleQueue[_Event] = SimpleQueue()
        self._watches = ChildrenWatches(session, self._events.put)
        self._are_brokers_stale = True
        self._commit_at = time.monotonic() + config.commit_period_s
        fetcher.on_reset = lambda: self._events.put(_Told.RESET)
        self._thread = threading.Thread(target=self._run, name="metaq assigned", daemon=True)

    def start(self) -> None:
        """Start fetching. Raises ZooKeeperError; nothing runs then."""
        self._follow_brokers()
        self._begin()
        self._fetcher.assignments.resume(0)
        self._thread.start()

    def close(self) -> None:
        """Stop delivery and store progress."""
        self._events.put(_Told.STOP)
        if self._thread.is_alive():
            self._thread.join()
        self._watches.stop()
        self._fetcher.close()
        self._commit()

    def cancel(self) -> None:
        """Do nothing: start() waits for nobody."""

    def has_whole_share(self) -> bool:
        """Return True if every partition is fetched. Any thread."""
        return not self._waiting

    def on_session_event(self, event: SessionEvent) -> None:
        """Queue a session event; called on kazoo's thread."""
        self._events.put(event)

    def _run(self) -> None:
        while self._handle(self._next_event()):
            if self._are_brokers_stale:
                try:
                    self._follow_brokers()
                except ZooKeeperError as error:
                    _log.warning("brokers not read, trying again error=%s", error)
            self._begin()
            if time.monotonic() >= self._commit_at:
                self._commit()

    def _next_event(self) -> _Event | None:
        wait_s = min(max(0.001, self._commit_at - time.monotonic()), threading.TIMEOUT_MAX)
        try:
            return self._events.get(
                timeout=min(wait_s, RETRY_S) if self._waiting or self._are_brokers_stale else wait_s
            )
        except Empty:
            return None

    def _handle(self, event: _Event | None) -> bool:
        match event:
            case _Told.STOP:
                return False
            case _Told.RESET:
                self._commit_at = 0.0
            case ChildrenChanged() | SessionEvent(SessionState.CONNECTED):
                self._are_brokers_stale = True
            case _:
                pass
        return True

    def _follow_brokers(self) -> None:
        # Watch first, then read: a change in between fires the watch.
        for topic in {topic for topic, _ in self._fetcher.assignments.assigned()} | {
            topic for topic, _ in self._waiting
        }:
            self._watches.read(self._session.paths.of(TopicParentKey(TopicKind.SUB, topic)))
        self._fetcher.set_brokers(read_brokers(self._session))
        self._are_brokers_stale = False

    def _begin(self) -> None:
        """Fetch the partitions that are not fetched yet and whose offset can be loaded."""
        for topic, partition in sorted(self._waiting):
            try:
                with exits_as_errors():
                    offset = self._store.load(topic, partition)
            except Exception as error:
                # A user's store may raise anything. Without an offset the partition can't be fetched.
                _log.warning("offset not loaded, trying again partition=%s/%s error=%r", topic, partition, error)
                continue
            self._tracker.own(topic, partition)
            self._fetcher.assign([self._subscriptions[topic].partition((topic, partition), offset, self._config)])
            self._waiting.discard((topic, partition))

    def _commit(self) -> None:
        self._commit_at = time.monotonic() + self._config.commit_period_s
        try:
            self._tracker.commit(self._store)
        except Exception as error:  # a user's store may raise anything
            _log.warning("offsets not committed, trying again later error=%r", error)
