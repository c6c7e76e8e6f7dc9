"""Builds and parses every path of the tree (spec 6.2). Pure.

ROOT/brokers/ids/B                    master URL, persistent (old clients)      BrokerKey, ADDRESS
ROOT/brokers/ids/B/master             master URL                                PresenceKey
ROOT/brokers/ids/B/slaveS             slave URL                                 PresenceKey
ROOT/brokers/ids/B/master_config_checksum   CRC-32 of server.ini                BrokerKey, CONFIG_CHECKSUM
ROOT/brokers/topics/T/B-m             partition count (clients before 1.4.3)    TopicBrokerKey, LEGACY
ROOT/brokers/topics-pub/T/B-m         topic JSON, when T may be published       TopicBrokerKey, PUB
ROOT/brokers/topics-sub/T/B-m         topic JSON, when T may be subscribed to   TopicBrokerKey, SUB
ROOT/brokers/topics-pub/T             parent of those                           TopicParentKey
ROOT/consumers/G/ids/C                topics of consumer C                      ConsumerKey
ROOT/consumers/G/owners/T/B-p         consumer id of the owner                  PartitionKey, OWNER
ROOT/consumers/G/offsets/T/B-p        message id and offset                     PartitionKey, OFFSET
ROOT/metaq/cluster                    the cluster's id (metaq's own)            ClusterKey
ROOT/metaq/brokers/B/replication      epoch, slaves in sync (metaq's own)       BrokerKey, REPLICATION
ROOT/metaq/journals/B                 how far its journal was (metaq's own)     BrokerKey, JOURNAL
ROOT/metaq/tables/I                   generation of decision table I (metaq's)  DecisionTableKey
ROOT/metaq/spark/Q                    newest decision of query Q (metaq's own)  QueryKey
ROOT/metaq/epochs/G/T/B-p             number of claims so far (metaq's own)     PartitionKey, OWNER_EPOCH
ROOT/metaq/resets/G                   the reset under way (metaq's own)         ResetKey
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import assert_never

from zk.errors import ZooKeeperError
from zk.tree.nodes import BrokerName, Partition

NAME_CHARACTERS_MAX = 1_024  # far above any topic or consumer id; a path must fit ZooKeeper's 1 MiB requests

# Characters that a ZooKeeper server or its Java client refuses in a path, and the separator.
_CONTROL = "\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff"
_FORBIDDEN = re.compile(f"[/{_CONTROL}]")
_IMPOSSIBLE = re.compile(rf"[{_CONTROL}]|(?:^|/)\.\.?(?:/|$)")


class InvalidName(ZooKeeperError):
    """A topic, group or consumer id that can never be a node's name. Choose another."""


class TopicKind(Enum):
    """The three folders that list the brokers of a topic."""

    LEGACY = "topics"
    PUB = "topics-pub"
    SUB = "topics-sub"


class BrokerNode(Enum):
    """The nodes of a broker id, one of each. The value: its path below the root."""

    ADDRESS = "brokers/ids/{}"
    CONFIG_CHECKSUM = "brokers/ids/{}/master_config_checksum"
    REPLICATION = "metaq/brokers/{}/replication"
    JOURNAL = "metaq/journals/{}"


class PartitionNode(Enum):
    """The nodes of a group's partition, one of each. The value: its path below the root."""

    OWNER = "consumers/{}/owners/{}/{}"
    OFFSET = "consumers/{}/offsets/{}/{}"
    OWNER_EPOCH = "metaq/epochs/{}/{}/{}"


@dataclass(frozen=True, slots=True)
class BrokerKey:
    kind: BrokerNode
    broker_id: int


@dataclass(frozen=True, slots=True)
class PresenceKey:
    name: BrokerName


@dataclass(frozen=True, slots=True)
class TopicParentKey:
    kind: TopicKind
    topic: str


@dataclass(frozen=True, slots=True)
class TopicBrokerKey:
    kind: TopicKind
    topic: str
    broker: BrokerName


@dataclass(frozen=True, slots=True)
class ClusterKey:
    pass


@dataclass(frozen=True, slots=True)
class ConsumerParentKey:
    group: str


@dataclass(frozen=True, slots=True)
class ConsumerKey:
    group: str
    consumer_id: str


@dataclass(frozen=True, slots=True)
class PartitionKey:
    kind: PartitionNode
    group: str
    topic: str
    partition: Partition


@dataclass(frozen=True, slots=True)
class ResetKey:
    group: str


@dataclass(frozen=True, slots=True)
class DecisionTableKey:
    table_id: str


@dataclass(frozen=True, slots=True)
class QueryKey:
    query: str


NodeKey = (
    BrokerKey
    | PresenceKey
    | TopicParentKey
    | TopicBrokerKey
    | ClusterKey
    | ConsumerParentKey
    | ConsumerKey
    | PartitionKey
    | ResetKey
    | DecisionTableKey
    | QueryKey
)


def is_name(name: str) -> bool:
    """Return True if *name* can be a node's name."""
    return bool(name) and name not in {".", ".."} and len(name) <= NAME_CHARACTERS_MAX and not _FORBIDDEN.search(name)


def check_name(name: str) -> str:
    """Return *name* if it can be a node's name. Raises InvalidName, TypeError."""
    if not isinstance(name, str):
        raise TypeError(f"a topic, group or consumer id is a str, not {type(name).__name__}")
    if not is_name(name):
        shown = repr(name[:80])
        raise InvalidName(
            f"{shown} cannot be a ZooKeeper node: use 1 to {NAME_CHARACTERS_MAX} printable characters without /"
        )
    return name


