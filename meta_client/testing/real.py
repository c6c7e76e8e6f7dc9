"""A real broker for somebody's tests: a process of its own, a part of a real ZooKeeper, a directory.

Owned by the thread that makes it, which must live as long: the process dies with that thread, however it dies.
"""

import contextlib
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from meta_client.client import Client
from meta_client.demo.programs import Broker
from zk.corner import corner

SESSION_TIMEOUT_MS = 4_000  # a broker that is killed is away that long, and then it is known

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
    """Broker 0 of a cluster of its own, serving. Use as a context manager; its clients are closed with it.

    *directory* must exist, and keeps journal and log; *zookeeper* is the connect string of a server, on which a node
    *name* is made, and removed at the end. *config* is the text of a broker's toml file. start() raises
    ProgramFailed, which quotes the broker's log, and kazoo's errors.
    """

    def __init__(self, directory: Path, zookeeper: str, name: str, config: str = DEFAULT_CONFIG) -> None:
        path = directory / "broker.toml"
        path.write_text(config)
        self._directory = directory
        self._corner = corner(zookeeper, name)
        self._opened = contextlib.ExitStack()
        self._config = path
        self._broker: Broker
        self.connect = f"{zookeeper}/{name}"  # what a Client, or `metaq ... --zk`, connects to

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opened:
            opened.enter_context(self._corner)
            log = self._directory / "broker.log"
            self._broker = Broker(self._directory / "data", self.connect, self._config, log)
            opened.callback(self._broker.kill)
            self._broker.start()
            self._opened = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    @property
    def data(self) -> Path:
        """Where its journal is, for `metaq journal`."""
        return self._broker.data

    @property
    def log(self) -> str:
        """What it has logged, all its starts."""
        return self._broker.log.read_text()

    def client(self, **options: Any) -> Client:
        """A new client, closed when the broker is, if not before. *options* are Client's. Raises ZooKeeperError."""
        options.setdefault("session_timeout_ms", SESSION_TIMEOUT_MS)
        return self._opened.enter_context(Client(self.connect, **options))

    def kill(self) -> None:
        """SIGKILL, as in a crash: what it has acknowledged is there after start()."""
        self._broker.kill()

    def stop(self) -> None:
        """Stop it as an operator does. Raises ProgramFailed unless it ends well."""
        self._broker.stop()

    def start(self) -> None:
        """Start it again, at the same address; it has recovered and serves on return. Raises ProgramFailed."""
        self._broker.start()
