"""Client connection of a command."""

import contextlib
import logging
import sys
from collections.abc import Iterator

import click
from click.core import ParameterSource

from meta_client.client import BATCHING, Client
from meta_client.producer.partition_queues import BatchingConfig

CONNECT_TIMEOUT_MS = 5_000  # a user is waiting
SESSION_TIMEOUT_MS = 10_000  # nodes of a killed command expire soon


def _tell_default(zookeeper: str) -> None:
    """Show the default address on a terminal: an unrelated ZooKeeper may answer there."""
    context = click.get_current_context(silent=True)
    if context is not None and context.get_parameter_source("zk") is ParameterSource.DEFAULT and sys.stderr.isatty():
        click.echo(f"ZooKeeper {zookeeper}, the default: name another with --zk or METAQ_ZK", err=True)


@contextlib.contextmanager
def connected(zookeeper: str, batching: BatchingConfig = BATCHING) -> Iterator[Client]:
    """Yield a client that is closed at the end. Its warnings go to stderr, a line each. Raises ZooKeeperError."""
    _tell_default(zookeeper)
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    logging.getLogger("zk.kazoo").setLevel(logging.ERROR)  # hide single connection attempts; the outcome is reported
    with Client(
        zookeeper, session_timeout_ms=SESSION_TIMEOUT_MS, connect_timeout_ms=CONNECT_TIMEOUT_MS, batching=batching
    ) as client:
        yield client
