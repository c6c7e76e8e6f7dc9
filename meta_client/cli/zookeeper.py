"""`metaq zookeeper`: a ZooKeeper in the foreground, for development."""

import os
import signal
import threading
from pathlib import Path

import click

from zk.embedded.server import EmbeddedZooKeeper
from zk.errors import ZooKeeperError

POLL_S = 0.5  # interval of checks for a dead server


def default_data() -> Path:
    """Return the default of --data: $XDG_DATA_HOME/metaq/zookeeper, or ~/.local/share/metaq/zookeeper."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "metaq" / "zookeeper"


@click.command()
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=2181, show_default=True, help="Port on 127.0.0.1; 0: a free one."
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory that keeps the nodes.  [default: ~/.local/share/metaq/zookeeper]",
)
def zookeeper(port: int, data: Path | None) -> None:
    """Run a ZooKeeper in the foreground until Ctrl-C.

    Brokers and clients find each other through ZooKeeper. This is a real one, a single server that only this
    machine can reach: right for development, not for production. There, run an ensemble and name it with
    --zk HOST:PORT,HOST:PORT,HOST:PORT wherever metaq asks for one.

    \b
    In one terminal:   metaq zookeeper
    In another:        metaq broker --zk 127.0.0.1:2181

    Brokers' registrations end with their sessions; consumer offsets stay in the data directory. Delete it,
    while nothing runs, to start from nothing.
    """
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with EmbeddedZooKeeper(data or default_data(), port) as server:
        click.echo(f"ZooKeeper serves at {server.connect}, data in {server.data}; stop with Ctrl-C")
        while not stop.wait(POLL_S):
            if not server.is_alive():
                log = server.data / "zookeeper.log"
                raise ZooKeeperError(f"ZooKeeper at {server.connect} ended by itself: see {log}")
