"""Registers a broker in ZooKeeper: its id, its URL, its topics (spec 6.4).

Peers rely on the order: ids/B/master exists before the topic nodes that point to it, and goes before they do.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from zk.errors import ZooKeeperError, ZooKeeperUnavailable
from zk.session.ephemerals import NodeHolder, claim_waiting, release, release_many, take_over
from zk.session.session import ZooKeeperSession
from zk.tree.broker_url import BrokerUrl
from zk.tree.nodes import BrokerName, TopicNode
from zk.tree.paths import BrokerKey, BrokerNode, InvalidName, PresenceKey, TopicBrokerKey, TopicKind
from zk.tree.transactions import Create, NodeTransaction

_log = logging.getLogger(__name__)

# Attempts to create topic nodes: (topics per transaction, with their parents). 32 is fastest for 8,000 topics: 1.2 s,
# against 1.7 s with 16 and 2.0 s with 128. The later attempts isolate the topics that ZooKeeper refuses.
_ATTEMPTS = ((32, False), (16, True), (1, False), (1, True))


class BrokerIdTaken(ZooKeeperError):
    """Another live broker has this id. Do not serve: two masters of one id would split its log."""

    def __init__(self, name: BrokerName, path: str, holder: NodeHolder) -> None:
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
    """Registration of one broker and its topics. Methods block on ZooKeeper; call them from one thread, cancel() from
    any.

    After SessionState.LOST, call register() again on the next CONNECTED: it registers the topics remembered here, and
    every step can be repeated. All methods raise ZooKeeperUnavailable.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        name: BrokerName,
        url: BrokerUrl,
        *,
        config_checksum: int = 0,
        topics: Mapping[str, TopicRegistration] | None = None,
        node_changed: Callable[[], None] = lambda: None,
    ) -> None:
        """*node_changed* is called after `watch_node`, on kazoo's thread: it must only enqueue."""
        self._session = session
        self._name = name
        self._url = url
        self._config_checksum = config_checksum
        self._topics = dict(topics or {})
        self._is_master = name.slave_id is None
        self._cancelled = threading.Event()
        self._on_node_event = lambda event: node_changed()  # one object: kazoo keeps one watch of each

    @property
    def presence_path(self) -> str:
        """Path of the node that holds the id: ``ids/B/master`` or ``ids/B/slaveS``."""
        return self._session.paths.of(PresenceKey(self._name))

    def register(self, progress: Callable[[str], None] = _log.warning) -> None:
        """Register the broker, then its topics; the port must be open already.

        Raises BrokerIdTaken as register_broker does, and the error of a topic that ZooKeeper refused.
        """
        self.register_broker(progress)
        for error in self.write_topics(self._topics).values():
            raise error

    def register_broker(self, progress: Callable[[str], None] = _log.warning) -> None:
        """Register the broker without its topics; the port must be open already.

        Waits one session timeout for an id that is taken, since a crashed broker's node stays that long; calls
        *progress* once with a text that says so. Raises BrokerIdTaken if the id is still taken then.
        """

        def tell(holder: NodeHolder, wait_s: float) -> None:
            url = holder.data.decode(errors="replace")
            progress(
                f"{self.presence_path} is still registered by {url!r}: "
                f"waiting up to {wait_s:.0f} s for its ZooKeeper session to end"
            )

        path = self.presence_path
        holder = claim_waiting(self._session, path, self._url.encode(), progress=tell, cancelled=self._cancelled)
        if holder is not None:
            raise BrokerIdTaken(self._name, path, holder)
        self.watch_node()
        if self._is_master:
            self._session.write(self._path_of_broker, self._url.encode())
            take_over(self._session, self._path_of_checksum, b"%d" % self._config_checksum)

    def watch_node(self) -> bool:
        """Return whether the node that holds the id is there, and watch it: once, for a change or the connection's
        end."""
        self._session.children(self.presence_path, self._on_node_event)
        if self._session.read(self.presence_path) is not None:
            return True
        _log.warning("the broker's node was deleted, though its session lives path=%s", self.presence_path)
        return False

    def cancel(self) -> None:
        """Make a register() that waits for a taken id raise at once. Any thread."""
        self._cancelled.set()

    def write_topics(self, topics: Mapping[str, TopicRegistration | None]) -> dict[str, ZooKeeperError]:
        """Register *topics*, or unregister those with None; pipelined. Returns the errors of those that ZooKeeper
        refused, which may be registered in part. After ZooKeeperUnavailable, any of them may be done."""
        offered = {topic: registration for topic, registration in topics.items() if registration is not None}
        self._topics.update(offered)
        try:
            left = self._create(offered)
        except ZooKeeperUnavailable:
            raise
        except ZooKeeperError:  # one of them was refused: find it
            left = set(offered)
        failed: dict[str, ZooKeeperError] = {}
        for topic, registration in topics.items():
            try:
                if registration is None:
                    self._remove_topic(topic)
                elif topic in left:
                    self._register_topic(topic, registration)
            except ZooKeeperUnavailable:
                raise
            except ZooKeeperError as error:
                failed[topic] = error
        return failed

    def set_config_checksum(self, checksum: int) -> None:
        """Publish the checksum of a changed configuration file, for slaves. Masters only."""
        assert self._is_master
        self._config_checksum = checksum
        data = b"%d" % checksum
        if self._session.update_many({self._path_of_checksum: data}):
            take_over(self._session, self._path_of_checksum, data)

    def unregister(self) -> None:
        """Remove the nodes that register() made, the broker's first; those of a successor stay."""
        self.unregister_broker()
        paths = []
        for topic in self._topics:
            with contextlib.suppress(InvalidName):  # it never was registered
                paths += [self._path_of_topic(kind, topic) for kind in TopicKind]
        release_many(self._session, paths)

    def unregister_broker(self) -> None:
        """Remove the broker's nodes without its topics', which go with the session."""
        released = release(self._session, self.presence_path)
        if self._is_master:
            release(self._session, self._path_of_checksum)
            if released and not self._session.delete(self._path_of_broker):
                # It still has slaves below it. Old clients read empty data as "no master".
                self._session.update_many({self._path_of_broker: b""})

    def _create(self, topics: Mapping[str, TopicRegistration]) -> set[str]:
        """Make the nodes of topics that have none. Returns the topics that already have some. Raises ZooKeeperError
        if ZooKeeper refuses one for another reason."""
        nodes = {topic: self._nodes(topic, registration) for topic, registration in topics.items()}
        unwanted = {path: topic for topic, of_topic in nodes.items() for path, data in of_topic.items() if data is None}
        blocked = {unwanted[path] for path in self._session.read_many(unwanted)}
        wanted: dict[str, NodeTransaction] = {
            topic: tuple(Create(path, data, ephemeral=True) for path, data in of_topic.items() if data is not None)
            for topic, of_topic in nodes.items()
            if topic not in blocked
        }
        for count, with_parents in _ATTEMPTS:
            wanted = self._create_in_groups(wanted, count, with_parents=with_parents)
        return blocked | wanted.keys()

    def _create_in_groups(
        self, wanted: Mapping[str, NodeTransaction], count: int, *, with_parents: bool
    ) -> dict[str, NodeTransaction]:
        """Create topics, *count* to a transaction. Returns the topics of refused transactions."""
        groups = [list(wanted)[start : start + count] for start in range(0, len(wanted), count)]
        transactions = [tuple(create for topic in group for create in wanted[topic]) for group in groups]
        if with_parents:
            transactions = [(*_parents(transaction), *transaction) for transaction in transactions]
        refusals = self._session.transact_many(transactions)
        return {
            topic: wanted[topic]
            for group, refused in zip(groups, refusals, strict=True)
            if refused is not None
            for topic in group
        }

    def _register_topic(self, topic: str, registration: TopicRegistration) -> None:
        for path, data in self._nodes(topic, registration).items():
            if data is None:
                self._session.delete(path)
            else:
                take_over(self._session, path, data)

    def _remove_topic(self, topic: str) -> None:
        release_many(self._session, [self._path_of_topic(kind, topic) for kind in TopicKind])
        self._topics.pop(topic, None)

    def _nodes(self, topic: str, registration: TopicRegistration) -> dict[str, bytes | None]:
        """Return the data of the topic's three nodes by path; None for a node that must not exist."""
        data = TopicNode(registration.partitions, self._name).encode()
        wanted = {
            TopicKind.LEGACY: b"%d" % registration.partitions,
            TopicKind.PUB: data if registration.accept_publish else None,
            TopicKind.SUB: data if registration.accept_subscribe else None,
        }
        return {self._path_of_topic(kind, topic): content for kind, content in wanted.items()}

    @property
    def _path_of_broker(self) -> str:
        return self._session.paths.of(BrokerKey(BrokerNode.ADDRESS, self._name.broker_id))

    @property
    def _path_of_checksum(self) -> str:
        return self._session.paths.of(BrokerKey(BrokerNode.CONFIG_CHECKSUM, self._name.broker_id))

    def _path_of_topic(self, kind: TopicKind, topic: str) -> str:
        return self._session.paths.of(TopicBrokerKey(kind, topic, self._name))


def _parents(transaction: NodeTransaction) -> NodeTransaction:
    return tuple(Create(operation.path.rpartition("/")[0], b"") for operation in transaction)
