"""A program that works on one transaction and kills itself, with SIGKILL, at a given step. Run by test_recovery."""

import os
import signal
from pathlib import Path

import psycopg

from journal.records.xid import Xid
from meta_client import Client
from meta_client.coordinator import Coordinator, TwoPhaseStep


def main(dsn: str, zookeeper: str, directory: str, number: str, step_name: str) -> None:
    def observe(step: TwoPhaseStep, xid: Xid) -> None:
        if step.name == step_name:
            os.kill(os.getpid(), signal.SIGKILL)

    with (
        Client(zookeeper) as client,
        psycopg.connect(dsn) as connection,
        Coordinator.open(Path(directory), "shop", observer=observe) as coordinator,
    ):
        producer = client.producer("shop")
        with coordinator.transaction(connection, producer, topics=("orders",)):
            connection.execute("INSERT INTO numbers VALUES (%s)", (int(number),))
            producer.send("orders", number.encode())
