"""A consumer as a process of its own. It writes down what it is handed, so that a kill loses none of it.

    python -m tests.crash.groups.member CONNECT GROUP TOPIC NAME SESSION_MS LOG [STYLE SEED DATABASE]

SIGTERM: it closes its consumer and ends. LOG: see `notes`. With a SEED it has habits, and SIGUSR1 ends its session at
the server; STYLE is one of `styles`. DATABASE is a URL: offsets are stored there, not in ZooKeeper.
"""

import asyncio
import logging
import signal
import sys
import threading
from pathlib import Path
from random import Random

import meta_client.aio
from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.offset_stores import SqlOffsetStore
from tests.crash.groups.habits import Habits
from tests.crash.groups.notes import Notes
from tests.crash.groups.styles import STYLES, TASK_STYLES, Setup
from tests.fixtures.expiry import expire_session
from zk.errors import ZooKeeperError

COMMIT_S = 0.5
AGAIN_S = 0.2


def main(
    connect: str,
    group: str,
    topic: str,
    name: str,
    session_ms: str,
    log: str,
    style: str = "batches",
    seed: str = "",
    database: str = "",
) -> None:
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: ended.set())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    notes = Notes(Path(log))
    logging.getLogger().addHandler(notes)
    config = ConsumerConfig(
        consumer_id=name,
        runners=2,
        backoff_s_max=0.2,
        commit_period_s=COMMIT_S,
        fetch_wait_s=1.0 if seed else 15.0,
        fetch_timeout_s=2.0 if seed else 10.0,
        dead_letter_directory=Path(log).with_suffix(".dead") if seed else None,
        redelivery_period_s=3.0,
        duplicates_max=1000 if seed and Random(seed).random() < 0.3 else 0,
    )
    store = SqlOffsetStore(database, group) if database else None
    setup = Setup(group, topic, store, config, Habits(seed, notes, topic), ended)

    def expire(client: Client | meta_client.aio.Client) -> None:
        signal.signal(
            signal.SIGUSR1,
            lambda number, frame: threading.Thread(target=expire_session, args=[client.session], daemon=True).start(),
        )

    async def consume_in_tasks() -> None:
        async with meta_client.aio.Client(connect, session_timeout_ms=int(session_ms)) as client:
            expire(client)
            await TASK_STYLES[style](client, setup)

    while not ended.is_set():
        try:
            if style in TASK_STYLES:
                asyncio.run(consume_in_tasks())
            else:
                with Client(connect, session_timeout_ms=int(session_ms)) as client:
                    expire(client)
                    STYLES[style](client, setup)
        except ZooKeeperError:  # of a start while ZooKeeper is away: start again, as a service manager does
            ended.wait(AGAIN_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
