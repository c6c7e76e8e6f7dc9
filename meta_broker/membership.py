"""The broker in ZooKeeper: one thread that registers, registers again after a lost session, and leaves.

Everything that blocks on ZooKeeper happens here; the loop and kazoo's threads only enqueue. What is done next,
`registration_plan` says.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TypeVar, assert_never

from journal.errors import StorageFailed
from meta_broker.config import BrokerConfig, TopicConfig
from meta_broker.registration_plan import (
    RETRY_S,
    Register,
    RegistrationPlan,
    Step,
    WriteChecksum,
    WriteInSync,
    WriteTopics,
)
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

NAMED_MAX = 5  # topics that a line of log names

T = TypeVar("T")
_News = Callable[[], None]  # what is told to the plan, on the membership thread


def topic_registration(topic: TopicConfig, partitions: int) -> TopicRegistration:
    """A topic as ZooKeeper is told of it. *partitions* counts what is stored too: it stays readable."""
    return TopicRegistration(
        max(partitions, topic.partitions),
        accept_publish=topic.accept_publish,
        accept_subscribe=topic.accept_subscribe,
    )


class Membership:
    """Keeps one broker registered while it runs.

    `topic_used`, `topic_changed`, `config_changed`, `in_sync_changed`, `cancel`, `unregistered_topics`: any thread.
    `give_up` and `come_back`: one thread, the watchdog's. The rest: the broker.

    *on_refused* is called, on the membership thread, when the session was lost and somebody else has this broker's
    id since, or was promoted to its place: two brokers of one id would split its partitions, so this one must stop.
    """

    def __init__(
        self, config: BrokerConfig, connect: str, on_refused: Callable[[BrokerIdTaken | Superseded], None]
    ) -> None:
        section = config.zookeeper_section
        self._plan = RegistrationPlan(config.checksum)  # the membership thread's, once that runs
        self._news: queue.SimpleQueue[_News | None] = queue.SimpleQueue()  # for it; None: leave
        self._session = ZooKeeperSession(
            connect,
            section.root,
            section.session_timeout_ms,
            connect_timeout_ms=section.connect_timeout_ms,
            enqueue=self._session_changed,
        )
        self._config = config
        self._name = BrokerName(config.broker_id, config.slave.id if config.is_slave else None)
        self._connect = connect
        self._on_refused = on_refused
        self._session_file = SessionFile(config.data)
        self._registration: BrokerRegistration | None = None
        self._epoch = 0  # of the journal
        self._cancelled = threading.Event()
        self._joined = threading.Event()  # every topic was tried once; or it came to nothing
        self._refusal: BrokerIdTaken | Superseded | None = None  # before that
        self._failed_topics: list[str] = []  # replaced as a whole
        self._giving_up = threading.Lock()  # guards the next one, and what it calls
        self._awaited: tuple[int, Callable[[], None]] | None = None  # by `come_back`: which session, what to call
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

        On return every topic was tried once. One that ZooKeeper refuses is no error here: `unregistered_topics`.
        """
        self._epoch = epoch
        registration = self._registration = BrokerRegistration(
            self._session, self._name, url, config_checksum=self._config.checksum
        )
        for topic, wanted in topics.items():
            self._plan.topic_changed(topic, wanted)
        if self._cancelled.is_set():
            registration.cancel()  # before there was one
        self._end_former_session()
        self._insist("registration", lambda: self._register_first(registration))
        self._thread.start()
        self._joined.wait()
        if self._refusal is not None:
            raise self._refusal
        if self._cancelled.is_set():
            raise ZooKeeperUnavailable(f"broker {self._name} was told to stop before all its topics were registered")
        log.info(
            "registered broker=%s url=%s topics=%d refused=%d", self._name, url, len(topics), len(self._failed_topics)
        )

    def topic_used(self, topic: str, registration: TopicRegistration) -> None:
        """A topic got its first message: peers must learn of it. Any thread; returns at once."""
        self._news.put(partial(self._plan.topic_used, topic, registration))

    def topic_changed(self, topic: str, registration: TopicRegistration | None) -> None:
        """A topic is offered like this from now on, or (None) no more. Any thread; returns at once."""
        self._news.put(partial(self._plan.topic_changed, topic, registration))

    def config_changed(self, checksum: int) -> None:
        """The configuration file was read again. Any thread; returns at once."""
        if not self._config.is_slave:
            self._news.put(partial(self._plan.checksum_changed, checksum))

    def in_sync_changed(self, node: ReplicationNode, written: Callable[[ReplicationNode], object]) -> None:
        """Have *node* say what is known of this broker's copies; *written* is called on the membership thread, once it
        does. Any thread; returns at once. While ZooKeeper is away, it waits."""
        self._news.put(partial(self._plan.in_sync_changed, WriteInSync(node, written)))

    @property
    def unregistered_topics(self) -> list[str]:
        """Topics that ZooKeeper has refused so far; they are tried again. Any thread."""
        return self._failed_topics

    def cancel(self) -> None:
        """Make a `join` or `replication` that waits, for a held id or for ZooKeeper, give up. Any thread."""
        self._cancelled.set()
        self._joined.set()
        if (registration := self._registration) is not None:
            registration.cancel()

    def give_up(self, hold: Callable[[], None]) -> None:
        """Call *hold*, then end the session, and with it all that peers see of this broker, whatever else is under way.
        Blocks, for as long as kazoo takes; `come_back` is the way back."""
        with self._giving_up:
            self._awaited = None
            hold()
        self._session.close()
        self._session_changed(SessionEvent(SessionState.LOST, self._session.epoch))

    def come_back(self, registered: Callable[[], None]) -> None:
        """Begin a session again, in which the broker registers as after a lost one; then call *registered*, on the
        thread that did it. Blocks. Raises ZooKeeperUnavailable: call it again."""
        self._awaited = self._session.epoch + 1, registered  # first: it may be registered before `start` returns
        self._session.start()

    def leave(self) -> None:
        """Unregister, so that nobody new comes, and end the session. Blocks; idempotent."""
        if self._registration is None:
            return
        self._registration.cancel()
        if self._thread.is_alive():
            self._news.put(None)
            self._thread.join()
        registration, self._registration = self._registration, None
        if not self._session.is_connected:
            log.warning("not unregistered, the session's end does it: no connection to ZooKeeper")
            return
        try:
            registration.unregister_broker()
        except ZooKeeperError as error:
            log.warning("not unregistered, the session's end does it error=%s", error)
            return
        self._session.close()  # and the topics with it, however many
        self._session_file.remove()
        log.info("unregistered broker=%s", self._name)

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
        epoch = self._session.epoch  # of a later session, the membership thread will hear
        self._register(registration, epoch)
        self._plan.done(Register(epoch), time.monotonic())

    def _register(self, registration: BrokerRegistration, epoch: int) -> None:
        """Register the broker in session *epoch*, unless a promotion has ended its time as a master."""
        self._remember_session()
        self._check_epoch()
        registration.register_broker()
        self._check_epoch()  # again: a promotion that saw nobody registered has claimed its epoch before, or sees us
        with self._giving_up:
            if (awaited := self._awaited) is not None and epoch >= awaited[0]:
                self._awaited = None
                awaited[1]()

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

    def _session_changed(self, event: SessionEvent) -> None:
        self._news.put(partial(self._hear, event))

    def _hear(self, event: SessionEvent) -> None:
        self._plan.session_changed(event)
        if event.state is not SessionState.CONNECTED:
            log.warning("zookeeper session state=%s", event.state.name)

    def _run(self) -> None:
        try:
            while self._take_news():
                if (step := self._plan.next(time.monotonic())) is not None:
                    self._attempt(step)
                if self._plan.is_settled:
                    self._joined.set()
        except (BrokerIdTaken, Superseded) as error:
            if self._joined.is_set():
                self._on_refused(error)
            else:
                self._refusal = error
        finally:
            self._joined.set()  # nobody would any more

    def _take_news(self) -> bool:
        """Tell the plan all that there is; first wait for some if there is nothing to do. False: leave."""
        now = time.monotonic()
        must_wait = self._plan.next(now) is None
        try:
            while (news := self._news.get(must_wait, self._plan.wait_s(now))) is not None:
                news()
                must_wait = False
        except queue.Empty:
            return True
        return False

    def _attempt(self, step: Step) -> None:
        """Raises BrokerIdTaken, Superseded."""
        registration = self._registration
        assert registration is not None
        failed: Collection[str] = ()
        try:
            match step:
                case Register(epoch):
                    self._register(registration, epoch)
                    log.warning("registered again after a lost session epoch=%d", epoch)
                case WriteInSync(node, written):
                    self._write_replication(node)
                    written(node)
                case WriteChecksum(checksum):
                    registration.set_config_checksum(checksum)
                case WriteTopics(topics):
                    failed = self._write_topics(registration, topics)
                case _:
                    assert_never(step)
        except BrokerIdTaken:
            raise
        except ZooKeeperError as error:
            log.warning("zookeeper did not take it, trying again event=%s error=%s", type(step).__name__, error)
            self._plan.failed(step, time.monotonic())
        else:
            self._plan.done(step, time.monotonic(), failed)
        self._failed_topics = self._plan.failed_topics

    def _write_topics(
        self, registration: BrokerRegistration, topics: Mapping[str, TopicRegistration | None]
    ) -> Collection[str]:
        """Returns the topics that could not be written."""
        failed = registration.write_topics(topics)
        if failed:
            log.warning(
                "topics not registered, trying again count=%d topics=%s error=%s",
                len(failed),
                some(failed),
                next(iter(failed.values())),
            )
        if self._joined.is_set():  # before, one line tells of all
            for topic, offered in topics.items():
                if topic not in failed:
                    log.info("topic %s topic=%s", "unregistered" if offered is None else "registered", topic)
        return failed

    def _write_replication(self, node: ReplicationNode) -> None:
        """Compare-and-set alone, so that who claims an epoch in between fences this broker. Raises Superseded."""
        broker_id = self._config.broker_id
        found = read_replication(self._session, broker_id)
        check_epoch(self._epoch, found.node, broker_id)
        if found.node != node and write_replication(self._session, broker_id, node, found.version) is None:
            raise ZooKeeperError(f"somebody else wrote what is known of broker {broker_id}'s copies: looking again")


def some(topics: Collection[str]) -> str:
    """Their names, for the log: a few of them where they are many."""
    names = ",".join(list(topics)[:NAMED_MAX])
    return f"{names},..." if len(topics) > NAMED_MAX else names
