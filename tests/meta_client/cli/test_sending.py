"""`metaq produce` and a ^C at each moment of a message's sending."""

import threading
from functools import partial
from typing import cast

import pytest

from meta_broker.testing.memory.cluster import MemoryCluster
from meta_client.cli import sending as module
from meta_client.cli.inputs import Item
from meta_client.cli.sending import Sending, Stopped
from meta_client.errors import ReplyTimeout
from meta_client.producer.producer import Producer
from meta_client.producer.results import SendResult
from tests.fixtures.interrupts import interrupted
from zk.tree.nodes import Partition

STORED = SendResult(1, Partition(0, 0), 0)


class Acknowledged:
    """A producer, and the handle of each of its messages: what it is given is stored."""

    def send_async(self, *message: object) -> "Acknowledged":
        return self

    def result(self, timeout_s: float) -> SendResult:
        return STORED


def test_a_message_that_is_interrupted_does_not_keep_the_command_from_ending() -> None:
    for nth in range(1000):
        sending = Sending(cast(Producer, Acknowledged()), "orders", None, 1.0, lambda item, told: None)
        item = Item(b"payload", None, "file", 1)
        is_interrupted = interrupted(nth, partial(sending.send, item))
        ended = threading.Event()

        def stop(sending: Sending = sending, ended: threading.Event = ended) -> None:
            with pytest.raises(Stopped, match="interrupted"):
                sending.stop("interrupted")
            ended.set()

        threading.Thread(target=stop, daemon=True).start()
        assert ended.wait(60), nth
        assert sending.stored == 1 or is_interrupted
        if not is_interrupted:
            break
    assert 0 < nth < 999


def test_a_message_that_is_on_its_way_at_the_end_is_neither_stored_nor_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLE_S", 0.05)
    told: list[object] = []
    with MemoryCluster({"orders": 1}) as cluster:
        producer = cluster.client().producer()
        producer.send("orders", b"known")
        cluster.kill()
        sending = Sending(producer, "orders", Partition(0, 0), 0.0, lambda item, result: told.append(result))
        for line in (1, 2):
            sending.send(Item(b"payload", None, "file", line))
        with pytest.raises(
            Stopped, match=r"stopped after 0 messages, which are stored; 2 more may be stored or not.*: file, line 1: "
        ):
            sending.stop(None)
        assert [type(it) for it in told] == [ReplyTimeout, ReplyTimeout]
        cluster.start()
