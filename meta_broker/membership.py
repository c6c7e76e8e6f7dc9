"""The broker in ZooKeeper: one thread that registers, registers again after a lost session, and leaves.

Everything that blocks on ZooKeeper happens here; the loop and kazoo's threads only enqueue.
"""

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from journal.errors import StorageFailed
from meta_broker.config import BrokerConfig, TopicConfig
from meta_broker.replication.fencing import Superseded, check_epoch
from meta_broker.session_file import SessionFile
from zk.broker_url import BrokerUrl
from zk.errors import ZooKeeperError, ZooKeeperUnavailable
from zk.former_session import end_session
from zk.nodes import BrokerName, decode_broker_url
from zk.paths import Master
from zk.registration import BrokerIdTaken, BrokerRegistration, TopicRegistration
from zk.replication import ReplicationNode, read_replication, write_replication
from zk.session import SessionEvent, SessionState, ZooKeeperSession

log = logging.getLogger(__name__)

RETRY_S = 1.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _TopicUsed:
    topic: str
    registration: TopicRegistration


@dataclass(frozen=True, slots=True)
class _TopicChanged:
    topic: str
    registration: TopicRegistration | None  # None: it is gone


@dataclass(frozen=True, slots=True)
class _ConfigChanged:
    checksum: int


@dataclass(frozen=True, slots=True)
class _InSyncChanged:
    node: ReplicationNode
    written: Callable[[ReplicationNode], object]


class _Stop:
    pass


_Event = SessionEvent | _TopicUsed | _TopicChanged | _ConfigChanged | _InSyncChanged


def topic_registration(topic: TopicConfig, partitions: int) -> TopicRegistration:
    """A topic as ZooKeeper is told of it. *partitions* counts what is stored too: it stays readable."""
    return TopicRegistration(
        max(partitions, topic.partitions),
        accept_publish=topic.accept_publish,
        accept_subscribe=topic.accept_subscribe,
    )


