"""The command line against a broker that has nothing but the ancestor's verbs: what works, and what is said of the
rest.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from meta_client.cli.main import main
from meta_client.client import Client
from meta_client.consumer.offsets import OffsetEntry, ZooKeeperOffsetStore
from meta_client.protocol.messages import encode_frame
from meta_client.protocol.requests import Get, OffsetQuery, Put, Request, Version
from tests.meta_client.conftest import StartBroker
from tests.meta_client.peer import opaque_of
from zk.embedded.chroot import Chroot
from zk.tree.nodes import Partition

A = Partition(0, 0)
SEGMENT = 3  # messages of a segment file: the ancestor's `offset` answers with the start of one

Metaq = Callable[..., tuple[int, str, str]]


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
        return result(request, 400, b"Bad request")


def result(request: Request, status: int, text: bytes = b"") -> bytes:
    return b"result %d %d %d\r\n%b" % (status, len(text), opaque_of(request), text)


@pytest.fixture
def metaq(zookeeper: Chroot, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Metaq:
    """Run `metaq` in this process. Returns status, output and errors."""

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["metaq", *words, "--zk", zookeeper.connect])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capsys.readouterr()

    return run


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
    status, _, said = metaq("groups", "reset", "billing", "--to", str(starts[8] + 3), "--yes")
    assert (status, f"{starts[8]} is where that begins" in said) == (2, True)
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
