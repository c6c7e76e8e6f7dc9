"""A service that keeps its offsets in its own database transactions takes SIGKILL and SIGSTOP: every message has
exactly one row.

A round kills a process in the middle of its work, or stops it, has another one take over, lets it go on, and kills it
then: it held a row's lock, and finds that its batch was done, or does it. METAQ_CRASH_ROUNDS rounds (default 4);
METAQ_CRASH_SEED repeats the choices of a run that failed, not its timing.
"""

import contextlib
import os
import time
from pathlib import Path
from random import Random

from meta_client.client import Client
from tests.crash.effects_child import TOPIC
from tests.crash.effects_service import WAIT_S, Service, kill_all
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.postgres import Database
from zk.embedded.chroot import Chroot

ROUNDS = int(os.environ.get("METAQ_CRASH_ROUNDS", "4"))
MESSAGES_PER_ROUND = 1200
OUT_OF_ORDER = """
SELECT count(*) FROM (SELECT number - lag(number) OVER (PARTITION BY place ORDER BY id) AS step FROM effects) AS steps
WHERE step <= 0
"""
STYLES = ("dbapi", "session")


def test_every_message_has_one_row(
    broker: BrokerProcess, zookeeper: Chroot, database: Database, tmp_path: Path
) -> None:
    seed = int(os.environ.get("METAQ_CRASH_SEED", str(time.time_ns() % 1_000_000)))
    print(f"METAQ_CRASH_SEED={seed}")
    random = Random(seed)
    with database.connect() as connection:
        connection.execute("CREATE TABLE effects (id bigserial PRIMARY KEY, number int NOT NULL, place text NOT NULL)")
    total = repeated = 0
    services: list[Service] = []

    def start_service() -> Service:
        services.append(
            Service(
                zookeeper.connect,
                database.dsn,
                STYLES[len(services) % 2],
                len(services),
                tmp_path / f"service-{len(services)}.err",
            )
        )
        return services[-1]

    with contextlib.ExitStack() as stack:
        client = stack.enter_context(Client(zookeeper.connect))
        stack.callback(kill_all, services)
        producer = client.producer()
        old: Service | None = None
        for number in range(ROUNDS):
            for sent in range(total + 1, total + MESSAGES_PER_ROUND + 1):
                producer.send_async(TOPIC, b"%d" % sent)
            producer.flush()
            total += MESSAGES_PER_ROUND
            service = start_service()
            if old is not None:
                time.sleep(random.random() * 0.5)  # it may hold the locks of all partitions: nobody gets on then
                old.go_on()
                time.sleep(random.random() * 0.05)
                old.kill()
                old = None
            service.work(random.randrange(1, 20))
            time.sleep(random.random() * 0.02)
            if number % 2 and number < ROUNDS - 1:
                service.stop()
                service.expire()
                old = service
            else:
                service.kill()
                service.expire()
            repeated += service.repeated
        start_service()
        deadline = time.monotonic() + WAIT_S
        while database.value("SELECT count(*) FROM effects") < total and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.3)  # for what would be one too many
    rows = "SELECT count(*) FROM effects"
    assert database.value(rows) == total, f"METAQ_CRASH_SEED={seed}"
    assert database.value("SELECT count(DISTINCT number) FROM effects") == total
    assert database.value("SELECT min(number) FROM effects") == 1
    assert database.value("SELECT max(number) FROM effects") == total
    assert database.value(OUT_OF_ORDER) == 0, "in each partition's order"
    print(f"{ROUNDS} rounds, {total} messages, {total} rows, delivered again and passed over: {repeated}")
