"""Supervises several brokers, each a process, with an id, a port and a directory of its own.

A broker that a signal killed is started again after a back-off: it recovers by itself. One that ended with a status has
logged why, and stays down: another start would end the same way.
"""

import contextlib
import dataclasses
import logging
import math
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from meta_broker.config.broker_config import BROKER_ID_MAX, BrokerConfig
from meta_broker.errors import ConfigError

PROCESSES_MAX: Final = 64
BACKOFF_S: Final = 1.0  # doubles with each death that follows soon
BACKOFF_S_MAX: Final = 30.0
STEADY_S: Final = 60.0  # a broker that lived as long begins with BACKOFF_S again
PORT_MAX: Final = 65_535
NEVER: Final = math.inf
FORWARDED: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})  # to the brokers

log = logging.getLogger(__name__)


def configs(first: BrokerConfig, count: int) -> list[BrokerConfig]:
    """Return the configurations of *count* brokers: ids and ports follow those of *first*, and each has the directory
    `broker-<id>` in its data directory. Port 0 stays "any free one". Raises ConfigError."""
    given = f"--processes {count}"
    admin_port = first.admin.port
    if not 1 <= count <= PROCESSES_MAX:
        raise ConfigError(f"{given}: use a number from 1 to {PROCESSES_MAX}")
    if first.broker_id + count - 1 > BROKER_ID_MAX:
        raise ConfigError(f"--id {first.broker_id} {given}: the last id is above {BROKER_ID_MAX}")
    if first.slave.master is not None:
        raise ConfigError("--master names one broker: leave it out, and slaves find their masters in ZooKeeper")
    if first.retention.archive is not None:
        raise ConfigError("brokers must not share retention.archive: start each with a file of its own")
    for option, port in (("--port", first.port), ("--admin-port", admin_port or 0)):
        if port + count - 1 > PORT_MAX:
            raise ConfigError(f"{option} {port} {given}: the last port is above {PORT_MAX}")
    if first.port and admin_port and abs(first.port - admin_port) < count:
        raise ConfigError(
            f"--port {first.port} and --admin-port {admin_port} {given}: leave {count} ports between them"
        )
    return [
        dataclasses.replace(
            first,
            broker_id=first.broker_id + index,
            port=_following(first.port, index),
            data=first.data / f"broker-{first.broker_id + index}",
            admin=msgspec.structs.replace(first.admin, port=admin_port and _following(admin_port, index)),
        )
        for index in range(count)
    ]


def _following(port: int, index: int) -> int:
    return port + index if port else 0


@dataclass(slots=True)
class Child:
    """One broker. *due*: when it is started next; NEVER: it runs, or stays down."""

    broker_id: int
    due: float = 0.0
    is_running: bool = False
    status: int = 0  # with which it ended for good
    began: float = field(default=0.0, repr=False)
    backoff_s: float = field(default=BACKOFF_S, repr=False)

    @property
    def is_over(self) -> bool:
        return not self.is_running and self.due == NEVER

    def not_started(self, error: OSError, now: float) -> None:
        """Note that it could not be started: no process, or no memory, is left for a while."""
        log.error("broker not started id=%d again_in_s=%g error=%s", self.broker_id, self.backoff_s, error)
        self._back_off(now)

    def started(self, now: float) -> None:
        self.is_running, self.began, self.due = True, now, NEVER

    def ended(self, code: int, now: float, *, is_stopping: bool) -> None:
        """Note how it ended, and decide when it starts again. *code*: its exit status, or minus the signal."""
        self.is_running = False
        if code >= 0 or is_stopping:
            self.status = code if code >= 0 else 128 - code
            if self.status or not is_stopping:
                log.error("broker ended, and is not started again id=%d status=%d", self.broker_id, self.status)
            return
        if now - self.began >= STEADY_S:
            self.backoff_s = BACKOFF_S
        log.error("broker was killed id=%d signal=%d started_in_s=%g", self.broker_id, -code, self.backoff_s)
        self._back_off(now)

    def stop(self) -> None:
        """Start it no more."""
        self.due = NEVER

    def _back_off(self, now: float) -> None:
        """Have it started after its wait; the next wait is twice as long."""
        self.due = now + self.backoff_s
        self.backoff_s = min(2 * self.backoff_s, BACKOFF_S_MAX)


class Supervisor:
    """Starts, watches and stops brokers. Main thread."""

    def __init__(self, commands: Mapping[int, Sequence[str]]) -> None:
        """*commands*: by broker id, the command line of a broker that stops when its standard input ends."""
        self._commands = commands
        self._children = [Child(broker_id) for broker_id in commands]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}  # by broker id; no ended ones
        self._is_stopping = False

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT, which each broker gets as SIGTERM, a second one too; SIGHUP goes to all.

        Returns once all brokers have ended: 0, or the highest status. Brokers stop, too, if this process is killed.
        """
        with _pipe() as (lifeline, _), _signals(*FORWARDED, signal.SIGCHLD) as arrived:
            while not all(child.is_over for child in self._children):
                self._start_due(lifeline)
                self._wait(arrived)
                for number in _read(arrived):
                    if number in FORWARDED:
                        self._forward(number)
                self._reap()
        return max(child.status for child in self._children)

    def _start_due(self, lifeline: int) -> None:
        now = time.monotonic()
        for child in self._children:
            if child.due <= now:
                command = self._commands[child.broker_id]
                # In a process group of its own: ^C goes to the supervisor alone, which forwards it.
                try:
                    process = subprocess.Popen(command, stdin=lifeline, process_group=0)  # noqa: S603 - ours
                except OSError as error:
                    child.not_started(error, now)
                    continue
                self._processes[child.broker_id] = process
                child.started(now)
                log.info("broker started id=%d pid=%d", child.broker_id, process.pid)

    def _wait(self, arrived: int) -> None:
        """Return when a signal arrives, as of a broker's end, or one is due."""
        due = min(child.due for child in self._children)
        ready = select.poll()
        ready.register(arrived, select.POLLIN)
        ready.poll(None if due == NEVER else max(0.0, math.ceil((due - time.monotonic()) * 1000)))

    def _forward(self, number: int) -> None:
        if number != signal.SIGHUP:
            self._is_stopping = True
            for child in self._children:
                child.stop()
        for process in self._processes.values():
            process.send_signal(number if number == signal.SIGHUP else signal.SIGTERM)

    def _reap(self) -> None:
        for child in self._children:
            process = self._processes.get(child.broker_id)
            if process is not None and (code := process.poll()) is not None:
                del self._processes[child.broker_id]
                child.ended(code, time.monotonic(), is_stopping=self._is_stopping)


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    """Open a pipe, read end first, until the block ends."""
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


@contextlib.contextmanager
def _signals(*numbers: signal.Signals) -> Iterator[int]:
    """Turn *numbers* into bytes that can be read from the descriptor yielded."""
    with _pipe() as (arrived, arrive):
        for end in (arrived, arrive):
            os.set_blocking(end, False)
        before = {number: signal.signal(number, lambda *_: None) for number in numbers}
        signal.set_wakeup_fd(arrive, warn_on_full_buffer=False)
        try:
            yield arrived
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in before.items():
                signal.signal(number, handler)


def _read(arrived: int) -> bytes:
    with contextlib.suppress(BlockingIOError):
        return os.read(arrived, 4096)
    return b""
