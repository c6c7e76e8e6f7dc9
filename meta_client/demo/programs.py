"""Programs as child processes: the broker, and the stage's end of the conversation with producers and consumers.

All of them die with the stage. Their output goes to a log file each, whose end is quoted when one fails. Owned by
the thread that starts them.
"""

import contextlib
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final, TypeVar

from meta_client.demo.launch import command
from meta_client.demo.talk import LINE_BYTES_MAX, Event, Order, decode_event, encode
from meta_client.protocol.errors import MetaError

READY: Final = re.compile(r" serves at meta://127\.0\.0\.1:(\d+)")
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 30
LOG_TAIL_BYTES = 2_000

_E = TypeVar("_E", bound=Event)


class ProgramFailed(MetaError):
    """A program of the demo did not start, or ended by itself. The message quotes its log."""


class Program:
    """One command line, started any number of times, one process at a time."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    def _launch(self, arguments: list[str], *, is_talking: bool) -> subprocess.Popen[bytes]:
        assert self._process is None, f"{self.name} runs already"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command line, no shell
                command(arguments, stop_signal=signal.SIGKILL),
                stdin=subprocess.PIPE if is_talking else subprocess.DEVNULL,
                stdout=subprocess.PIPE if is_talking else log,
                stderr=log,
                process_group=0,  # Ctrl-C in the terminal is for the stage, which stops us in order
            )
        return self._process

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def check(self) -> None:
        """Raises ProgramFailed when the process has ended by itself."""
        if self._process is not None and (code := self._process.poll()) is not None:
            raise ProgramFailed(f"{self.name} ended with code {code}; the end of {self.log}: {self.log_tail()}")

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):  # what it never read is of no interest now
                        pipe.close()
            self._process = None

    def log_tail(self) -> str:
        text = self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        return " | ".join(line.strip() for line in text.splitlines()[-8:] if line.strip()) or "(empty)"


class Broker(Program):
    """`metaq broker`, id 0. The port is a free one, and the same from then on."""

    def __init__(self, data: Path, zookeeper: str, config: Path, log: Path) -> None:
        super().__init__("the broker", log)
        self.data = data
        self._zookeeper = zookeeper
        self._config = config
        self._port = 0

    def start(self) -> None:
        """Start it; it has recovered, serves and is registered on return. Raises ProgramFailed."""
        before = self.log.stat().st_size if self.log.exists() else 0
        options = {"data": self.data, "id": 0, "port": self._port, "zk": self._zookeeper, "config": self._config}
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        self._launch(metaq("broker", *words), is_talking=False)
        deadline = time.monotonic() + START_TIMEOUT_S
        while (match := READY.search(self.log.read_bytes()[before:].decode(errors="replace"))) is None:
            self.check()
            if time.monotonic() > deadline:
                raise ProgramFailed(f"the broker does not serve after {START_TIMEOUT_S} s: {self.log_tail()}")
            time.sleep(0.02)
        self._port = int(match[1])

    def stop(self) -> None:
        """SIGTERM, then wait. Raises ProgramFailed unless it ends well."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise ProgramFailed(f"the broker does not stop within {STOP_TIMEOUT_S} s: {self.log_tail()}") from None
        self._process = None
        if code != 0:
            raise ProgramFailed(f"the broker ended with code {code}; the end of {self.log}: {self.log_tail()}")


class Talker(Program):
    """A module of ours that takes orders on stdin and tells events on stdout."""

    def __init__(self, name: str, module: str, log: Path) -> None:
        super().__init__(name, log)
        self._module = module
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()

    def start(self, order: Order) -> None:
        """Start it with its first order. Returns at once."""
        process = self._launch([sys.executable, "-m", self._module], is_talking=True)
        self._events = queue.SimpleQueue()
        threading.Thread(target=self._listen, args=(process, self._events), name=self.name, daemon=True).start()
        self.send(order)

    def send(self, order: Order) -> None:
        """Raises ProgramFailed if it has ended."""
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(encode(order))
            self._process.stdin.flush()
        except BrokenPipeError:
            self._process.wait(STOP_TIMEOUT_S)
            self.check()

    def next_event(self, timeout_s: float) -> Event | None:
        """What it said next; None if it said nothing for so long. Raises ProgramFailed once it has ended."""
        try:
            event = self._events.get(timeout=timeout_s)
        except queue.Empty:
            self.check()
            return None
        if event is None:
            assert self._process is not None
            self._process.wait(STOP_TIMEOUT_S)
            self.check()
        return event

    def wait_for(self, kind: type[_E], timeout_s: float) -> _E:
        """The next event of *kind*; others before it are dropped. Raises ProgramFailed."""
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            if isinstance(event := self.next_event(left), kind):
                return event
        raise ProgramFailed(f"{self.name} said no {kind.__name__} within {timeout_s:g} s: {self.log_tail()}")

    def wait_for_end(self, timeout_s: float) -> None:
        """Until it has ended, well, after what it was told. Raises ProgramFailed."""
        assert self._process is not None
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ProgramFailed(f"{self.name} does not end within {timeout_s:g} s: {self.log_tail()}") from None
        if self._process.returncode != 0:
            self.check()
        self.kill()

    def _listen(self, process: subprocess.Popen[bytes], events: "queue.SimpleQueue[Event | None]") -> None:
        assert process.stdout is not None
        try:
            while (line := process.stdout.readline(LINE_BYTES_MAX)).endswith(b"\n"):
                events.put(decode_event(line))
        except ValueError:
            return  # kill() has closed the pipe
        finally:
            events.put(None)


def metaq(*arguments: str) -> list[str]:
    """The command line of `metaq ARGUMENTS`, whether or not its script is on PATH."""
    return [sys.executable, "-c", "from meta_client.cli.main import main; main()", *arguments]
