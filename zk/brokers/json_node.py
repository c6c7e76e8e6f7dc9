"""Nodes below /meta/metaq of one kind of value: read strictly, written by compare-and-set."""

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import msgspec

from zk.errors import MalformedNode
from zk.session.session import ZooKeeperSession
from zk.tree.paths import NodeKey

N = TypeVar("N")
K = TypeVar("K")  # names a node among those of its kind: a broker's id


class Versioned(NamedTuple, Generic[N]):
    """A node's value and its version; both None if it does not exist."""

    node: N | None
    version: int | None


class JsonNode(Generic[K, N]):
    """The nodes of one kind of value."""

    def __init__(self, kind: type[N], key: Callable[[K], NodeKey], bytes_max: int, what: str) -> None:
        """*key* makes the key of a node. *what* it holds, for errors."""
        self._decoder = msgspec.json.Decoder(kind)
        self._key = key
        self._bytes_max = bytes_max
        self._what = what

    def read(self, session: ZooKeeperSession, name: K) -> Versioned[N]:
        """Read a node. Raises MalformedNode, ZooKeeperUnavailable."""
        path = session.paths.of(self._key(name))
        if (found := session.read(path)) is None:
            return Versioned(None, None)
        return Versioned(self.decode(path, found.data), found.version)

    def decode(self, path: str, data: bytes) -> N:
        """Decode the *data* of the node at *path*. Raises MalformedNode."""
        try:
            if len(data) > self._bytes_max:
                raise ValueError(f"{len(data)} bytes")
            return self._decoder.decode(data)
        except (ValueError, RecursionError) as error:  # msgspec's errors, and those of UTF-8, are ValueErrors
            raise MalformedNode(path, data, self._what) from error

    def write(self, session: ZooKeeperSession, name: K, node: N, version: int | None) -> int | None:
        """Write *node* if the stored one is still at *version* (None: does not exist). Returns the new version, or None
        without a change if another process wrote since: read again. After ZooKeeperUnavailable it may be written."""
        return session.exchange(session.paths.of(self._key(name)), msgspec.json.encode(node), version)
