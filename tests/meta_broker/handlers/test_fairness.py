"""Requests that occupy the event loop for long, and the turns other clients get in between."""

import threading
from pathlib import Path

import pytest

from journal.records.xid import XaKey, Xid
from meta_client.protocol.requests import (
    Put,
    Request,
    Stats,
    TopicCommand,
    TopicVerb,
    TransactionCommand,
    TransactionVerb,
    Version,
)
from tests.fixtures.broker import CONFIG, running_broker
from tests.fixtures.wire import WireClient

PARTITIONS, BRANCHES, FLOOD = 1000, 10_000, 600
MANY = CONFIG + f"\n[topics.many]\npartitions = {PARTITIONS}\n"


@pytest.mark.parametrize(
    "request_",
    [
        Stats("many", 7),
        TopicCommand(TopicVerb.SHOW, "many", (), 7),
        TransactionCommand(None, "s", TransactionVerb.RECOVER, None, "nobody", 7),
    ],
    ids=["stats", "topic show", "recover"],
)
def test_a_flood_of_what_looks_at_everything_leaves_others_their_turns(tmp_path: Path, request_: Request) -> None:
    with (
        running_broker(tmp_path / "broker", None, config=MANY) as broker,
        WireClient(broker.port) as flood,
        WireClient(broker.port) as client,
    ):
        client.send(*(Put("many", number, 0, None, None, number, b"x") for number in range(PARTITIONS)))
        keys = [XaKey(Xid.of(f"{number}", ""), "uq") for number in range(BRANCHES)]
        client.send(*(TransactionCommand(key, "s", TransactionVerb.BEGIN, 600, "uq", 1) for key in keys))
        for _ in range(PARTITIONS + BRANCHES):
            client.receive()
        # Not as few as there are rounds of 128 requests. Where the test stalls, the next flood tells.
        assert any(turns_during(flood, request_, client) > FLOOD / 10 for _ in range(5))


def turns_during(flood: WireClient, request: Request, client: WireClient) -> int:
    """Return how many requests of *client* are answered while FLOOD of another one are."""
    is_over = threading.Event()

    def take() -> None:
        for _ in range(FLOOD):
            assert flood.receive().opaque == 7
        is_over.set()

    taker = threading.Thread(target=take)
    flood.send(*[request] * FLOOD)
    taker.start()
    turns = 0
    while not is_over.is_set():
        client.result(Version(1))
        turns += 1
    taker.join()
    return turns
