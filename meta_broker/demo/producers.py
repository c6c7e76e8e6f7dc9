"""The producer process: four threads, an invoice at a time, each one transaction over database and broker.

Code as a user of metaq would write it, except Hold. Started again after a crash, it recovers, asks the database which
invoices are done, and sends the others: enough, because an invoice is in both or in neither.
"""

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg

from journal.records.xid import Xid
from meta_broker.demo import child_lines
from meta_broker.demo.messages import INVOICES_TOPIC, LINES_TOPIC, encode, invoice_message, line_messages
from meta_broker.demo.orders import Invoice, read_invoices
from meta_broker.demo.schema import INSERT_INVOICE, INSERT_LINE, INVOICE_NUMBERS
from meta_client import Client
from meta_client.coordinator import Coordinator, DecisionUnknown, HeuristicOutcome, TwoPhaseStep
from meta_client.coordinator.errors import Unreachable
from meta_client.coordinator.phase_two import waits_s
from meta_client.producer.producer import Producer
from meta_client.protocol.errors import MetaError
from zk.errors import ZooKeeperError

THREADS = 4
QUALIFIER = "shop"
TOPICS = (LINES_TOPIC, INVOICES_TOPIC)
RECOVERY_ATTEMPTS = 200  # some minutes with the waits between them: a broker may still be starting

log = logging.getLogger(__name__)

_Connection = psycopg.Connection[Any]


class Hold:
    """Holds the threads for a kill: all of them at a number of invoices, or one transaction at a step. Any thread.

    *on_trapped* is called on the held thread, before it waits.
    """

    def __init__(self, limit: int, on_trapped: Callable[[TwoPhaseStep, Xid], None]) -> None:
        self._on_trapped = on_trapped
        self._changed = threading.Condition()  # guards the rest
        self._limit, self._begun = limit, 0
        self._steps: set[str] = set()
        self._orders = 0

    def obey(self, order: child_lines.Work) -> None:
        """Set the limit and the steps; release every held transaction."""
        with self._changed:
            self._limit, self._steps = order.limit, set(order.steps)
            self._orders += 1
            self._changed.notify_all()

    def begin(self) -> None:
        """Wait for a place below the limit, and take it."""
        with self._changed:
            self._changed.wait_for(lambda: self._begun < self._limit)
            self._begun += 1

    def observe(self, step: TwoPhaseStep, xid: Xid) -> None:
        """Hold the first transaction at *step*, if that was ordered. The coordinator calls it after each step."""
        if step.name not in self._steps:  # without the lock: a transaction that races with the order may be missed
            return
        with self._changed:
            if step.name in self._steps:
                self._steps.discard(step.name)
                orders = self._orders
                self._on_trapped(step, xid)
                self._changed.wait_for(lambda: self._orders != orders)


def send(connection: _Connection, coordinator: Coordinator, producer: Producer, invoice: Invoice) -> None:
    """Insert and send one invoice, in one transaction."""
    with coordinator.transaction(connection, producer, topics=TOPICS):
        connection.execute(INSERT_INVOICE, (invoice.number, invoice.dated, invoice.customer, invoice.country))
        with connection.cursor() as cursor:
            cursor.executemany(INSERT_LINE, [(invoice.number, at, *line) for at, line in enumerate(invoice.lines)])
        for message in line_messages(invoice):
            producer.send(LINES_TOPIC, encode(message), attribute=invoice.number)
        producer.send(INVOICES_TOPIC, encode(invoice_message(invoice)), attribute=invoice.number)


def send_all(
    dsn: str, coordinator: Coordinator, producer: Producer, todo: "queue.SimpleQueue[Invoice | None]", hold: Hold
) -> None:
    """Send the invoices of *todo* up to a None, each until it is committed. On one of the threads."""
    connection = psycopg.connect(dsn)
    try:
        while (invoice := todo.get()) is not None:
            hold.begin()
            for wait_s in waits_s():
                try:
                    send(connection, coordinator, producer, invoice)
                    break
                except (DecisionUnknown, HeuristicOutcome):
                    raise  # needs an operator
                except (MetaError, ZooKeeperError, psycopg.OperationalError) as error:
                    # Both sides are rolled back in any case: the invoice is in neither, so try again.
                    log.info("invoice rolled back number=%s error=%s", invoice.number, error)
                    child_lines.tell(child_lines.RolledBack())
                threading.Event().wait(wait_s)
                if connection.closed:
                    connection = psycopg.connect(dsn)
    finally:
        connection.close()


def recover(coordinator: Coordinator, dsn: str, client: Client) -> dict[str, str]:
    """Finish what the former process left, once every resource is reachable; return what was done, by transaction."""
    done: dict[str, str] = {}
    with psycopg.connect(dsn) as connection:
        for _, wait_s in zip(range(RECOVERY_ATTEMPTS), waits_s(), strict=False):
            try:
                reports = coordinator.recover([connection], [client.producer(QUALIFIER)])
            except Unreachable as error:
                log.info("recovery waits error=%s", error)
            else:
                done |= {it.xid.gtrid.decode(): it.action.name for it in reports if it.problem is None}
                if all(it.problem is None for it in reports):
                    return done
            threading.Event().wait(wait_s)
    raise MetaError(f"recovery is not done after {RECOVERY_ATTEMPTS} attempts: see the log above for what is away")


def work(start: child_lines.Begin, coordinator: Coordinator, client: Client, hold: Hold) -> None:
    """Send what the database lacks, on all threads. Raises the error that ended a thread early."""
    with psycopg.connect(start.dsn) as connection:
        done = {number for (number,) in connection.execute(INVOICE_NUMBERS)}
    todo: queue.SimpleQueue[Invoice | None] = queue.SimpleQueue()
    missing = [invoice for invoice in read_invoices(map(Path, start.orders)) if invoice.number not in done]
    for invoice in [*missing, *[None] * THREADS]:
        todo.put(invoice)
    with ThreadPoolExecutor(THREADS) as pool:
        sent = [
            pool.submit(send_all, start.dsn, coordinator, client.producer(QUALIFIER), todo, hold)
            for _ in range(THREADS)
        ]
    for thread in sent:
        thread.result()


def main() -> None:
    """Follow the environment's orders. Ends when all is sent, or by a signal."""
    start = child_lines.begun()
    hold = Hold(start.limit, lambda step, xid: child_lines.tell(child_lines.Trapped(step.name, xid.gtrid.decode())))
    with (
        Client(start.zookeeper) as client,
        Coordinator.open(start.decisions, QUALIFIER, observer=hold.observe) as coordinator,
    ):
        child_lines.tell(child_lines.RecoveryDone(recover(coordinator, start.dsn, client)))
        threading.Thread(target=child_lines.listen, args=(hold.obey,), name="orders", daemon=True).start()
        work(start, coordinator, client, hold)
        child_lines.tell(child_lines.Finished())


if __name__ == "__main__":
    main()
