"""A program that works on one transaction and kills itself, with SIGKILL, at a given step. Run by test_crashes."""

import os
import signal
import sys

from meta_client import Client
from meta_client.transactions import Step, TransactionConfig


def main(driver: str, place: str, zookeeper: str, number: str, step_name: str) -> None:
    def observe(step: Step, gtrid: str) -> None:
        if step.name == step_name:
            os.kill(os.getpid(), signal.SIGKILL)

    import importlib

    config = TransactionConfig(observer=observe)
    connection = importlib.import_module(driver).connect(place)
    with Client(zookeeper, transactions=config) as client, client.transaction(connection) as transaction:
        connection.execute(f"INSERT INTO numbers VALUES ({number})")
        transaction.send("orders", number.encode()).result()
        if step_name == "BODY":
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
