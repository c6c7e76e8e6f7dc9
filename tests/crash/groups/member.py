"""A consumer as a process of its own. It writes down what it is handed, so that a kill loses none of it.

    python -m tests.crash.groups.member CONNECT GROUP TOPIC NAME SESSION_MS LOG

SIGTERM: it closes its consumer and ends. Lines of LOG, with times of a clock that all processes share and that goes
on while one is stopped: `B time partition offset next_offset epoch numbers` when a batch is handed over, and
`E time partition next_offset` when the listener is done with it.
"""

import logging
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.messages.batch import Batch
from zk.session.lease import now

COMMIT_S = 0.5


def main(connect: str, group: str, topic: str, name: str, session_ms: str, log: str) -> None:
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: ended.set())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    file = os.open(Path(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    config = ConsumerConfig(consumer_id=name, runners=2, backoff_s_max=0.2, commit_period_s=COMMIT_S)
    with Client(connect, session_timeout_ms=int(session_ms)) as client:
        consumer = client.consumer(group, config=config)

        def on_batch(batch: Batch) -> None:
            began = now()
            owned = consumer._fetcher.assignments.get((batch.topic, batch.partition))
            epoch = -1 if owned is None else owned.epoch  # -1: it was taken away in this very moment
            numbers = ",".join(message.payload.decode() for message in batch.messages)
            os.write(
                file, f"B {began} {batch.partition} {batch.offset} {batch.next_offset} {epoch} {numbers}\n".encode()
            )
            time.sleep(random.uniform(0, 0.004))
            os.write(file, f"E {now()} {batch.partition} {batch.next_offset}\n".encode())

        consumer.subscribe(topic, on_batch)
        consumer.start()
        while not ended.wait(1.0):
            pass  # a signal is handled between two instructions of this thread


if __name__ == "__main__":
    main(*sys.argv[1:])
