"""The stage's end of the protocol with producers and consumers. Owned by the thread that starts them."""

import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TypeVar

from meta_broker.demo.talk import LINE_BYTES_MAX, Event, Order, decode_event, encode
from meta_broker.testing.processes import STOP_TIMEOUT_S, Program, ProgramFailed

_E = TypeVar("_E", bound=Event)


class Talker(Program):
    """A child process that takes orders on stdin and sends events on stdout."""

    def __init__(self, name: str, module: str, log: Path) -> None:
        super().__init__(name, log)
        self._module = module
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()

    def start(self, order: Order) -> None:
        """Start the process with its first order. Returns at once."""
        process = self._launch([sys.executable, "-m", self._module], is_piped=True)
        self._events = queue.SimpleQueue()
        threading.Thread(target=self._listen, args=(process, self._events), name=self.name, daemon=True).start()
        self.send(order)

    def send(self, order: Order) -> None:
        """Send an order. Raises ProgramFailed if the process has ended."""
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(encode(order))
            self._process.stdin.flush()
        except BrokenPipeError:
            self._process.wait(STOP_TIMEOUT_S)
            self.check()

    def next_event(self, timeout_s: float) -> Event | None:
        """Return the next event; None: there was none in time. Raises ProgramFailed once the process has ended."""
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
        """Return the next event of *kind*, dropping others before it. Raises ProgramFailed."""
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            if isinstance(event := self.next_event(left), kind):
                return event
        raise ProgramFailed(f"{self.name} said no {kind.__name__} within {timeout_s:g} s: {self.log_tail()}")

    def wait_for_end(self, timeout_s: float) -> None:
        """Wait until the process ends with status 0. Raises ProgramFailed."""
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
