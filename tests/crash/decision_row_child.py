"""A service of many threads that writes rows and messages, until it is killed. Its transactions are numbered by lives.

Some requests fail in the middle, some take their time between PREPARE and COMMIT, some lose their patience.
"""

import random
import sys
import threading
import time

import psycopg

from meta_client import Client, SendFailed, TransactionConfig
from meta_client.coordinator import CoordinatorError
from meta_client.transactions import Step

THREADS = 8
BASE = 1_000_000  # numbers of a life; of a thread in it, a hundredth


class _Cancelled(Exception):
    pass


def main(dsn: str, zookeeper: str, life: str) -> None:
    chance = random.Random(int(life))

    def observe(step: Step, gtrid: str) -> None:
        if step is Step.PREPARED and chance.random() < 0.02:
            time.sleep(chance.uniform(0.0, 1.5))  # resolvers look after half a second
        if step in (Step.PREPARED, Step.RECORDED) and chance.random() < 0.02:
            raise _Cancelled

    config = TransactionConfig(observer=observe, age_s=0.5, interval_s=0.2)
    with Client(zookeeper, transactions=config) as client:
        threads = [
            threading.Thread(target=work, args=(client, dsn, int(life) * BASE + number * BASE // 100), daemon=True)
            for number in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        print("works", flush=True)
        for thread in threads:
            thread.join()


def work(client: Client, dsn: str, first: int) -> None:
    chance, number = random.Random(first), first
    connection: psycopg.Connection | None = None
    while True:
        number += 1
        try:
            if connection is None or connection.closed:
                connection = psycopg.connect(dsn, connect_timeout=5)
            with client.transaction(connection, wait=chance.random() < 0.2) as transaction:
                connection.execute("INSERT INTO numbers VALUES (%s)", (number,))
                transaction.send("orders", str(number).encode())
                if number % 3 == 0:
                    transaction.send("bills", str(number).encode())
                if chance.random() < 0.05:
                    raise _Cancelled
        except _Cancelled:
            continue
        except (psycopg.Error, CoordinatorError, SendFailed):
            time.sleep(0.05)  # somebody is down


if __name__ == "__main__":
    main(*sys.argv[1:])
