"""The command line against a broker that has nothing but the ancestor's verbs: what works, and what is said of the
rest.
"""

import json
from pathlib import Path

import pytest

from journal.records.xid import XaKey, Xid
from meta_client.client import Client
from meta_client.consumer.offsets import OffsetEntry, ZooKeeperOffsetStore
from meta_client.protocol.messages import encode_frame
from meta_client.protocol.requests import Get, OffsetQuery, Put, Request, TransactionCommand, Version
from tests.meta_client.cli.conftest import Metaq
from tests.meta_client.conftest import StartBroker
from tests.meta_client.peer import opaque_of
from zk.tree.nodes import Partition

A = Partition(0, 0)
IN_DOUBT = XaKey(Xid.of("in", "doubt"), "java")
SEGMENT = 3  # messages of a segment file: the ancestor's `offset` answers with the start of one


class Genuine:
    """One partition as the ancestor serves it (spec 1.5, 4.9)."""

    def __init__(self, count: int) -> None:
        self.frames = [encode_frame(number, 0, b"%d" % number) for number in range(count)]

    @property
    def starts(self) -> list[int]:
        return [sum(map(len, self.frames[:number])) for number in range(len(self.frames) + 1)]

    def __call__(self, request: Request) -> bytes:
        data = b"".join(self.frames)
        match request:
            case Version():
                return result(request, 200, b"1.4.6.2")
            case Put():
                self.frames.append(encode_frame(len(self.frames), 0, request.body))
                return result(request, 200, b"%d %d %d" % (len(self.frames), 0, len(data)))
            case Get() if not 0 <= request.offset <= len(data):
                return result(request, 301, b"%d" % len(data))
            case Get():
                body = data[request.offset : request.offset + request.bytes_max]
                return b"value %d %d\r\n%b" % (len(body), request.opaque, body) if body else result(request, 404)
            case OffsetQuery():
                places = [*self.starts[:-1:SEGMENT], len(data)]
                return result(request, 200, b"%d" % max(place for place in places if place <= max(0, request.offset)))
            case TransactionCommand():
                return result(request, 200, str(IN_DOUBT).encode())
        return result(request, 400, b"Bad request")


def result(request: Request, status: int, text: bytes = b"") -> bytes:
    return b"result %d %d %d\r\n%b" % (status, len(text), opaque_of(request), text)


def test_groups(metaq: Metaq, client: Client, start_broker: StartBroker) -> None:
    broker = Genuine(10)
    start_broker(0, {"orders": 1}, broker)
    store = ZooKeeperOffsetStore(client.session, "billing")
    starts = broker.starts
    store.commit([OffsetEntry("orders", A, starts[7])])
    _, listed, _ = metaq("groups", "describe", "billing", "--json")
    expected = f'"offset": {starts[7]}, "end": {starts[10]}, "lag": {starts[10] - starts[7]}, '
    assert expected + '"messages": null, "seconds": null' in listed
    for words, number in [
        (["--to", "-5"], 2),
        (["--to", "+2"], 4),
        (["--to", str(starts[8])], 8),
        (["--to", "earliest"], 0),
        (["--to", "latest"], 10),
    ]:
        assert metaq("groups", "reset", "billing", *words, "--yes")[0] == 0
        assert store.load("orders", A) == starts[number], words
    for number in (8, 9):  # the last
        status, _, said = metaq("groups", "reset", "billing", "--to", str(starts[number] + 3), "--yes")
        assert (status, f"{starts[number]} is where that begins" in said) == (2, True)
    status, _, said = metaq("groups", "reset", "billing", "--to", "2010-12-05T10:00", "--yes")
    assert (status, said) == (2, "error: the broker of orders/0-0 knows nothing of times: it is no metaq broker\n")
    assert store.load("orders", A) == starts[10]


def test_messages(metaq: Metaq, start_broker: StartBroker, tmp_path: Path) -> None:
    broker = Genuine(5)
    start_broker(0, {"orders": 1}, broker)
    (tmp_path / "lines").write_text("5\n")
    status, _, said = metaq("produce", "orders", "--attribute", "a", str(tmp_path / "lines"))
    assert (status, said.startswith("sent 1 messages to orders")) == (0, True)
    here = ["consume", "orders", "--partition", "0-0"]
    template = ["--format", r"{payload}{time} "]
    starts = broker.starts
    assert metaq(*here, "--from", str(starts[2]), "--until", str(starts[4]), *template) == (0, "2 3 ", "")
    assert metaq(*here, "--count", "2", *template) == (0, "0 1 ", "")
    status, _, said = metaq(*here, "--from", "2010-12-05T10:00")
    assert (status, said) == (2, "error: the broker of orders/0-0 knows nothing of times: it is no metaq broker\n")


def test_what_only_a_metaq_broker_knows(metaq: Metaq, start_broker: StartBroker) -> None:
    """Offsets of times, changes of topics, reports on branches."""
    broker = Genuine(5)
    url = start_broker(0, {"orders": 1}, broker).peer.url
    status, listed, said = metaq("offsets", "orders", "--at", "2010-12-05T10:00", "--json")
    row = {"partition": "0-0", "start": 0, "end": broker.starts[5], "at": None}
    assert (status, json.loads(listed)) == (0, row)
    assert said == "warning: the brokers of 0-0 know nothing of times: they are no metaq brokers\n"
    status, listed, said = metaq("topics", "close", "orders", "0")
    assert (status, listed) == (1, "")
    assert said == f"error: broker 0: {url} does not know `topic`: change its configuration file and reload it\n"
    status, listed, _ = metaq("txn", "list", "--json")
    row = json.loads(listed)
    assert (status, row["key"], row["state"], row["messages"]) == (0, str(IN_DOUBT), "prepared", None)
    status, _, said = metaq("txn", "show", str(IN_DOUBT))
    assert (status, "broker 0 can't be asked about a branch: it is no metaq broker" in said) == (2, True)


def test_a_group_that_begins_at_a_time_begins_at_the_beginning(
    metaq: Metaq, start_broker: StartBroker, caplog: pytest.LogCaptureFixture
) -> None:
    start_broker(0, {"orders": 1}, Genuine(3))
    words = ["--group", "g", "--from", "2010-12-05T10:00", "--count", "3", "--format", "{payload} "]
    assert metaq("consume", "orders", *words)[:2] == (0, "0 1 2 ")
    assert "the broker knows nothing of times, reading from the beginning group=g partition=orders/0-0" in caplog.text
