"""Programs as child processes, the broker among them.

All of them die with their parent. Each writes to a log file, whose end is quoted when it fails. Owned by the thread
that starts them.
"""

import contextlib
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from meta_broker.testing.launch import command
from meta_client.protocol.errors import MetaError

READY: Final = re.compile(r" serves at meta://127\.0\.0\.1:(\d+)")
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 30
LOG_TAIL_BYTES = 2_000


class ProgramFailed(MetaError):
    """A program did not start, or ended by itself. The message quotes its log."""


class Program:
    """One command line, started any number of times, one process at a time."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    def _launch(self, arguments: list[str], *, is_piped: bool) -> subprocess.Popen[bytes]:
        assert self._process is None, f"{self.name} runs already"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command line, no shell
                command(arguments, stop_signal=signal.SIGKILL),
                stdin=subprocess.PIPE if is_piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if is_piped else log,
                stderr=log,
                process_group=0,  # Ctrl-C in the terminal is for the parent, which stops its children in order
            )
        return self._process

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def check(self) -> None:
        """Raise ProgramFailed if the process has ended by itself."""
        if self._process is not None and (code := self._process.poll()) is not None:
            raise ProgramFailed(f"{self.name} ended with code {code}; the end of {self.log}: {self.log_tail()}")

    def _wait_for_exit(self, timeout_s: float) -> None:
        """Wait until it exits with status 0. Raises ProgramFailed."""
        assert self._process is not None
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ProgramFailed(f"{self.name} does not end within {timeout_s:g} s: {self.log_tail()}") from None
        if code != 0:
            self.check()
        self.kill()

    def kill(self) -> None:
        """Kill the process and wait until it is gone. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):  # unread input does not matter now
                        pipe.close()
            self._process = None

    def log_tail(self) -> str:
        text = self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        return " | ".join(line.strip() for line in text.splitlines()[-8:] if line.strip()) or "(empty)"


class BrokerProgram(Program):
    """`metaq broker`, id 0. Its port is chosen at the first start and kept."""

    def __init__(self, data: Path, zookeeper: str, config: Path, log: Path) -> None:
        super().__init__("the broker", log)
        self.data = data
        self._zookeeper = zookeeper
        self._config = config
        self._port = 0

    def start(self) -> None:
        """Start the broker; on return it has recovered, serves and is registered. Raises ProgramFailed."""
        before = self.log.stat().st_size if self.log.exists() else 0
        options = {"data": self.data, "id": 0, "port": self._port, "zk": self._zookeeper, "config": self._config}
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        self._launch(metaq("broker", *words), is_piped=False)
        deadline = time.monotonic() + START_TIMEOUT_S
        while (match := READY.search(self.log.read_bytes()[before:].decode(errors="replace"))) is None:
            self.check()
            if time.monotonic() > deadline:
                raise ProgramFailed(f"the broker does not serve after {START_TIMEOUT_S} s: {self.log_tail()}")
            time.sleep(0.02)
        self._port = int(match[1])

    def stop(self) -> None:
        """Send SIGTERM and wait. Raises ProgramFailed unless it exits with status 0."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._wait_for_exit(STOP_TIMEOUT_S)


def metaq(*arguments: str) -> list[str]:
    """Return the command line of `metaq ARGUMENTS`, whether or not its script is on PATH."""
    return [sys.executable, "-c", "from meta_client.cli.main import main; main()", *arguments]
