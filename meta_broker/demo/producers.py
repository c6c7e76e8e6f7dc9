"""The producer process: four threads, an invoice at a time, each one transaction over database and broker.

Code as a user of metaq would write it, except Hold. Started again after a crash, it recovers, asks the database which
invoices are done, and sends the others: enough, because an invoice is in both or in neither.
"""

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from journal.records.xid import Xid
from meta_broker.demo.orders import (
    INVOICES_TOPIC,
    LINES_TOPIC,
    Invoice,
    encode,
    invoice_message,
    line_messages,
    read_invoices,
)
from meta_broker.demo.schema import INSERT_INVOICE, INSERT_LINE, INVOICE_NUMBERS
from meta_client import Client
from meta_client.coordinator import Coordinator, DecisionUnknown, HeuristicOutcome, TwoPhaseStep
from meta_client.coordinator.errors import Unreachable
from meta_client.coordinator.phase_two import waits_s
from meta_client.coordinator.recovery import Action
from meta_client.producer.producer import Producer
from meta_client.protocol.errors import MetaError
from zk.errors import ZooKeeperError

THREADS = 4
QUALIFIER = "shop"
TOPICS = (LINES_TOPIC, INVOICES_TOPIC)

log = logging.getLogger(__name__)


class Shop(NamedTuple):
    """Facts that the producers need. *decisions* is the directory of the coordinator's log."""

    dsn: str
    zookeeper: str
    orders: list[Path]
    decisions: Path
    log: Path


class Work(NamedTuple):
    """Order: begin up to *limit* invoices, counted from the start; hold the next transaction that reaches each of
    *steps*, until the next Work."""

    limit: int
    steps: frozenset[TwoPhaseStep] = frozenset()


@dataclass(frozen=True, slots=True)
class RecoveryDone:
    """Event: recovery is done, by transaction; work begins."""

    actions: dict[str, Action]


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Event: an attempt was rolled back."""


@dataclass(frozen=True, slots=True)
class Trapped:
    """Event: a transaction is held at *step*."""

    step: TwoPhaseStep
    transaction: str


@dataclass(frozen=True, slots=True)
class Finished:
    """Event: every invoice is committed."""


ProducerEvent = RecoveryDone | RolledBack | Trapped | Finished


def log_to(path: Path) -> None:
    logging.basicConfig(
        filename=path, level=logging.INFO, format="%(asctime)s %(levelname)s %(threadName)s %(name)s %(message)s"
    )
    logging.getLogger("kazoo").setLevel(logging.WARNING)


class Hold:
    """Holds the threads for a kill: all of them at a number of invoices, or one transaction at a step. Any thread.

    *tell* is called on the held thread, before it waits.
    """

    def __init__(self, limit: int, tell: Callable[[ProducerEvent], None]) -> None:
        self.tell = tell
        self._changed = threading.Condition()  # guards the rest
        self._limit, self._begun = limit, 0
        self._steps: set[TwoPhaseStep] = set()
        self._orders = 0

    def obey(self, order: Work) -> None:
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
        if step not in self._steps:  # without the lock: a transaction that races with the order may be missed
            return
        with self._changed:
            if step in self._steps:
                self._steps.discard(step)
                orders = self._orders
                self.tell(Trapped(step, xid.gtrid.decode()))
                self._changed.wait_for(lambda: self._orders != orders)


def send(connection: psycopg.Connection[Any], coordinator: Coordinator, producer: Producer, invoice: Invoice) -> None:
    """Insert and send one invoice, in one transaction."""
    with coordinator.transaction(connection, producer, topics=TOPICS):
        connection.execute(INSERT_INVOICE, (invoice.number, invoice.dated, invoice.customer, invoice.country))
        with connection.cursor() as cursor:
            cursor.executemany(INSERT_LINE, [(invoice.number, at, *line) for at, line in enumerate(invoice.lines)])
        for message in line_messages(invoice):
            producer.send(LINES_TOPIC, encode(message), attribute=invoice.number)
        producer.send(INVOICES_TOPIC, encode(invoice_message(invoice)), attribute=invoice.number)


def send_all(dsn: str, coordinator: Coordinator, producer: Producer, todo: Iterator[Invoice], hold: Hold) -> None:
    """Send invoices of *todo*, which the threads share, each until it is committed."""
    connection = psycopg.connect(dsn)
    try:
        for invoice in todo:
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
                    hold.tell(RolledBack())
                threading.Event().wait(wait_s)
                if connection.closed:
                    connection = psycopg.connect(dsn)
    finally:
        connection.close()


def recover(coordinator: Coordinator, dsn: str, client: Client) -> dict[str, Action]:
    """Finish what the former process left, once every resource is reachable; return what was done, by transaction."""
    done: dict[str, Action] = {}
    with psycopg.connect(dsn) as connection:
        for wait_s in waits_s():
            try:
                reports = coordinator.recover([connection], [client.producer(QUALIFIER)])
            except Unreachable as error:
                log.info("recovery waits error=%s", error)  # a broker may still be starting
            else:
                done |= {it.xid.gtrid.decode(): it.action for it in reports if it.problem is None}
                if all(it.problem is None for it in reports):
                    break
            threading.Event().wait(wait_s)
    return done


def work(shop: Shop, coordinator: Coordinator, client: Client, hold: Hold) -> None:
    """Send what the database lacks, on all threads. Raises the error that ended a thread early."""
    with psycopg.connect(shop.dsn) as connection:
        done = {number for (number,) in connection.execute(INVOICE_NUMBERS)}
    todo = iter([invoice for invoice in read_invoices(shop.orders) if invoice.number not in done])
    with ThreadPoolExecutor(THREADS) as pool:
        sent = [
            pool.submit(send_all, shop.dsn, coordinator, client.producer(QUALIFIER), todo, hold) for _ in range(THREADS)
        ]
    for thread in sent:
        thread.result()


def main(pipe: Connection, shop: Shop, limit: int) -> None:
    """Send every invoice, up to *limit* until more Work comes over *pipe*. Ends then, with the demo, or by a signal."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is for the demo, which ends this process
    with shop.log.open("ab") as log_file:
        os.dup2(log_file.fileno(), 1)
        os.dup2(log_file.fileno(), 2)
    log_to(shop.log)
    telling = threading.Lock()

    def tell(event: ProducerEvent) -> None:
        with telling:
            pipe.send(event)

    hold = Hold(limit, tell)
    threading.Thread(target=_obey, args=(pipe, hold), name="orders", daemon=True).start()
    with (
        Client(shop.zookeeper) as client,
        Coordinator.open(shop.decisions, QUALIFIER, observer=hold.observe) as coordinator,
    ):
        tell(RecoveryDone(recover(coordinator, shop.dsn, client)))
        work(shop, coordinator, client, hold)
        tell(Finished())


def _obey(pipe: Connection, hold: Hold) -> None:
    """Follow the demo's orders, and end this process with it."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            hold.obey(pipe.recv())
    os._exit(1)
