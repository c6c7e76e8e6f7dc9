"""The producer process: four threads, an invoice at a time, each one transaction over database and broker.

Code as a user of metaq would write it, except the traps. Started again after a crash, it recovers, asks the database
which invoices are done, and sends the others: enough, because an invoice is in both or in neither.
"""

import logging
import queue
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

from journal.records.xid import Xid
from meta_broker.demo.child import listen, read_order, tell
from meta_broker.demo.messages import INVOICES_TOPIC, LINES_TOPIC, invoice_message, line_messages
from meta_broker.demo.orders import Invoice, read_invoices
from meta_broker.demo.schema import INSERT_INVOICE, INSERT_LINE, INVOICE_NUMBERS
from meta_broker.demo.talk import (
    Committed,
    Finished,
    Order,
    Proceed,
    Recovered,
    RecoveredOne,
    Release,
    StartProducers,
    Trap,
    Trapped,
)
from meta_broker.demo.traps import Gate, Traps
from meta_client import Client
from meta_client.coordinator import Coordinator, DecisionUnknown, HeuristicOutcome, Step
from meta_client.coordinator.errors import Unreachable
from meta_client.coordinator.phase_two import waits_s
from meta_client.coordinator.recovery import Recovered as Report
from meta_client.producer.producer import Producer
from meta_client.protocol.errors import MetaError
from zk.errors import ZooKeeperError

THREADS = 4
QUALIFIER = "shop"
TOPICS = (LINES_TOPIC, INVOICES_TOPIC)
RECOVERY_ATTEMPTS = 200  # some minutes with the waits between them: a broker may still be starting

log = logging.getLogger(__name__)

Connection = psycopg.Connection[Any]


class Tally:
    """Counts the threads' transactions, and reports them to the stage. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._committed = self._rolled_back = 0

    def add(self, *, is_committed: bool) -> None:
        with self._lock:
            self._committed += is_committed
            self._rolled_back += not is_committed
            tell(Committed(self._committed, self._rolled_back))


class Worker(threading.Thread):
    """A thread with its own connection and producer. An early end is in `failure`."""

    def __init__(
        self,
        dsn: str,
        producer: Producer,
        coordinator: Coordinator,
        todo: "queue.SimpleQueue[Invoice]",
        gate: Gate,
        tally: Tally,
    ) -> None:
        super().__init__()
        self.failure: BaseException | None = None
        self._dsn = dsn
        self._producer = producer
        self._coordinator = coordinator
        self._todo = todo
        self._gate = gate
        self._tally = tally

    def run(self) -> None:
        try:
            with ExitStack() as stack:
                connection = stack.enter_context(psycopg.connect(self._dsn))
                while True:
                    try:
                        invoice = self._todo.get_nowait()
                    except queue.Empty:
                        return
                    self._gate.pass_through()
                    connection = self._commit(connection, invoice, stack)
        except BaseException as error:
            self.failure = error

    def _commit(self, connection: Connection, invoice: Invoice, stack: ExitStack) -> Connection:
        """Try until the invoice is committed; return the connection to go on with."""
        for wait_s in waits_s():
            try:
                self._try(connection, invoice)
            except (DecisionUnknown, HeuristicOutcome):
                raise  # needs an operator
            except (MetaError, ZooKeeperError, psycopg.OperationalError) as error:
                # Both sides are rolled back in any case: the invoice is in neither, so try again.
                log.info("invoice rolled back number=%s error=%s", invoice.number, error)
                self._tally.add(is_committed=False)
            else:
                break
            threading.Event().wait(wait_s)
            if connection.closed:
                connection = stack.enter_context(psycopg.connect(self._dsn))
        self._tally.add(is_committed=True)
        return connection

    def _try(self, connection: Connection, invoice: Invoice) -> None:
        producer = self._producer
        with self._coordinator.transaction(connection, producer, topics=TOPICS):
            header = (invoice.number, invoice.dated, invoice.customer, invoice.country)
            connection.execute(INSERT_INVOICE, header)
            with connection.cursor() as cursor:
                rows = [
                    (invoice.number, number, line.stock_code, line.description, line.quantity, line.price)
                    for number, line in enumerate(invoice.lines)
                ]
                cursor.executemany(INSERT_LINE, rows)
            for message in line_messages(invoice):
                producer.send(LINES_TOPIC, message.encode(), attribute=invoice.number)
            producer.send(INVOICES_TOPIC, invoice_message(invoice).encode(), attribute=invoice.number)


def recover(coordinator: Coordinator, dsn: str, client: Client) -> list[Report]:
    """Finish what the former process left, once every resource is reachable."""
    finished: list[Report] = []
    with psycopg.connect(dsn) as connection:
        for _, wait_s in zip(range(RECOVERY_ATTEMPTS), waits_s(), strict=False):
            try:
                reports = coordinator.recover([connection], [client.producer(QUALIFIER)])
            except Unreachable as error:
                log.info("recovery waits error=%s", error)
            else:
                finished += [report for report in reports if report.problem is None]
                if all(report.problem is None for report in reports):
                    return finished
            threading.Event().wait(wait_s)
    raise MetaError(f"recovery is not done after {RECOVERY_ATTEMPTS} attempts: see the log above for what is away")


def work(start: StartProducers, coordinator: Coordinator, client: Client, gate: Gate) -> None:
    """Send what the database lacks, on all threads. Raises the error that ended a thread early."""
    with psycopg.connect(start.dsn) as connection:
        done = {number for (number,) in connection.execute(INVOICE_NUMBERS)}
    todo: queue.SimpleQueue[Invoice] = queue.SimpleQueue()
    for invoice in read_invoices([Path(name) for name in start.orders]):
        if invoice.number not in done:
            todo.put(invoice)
    tally = Tally()
    workers = [Worker(start.dsn, client.producer(QUALIFIER), coordinator, todo, gate, tally) for _ in range(THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for worker in workers:
        if worker.failure is not None:
            raise worker.failure


def main() -> None:
    """Follow the stage's orders. Ends when all is sent, or by a signal."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(threadName)s %(name)s %(message)s")
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    start = read_order()
    assert isinstance(start, StartProducers)
    traps, gate = Traps(_tell_trapped), Gate(start.limit)

    def obey(order: Order | None) -> None:
        match order:
            case Trap(steps):
                traps.arm({Step[name] for name in steps})
            case Proceed(limit):
                gate.raise_to(limit)
            case Release():
                traps.release()
            case _:
                log.info("no more orders")

    with (
        Client(start.zookeeper) as client,
        Coordinator.open(start.decisions, QUALIFIER, observer=traps.observe) as coordinator,
    ):
        reports = recover(coordinator, start.dsn, client)
        tell(Recovered([RecoveredOne(report.xid.gtrid.decode(), report.action.name) for report in reports]))
        listen(obey)
        work(start, coordinator, client, gate)
        tell(Finished())


def _tell_trapped(step: Step, xid: Xid) -> None:
    tell(Trapped(step.name, xid.gtrid.decode()))


if __name__ == "__main__":
    main()
