"""What takes the event loop long for one client, and who has a turn in between."""

import threading
from pathlib import Path

import pytest

from meta_client.protocol.requests import Put, Request, Stats, TopicCommand, TopicVerb, Version
from tests.fixtures.broker import CONFIG, running_broker
from tests.fixtures.wire import WireClient

PARTITIONS, FLOOD = 1000, 600
MANY = CONFIG + f"\n[topics.many]\npartitions = {PARTITIONS}\n"


@pytest.mark.parametrize(
    "request_", [Stats("many", 7), TopicCommand(TopicVerb.SHOW, "many", (), 7)], ids=["stats", "topic show"]
)
def test_a_flood_of_what_looks_at_every_partition_leaves_others_their_turns(tmp_path: Path, request_: Request) -> None:
    with (
        running_broker(tmp_path / "broker", None, config=MANY) as broker,
        WireClient(broker.port) as flood,
        WireClient(broker.port) as client,
    ):
        client.send(*(Put("many", number, 0, None, None, number, b"x") for number in range(PARTITIONS)))
        for _ in range(PARTITIONS):
            client.receive()
        is_over = threading.Event()

        def take() -> None:
            for _ in range(FLOOD):
                assert flood.receive().opaque == 7
            is_over.set()

        taker = threading.Thread(target=take)
        flood.send(*[request_] * FLOOD)
        taker.start()
        turns = 0
        while not is_over.is_set():
            client.result(Version(1))
            turns += 1
        taker.join()
        assert turns > FLOOD / 10  # not as few as there are rounds of 128 requests
