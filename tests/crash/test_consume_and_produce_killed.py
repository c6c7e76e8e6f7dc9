"""A service that consumes, stores and produces in one block takes SIGKILL at random moments: offsets, rows and produced
messages agree exactly.

Each process is killed in the middle of its work, and the next one ends what it left prepared. METAQ_CRASH_ROUNDS rounds
(default 3); METAQ_CRASH_SEED repeats the choices of a run that failed, not its timing.
"""

import contextlib
import os
import time
from pathlib import Path
from random import Random

import pytest

from meta_client.client import Client
from meta_client.consumer.offset_stores.row_key import TABLE
from tests.crash.effects_child import GROUP, MADE, TOPIC
from tests.crash.effects_service import WAIT_S, Service, kill_all
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.reading import read_whole
from tests.fixtures.replicas import wait_until
from tests.meta_client.transactions.conftest import make
from zk.embedded.chroot import Chroot

ROUNDS = int(os.environ.get("METAQ_CRASH_ROUNDS", "3"))
MESSAGES_PER_ROUND = 600


DRIVERS = ["psycopg", "psycopg2", "pg8000", "pymysql"]
TASKS = ["tasks psycopg", "tasks asyncpg pool", "tasks asyncpg session"]


@pytest.mark.parametrize("style", [*(f"producing {driver}" for driver in DRIVERS), *TASKS])
def test_offsets_rows_and_messages_agree(
    request: pytest.FixtureRequest, broker: BrokerProcess, zookeeper: Chroot, tmp_path: Path, style: str
) -> None:
    seed = int(os.environ.get("METAQ_CRASH_SEED", str(time.time_ns() % 1_000_000)))
    print(f"METAQ_CRASH_SEED={seed}")
    random = Random(seed)
    deciding = make("mariadb" if style.endswith("pymysql") else "postgres", request)
    deciding.execute("CREATE TABLE effects (number int NOT NULL, place text NOT NULL)")
    qualifier = deciding.identity.name.qualifier
    services: list[Service] = []

    def start_service() -> Service:
        number = len(services)
        services.append(Service(zookeeper.connect, deciding.url, style, number, tmp_path / f"service-{number}.err"))
        return services[-1]

    with contextlib.ExitStack() as stack:
        client = stack.enter_context(Client(zookeeper.connect))
        stack.callback(kill_all, services)
        producer = client.producer()
        total = in_doubt = 0
        for _ in range(ROUNDS):
            for number in range(total + 1, total + MESSAGES_PER_ROUND + 1):
                producer.send_async(TOPIC, b"%d" % number)
            producer.flush()
            total += MESSAGES_PER_ROUND
            service = start_service()
            service.work(random.randrange(1, 9))
            time.sleep(random.random() * 0.06)
            service.kill()
            in_doubt += _prepared(client, qualifier)
            service.expire()
        start_service()
        wait_until(lambda: len(deciding.query("SELECT number FROM effects")) >= total, "all rows are there", WAIT_S)
        wait_until(lambda: not _prepared(client, qualifier), "nothing is prepared", WAIT_S)
        time.sleep(0.3)  # for what would be one too many
        made = sorted(int(message.payload) for message in read_whole(client, MADE, 2))
        ends = {str(message.partition): message.next_offset for message in read_whole(client, TOPIC, 4)}
    everything = list(range(1, total + 1))
    rows = [number for (number,) in deciding.query("SELECT number FROM effects ORDER BY number")]
    kept = deciding.query(f"SELECT * FROM {TABLE}")
    offsets = {partition: offset for topic, partition, group, offset, _ in kept if (topic, group) == (TOPIC, GROUP)}
    hazards = deciding.query("SELECT gtrid FROM metaq_decision WHERE hazard IS NOT NULL")
    assert rows == everything, f"METAQ_CRASH_SEED={seed}"
    assert made == everything, f"METAQ_CRASH_SEED={seed}"
    assert offsets == ends
    assert hazards == []
    print(f"{ROUNDS} rounds, {total} messages, rows and messages; prepared when a process was killed: {in_doubt}")


def _prepared(client: Client, qualifier: str) -> int:
    listing = client.producer(qualifier).tpc_list()
    assert not listing.failures
    return sum(map(len, listing.keys.values()))
