"""The broker in ZooKeeper: one thread that registers, registers again after a lost session, and unregisters.

All blocking calls to ZooKeeper run here; the loop and kazoo's threads only enqueue. `registration_plan` chooses the
next step.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TypeVar, assert_never

from meta_broker.cluster.cluster_identity import ClusterIdentity
from meta_broker.cluster.former_session import FormerSession
from meta_broker.cluster.master_node import MasterNode
from meta_broker.cluster.node_writes import OwnNodes
from meta_broker.cluster.registration_plan import (
    RETRY_S,
    CheckNode,
    Register,
    RegistrationPlan,
    RegistrationStep,
    WriteChecksum,
    WriteInSync,
    WritePosition,
    WriteTopics,
    some,
)
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.replication.fencing import Superseded, check_epoch
from zk.brokers.journal_position import JournalPosition, read_position
from zk.brokers.registration import BrokerIdTaken, BrokerRegistration, TopicRegistration
from zk.brokers.replication import ReplicationNode, read_replication
from zk.errors import ZooKeeperError, ZooKeeperUnavailable
from zk.session.session import SessionEvent, SessionState, ZooKeeperSession
from zk.tree.broker_url import BrokerUrl
from zk.tree.nodes import BrokerName

log = logging.getLogger(__name__)

T = TypeVar("T")
_News = Callable[[], None]  # an update of the plan, applied on the membership thread


class Membership:
    """Keeps one broker registered while it runs.

    `*_used`, `*_changed`, `cancel`, `unregistered_topics`, `is_registered`: any thread. `give_up` and `come_back`: one
    thread, the watchdog's. The rest: the broker.

    *on_ended* is called, on the membership thread, with what ends that: after a lost session another broker has this id
    or was promoted, or an error of its own. The broker must stop: two of one id would split its partitions.
    """

    def __init__(self, config: BrokerConfig, connect: str, on_ended: Callable[[Exception], None]) -> None:
        section = config.zookeeper_section
        self._plan = RegistrationPlan(config.checksum)  # used by the membership thread once that runs
        self._events: queue.SimpleQueue[_News | None] = queue.SimpleQueue()  # for it; None: unregister
        self._session = ZooKeeperSession(
            connect,
            section.root,
            section.session_timeout_ms,
            connect_timeout_ms=section.connect_timeout_ms,
            enqueue=self._session_changed,
            security=section.security(),
        )
        self._nodes = OwnNodes(self._session, config.broker_id)
        self._config = config
        self._name = BrokerName(config.broker_id, config.slave.id if config.is_slave else None)
        self._on_ended = on_ended
        self._former = FormerSession(config.data, connect, section.security())
        self._registration: BrokerRegistration | None = None
        self._epoch = 0  # of the journal
        self._cancelled = threading.Event()
        self._first_try_done = threading.Event()  # every topic was tried once, or registering failed
        self._rejection: BrokerIdTaken | Superseded | None = None  # set before _first_try_done
        self._failed_topics: list[str] = []  # replaced as a whole
        self._giving_up = threading.Lock()  # guards _awaited, and its callback
        self._awaited: tuple[int, Callable[[], None]] | None = None  # by `come_back`: session epoch, callback
        self._thread = threading.Thread(target=self._run, name="membership", daemon=True)
        self.cluster = ClusterIdentity(self._session, config.data, self._insist)
        self.master_node = MasterNode(self._session, self._name, self._former, self._insist, self._cancelled)

    def connect(self) -> None:
        """Connect to ZooKeeper, before anything else starts. Raises ZooKeeperUnavailable in bounded time."""
        self._session.start()

    def replication(self) -> ReplicationNode | None:
        """Read this broker's replication node. Blocks for as long as ZooKeeper is away. Raises MalformedNode;
        ZooKeeperUnavailable only once it was cancelled."""
        return self._insist("reading the replication node", self._nodes.replication)

    def journal_position(self) -> JournalPosition | None:
        """Read how far this broker's journal was. Blocks, and raises, as `replication` does."""
        broker_id = self._config.broker_id
        return self._insist("reading the journal node", lambda: read_position(self._session, broker_id).node)

    def end_former_session(self) -> None:
        """Begin to end the session that a killed broker left in this directory, which must be locked. Returns at
        once; idempotent. `register` calls it if nothing else did, and waits for it.
        """
        self._former.begin_ending()

    def register(self, url: BrokerUrl, topics: Mapping[str, TopicRegistration], epoch: int) -> None:
        """Register, then keep registered. The port must be open, recovery done, the directory locked. Blocks.

        Ends the session that a killed broker left in this directory first. Waits for a holder elsewhere as long as it
        may be dead, for ZooKeeper as long as it is away. *epoch*: the journal's; a higher one in ZooKeeper supersedes
        this broker. Raises BrokerIdTaken, Superseded, ZooKeeperError; ZooKeeperUnavailable only once it was cancelled.

        On return every topic was tried once. One that ZooKeeper refuses is in `unregistered_topics`, and no error
        here.
        """
        self._epoch = epoch
        changed = partial(self._events.put, self._plan.node_changed)
        registration = self._registration = BrokerRegistration(
            *(self._session, self._name, url), config_checksum=self._config.checksum, node_changed=changed
        )
        for topic, wanted in topics.items():
            self._plan.topic_changed(topic, wanted)
        if self._cancelled.is_set():
            registration.cancel()  # cancelled before it existed
        self._former.end_session()
        self._insist("registration", lambda: self._register_first(registration))
        self._thread.start()
        self._first_try_done.wait()
        if self._rejection is not None:
            raise self._rejection
        if self._cancelled.is_set():
            raise ZooKeeperUnavailable(f"broker {self._name} was told to stop before all its topics were registered")
        log.info(
            "registered broker=%s url=%s topics=%d refused=%d", self._name, url, len(topics), len(self._failed_topics)
        )

    def topic_used(self, topic: str, registration: TopicRegistration) -> None:
        self._events.put(partial(self._plan.topic_used, topic, registration))

    def topic_changed(self, topic: str, registration: TopicRegistration | None) -> None:
        self._events.put(partial(self._plan.topic_changed, topic, registration))

    def config_changed(self, checksum: int) -> None:
        if not self._config.is_slave:
            self._events.put(partial(self._plan.checksum_changed, checksum))

    def in_sync_changed(self, node: ReplicationNode, written: Callable[[ReplicationNode], object]) -> None:
        """Write *node*, then call *written* on the membership thread. Any thread; returns at once.

        Waits while ZooKeeper is away.
        """
        self._events.put(partial(self._plan.in_sync_changed, WriteInSync(node, written)))

    def position_changed(self, position: JournalPosition) -> None:
        """Write *position*, unless a later one comes first. Any thread; returns at once."""
        self._events.put(partial(self._plan.position_changed, position))

    @property
    def unregistered_topics(self) -> list[str]:
        """Topics that ZooKeeper has refused so far; they are retried. Any thread."""
        return self._failed_topics

    @property
    def is_registered(self) -> bool | None:
        """True if the broker is registered; None: there is no connection to ask. Any thread."""
        return self._registration is not None and self._plan.is_registered

    def cancel(self) -> None:
        """Make a waiting `register` or `replication` give up. Any thread."""
        self._cancelled.set()
        self._first_try_done.set()
        if (registration := self._registration) is not None:
            registration.cancel()

    def give_up(self, hold: Callable[[], None]) -> None:
        """Call *hold*, then end the session, and with it every registration. Blocks, for as long as kazoo takes.

        `come_back` registers again.
        """
        with self._giving_up:
            self._awaited = None
            hold()
        self._session.close()
        self._session_changed(SessionEvent(SessionState.LOST, self._session.epoch))

    def come_back(self, registered: Callable[[], None]) -> None:
        """Start a new session, in which the broker registers as after a lost one; then call *registered*, on that
        thread.

        Blocks. Raises ZooKeeperUnavailable: call it again.
        """
        self._awaited = self._session.epoch + 1, registered  # before `start`, which may return after the registration
        self._session.start()

    def unregister(self) -> None:
        """Unregister, so that no new clients come, and end the session. Blocks; idempotent."""
        if self._registration is None:
            return
        self._registration.cancel()
        if self._thread.is_alive():
            self._events.put(None)
            self._thread.join()
        registration, self._registration = self._registration, None
        if not self._session.is_connected:
            log.warning("unregistering deferred to session expiry: no connection to ZooKeeper")
            return
        try:
            registration.unregister_broker()
        except ZooKeeperError as error:
            log.warning("unregistering deferred to session expiry error=%s", error)
            return
        self._session.close()  # deletes the topics, however many
        self._former.delete()
        log.info("unregistered broker=%s", self._name)

    def close(self) -> None:
        """End the session. Idempotent."""
        self._session.close()

    def _insist(self, what: str, ask: Callable[[], T]) -> T:
        """Return the result of *ask*, retried until ZooKeeper is there.

        Raises other errors, and ZooKeeperUnavailable once this was cancelled.
        """
        while True:
            try:
                return ask()
            except ZooKeeperUnavailable as error:
                if not self._cancelled.is_set():
                    log.warning("zookeeper request failed, trying again event=%s error=%s", what, error)
                # Without a connection a request blocks until its timeout, and cannot be cancelled.
                while not self._cancelled.wait(RETRY_S) and not self._session.is_connected:
                    pass
                if self._cancelled.is_set():
                    raise

    def _register_first(self, registration: BrokerRegistration) -> None:
        epoch = self._session.epoch  # later sessions reach the membership thread as events
        self._register(registration, epoch)
        self._plan.done(Register(epoch), time.monotonic())

    def _register(self, registration: BrokerRegistration, epoch: int) -> None:
        """Register the broker in session *epoch*. Raises Superseded if another copy was promoted, OtherCluster."""
        self.cluster.confirm()
        self._former.save(self._session)
        self._check_epoch()
        registration.register_broker()
        self._check_epoch()  # again: a promotion either claimed its epoch before this, or sees this registration
        with self._giving_up:
            if (awaited := self._awaited) is not None and epoch >= awaited[0]:
                self._awaited = None
                awaited[1]()

    def _check_epoch(self) -> None:
        if not self._config.is_slave:  # a slave follows whatever epoch its master has
            broker_id = self._config.broker_id
            check_epoch(self._epoch, read_replication(self._session, broker_id).node, broker_id)

    # -- the thread -------------------------------------------------------------------------------------------

    def _session_changed(self, event: SessionEvent) -> None:
        self._events.put(partial(self._hear, event))

    def _hear(self, event: SessionEvent) -> None:
        self._plan.session_changed(event)
        if event.state is not SessionState.CONNECTED:
            log.warning("zookeeper session state=%s", event.state.name)

    def _run(self) -> None:
        try:
            while self._next_event():
                if (step := self._plan.next(time.monotonic())) is not None:
                    self._attempt(step)
                if self._plan.is_complete:
                    self._first_try_done.set()
        except (BrokerIdTaken, Superseded) as error:
            if self._first_try_done.is_set():
                self._on_ended(error)
            else:
                self._rejection = error
        except Exception as error:
            self._on_ended(error)
        finally:
            self._first_try_done.set()  # else register() would wait without a limit

    def _next_event(self) -> bool:
        """Apply all queued events; if there is nothing to do, wait for one first. False: unregister."""
        now = time.monotonic()
        must_wait = self._plan.next(now) is None
        try:
            while (event := self._events.get(must_wait, self._plan.wait_s(now))) is not None:
                event()
                must_wait = False
        except queue.Empty:
            return True
        return False

    def _attempt(self, step: RegistrationStep) -> None:
        """Take *step*. Raises BrokerIdTaken, Superseded."""
        registration = self._registration
        assert registration is not None
        failed: Collection[str] = ()
        try:
            match step:
                case Register(epoch):
                    self._register(registration, epoch)
                    self._nodes.write_again(self._epoch)
                    log.warning("registered again epoch=%d", epoch)
                case WriteInSync(node, written):
                    self._nodes.update_replication(self._epoch, node)
                    written(node)
                case CheckNode():
                    if not registration.watch_node():
                        self._plan.node_deleted()
                case WritePosition(position):
                    self._nodes.advance_position(position)
                case WriteChecksum(checksum):
                    registration.set_config_checksum(checksum)
                case WriteTopics(topics):
                    failed = self._write_topics(registration, topics)
                case _:
                    assert_never(step)
        except BrokerIdTaken:
            raise
        except ZooKeeperError as error:
            log.warning("zookeeper request failed, trying again event=%s error=%s", type(step).__name__, error)
            self._plan.failed(step, time.monotonic())
        else:
            self._plan.done(step, time.monotonic(), failed)
        self._failed_topics = self._plan.failed_topics

    def _write_topics(
        self, registration: BrokerRegistration, topics: Mapping[str, TopicRegistration | None]
    ) -> Collection[str]:
        """Write the topics; return those that could not be written."""
        failed = registration.write_topics(topics)
        if failed:
            log.warning(
                "topics not registered, trying again count=%d topics=%s error=%s",
                len(failed),
                some(failed),
                next(iter(failed.values())),
            )
        if self._first_try_done.is_set():  # during register() one line covers all
            for topic, offered in topics.items():
                if topic not in failed:
                    log.info("topic %s topic=%s", "unregistered" if offered is None else "registered", topic)
        return failed
