"""Lines of JSON between the demo and its two child processes, over the child's stdin and stdout: both ends of them.

Passwords travel this way too: every user of the machine can read command lines.
"""

import contextlib
import functools
import io
import logging
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from meta_broker.testing.processes import STOP_TIMEOUT_S, Program, ProgramFailed

LINE_BYTES_MAX: Final = 1024 * 1024


class _ChildLine(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of all messages."""


class Begin(_ChildLine, frozen=True, kw_only=True):
    """Parent: begin. Producers recover, then send every invoice of *orders* that the database lacks; consumers consume
    until their input ends."""

    dsn: str
    zookeeper: str
    decisions: str = ""  # directory of the coordinator's log
    orders: list[str] = []
    limit: int = 0  # of invoices, as in Work
    consumers: int = 0


class Work(_ChildLine, frozen=True):
    """Parent: begin up to *limit* invoices, counted from the start; hold the next transaction that reaches each of
    *steps*, until the next Work."""

    limit: int
    steps: list[str] = []


class RecoveryDone(_ChildLine, frozen=True):
    """Producers: recovery is done, work begins. By transaction: COMMIT or ROLL_BACK."""

    actions: dict[str, str]


class RolledBack(_ChildLine, frozen=True):
    """Producers: an attempt was rolled back."""


class Trapped(_ChildLine, frozen=True):
    """Producers: a transaction is held at *step*."""

    step: str
    transaction: str


class Finished(_ChildLine, frozen=True):
    """Every invoice is committed, or every consumer closed."""


TalkMessage = Begin | Work | RecoveryDone | RolledBack | Trapped | Finished
decode: Final[Callable[[bytes], TalkMessage]] = msgspec.json.Decoder(TalkMessage).decode

_writing = threading.Lock()


def encode(message: TalkMessage) -> bytes:
    return msgspec.json.encode(message) + b"\n"


@functools.cache
def _input() -> io.FileIO:
    """Return stdin. Not sys.stdin: a thread waiting for input holds its buffer's lock, which blocks the interpreter's
    end."""
    return io.FileIO(0, "rb", closefd=False)


def begun() -> Begin:
    """Return the first order of a child process, whose log goes to stderr."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(threadName)s %(name)s %(message)s")
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    start = decode(_input().readline(LINE_BYTES_MAX))
    assert isinstance(start, Begin)
    return start


def tell(message: TalkMessage) -> None:
    """Send an event to the environment. Any thread."""
    with _writing:
        sys.stdout.buffer.write(encode(message))
        sys.stdout.buffer.flush()


def listen(on_work: Callable[[Work], None]) -> None:
    """Call *on_work* with every further order; return at the end of the input: the parent wants no more, or is gone."""
    while (line := _input().readline(LINE_BYTES_MAX)).endswith(b"\n"):
        order = decode(line)
        assert isinstance(order, Work)
        on_work(order)


_E = TypeVar("_E", RecoveryDone, Trapped)


class DemoChild(Program):
    """A child process, as the environment sees it. Owned by the thread that starts it."""

    def __init__(self, name: str, module: str, log: Path) -> None:
        super().__init__(name, log)
        self.heard: Counter[type] = Counter()  # its events, by kind
        self._module = module
        self._events: queue.SimpleQueue[TalkMessage | None] = queue.SimpleQueue()

    def start(self, order: Begin) -> None:
        """Start the process with its first order. Returns at once."""
        process = self._launch([sys.executable, "-m", self._module], is_piped=True)
        self._events = queue.SimpleQueue()
        threading.Thread(target=self._listen, args=(process, self._events), name=self.name, daemon=True).start()
        self.send(order)

    def send(self, order: Begin | Work) -> None:
        """Send an order. Raises ProgramFailed if the process has ended."""
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(encode(order))
            self._process.stdin.flush()
        except BrokenPipeError:
            self._process.wait(STOP_TIMEOUT_S)
            self.check()

    def next_event(self, timeout_s: float) -> TalkMessage | None:
        """Return the next event; None: there was none in time. Raises ProgramFailed once the process has ended."""
        with contextlib.suppress(queue.Empty):
            if (event := self._events.get(timeout=timeout_s)) is not None:
                return event
            assert self._process is not None
            self._process.wait(STOP_TIMEOUT_S)
        self.check()
        return None

    def wait_for(self, kind: type[_E], timeout_s: float) -> _E:
        """Return the next event of *kind*, dropping others before it. Raises ProgramFailed."""
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            if isinstance(event := self.next_event(left), kind):
                return event
        raise ProgramFailed(f"{self.name} said no {kind.__name__} within {timeout_s:g} s: {self.log_tail()}")

    def wait_for_exit(self, timeout_s: float) -> None:
        """End its input, and wait until it exits with status 0. Raises ProgramFailed."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._wait_for_exit(timeout_s)

    def _listen(self, process: subprocess.Popen[bytes], events: "queue.SimpleQueue[TalkMessage | None]") -> None:
        assert process.stdout is not None
        try:
            while (line := process.stdout.readline(LINE_BYTES_MAX)).endswith(b"\n"):
                events.put(event := decode(line))
                self.heard[type(event)] += 1
        except ValueError:
            return  # kill() has closed the pipe
        finally:
            events.put(None)
