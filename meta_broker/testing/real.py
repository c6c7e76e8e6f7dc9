"""A real broker for tests: a process with its own directory and part of a real ZooKeeper.

Owned by the thread that constructs it, which must live as long: the process dies with that thread, however it ends.
"""

import contextlib
from pathlib import Path
from typing import Any, Self

from meta_broker.testing.processes import BrokerProgram
from meta_client.client import Client
from zk.embedded.chroot import chroot

SESSION_TIMEOUT_MS = 4_000  # a killed broker stays registered that long

DEFAULT_CONFIG = """\
[broker]
segment_bytes = 16777216

[zookeeper]
session_timeout_ms = 4000
sync_ms = 0

[topics."*"]
partitions = 2
"""


class RealBroker:
    """A serving broker 0 of its own cluster. Use as a context manager; its clients are closed with it.

    *directory* must exist, and keeps journal and log; *zookeeper* is the connect string of a server, on which a node
    *name* is created, and removed at the end. *config* is the text of a broker's toml file. start() raises
    ProgramFailed, which quotes the broker's log, and kazoo's errors.
    """

    def __init__(self, directory: Path, zookeeper: str, name: str, config: str = DEFAULT_CONFIG) -> None:
        path = directory / "broker.toml"
        path.write_text(config)
        self._directory = directory
        self._chroot = chroot(zookeeper, name)
        self._opened = contextlib.ExitStack()
        self._config = path
        self._broker: BrokerProgram
        self.connect = f"{zookeeper}/{name}"  # what a Client, or `metaq ... --zk`, connects to

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opened:
            opened.enter_context(self._chroot)
            log = self._directory / "broker.log"
            self._broker = BrokerProgram(self._directory / "data", self.connect, self._config, log)
            opened.callback(self._broker.kill)
            self._broker.start()
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @property
    def data(self) -> Path:
        """Directory of its journal, for `metaq journal`."""
        return self._broker.data

    @property
    def log(self) -> str:
        """Log of all its starts."""
        return self._broker.log.read_text()

    def client(self, **options: Any) -> Client:
        """Return a new client, closed with the broker at the latest. *options* are Client's. Raises ZooKeeperError."""
        options.setdefault("session_timeout_ms", SESSION_TIMEOUT_MS)
        return self._opened.enter_context(Client(self.connect, **options))

    def kill(self) -> None:
        """Kill it with SIGKILL, as a crash does: what it has acknowledged is kept."""
        self._broker.kill()

    def stop(self) -> None:
        """Stop it as an operator does. Raises ProgramFailed unless it exits with status 0."""
        self._broker.stop()

    def start(self) -> None:
        """Start it again, at the same address; on return it has recovered and serves. Raises ProgramFailed."""
        self._broker.start()
