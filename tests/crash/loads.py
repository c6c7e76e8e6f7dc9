"""Clients that work on one master at once, until it is gone."""

import contextlib
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from journal.records.record import PartitionName
from meta_client.protocol.responses import Result
from tests.crash.decisions import Operator
from tests.crash.ledger import Log
from tests.crash.workload import Connect, Producer, Reader, end_of
from tests.fixtures.replicas import wait_until
from tests.fixtures.wire import Refused, WireClient

GONE_S = 60.0


class PatientProducer(Producer):
    """A producer that goes on when a broker refuses: what it asked for is as open as if the broker had died."""

    def __init__(self, number: int, seed: int) -> None:
        super().__init__(number, seed)
        self.refusals = 0

    def work(self, client: WireClient) -> None:
        """One step. Raises Refused, ConnectionError: how far it got is open then."""
        self._random.choice([self._plain, self._plain, self._local, self._xa, self._xa, self._finish])(client)

    def one_more(self, connect: Connect) -> None:
        """Put until something is acknowledged: then everything before is, or never will be."""
        with connect() as client:
            wait_until(lambda: self._is_acknowledged(client), "a put is acknowledged")

    def _is_acknowledged(self, client: WireClient) -> bool:
        before = self.refusals
        self._plain(client)
        return self.refusals == before

    def _refused(self, answer: Result) -> None:
        self.refusals += 1


class Load:
    """Producers, an operator and a reader, each with a connection of its own."""

    def __init__(
        self, workers: list[PatientProducer | Operator], reader: Reader, former: Log, connect: Connect
    ) -> None:
        self._connect_one = connect
        self._clients: list[WireClient] = []
        self._is_over = False
        self._may_be_silent = False
        self._threads = ThreadPoolExecutor(len(workers) + 1)
        ends = {name: end_of(messages) for name, messages in former.items()}
        self._tasks: list[Future[None]] = [self._threads.submit(self._work, worker) for worker in workers]
        self._tasks.append(self._threads.submit(self._read, reader, ends))

    def paused(self) -> None:
        """Pause of the master: a request that waits for it in vain is as open as if it had died."""
        self._may_be_silent = True

    def hang_up(self) -> None:
        """Close all connections, so that no client believes a paused master once it resumes."""
        self._is_over = True
        for client in list(self._clients):
            hang_up(client)

    def wait(self) -> None:
        """Until all have seen the master's end. Raises what they raised."""
        for task in self._tasks:
            task.result(timeout=GONE_S)
        self._threads.shutdown()

    def _connect(self) -> WireClient:
        client = self._connect_one()
        self._clients.append(client)
        if self._is_over:
            hang_up(client)
        return client

    def _work(self, worker: PatientProducer | Operator) -> None:
        with self._until_gone(), self._connect() as client:
            while True:
                with contextlib.suppress(Refused):
                    worker.work(client)

    def _read(self, reader: Reader, ends: dict[PartitionName, int]) -> None:
        with self._until_gone():
            reader.run(self._connect, ends)

    @contextlib.contextmanager
    def _until_gone(self) -> Iterator[None]:
        try:
            yield
        except ConnectionError:
            return
        except TimeoutError:
            if not self._may_be_silent:
                raise


def hang_up(client: WireClient) -> None:
    with contextlib.suppress(OSError):
        client.socket.shutdown(socket.SHUT_RDWR)
