"""A producer's view of brokers and partitions, kept fresh by ZooKeeper's watches (spec 6.6, 7.2).

Views are immutable; one thread, owned by the Topology, reads ZooKeeper and replaces them. Other threads take the
current view.
"""

import logging
import threading
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Protocol

from meta_client.errors import ClientClosed, NotConnected
from zk.brokers.cluster import master_urls, publishable_partitions, read_brokers, read_topic
from zk.errors import ZooKeeperError, ZooKeeperUnavailable
from zk.forks import invalidate_after_fork
from zk.session.session import SessionEvent, SessionState, ZooKeeperSession
from zk.session.watches import ChildrenChanged, ChildrenWatches
from zk.tree.broker_url import BrokerUrl
from zk.tree.nodes import BrokerName, Partition
from zk.tree.paths import BrokerKey, PresenceKey, TopicKind, TopicParentKey, check_name

WILDCARD_TOPIC = "*"  # registered by a broker that takes any topic; a topic gets its own nodes on its first put
RETRY_S = 1.0  # after ZooKeeper failed to answer; a reconnect triggers a retry sooner

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TopicView:
    """Brokers that take messages of one topic."""

    topic: str
    partitions: tuple[Partition, ...] = ()  # by number; all that are registered
    urls: Mapping[int, BrokerUrl] = field(default_factory=dict)  # masters that are up, by broker id
    available: tuple[Partition, ...] = ()  # those of `partitions` whose broker is up
    # `partitions` and all earlier ones: a key keeps its partition while its broker's registration is gone.
    known: tuple[Partition, ...] = ()
    by_broker: Mapping[int, tuple[Partition, ...]] = field(init=False, repr=False, compare=False)  # `available`, by id

    def __post_init__(self) -> None:
        object.__setattr__(self, "known", self.known or self.partitions)
        by_broker: dict[int, list[Partition]] = {}
        for partition in self.available:
            by_broker.setdefault(partition.broker_id, []).append(partition)
        # Computed once per view: a branch needs its broker's partitions for every message.
        object.__setattr__(self, "by_broker", {broker_id: tuple(found) for broker_id, found in by_broker.items()})

    def on_broker(self, broker_id: int) -> tuple[Partition, ...]:
        """Return the partitions of one broker; none if it is not up."""
        return self.by_broker.get(broker_id, ())


@dataclass(frozen=True, slots=True)
class _Publish:
    topic: str
    done: "Future[TopicView]"


class _Stop:
    pass


_Event = ChildrenChanged | SessionEvent | _Publish | _Stop


class Directory(Protocol):
    """Broker metadata for producers, from ZooKeeper (Topology) or from a list (direct.py)."""

    def view(self, topic: str, timeout_s: float) -> TopicView: ...

    def maybe_view(self, topic: str) -> TopicView | None: ...

    def read_masters(self) -> dict[int, BrokerUrl]: ...

    def read_absent(self, masters: Collection[int]) -> set[int]: ...

    def master_url(self, broker_id: int) -> BrokerUrl | None: ...

    def is_up(self, broker_id: int) -> bool: ...

    def start(self) -> None: ...

    def close(self) -> None: ...


