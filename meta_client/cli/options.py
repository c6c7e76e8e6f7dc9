"""A client for one command."""

import contextlib
import logging
import sys
from collections.abc import Iterator

import click
from click.core import ParameterSource

from meta_client.batching.lanes import BatchingConfig
from meta_client.client import BATCHING, Client

CONNECT_TIMEOUT_MS = 5_000  # somebody is watching
SESSION_TIMEOUT_MS = 10_000  # what a killed command leaves in ZooKeeper is gone soon


def _tell_default(zookeeper: str) -> None:
    """Tell who sits at a terminal of an address that nobody has named: anybody's ZooKeeper may be there."""
    context = click.get_current_context(silent=True)
    if context is not None and context.get_parameter_source("zk") is ParameterSource.DEFAULT and sys.stderr.isatty():
        click.echo(f"ZooKeeper {zookeeper}, the default: name another with --zk or METAQ_ZK", err=True)


@contextlib.contextmanager
def connected(zookeeper: str, batching: BatchingConfig = BATCHING) -> Iterator[Client]:
    """A client that is closed at the end. The client's warnings go to stderr, a line each. Raises ZooKeeperError."""
    _tell_default(zookeeper)
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    logging.getLogger("zk.kazoo").setLevel(logging.ERROR)  # every attempt to connect; what comes of them is told
    with Client(
        zookeeper, session_timeout_ms=SESSION_TIMEOUT_MS, connect_timeout_ms=CONNECT_TIMEOUT_MS, batching=batching
    ) as client:
        yield client
