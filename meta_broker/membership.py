"""The broker in ZooKeeper: one thread that registers, registers again after a lost session, and leaves.

Everything that blocks on ZooKeeper happens here; the loop and kazoo's threads only enqueue.
"""

import logging
import queue
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from meta_broker.config import BrokerConfig, TopicConfig
from zk.errors import ZooKeeperError
from zk.nodes import BrokerName, BrokerUrl
from zk.registration import BrokerRegistration, TopicRegistration
from zk.session import SessionEvent, SessionState, ZooKeeperSession

log = logging.getLogger(__name__)

RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class _TopicUsed:
    topic: str
    registration: TopicRegistration


class _Stop:
    pass


def topic_registration(topic: TopicConfig, partitions: int) -> TopicRegistration:
    """A topic as ZooKeeper is told of it. *partitions* counts what is stored too: it stays readable."""
    return TopicRegistration(
        max(partitions, topic.partitions),
        accept_publish=topic.accept_publish,
        accept_subscribe=topic.accept_subscribe,
    )


class Membership:
    """Keeps one broker registered while it runs. `topic_used` from any thread; the rest by the broker."""

    def __init__(self, config: BrokerConfig, connect: str) -> None:
        section = config.zookeeper_section
        self._events: queue.SimpleQueue[SessionEvent | _TopicUsed | _Stop] = queue.SimpleQueue()
        self._session = ZooKeeperSession(connect, section.root, section.session_timeout_ms, enqueue=self._events.put)
        self._config = config
        self._registration: BrokerRegistration | None = None
        self._registered_epoch = 0
        self._known: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="membership", daemon=True)

    def connect(self) -> None:
        """Reach ZooKeeper, before anything else is begun. Raises ZooKeeperUnavailable in bounded time."""
        self._session.start()

    def join(self, url: BrokerUrl, topics: Mapping[str, TopicRegistration]) -> None:
        """Register, then keep registered. The port must be open, recovery done. Blocks.

        Raises BrokerIdTaken, ZooKeeperUnavailable.
        """
        self._registration = BrokerRegistration(
            self._session,
            BrokerName(self._config.broker_id),
            url,
            config_checksum=self._config.checksum,
            topics=topics,
        )
        self._known.update(topics)
        self._registered_epoch = self._session.epoch
        self._registration.register()
        self._thread.start()
        log.info("registered broker=%d url=%s topics=%d", self._config.broker_id, url, len(topics))

    def topic_used(self, topic: str, registration: TopicRegistration) -> None:
        """A topic got its first message: peers must learn of it. Any thread; returns at once."""
        self._events.put(_TopicUsed(topic, registration))

    def leave(self) -> None:
        """Unregister, so that nobody new comes. Blocks; idempotent. The session stays open until `close`."""
        if self._registration is None:
            return
        self._registration.cancel()
        if self._thread.is_alive():
            self._events.put(_Stop())
            self._thread.join()
        registration, self._registration = self._registration, None
        try:
            registration.unregister()
            log.info("unregistered broker=%d", self._config.broker_id)
        except ZooKeeperError as error:
            log.warning("not unregistered, the session's end will do it error=%s", error)

    def close(self) -> None:
        """End the session. Idempotent."""
        self._session.close()

    # -- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        retry: SessionEvent | _TopicUsed | None = None
        while True:
            try:
                event = self._events.get(timeout=RETRY_S if retry else None)
            except queue.Empty:
                assert retry is not None
                event = retry
            if isinstance(event, _Stop):
                return
            retry = event if not self._handle(event) else None

    def _handle(self, event: SessionEvent | _TopicUsed) -> bool:
        """Do what *event* asks for; False to try again later."""
        registration = self._registration
        assert registration is not None
        try:
            match event:
                case _TopicUsed(topic, wanted):
                    if topic not in self._known:
                        registration.set_topic(topic, wanted)
                        self._known.add(topic)
                        log.info("topic registered topic=%s partitions=%d", topic, wanted.partitions)
                case SessionEvent(SessionState.CONNECTED, epoch):
                    if epoch > self._registered_epoch:
                        registration.register()
                        self._registered_epoch = epoch
                        log.warning("registered again after a lost session epoch=%d", epoch)
                case SessionEvent(state, _):
                    log.warning("zookeeper session state=%s", state.name)
        except ZooKeeperError as error:
            log.warning("zookeeper did not take it, trying again event=%s error=%s", event, error)
            return False
        return True
