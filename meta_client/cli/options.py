"""A client for one command."""

import contextlib
import logging
from collections.abc import Iterator

from meta_client.batching.lanes import BatchingConfig
from meta_client.client import BATCHING, Client

CONNECT_TIMEOUT_MS = 5_000  # somebody is watching
SESSION_TIMEOUT_MS = 10_000  # what a killed command leaves in ZooKeeper is gone soon


@contextlib.contextmanager
def connected(zookeeper: str, batching: BatchingConfig = BATCHING) -> Iterator[Client]:
    """A client that is closed at the end. The client's warnings go to stderr, a line each. Raises ZooKeeperError."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    logging.getLogger("zk.kazoo").setLevel(logging.ERROR)  # every attempt to connect; what comes of them is told
    with Client(
        zookeeper, session_timeout_ms=SESSION_TIMEOUT_MS, connect_timeout_ms=CONNECT_TIMEOUT_MS, batching=batching
    ) as client:
        yield client