class Membership:
    """Keeps one broker registered while it runs.

    `topic_used`, `topic_changed`, `config_changed`, `in_sync_changed` and `cancel` from any thread; the rest by the
    broker.

    *on_refused* is called, on the membership thread, when the session was lost and somebody else has this broker's
    id since, or was promoted to its place: two brokers of one id would split its partitions, so this one must stop.
    """

    def __init__(
        self, config: BrokerConfig, connect: str, on_refused: Callable[[BrokerIdTaken | Superseded], None]
    ) -> None:
        section = config.zookeeper_section
        self._events: queue.SimpleQueue[_Event | _Stop] = queue.SimpleQueue()
        self._session = ZooKeeperSession(
            connect,
            section.root,
            section.session_timeout_ms,
            connect_timeout_ms=section.connect_timeout_ms,
            enqueue=self._events.put,
        )
        self._config = config
        self._name = BrokerName(config.broker_id, config.slave.id if config.is_slave else None)
        self._connect = connect
        self._on_refused = on_refused
        self._session_file = SessionFile(config.data)
        self._registration: BrokerRegistration | None = None
        self._registered_epoch = 0  # of the session
        self._epoch = 0  # of the journal
        self._known: set[str] = set()
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._run, name="membership", daemon=True)

    def connect(self) -> None:
        """Reach ZooKeeper, before anything else is begun. Raises ZooKeeperUnavailable in bounded time."""
        self._session.start()

    def replication(self) -> ReplicationNode | None:
        """What is known of this broker's copies. Blocks for as long as ZooKeeper is away.

        Raises MalformedNode, ZooKeeperUnavailable once it was cancelled.
        """
        return self._insist("what is known of its copies", self._read_replication)

    def master_url(self) -> BrokerUrl | None:
        """Where the master of this broker id is registered. Blocks. Raises MalformedNode, ZooKeeperUnavailable."""
        path = self._session.paths.of(Master(self._config.broker_id))
        node = self._session.read(path)
        return None if node is None else decode_broker_url(path, node.data)

    def join(self, url: BrokerUrl, topics: Mapping[str, TopicRegistration], epoch: int) -> None:
        """Register, then keep registered. The port must be open, recovery done, the directory locked. Blocks.

        A session that a killed broker left on this directory is ended first. A holder elsewhere is waited for as
        long as it may be dead, ZooKeeper for as long as it is away. *epoch* is the journal's: a higher one in ZooKeeper
        ends this broker's time as a master. Raises BrokerIdTaken, Superseded, ZooKeeperError; ZooKeeperUnavailable only
        once it was cancelled.
        """
        self._epoch = epoch
        registration = self._registration = BrokerRegistration(
            self._session,
            self._name,
            url,
            config_checksum=self._config.checksum,
            topics=topics,
        )
        self._known.update(topics)
        if self._cancelled.is_set():
            registration.cancel()  # before there was one
        self._end_former_session()
        self._insist("registration", lambda: self._register_first(registration))
        self._thread.start()
        log.info("registered broker=%s url=%s topics=%d", self._name, url, len(topics))

    def topic_used(self, topic: str, registration: TopicRegistration) -> None:
        """A topic got its first message: peers must learn of it. Any thread; returns at once."""
        self._events.put(_TopicUsed(topic, registration))

    def topic_changed(self, topic: str, registration: TopicRegistration | None) -> None:
        """A topic is offered like this from now on, or (None) no more. Any thread; returns at once."""
        self._events.put(_TopicChanged(topic, registration))

    def config_changed(self, checksum: int) -> None:
        """The configuration file was read again. Any thread; returns at once."""
        self._events.put(_ConfigChanged(checksum))

    def in_sync_changed(self, node: ReplicationNode, written: Callable[[ReplicationNode], object]) -> None:
        """Have *node* say what is known of this broker's copies; *written* is called on the membership thread, once it
        does. Any thread; returns at once. While ZooKeeper is away, it waits."""
        self._events.put(_InSyncChanged(node, written))

    def cancel(self) -> None:
        """Make a `join` or `replication` that waits, for a held id or for ZooKeeper, give up. Any thread."""
        self._cancelled.set()
        if (registration := self._registration) is not None:
            registration.cancel()

    def leave(self) -> None:
        """Unregister, so that nobody new comes. Blocks; idempotent. The session stays open until `close`."""
        if self._registration is None:
            return
        self._registration.cancel()
        if self._thread.is_alive():
            self._events.put(_Stop())
            self._thread.join()
        registration, self._registration = self._registration, None
        if not self._session.is_connected:
            log.warning("not unregistered, the session's end will do it: ZooKeeper is away")
            return
        try:
            registration.unregister()
            self._session_file.remove()
            log.info("unregistered broker=%s", self._name)
        except ZooKeeperError as error:
            log.warning("not unregistered, the session's end will do it error=%s", error)

    def close(self) -> None:
        """End the session. Idempotent."""
        self._session.close()

    def _insist(self, what: str, ask: Callable[[], T]) -> T:
        """What *ask* returns, asked again until ZooKeeper is there. Raises what is refused for another reason;
        ZooKeeperUnavailable once this was cancelled."""
        while True:
            try:
                return ask()
            except ZooKeeperUnavailable as error:
                if not self._cancelled.is_set():
                    log.warning("zookeeper did not take it, trying again event=%s error=%s", what, error)
                # Without a connection a request waits for one, or for its time to be over: nobody could cancel that.
                while not self._cancelled.wait(RETRY_S) and not self._session.is_connected:
                    pass
                if self._cancelled.is_set():
                    raise

    def _register_first(self, registration: BrokerRegistration) -> None:
        self._registered_epoch = self._session.epoch  # of a later session, the membership thread will hear
        self._remember_session()
        self._register(registration)

    def _register(self, registration: BrokerRegistration) -> None:
        """Register, unless a promotion has ended this broker's time as a master."""
        self._check_epoch()
        registration.register()
        self._check_epoch()  # again: a promotion that saw nobody registered has claimed its epoch before, or sees us

    def _check_epoch(self) -> None:
        if not self._config.is_slave:  # a slave follows whatever epoch its master has
            check_epoch(self._epoch, self._read_replication(), self._config.broker_id)

    def _read_replication(self) -> ReplicationNode | None:
        return read_replication(self._session, self._config.broker_id).node

    def _end_former_session(self) -> None:
        if (former := self._session_file.read()) is not None:
            try:
                was_alive = end_session(self._connect, former)
                log.info("former session ended id=%#x was_alive=%s", former.session_id & (2**64 - 1), was_alive)
            except ZooKeeperError as error:
                log.warning("former session not ended, it will be waited for error=%s", error)

    def _remember_session(self) -> None:
        try:
            self._session_file.write(self._session.credentials)
        except StorageFailed as error:
            log.warning("session not remembered error=%s", error)

    # -- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        waiting: deque[_Event] = deque()  # in their order; what failed is tried again first
        while True:
            try:
                event = self._events.get(timeout=RETRY_S if waiting else None)
                if isinstance(event, _Stop):
                    return
                waiting.append(event)
            except queue.Empty:
                pass  # time to try again
            try:
                while waiting:
                    self._handle(waiting[0])
                    waiting.popleft()
            except (BrokerIdTaken, Superseded) as error:
                self._on_refused(error)
                return
            except ZooKeeperError as error:
                log.warning("zookeeper did not take it, trying again event=%s error=%s", waiting[0], error)

    def _handle(self, event: _Event) -> None:
        """Do what *event* asks for. Raises ZooKeeperError: try again later."""
        registration = self._registration
        assert registration is not None
        match event:
            case _TopicUsed(topic, wanted):
                if topic not in self._known:
                    registration.set_topic(topic, wanted)
                    self._known.add(topic)
                    log.info("topic registered topic=%s partitions=%d", topic, wanted.partitions)
            case _TopicChanged(topic, offered):
                self._change_topic(registration, topic, offered)
            case _ConfigChanged(checksum):
                if not self._config.is_slave:
                    registration.set_config_checksum(checksum)
            case _InSyncChanged(node, written):
                self._write_replication(node)
                written(node)
            case SessionEvent(SessionState.CONNECTED, epoch):
                if epoch > self._registered_epoch:
                    self._remember_session()
                    self._register(registration)
                    self._registered_epoch = epoch
                    log.warning("registered again after a lost session epoch=%d", epoch)
            case SessionEvent(state, _):
                log.warning("zookeeper session state=%s", state.name)

    def _write_replication(self, node: ReplicationNode) -> None:
        """Compare-and-set alone, so that who claims an epoch in between fences this broker. Raises Superseded."""
        broker_id = self._config.broker_id
        found = read_replication(self._session, broker_id)
        check_epoch(self._epoch, found.node, broker_id)
        if found.node != node and write_replication(self._session, broker_id, node, found.version) is None:
            raise ZooKeeperError(f"somebody else wrote what is known of broker {broker_id}'s copies: looking again")

    def _change_topic(self, registration: BrokerRegistration, topic: str, offered: TopicRegistration | None) -> None:
        if offered is None:
            registration.remove_topic(topic)
            self._known.discard(topic)
            log.info("topic unregistered topic=%s", topic)
        else:
            registration.set_topic(topic, offered)
            self._known.add(topic)
            log.info("topic registered topic=%s partitions=%d", topic, offered.partitions)