class Topology:
    """Topic views of one client. Any thread may ask; call start() once, close() once."""

    def __init__(self, session: ZooKeeperSession, default_topic: str | None = None) -> None:
        """Topics that no broker offers use the partitions of *default_topic*, if given. Raises zk's InvalidName."""
        self._instead = (WILDCARD_TOPIC,) if default_topic is None else (check_name(default_topic), WILDCARD_TOPIC)
        self._session = session
        self._events: SimpleQueue[_Event] = SimpleQueue()
        self._watches = ChildrenWatches(session, self._events.put)
        self._views: dict[str, TopicView] = {}  # its thread writes, any thread reads, like the next
        self._masters: dict[int, BrokerUrl] = {}  # by broker id, as last seen in any view
        self._topics: set[str] = set()  # published; its thread alone, like the next
        self._stale: set[str] = set()  # of `_topics`: to read again
        self._thread = threading.Thread(target=self._run, name="metaq topology", daemon=True)
        invalidate_after_fork(self)

    def start(self) -> None:
        """Start following changes."""
        self._thread.start()

    def close(self) -> None:
        """Stop following changes. Waits for the thread, which ends within ZooKeeper's time limit."""
        self._events.put(_Stop())
        if self._thread.is_alive():
            self._thread.join()
        self._refuse_waiting()

    def on_session_event(self, event: SessionEvent) -> None:
        """Queue a session event. Never blocks."""
        self._events.put(event)

    def view(self, topic: str, timeout_s: float) -> TopicView:
        """Return the view of *topic*; the first call publishes the topic and follows it from then on.

        A topic that no broker offers is shown with the partitions of the default topic or of the wildcard, if there is
        one. Raises ZooKeeperError.
        """
        if (view := self._views.get(topic)) is None:
            view = self._publish(topic, timeout_s)
        if view.partitions or topic in self._instead:
            return view
        others = (self._views.get(name) or self._publish(name, timeout_s) for name in self._instead)
        return shown_as(view, others)

    def maybe_view(self, topic: str) -> TopicView | None:
        """Return the last known view of *topic*; never waits. None if view() was never called for it."""
        view = self._views.get(topic)
        if view is None or view.partitions or topic in self._instead:
            return view
        return shown_as(view, (other for name in self._instead if (other := self._views.get(name)) is not None))

    def read_masters(self) -> dict[int, BrokerUrl]:
        """Read every master that is up from ZooKeeper, by broker id. Raises ZooKeeperError."""
        return {
            broker_id: entry.master
            for broker_id, entry in read_brokers(self._session).items()
            if entry.master is not None
        }

    def read_absent(self, masters: Collection[int]) -> set[int]:
        """Return broker ids that crashed: not among *masters*, and their address is still registered, which a clean
        stop removes (spec 6.4), or can't be read. Raises ZooKeeperError."""
        paths = self._session.paths
        addresses = {
            place.broker_id: path
            for child in self._session.children(paths.brokers)
            if isinstance(place := paths.maybe_parse(path := f"{paths.brokers}/{child}"), BrokerKey)
        }
        nodes, refused = self._session.read_readable(addresses.values())
        addressed = {path for path, node in nodes.items() if node.data.strip()} | refused.keys()
        skipped = self._session.malformed.found  # by read_masters
        there = {
            broker_id
            for broker_id, path in addresses.items()
            if path in addressed or paths.of(PresenceKey(BrokerName(broker_id))) in skipped
        }
        return there.difference(masters)

    def master_url(self, broker_id: int) -> BrokerUrl | None:
        """Return the last known address of a broker id's master, which may be gone; None if never seen."""
        return self._masters.get(broker_id)

    def is_up(self, broker_id: int) -> bool:
        """Return whether a broker is up as last seen in any view; never waits."""
        return any(broker_id in view.urls for view in tuple(self._views.values()))

    def _publish(self, topic: str, timeout_s: float) -> TopicView:
        done: Future[TopicView] = Future()
        if not self._thread.is_alive():
            raise ClientClosed("the client is closed: make a new one")
        self._events.put(_Publish(topic, done))
        if not self._thread.is_alive():
            self._refuse_waiting()  # the thread ended meanwhile
        try:
            return self._result(done, timeout_s)
        except FutureTimeout as error:
            raise ZooKeeperUnavailable(
                f"ZooKeeper at {self._session.connect} gave no brokers of topic {topic!r} within "
                f"{timeout_s:g} s: is it running?"
            ) from error

    def _result(self, done: "Future[TopicView]", timeout_s: float) -> TopicView:
        return done.result(timeout_s)

    def _run(self) -> None:
        while True:
            try:
                event = self._events.get(timeout=RETRY_S if self._stale else None)
            except Empty:
                event = None
            match event:
                case _Stop():
                    self._watches.stop()
                    return
                case _Publish():
                    self._on_publish(event)
                    continue
                case ChildrenChanged(path):
                    place = self._session.paths.maybe_parse(path)
                    if isinstance(place, TopicParentKey):
                        self._stale.add(place.topic)
                case SessionEvent(SessionState.CONNECTED):
                    self._stale |= self._topics
                case SessionEvent():
                    continue  # the views stay: brokers serve without ZooKeeper, too
                case None:
                    pass  # retry
            self._refresh()

    def _on_publish(self, event: _Publish) -> None:
        try:
            view = self._views.get(event.topic) or self._read(event.topic)
        except Exception as error:
            event.done.set_exception(error)  # raised in the caller
        else:
            event.done.set_result(view)

    def _refresh(self) -> None:
        for topic in sorted(self._stale):
            try:
                self._read(topic)
            except ZooKeeperUnavailable as error:
                _log.warning("brokers not read, keeping the last view topic=%s error=%s", topic, error)
                return
            except ZooKeeperError as error:
                # A retry does not cure a malformed node; its correction changes a child, which triggers the watch.
                _log.error("brokers not read, keeping the last view topic=%s error=%s", topic, error)
            self._stale.discard(topic)

    def _read(self, topic: str) -> TopicView:
        self._watches.read(self._session.paths.of(TopicParentKey(TopicKind.PUB, topic)))
        publishers = read_topic(self._session, TopicKind.PUB, topic)
        urls = master_urls(publishers, read_brokers(self._session))
        partitions = tuple(publishable_partitions(publishers))
        former = self._views.get(topic)
        known = partitions if former is None else tuple(sorted({*former.known, *partitions}))
        view = TopicView(topic, partitions, urls, tuple(p for p in partitions if p.broker_id in urls), known)
        if view != former:
            _log.info("brokers changed topic=%s partitions=%d up=%s", topic, len(partitions), sorted(urls))
        self._views[topic] = view
        self._masters.update(urls)
        self._topics.add(topic)
        return view

    def _refuse_waiting(self) -> None:
        while not self._events.empty():
            if isinstance(event := self._events.get(), _Publish):
                event.done.set_exception(ClientClosed("the client was closed: make a new one"))


def shown_as(view: TopicView, others: Iterable[TopicView]) -> TopicView:
    """Return *view*, which has no partitions, with those of the first of *others* that ever had some."""
    for other in others:
        if other.known:
            known = view.known or other.known
            return TopicView(view.topic, other.partitions, other.urls, other.available, known)
    return view


def no_master(broker_id: int) -> NotConnected:
    """Return the error for a broker id without a master."""
    return NotConnected(f"broker {broker_id} has no master in ZooKeeper: start it, or wait until it is back")
