"""A real broker as a child process, for tests and the demo: it dies with the thread that starts it."""

import contextlib
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final, Self

from meta_client.client import Client
from meta_client.protocol.errors import MetaError
from zk.embedded.chroot import chroot
from zk.embedded.launch import command, log_tail

READY: Final = re.compile(r" serves at meta://127\.0\.0\.1:(\d+)")
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 30
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


class ProgramFailed(MetaError):
    """A program did not start, or ended by itself. The message quotes its log."""


class BrokerProgram:
    """`metaq broker`, id 0, started any number of times, one process at a time. *data* is its directory, for `metaq
    journal`. Writes to the file *log*, whose end is quoted when it fails. Its port is chosen at the first start and
    kept. Owned by the thread that starts it.
    """

    def __init__(self, data: Path, zookeeper: str, config: Path, log: Path) -> None:
        self.data = data
        self.log_path = log
        self._zookeeper = zookeeper
        self._config = config
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, also again, at the same address; on return it has recovered, serves and is registered. Raises
        ProgramFailed."""
        assert self._process is None, "the broker runs already"
        options = {"data": self.data, "id": 0, "port": self._port, "zk": self._zookeeper, "config": self._config}
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        with self.log_path.open("ab") as log:
            before = log.tell()
            self._process = subprocess.Popen(  # noqa: S603 - our own command line, no shell
                command(metaq("broker", *words), stop_signal=signal.SIGKILL),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # Ctrl-C in the terminal is for the parent, which stops its children in order
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while (match := READY.search(self.log_path.read_bytes()[before:].decode(errors="replace"))) is None:
            self.check()
            if time.monotonic() > deadline:
                raise ProgramFailed(f"the broker does not serve after {START_TIMEOUT_S} s: {log_tail(self.log_path)}")
            time.sleep(0.02)
        self._port = int(match[1])

    def check(self) -> None:
        """Raise ProgramFailed if the process has ended by itself."""
        if self._process is not None and (code := self._process.poll()) is not None:
            raise ProgramFailed(
                f"the broker ended with code {code}; the end of {self.log_path}: {log_tail(self.log_path)}"
            )

    def stop(self) -> None:
        """Stop it as an operator does. Raises ProgramFailed unless it exits with status 0."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise ProgramFailed(
                f"the broker does not end within {STOP_TIMEOUT_S} s: {log_tail(self.log_path)}"
            ) from None
        if code != 0:
            self.check()
        self.kill()

    def kill(self) -> None:
        """Kill it with SIGKILL, as a crash does, and wait until it is gone: what it has acknowledged is kept.
        Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def metaq(*arguments: str) -> list[str]:
    """Return the command line of `metaq ARGUMENTS`, whether or not its script is on PATH."""
    return [sys.executable, "-c", "from meta_client.cli.main import main; main()", *arguments]


class RealBroker(BrokerProgram):
    """A serving broker 0 of its own cluster. Use as a context manager; its clients are closed with it.

    *directory* must exist, and keeps journal and log; *zookeeper* is the connect string of a server, on which a node
    *name* is created, and removed at the end. *config* is the text of a broker's toml file. start() raises
    ProgramFailed, which quotes the broker's log, and kazoo's errors.
    """

    def __init__(self, directory: Path, zookeeper: str, name: str, config: str = DEFAULT_CONFIG) -> None:
        path = directory / "broker.toml"
        path.write_text(config)
        self.connect = f"{zookeeper}/{name}"  # what a Client, or `metaq ... --zk`, connects to
        super().__init__(directory / "data", self.connect, path, directory / "broker.log")
        self._chroot = chroot(zookeeper, name)
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opened:
            opened.enter_context(self._chroot)
            opened.callback(self.kill)
            self.start()
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @property
    def log(self) -> str:
        """Log of all its starts."""
        return self.log_path.read_text()

    def client(self, **options: Any) -> Client:
        """Return a new client, closed with the broker at the latest. *options* are Client's. Raises ZooKeeperError."""
        options.setdefault("session_timeout_ms", SESSION_TIMEOUT_MS)
        return self._opened.enter_context(Client(self.connect, **options))