def check_topic(name: str) -> str:
    """Return *name* if it can be a topic's: on the wire white space ends a name. Raises InvalidName, TypeError."""
    if not check_name(name).isprintable() or any(map(str.isspace, name)):
        raise InvalidName(f"{name[:80]!r} is no topic: a name holds no white space")
    return name


def check_path(path: str) -> str:
    """Return *path* if ZooKeeper can have such a node. Raises InvalidName.

    A client can't even send some of the others, and loses its connection.
    """
    if _IMPOSSIBLE.search(path):
        raise InvalidName(f"{path[:200]!r} cannot be a path in ZooKeeper: use printable characters, and no . or ..")
    return path


class Paths:
    """Paths below one root, ``/meta`` unless configured otherwise (zk.zkRoot)."""

    def __init__(self, root: str = "/meta") -> None:
        parts = [check_name(part) for part in root.split("/") if part]
        self.root = "".join(f"/{part}" for part in parts)
        self.brokers = f"{self.root}/brokers/ids"
        self.groups = f"{self.root}/consumers"

    def of(self, key: NodeKey) -> str:
        """Return the path of a node. Raises InvalidName for a topic, group or consumer id that cannot be a node."""
        match key:
            case BrokerKey(kind, broker_id):
                return f"{self.root}/{kind.value.format(broker_id)}"
            case PresenceKey(BrokerName(broker_id, slave_id)):
                return f"{self.brokers}/{broker_id}/{'master' if slave_id is None else f'slave{slave_id}'}"
            case TopicParentKey(folder, topic):
                return f"{self.topics(folder)}/{check_name(topic)}"
            case TopicBrokerKey(folder, topic, broker):
                return f"{self.topics(folder)}/{check_name(topic)}/{broker}"
            case ClusterKey():
                return f"{self.root}/metaq/cluster"
            case ConsumerParentKey(group):
                return f"{self.groups}/{check_name(group)}/ids"
            case ConsumerKey(group, consumer_id):
                return f"{self.groups}/{check_name(group)}/ids/{check_name(consumer_id)}"
            case PartitionKey(node, group, topic, partition):
                return f"{self.root}/{node.value.format(check_name(group), check_name(topic), partition)}"
            case ResetKey(group):
                return f"{self.root}/metaq/resets/{check_name(group)}"
            case DecisionTableKey(table_id):
                return f"{self.root}/metaq/tables/{check_name(table_id)}"
            case QueryKey(query):
                return f"{self.root}/metaq/spark/{check_name(query)}"
        assert_never(key)

    def owners(self, group: str, topic: str) -> str:
        """Return the parent of a topic's owner nodes."""
        return f"{self.groups}/{check_name(group)}/owners/{check_name(topic)}"

    def topics(self, kind: TopicKind) -> str:
        """Return the parent of all topics of one kind."""
        return f"{self.root}/brokers/{kind.value}"

    def maybe_parse(self, path: str) -> NodeKey | None:
        """Parse *path*; None if it is no path of the tree."""
        if path.startswith(f"{self.root}/"):
            for form, key in _FORMS:
                if (found := form.fullmatch(path, len(self.root) + 1)) is not None:
                    return key(*found.groups())
        return None


def _form(template: str, key: Callable[..., NodeKey | None]) -> tuple[re.Pattern[str], Callable[..., NodeKey | None]]:
    """Return what matches paths like *template*, # for a number and * for a name, and makes the key of their parts."""
    return re.compile(template.replace("#", "(0|[1-9][0-9]{0,9})").replace("*", "([^/]+)")), key


def _topic_broker_key(kind: TopicKind, topic: str, name: str) -> TopicBrokerKey | None:
    broker = BrokerName.maybe_parse(name)
    return None if broker is None else TopicBrokerKey(kind, topic, broker)


def _partition_key(kind: PartitionNode, group: str, topic: str, name: str) -> PartitionKey | None:
    partition = Partition.maybe_parse(name)
    return None if partition is None else PartitionKey(kind, group, topic, partition)


_FORMS = (
    *(_form(kind.value.format("#"), lambda number, kind=kind: BrokerKey(kind, int(number))) for kind in BrokerNode),
    _form("brokers/ids/#/master", lambda broker: PresenceKey(BrokerName(int(broker)))),
    _form("brokers/ids/#/slave#", lambda broker, slave: PresenceKey(BrokerName(int(broker), int(slave)))),
    *(_form(f"brokers/{kind.value}/*", partial(TopicParentKey, kind)) for kind in TopicKind),
    *(_form(f"brokers/{kind.value}/*/*", partial(_topic_broker_key, kind)) for kind in TopicKind),
    _form("metaq/cluster", ClusterKey),
    _form("consumers/*/ids", ConsumerParentKey),
    _form("consumers/*/ids/*", ConsumerKey),
    *(_form(kind.value.format("*", "*", "*"), partial(_partition_key, kind)) for kind in PartitionNode),
    _form("metaq/resets/*", ResetKey),
    _form("metaq/tables/*", DecisionTableKey),
    _form("metaq/spark/*", QueryKey),
)


def parent_of(path: str) -> str:
    """Return the path of a node's parent."""
    return path.rpartition("/")[0] or "/"
