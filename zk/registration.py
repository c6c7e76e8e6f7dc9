"""A broker's presence in ZooKeeper: who it is, where it listens, which topics it has (spec 6.4).

Order matters to peers: a producer needs ids/B/master before the topic nodes point to it, and a consumer must
see a leaving broker's master node vanish before its topics do.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from zk.broker_url import BrokerUrl
from zk.ephemerals import Holder, claim_waiting, release, take
from zk.errors import ZooKeeperError
from zk.nodes import BrokerName, TopicNode
from zk.paths import Broker, ConfigChecksum, Master, Slave, TopicBroker, TopicKind
from zk.session import ZooKeeperSession

_log = logging.getLogger(__name__)


class BrokerIdTaken(ZooKeeperError):
    """Another broker has this id and is alive. Do not serve: two masters of one id would split its log."""

    def __init__(self, name: BrokerName, path: str, holder: Holder) -> None:
        who = "broker" if name.slave_id is None else f"slave {name.slave_id} of broker"
        self.holder_url = holder.data.decode(errors="replace")
        super().__init__(
            f"{who} id {name.broker_id} is registered by {self.holder_url!r} at {path} "
            f"(session {holder.session_id & (2**64 - 1):#x}): stop that broker, or give this one another id"
        )


@dataclass(frozen=True, slots=True)
class TopicRegistration:
    """One topic as this broker offers it."""

    partitions: int
    accept_publish: bool = True
    accept_subscribe: bool = True


class BrokerRegistration:
    """Keeps one broker registered. Its methods block on ZooKeeper; call them from one thread, cancel() from any.

    After SessionState.LOST the owner calls register() again on the next CONNECTED: everything it wants known is
    remembered here, and every step can be repeated. All methods raise ZooKeeperUnavailable.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        name: BrokerName,
        url: BrokerUrl,
        *,
        config_checksum: int = 0,
        topics: Mapping[str, TopicRegistration] | None = None,
    ) -> None:
        self._session = session
        self._name = name
        self._url = url
        self._config_checksum = config_checksum
        self._topics = dict(topics or {})
        self._is_master = name.slave_id is None
        self._cancelled = threading.Event()

    @property
    def presence_path(self) -> str:
        """The node that holds the id: ``ids/B/master`` or ``ids/B/slaveS``."""
        broker_id, slave_id = self._name.broker_id, self._name.slave_id
        return self._session.paths.of(Master(broker_id) if slave_id is None else Slave(broker_id, slave_id))

    def register(self, progress: Callable[[str], None] = _log.warning) -> None:
        """Register the broker, then its topics; the port must be open already.

        A crashed broker's node stays until its session times out, so a held id is waited for that long, which
        *progress* is told once. Raises BrokerIdTaken when it is still held then.
        """

        def tell(holder: Holder, wait_s: float) -> None:
            url = holder.data.decode(errors="replace")
            progress(
                f"{self.presence_path} is still registered by {url!r}: "
                f"waiting up to {wait_s:.0f} s for its ZooKeeper session to end"
            )

        path = self.presence_path
        holder = claim_waiting(self._session, path, self._url.encode(), progress=tell, cancelled=self._cancelled)
        if holder is not None:
            raise BrokerIdTaken(self._name, path, holder)
        if self._is_master:
            self._session.write(self._path_of_broker, self._url.encode())
            take(self._session, self._path_of_checksum, b"%d" % self._config_checksum)
        for topic, registration in self._topics.items():
            self._register_topic(topic, registration)

    def cancel(self) -> None:
        """Make a register() that waits for a held id give up at once. Any thread."""
        self._cancelled.set()

    def set_topic(self, topic: str, registration: TopicRegistration) -> None:
        """Register a topic that is new (a wildcard's first put) or has changed (a configuration reload)."""
        self._topics[topic] = registration
        self._register_topic(topic, registration)

    def remove_topic(self, topic: str) -> None:
        """Unregister one topic. Nothing happens when it is not registered."""
        self._topics.pop(topic, None)
        for kind in TopicKind:
            release(self._session, self._path_of_topic(kind, topic))

    def set_config_checksum(self, checksum: int) -> None:
        """Tell slaves that the configuration file has changed. Masters only."""
        assert self._is_master
        self._config_checksum = checksum
        data = b"%d" % checksum
        if self._session.update_many({self._path_of_checksum: data}):
            take(self._session, self._path_of_checksum, data)

    def unregister(self) -> None:
        """Remove all that register() made, the broker first; nodes of a successor stay."""
        released = release(self._session, self.presence_path)
        if self._is_master:
            release(self._session, self._path_of_checksum)
            if released and not self._session.delete(self._path_of_broker):
                # Slaves are still below it. Empty means no master to the clients that read this node.
                self._session.update_many({self._path_of_broker: b""})
        for topic in self._topics:
            for kind in TopicKind:
                release(self._session, self._path_of_topic(kind, topic))

    def _register_topic(self, topic: str, registration: TopicRegistration) -> None:
        data = TopicNode(registration.partitions, self._name).encode()
        wanted = {
            TopicKind.LEGACY: b"%d" % registration.partitions,
            TopicKind.PUB: data if registration.accept_publish else None,
            TopicKind.SUB: data if registration.accept_subscribe else None,
        }
        for kind, content in wanted.items():
            path = self._path_of_topic(kind, topic)
            if content is None:
                self._session.delete(path)
            else:
                take(self._session, path, content)

    @property
    def _path_of_broker(self) -> str:
        return self._session.paths.of(Broker(self._name.broker_id))

    @property
    def _path_of_checksum(self) -> str:
        return self._session.paths.of(ConfigChecksum(self._name.broker_id))

    def _path_of_topic(self, kind: TopicKind, topic: str) -> str:
        return self._session.paths.of(TopicBroker(kind, topic, self._name))
