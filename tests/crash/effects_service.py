"""Processes of the service in effects_child: processes that are stopped, continued and killed."""

import queue
import signal
import threading
from pathlib import Path

from kazoo.client import KazooClient

from tests.fixtures.forked import start_speaking

WAIT_S = 60


class Service:
    """One process of the service, and what it said so far."""

    def __init__(self, zookeeper: str, dsn: str, style: str, seed: int, errors: Path) -> None:
        self._zookeeper = zookeeper
        self._errors = errors
        with errors.open("wb") as log:
            words = (zookeeper, dsn, style, str(seed))
            self._process, self._said = start_speaking("tests.crash.effects_child", *words, stderr=log)
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._session = self._next().split()
        self.repeated = 0  # messages that were delivered though their rows were there

    def work(self, transactions: int) -> None:
        """Return once it has done so many more."""
        for _ in range(transactions):
            _, took, _, of = self._next().split()
            self.repeated += int(of) - int(took)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process.returncode is not None:
            return
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._said.close()

    def expire(self) -> None:
        """End its session, as ZooKeeper would in some seconds."""
        session_id, password = self._session
        usurper = KazooClient(self._zookeeper, client_id=(int(session_id), bytes.fromhex(password.decode())))
        usurper.start()
        usurper.stop()
        usurper.close()

    def _read(self) -> None:
        for line in self._said:
            self._lines.put(line)

    def _next(self) -> bytes:
        try:
            return self._lines.get(timeout=WAIT_S)
        except queue.Empty:
            raise AssertionError(f"it does nothing: {self._errors.read_text()}") from None


def kill_all(services: list[Service]) -> None:
    for service in services:
        service.kill()
