"""A broker as a child process, which dies with the thread that starts it."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from meta_client.protocol.errors import MetaError
from zk.embedded.launch import command, log_tail

READY: Final = re.compile(r" serves at meta://127\.0\.0\.1:(\d+)")
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 30


class ProgramFailed(MetaError):
    """A program did not start, or ended by itself. The message quotes its log."""


class BrokerProgram:
    """`metaq broker`, id 0, started any number of times, one process at a time. Writes to the file *log*, whose end is
    quoted when it fails. Its port is chosen at the first start and kept. Owned by the thread that starts it.
    """

    def __init__(self, data: Path, zookeeper: str, config: Path, log: Path) -> None:
        self.data = data
        self.log = log
        self._zookeeper = zookeeper
        self._config = config
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the broker; on return it has recovered, serves and is registered. Raises ProgramFailed."""
        assert self._process is None
        options = {"data": self.data, "id": 0, "port": self._port, "zk": self._zookeeper, "config": self._config}
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        with self.log.open("ab") as log:
            before = log.tell()
            self._process = subprocess.Popen(  # noqa: S603 - our own command line, no shell
                command(metaq("broker", *words), stop_signal=signal.SIGKILL),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # Ctrl-C in the terminal is for the parent, which stops its children in order
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while (match := READY.search(self.log.read_bytes()[before:].decode(errors="replace"))) is None:
            self.check()
            if time.monotonic() > deadline:
                raise ProgramFailed(f"the broker does not serve after {START_TIMEOUT_S} s: {log_tail(self.log)}")
            time.sleep(0.02)
        self._port = int(match[1])

    def check(self) -> None:
        """Raise ProgramFailed if the process has ended by itself."""
        if self._process is not None and (code := self._process.poll()) is not None:
            raise ProgramFailed(f"the broker ended with code {code}; the end of {self.log}: {log_tail(self.log)}")

    def stop(self) -> None:
        """Send SIGTERM and wait. Raises ProgramFailed unless it exits with status 0."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise ProgramFailed(f"the broker does not end within {STOP_TIMEOUT_S} s: {log_tail(self.log)}") from None
        if code != 0:
            self.check()
        self.kill()

    def kill(self) -> None:
        """Kill the process and wait until it is gone. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def metaq(*arguments: str) -> list[str]:
    """Return the command line of `metaq ARGUMENTS`, whether or not its script is on PATH."""
    return [sys.executable, "-c", "from meta_client.cli.main import main; main()", *arguments]
