"""Client connection of a command."""

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Final

import click
from click.core import ParameterSource

from meta_client.cli.security_options import security, zookeeper_security
from meta_client.client import BATCHING, Client
from meta_client.errors import NotConnected
from meta_client.operations.text import printable_lines
from meta_client.producer.partition_queues import BatchingConfig

CONNECT_TIMEOUT_MS = 5_000  # a user is waiting
URLS: Final = "metaq.brokers"  # key in a context's meta: what --broker named
SESSION_TIMEOUT_MS = 10_000  # nodes of a killed command expire soon


def _keep_urls(context: click.Context, parameter: click.Parameter, urls: tuple[str, ...]) -> None:
    del parameter
    context.meta[URLS] = urls


# For commands that need ZooKeeper for nothing but the brokers' addresses.
direct_option = click.option(
    "--broker",
    multiple=True,
    expose_value=False,
    callback=_keep_urls,
    metavar="HOST:PORT",
    help="Ask this broker instead of ZooKeeper, which may be down; may be given more than once.",
)


def branch_broker(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Return the broker id that *text* is; None for an address, which is asked alone, without ZooKeeper."""
    del parameter
    if text is None or (text.isascii() and text.isdigit()):
        return None if text is None else int(text)
    context.meta[URLS] = (text,)
    return None


def is_direct() -> bool:
    """Return whether the command was given --broker, and asks no ZooKeeper."""
    return bool(click.get_current_context().meta.get(URLS))


def _tell_default(zookeeper: str) -> None:
    """Show the default address on a terminal: an unrelated ZooKeeper may answer there."""
    context = click.get_current_context(silent=True)
    if context is not None and context.get_parameter_source("zk") is ParameterSource.DEFAULT and sys.stderr.isatty():
        click.echo(f"ZooKeeper {zookeeper}, the default: name another with --zk or METAQ_ZK", err=True)


class _Printable(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_Printable("%(levelname)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)


def why_no_broker(client: Client, zookeeper: str) -> str:
    """Return what to say if no broker is registered: nobody is asked then, and an empty list proves nothing."""
    if (masters := client.topology.read_masters()) or client.topology.read_absent(masters):
        return ""
    return (
        f"no broker is registered in ZooKeeper at {zookeeper}, so nobody knows of branches: start the brokers, or "
        "name the right ZooKeeper with --zk"
    )


def check_any_broker(client: Client, zookeeper: str) -> None:
    """Raise NotConnected if no broker is registered."""
    if why := why_no_broker(client, zookeeper):
        raise NotConnected(why)


@contextlib.contextmanager
def connected(zookeeper: str, batching: BatchingConfig = BATCHING) -> Iterator[Client]:
    """Yield a client that is closed at the end: of the brokers named with --broker, or of *zookeeper*. Its warnings go
    to stderr, a line each. Raises ZooKeeperError; InvalidUrl, NotConnected."""
    context = click.get_current_context(silent=True)
    if context is not None and (urls := context.meta.get(URLS)):
        with Client.direct(*urls, batching=batching, **security()._asdict()) as direct:
            yield direct
        return
    _tell_default(zookeeper)
    _log_to_stderr()
    logging.getLogger("zk.kazoo").setLevel(logging.ERROR)  # hide single connection attempts; the outcome is reported
    with Client(
        zookeeper,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        connect_timeout_ms=CONNECT_TIMEOUT_MS,
        batching=batching,
        **security()._asdict(),
        zookeeper_security=zookeeper_security(),
    ) as client:
        yield client
